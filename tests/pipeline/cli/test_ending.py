"""How the process of a command ends where a library of it aborts after all work is done."""

from __future__ import annotations

import subprocess
import sys

import pytest

# An object that aborts the process when the interpreter lets go of it, as ONNX Runtime's own do now and then.
ABORTING = """
import os, sys, types
class Aborts:
    def __del__(self, abort=os.abort):
        abort()
sys.kept = Aborts()
if sys.argv.pop(1) == "loaded":
    sys.modules["onnxruntime"] = types.ModuleType("onnxruntime")
from topline.pipeline.cli import main
main()
"""


@pytest.mark.parametrize(("words", "code"), [(["--version"], 0), (["fsck", "nowhere-at-all"], 2)])
def test_a_command_ends_with_its_own_code(words: list[str], code: int) -> None:
    ran = subprocess.run(
        [sys.executable, "-c", ABORTING, "loaded", *words], capture_output=True, text=True, check=False
    )
    assert ran.returncode == code, ran.stderr
    assert ("topline" in ran.stdout) == (code == 0)
    assert ("nowhere-at-all" in ran.stderr) == (code == 2)


def test_without_the_library_nothing_is_cut_short() -> None:
    """The check above would pass on anything if the object did not abort."""
    ran = subprocess.run(
        [sys.executable, "-c", ABORTING, "absent", "--version"], capture_output=True, check=False
    )
    assert ran.returncode == -6
