"""How the process of a command ends where a library of it aborts after all work is done."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.pipeline.small_data import small_dataset

# An object that aborts the process when the interpreter lets go of it, as those of libraries do now and then.
ABORTING = """
import os, sys
class Aborts:
    def __del__(self, abort=os.abort):
        abort()
sys.kept = Aborts()
"""
COMMAND = """
from topline.pipeline.cli import main
main()
"""


@pytest.mark.parametrize(("words", "code"), [(["--version"], 0), (["fsck", "nowhere-at-all"], 2)])
def test_a_command_ends_with_its_own_code(words: list[str], code: int) -> None:
    ran = subprocess.run(
        [sys.executable, "-c", ABORTING + COMMAND, *words], capture_output=True, text=True, check=False
    )
    assert ran.returncode == code, ran.stderr
    assert ("topline" in ran.stdout) == (code == 0)
    assert ("nowhere-at-all" in ran.stderr) == (code == 2)


def test_a_process_that_is_no_command_is_aborted() -> None:
    """The check above would pass on anything if the object did not abort."""
    ran = subprocess.run([sys.executable, "-c", ABORTING], capture_output=True, check=False)
    assert ran.returncode == -6


# A command that a signal reaches while its modules are imported.
STARTING = """
import signal, sys
number = int(sys.argv.pop(1))
class Found:
    def find_spec(self, name, *_):
        if name == "typer":
            signal.raise_signal(number)
signal.signal(signal.SIGINT, signal.default_int_handler)
sys.meta_path.insert(0, Found())
from topline.pipeline.cli import main
main()
"""


@pytest.mark.parametrize(("number", "name"), [(signal.SIGINT, "Ctrl-C"), (signal.SIGTERM, "SIGTERM")])
def test_a_signal_while_topline_starts_ends_in_a_sentence(number: int, name: str) -> None:
    ran = subprocess.run(
        [sys.executable, "-c", STARTING, str(int(number)), "--version"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (ran.returncode, ran.stdout) == (128 + number, "")
    assert ran.stderr == f"error: stopped by {name}; nothing had begun\n"


# A command that a signal reaches in the function of training that is named, in a compiled call, or an import.
STOPPED = """
import signal, sys
from topline.pipeline.training import session
number, function, where = int(sys.argv.pop(1)), sys.argv.pop(1), sys.argv.pop(1)
signal.signal(signal.SIGINT, signal.default_int_handler)  # a suite in the background ignores SIGINT
def stopped(*_, **__):
    try:
        signal.raise_signal(number)
    except KeyboardInterrupt as error:
        if where == "compiled":
            raise SystemError("CPUDispatcher(<function>) returned a result with an exception set") from error
        if where == "imported":
            raise ImportError("cannot load module more than once per process")
        raise
setattr(session, function, stopped)
from topline.pipeline.cli import main
main()
"""


@pytest.mark.parametrize(("number", "name"), [(signal.SIGINT, "Ctrl-C"), (signal.SIGTERM, "SIGTERM")])
@pytest.mark.parametrize("function", ["plan_training", "_compile_jit_functions"])
@pytest.mark.parametrize("where", ["interpreted", "compiled", "imported"])
def test_a_signal_before_the_first_round_ends_as_the_guide_says(
    tmp_path: Path, where: str, function: str, number: int, name: str
) -> None:
    """With nothing to resume before the run is recorded, and with its command from then on."""
    small_dataset(tmp_path / "store")
    words = ("train", "--store", str(tmp_path / "store"), "--k", "2", "--workers", "0")
    ran = subprocess.run(
        [sys.executable, "-c", STOPPED, str(int(number)), function, where, *words],
        capture_output=True,
        text=True,
        check=False,
    )
    begun = function != "plan_training"
    assert ran.returncode == (75 if begun else 128 + number), ran.stderr
    assert f"error: stopped by {name}; " in ran.stderr
    assert ("--resume r0001" in ran.stderr) == begun
