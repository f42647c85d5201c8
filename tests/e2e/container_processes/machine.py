"""A machine of its own for the commands of a page: namespaces, programs that stand in, and images."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from PIL import Image
from sklearn.datasets import load_digits

from tests.e2e.container_processes.roots import ROOT

NAMESPACES = (
    "--net",
    "--mount",
    "--propagation",
    "private",
    "--pid",
    "--fork",
    "--kill-child",
    "--mount-proc",
)


def machine(parent: Path, stand_in: ModuleType) -> Path:
    """Return a new folder with the program that stands in and images of digits; skip where none can work."""
    if os.getuid() != 0:
        pytest.skip("namespaces and mounts need root")
    if not list(Path("/usr/lib/postgresql").glob("*/bin/initdb")):
        pytest.skip("no PostgreSQL: apt-get install postgresql")
    name = stand_in.__name__.rpartition(".")[2]
    folder = parent / name
    wrapper = folder / "bin" / name
    wrapper.parent.mkdir(parents=True)
    code = (
        f"import runpy, sys; sys.path.insert(0, {str(ROOT)!r});"
        f' runpy.run_module({stand_in.__name__!r}, run_name="__main__", alter_sys=True)'
    )
    wrapper.write_text(
        f'#!/bin/sh\nexec {sys.executable} -c "{code.replace(chr(34), chr(39))}" {folder} "$@"\n'
    )
    wrapper.chmod(0o755)
    X, y = load_digits(return_X_y=True)
    for number in range(300):
        place = folder / "images" / str(y[number]) / f"{number}.png"
        place.parent.mkdir(parents=True, exist_ok=True)
        pixels = (15 * X[number].reshape(8, 8)).astype(np.uint8)
        Image.fromarray(pixels).resize((64, 64)).save(place)
    return folder


def given(folder: Path, script: str) -> subprocess.CompletedProcess[str]:
    """Run a script in namespaces that end with it, and all processes inside with them."""
    path = f"{folder / 'bin'}:{Path(sys.executable).parent}:/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin"
    environ = {"PATH": path, "HOME": str(folder), "LANG": "C.UTF-8"}
    if "PYTHONPATH" in os.environ:
        environ["PYTHONPATH"] = os.environ["PYTHONPATH"]
    return subprocess.run(
        ["unshare", *NAMESPACES, "bash", "-euo", "pipefail", "-c", f"ip link set lo up\n{script}"],
        cwd=folder, env=environ, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=1500,
    )  # fmt: skip


def refused(command: str) -> str:
    """Return the lines that end a script where a command succeeds; `!` before it would not."""
    return f"if {command} 2>/dev/null; then echo 'it was not refused' >&2; false; fi"


def logs(folder: Path) -> str:
    """Return the ends of what all processes said."""
    return "\n".join(
        f"--- {log.name}\n{log.read_text(errors='replace')[-2500:]}" for log in folder.glob("*.log")
    )
