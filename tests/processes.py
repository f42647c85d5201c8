"""Programs that run to their end, and waiting for what other processes and threads bring about."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

T = TypeVar("T")


def run_program(words: Sequence[object], **options: Any) -> subprocess.CompletedProcess[str]:
    """Run a program to its end, some minutes at most, and keep what it says."""
    given = {"capture_output": True, "text": True, "timeout": 1800, "check": False, **options}
    return subprocess.run([str(word) for word in words], **given)


def until(
    what: Callable[[], T],
    said: str = "it",
    seconds: float = 600.0,
    *,
    by: subprocess.Popen[Any] | None = None,
    pause: float = 0.1,
) -> T:
    """Return what comes once it is true; a test fails where it does not, or the process `by` ends before."""
    deadline = time.monotonic() + seconds
    while not (found := what()):
        assert by is None or by.poll() is None, f"{said} did not come: {by.communicate()}"
        assert time.monotonic() < deadline, f"{said} did not come within {seconds:g} s"
        time.sleep(pause)
    return found
