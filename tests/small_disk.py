"""A file system that is soon full, for tests of what happens then."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


@contextmanager
def small_disk(folder: Path, megabytes: int) -> Iterator[Path]:
    """Mount a file system of that size on `folder`, which is made; skip the test where that is refused."""
    folder.mkdir()
    kind = ["-t", "tmpfs", "-o", f"size={megabytes}m", "tmpfs"]
    mounted = subprocess.run(["mount", *kind, str(folder)], capture_output=True, text=True)
    if mounted.returncode:
        pytest.skip(f"mounting takes root, or pytest under `unshare -rm`: {mounted.stderr.strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", str(folder)], check=True)
