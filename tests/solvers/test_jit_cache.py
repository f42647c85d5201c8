"""What was compiled before an update is not used after it, wherever it is kept."""

from __future__ import annotations

import errno
import fcntl
import importlib
import os
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from subprocess import PIPE
from typing import Any

import pytest
from numba.core import config

from topline.solvers import jit_cache
from topline.solvers.jit_cache import digest_of, jit

INNER = """
from topline.solvers.jit_cache import jit

FACTOR = {factor}

@jit
def value():
    return FACTOR * {value}
"""
OUTER = """
from topline.solvers.jit_cache import jit
from functions.inner import value

@jit(fastmath={"nnan", "ninf", "nsz", "arcp", "contract", "afn", "reassoc"})
def twice():
    return 2 * value()
"""


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture):
    """Import the package as a new process would: give the result, hits on disk, and whether it said so."""

    def fresh() -> tuple[int, int, bool]:
        for name in ("functions", "functions.inner", "functions.outer"):
            monkeypatch.delitem(sys.modules, name, raising=False)
        importlib.invalidate_caches()
        caplog.clear()
        jit_cache._said.clear()
        twice = importlib.import_module("functions.outer").twice
        return twice(), sum(twice.stats.cache_hits.values()), "compiling inner loops" in caplog.text

    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(config, "CACHE_DIR", "")
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    return fresh


def write(folder: Path, factor: int, value: int) -> None:
    package = folder / "functions"
    package.mkdir(exist_ok=True)
    (package / "__init__.py").touch()
    (package / "outer.py").write_text(OUTER)
    (package / "inner.py").write_text(INNER.format(factor=factor, value=value))


@pytest.mark.parametrize("place", ["beside", "elsewhere"])
def test_a_function_goes_with_those_that_were_compiled_into_it(
    tmp_path: Path, run, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    """Also in a folder that NUMBA_CACHE_DIR names: no file of ours says what is stale."""
    if place == "elsewhere":
        monkeypatch.setattr(config, "CACHE_DIR", str(tmp_path / "compiled"))
    write(tmp_path, 1, 1)
    assert run() == (2, 0, True)
    assert (tmp_path / "compiled").exists() == (place == "elsewhere")
    assert run() == (2, 1, False)
    write(tmp_path, 1, 30)
    assert run() == (60, 0, True)
    write(tmp_path, 5, 30)
    assert run() == (300, 0, True)
    # A newer file of the same content is the same source.
    os.utime(tmp_path / "functions" / "outer.py")
    os.utime(tmp_path / "functions" / "inner.py")
    assert run() == (300, 1, False)


def test_a_function_that_has_moved_to_another_module_is_compiled_there(tmp_path: Path, run) -> None:
    """What was kept would look for the module that is gone."""
    write(tmp_path, factor=3, value=5)
    assert run() == (30, 0, True)
    (tmp_path / "functions" / "inner.py").rename(tmp_path / "functions" / "moved.py")
    (tmp_path / "functions" / "outer.py").write_text(OUTER.replace("functions.inner", "functions.moved"))
    assert run() == (30, 0, True)


def test_a_package_that_cannot_be_written_has_its_functions_in_the_users_folder(
    tmp_path: Path, run, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path, 1, 1)
    (tmp_path / "functions" / "__pycache__").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    assert run() == (2, 0, True)
    assert run() == (2, 1, False)
    write(tmp_path, 1, 30)
    assert run() == (60, 0, True)


NEW_PROCESS = """
import sys
sys.path.insert(0, sys.argv[1])
from functions.outer import twice
print("ready", flush=True)
sys.stdin.readline()
print(twice(), sum(twice.stats.cache_hits.values()))
"""


def test_of_processes_that_need_a_function_at_the_same_time_one_compiles_it(tmp_path: Path) -> None:
    """Though each goes through the set of options in an order of its own."""
    write(tmp_path, 1, 1)
    started = [
        subprocess.Popen(
            [sys.executable, "-c", NEW_PROCESS, str(tmp_path)],
            stdin=PIPE,
            stdout=PIPE,
            stderr=PIPE,
            text=True,
            env={**os.environ, "PYTHONHASHSEED": seed},
        )
        for seed in ("1", "2")
    ]
    for process in started:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    for process in started:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    assert sorted(process.communicate()[0] for process in started) == ["2 0\n", "2 1\n"]


def test_who_cannot_lock_a_function_compiles_it(tmp_path: Path, run, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a file system of a network without locks."""

    def refuse(*_: Any) -> None:
        raise OSError(errno.ENOLCK, "no locks available")

    monkeypatch.setattr(jit_cache.fcntl, "flock", refuse)
    write(tmp_path, 1, 1)
    assert run() == (2, 0, True)
    assert run() == (2, 1, False)


def test_a_process_that_never_lets_go_is_not_waited_for_for_ever(
    tmp_path: Path, run, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    write(tmp_path, 1, 1)
    assert run() == (2, 0, True)
    monkeypatch.setattr(jit_cache, "LOCK_SECONDS", 0.05)
    monkeypatch.setattr(jit_cache, "TOLD_SECONDS", 0.0)
    write(tmp_path, 1, 30)
    with ExitStack() as stopped:
        for path in tmp_path.rglob("*.lock"):
            fcntl.flock(stopped.enter_context(path.open("ab")), fcntl.LOCK_EX)
        assert run() == (60, 0, True)
    assert "another process compiles" in caplog.text
    assert "has been locked for 0.05 s: this process compiles as well" in caplog.text


def test_a_function_of_no_module_is_not_kept(tmp_path: Path) -> None:
    """As of code that a file was executed for: a later process could not load it."""
    (tmp_path / "code.py").write_text(INNER.format(factor=2, value=3))
    code = compile((tmp_path / "code.py").read_text(), tmp_path / "code.py", "exec")
    for _ in range(2):
        names = {"__name__": "nowhere"}
        exec(code, names)
        assert names["value"]() == 6
        assert not names["value"].stats.cache_hits
    assert [path.name for path in tmp_path.iterdir()] == ["code.py"]


BY_TYPE = """
from typing import NamedTuple
import numpy as np
from topline.solvers.jit_cache import jit
from topline.solvers.jit_cache import ByType

class Left(NamedTuple):
    values: np.ndarray

class Right(NamedTuple):
    values: np.ndarray

@jit
def left(tile):
    return {left} * tile.values[0]

@jit
def right(tile):
    return {right} * tile.values[0]

value_of = ByType({{Left: left, Right: right}})

@jit
def both(tile):
    return value_of(tile) + 1.0
"""


def test_a_function_is_chosen_by_the_type_of_its_argument_and_kept_with_all_choices(tmp_path: Path) -> None:
    """Another process finds each, until one of the choices changes."""
    program = """
import sys
sys.path.insert(0, sys.argv[1])
import numpy as np
from chosen import Left, Right, both, value_of
one = np.ones(1)
print(both(Left(one)), both(Right(one)), value_of(Right(one)), sum(both.stats.cache_hits.values()))
"""

    def fresh(left: int, right: int) -> str:
        (tmp_path / "chosen.py").write_text(BY_TYPE.format(left=left, right=right))
        command = [sys.executable, "-B", "-c", program, str(tmp_path)]
        return subprocess.run(command, stdout=PIPE, text=True, check=True).stdout.strip()

    assert fresh(2, 5) == "3.0 6.0 5.0 0"
    assert fresh(2, 5) == "3.0 6.0 5.0 2"
    assert fresh(2, 7) == "3.0 8.0 7.0 0"


@jit
def _fibonacci(n):
    return n if n < 2 else _fibonacci(n - 1) + _fibonacci(n - 2)


def test_a_function_that_calls_itself_has_a_digest() -> None:
    assert len(digest_of(_fibonacci)) == 64
    assert digest_of(_fibonacci) == digest_of(_fibonacci)


def test_without_a_folder_each_process_compiles_its_own(
    tmp_path: Path, run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A package and a home that are files: nothing can be written anywhere."""
    write(tmp_path, 1, 1)
    (tmp_path / "functions" / "__pycache__").touch()
    (tmp_path / "home").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert run()[:2] == (2, 0)
    assert run()[:2] == (2, 0)


@jit
def _rounded(x: float, to_whole: float) -> float:
    return (x + to_whole) - to_whole


@jit(fastmath={"reassoc", "nsz"})
def _calls_it(x: float, to_whole: float) -> float:
    return _rounded(x, to_whole) + 0.0


def test_a_function_keeps_its_own_arithmetic_whoever_calls_it_first() -> None:
    """Numba compiles a function that says nothing of fastmath with that of its first caller."""
    assert _calls_it(0.3, 1.5 * 2.0**52) == 0.0
    assert _rounded(0.3, 1.5 * 2.0**52) == 0.0
