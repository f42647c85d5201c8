"""Each change in a copy of the checkout, and the tests of its target on it, in a process of its own.

A target has a process that imports once what the tests import from elsewhere; each change is tried in a
fork of it, which imports `topline` and the tests from the copy.  The checkout is never written to.
"""

from __future__ import annotations

import ast
import importlib
import json
import os
import random
import resource
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from tests.import_graph import modules_of
from tests.mutation.operators import mutations
from tests.mutation.targets import Target

ROOT = Path(__file__).resolve().parents[2]
#: A change that makes the tests take this many times the CPU time of the unchanged ones is noticed.
MOST_TIMES, MOST_SECONDS = 4, 10
#: Wall time that a fork may take for each second of CPU time, beside other work.
WALL = 8
#: Packages that forks import from the copy.
FROM_COPY = ("topline", "tests", "conftest", "__main__", "_pytest", "pytest")


@dataclass(frozen=True)
class Mutant:
    """The change number `index` of a module: where it is, and what it does."""

    module: str
    index: int
    place: str
    text: str

    @property
    def file(self) -> str:
        """The path below the package."""
        return self.place.rsplit(":", 1)[0]


@dataclass(frozen=True)
class Outcome:
    """What the tests said of a change: `killed` where they failed, crashed or were `stopped`."""

    mutant: Mutant
    code: int
    seconds: float

    @property
    def killed(self) -> bool:
        """Whether a test noticed the change, by its answer or by its time."""
        return self.code != 0

    @property
    def stopped(self) -> bool:
        """Whether the tests took too long."""
        return self.code in (-signal.SIGXCPU, -signal.SIGKILL)


def mutants_of(target: Target) -> list[Mutant]:
    """Return every change of the modules of a target."""
    every = modules_of(ROOT / ".package" / "topline")
    found = []
    for name in target.modules:
        full = f"topline.{name}"
        modules = [module for module in every if module == full or module.startswith(f"{full}.")]
        if not modules:
            raise SystemExit(f"there is no module {full}: correct tests/mutation/targets.py")
        for module in modules:
            path = every[module]
            place = module.removeprefix("topline.").replace(".", "/")
            place += "/__init__.py" if path.name == "__init__.py" else ".py"
            tree = ast.parse(path.read_text(encoding="utf-8"))
            found += [
                Mutant(module, index, f"{place}:{change.line}", change.text)
                for index, change in enumerate(mutations(tree))
            ]
    return found


def sample(mutants: list[Mutant], most: int | None, seed: int) -> list[Mutant]:
    """Return at most so many of the changes, drawn with the seed, in their order."""
    if most is None or most >= len(mutants):
        return mutants
    drawn = sorted(random.Random(seed).sample(range(len(mutants)), most))
    return [mutants[number] for number in drawn]


def try_all(
    target: Target, mutants: list[Mutant], processes: int, tell: Callable[[Outcome], None]
) -> list[Outcome]:
    """Try every change, in so many processes at a time; SystemExit if the unchanged tests fail as a whole."""
    with tempfile.TemporaryDirectory(prefix="topline-mutation-") as name:
        folder = Path(name)
        if (ROOT.parent / "shared").exists():
            (folder / "shared").symlink_to((ROOT.parent / "shared").resolve())
        logs = [folder / f"outcomes-{number}" for number in range(processes)]
        children = []
        for number, log in enumerate(logs):
            log.touch()
            copy = copy_checkout(folder / f"checkout-{number}")
            children.append(
                forked(lambda c=copy, n=number, o=log: _try_some(target, mutants[n::processes], c, o))
            )
        outcomes: list[Outcome] = []
        while children:
            ended = [child for child in children if os.waitpid(child, os.WNOHANG) != (0, 0)]
            children = [child for child in children if child not in ended]
            found = [outcome for log in logs for outcome in _read(log)]
            for outcome in found:
                if outcome not in outcomes:
                    outcomes.append(outcome)
                    tell(outcome)
            time.sleep(0.2)
        if len(outcomes) < len(mutants):
            raise SystemExit("the tests fail without any change, or a process of the run ended early")
        return outcomes


def _read(log: Path) -> Iterator[Outcome]:
    for line in log.read_text(encoding="utf-8").splitlines(keepends=True):
        if line.endswith("\n"):
            mutant, code, seconds = json.loads(line)
            yield Outcome(Mutant(**mutant), code, seconds)


def copy_checkout(folder: Path) -> Path:
    """Copy what the tests need of the checkout, compiled functions included; links stay links."""
    wanted = [".package", "pyproject.toml", "README.md", "flows", "pipeline", "solvers", "storage", "tests"]
    folder.mkdir()
    for name in wanted:
        source = ROOT / name
        if source.is_dir():
            ignored = shutil.ignore_patterns("*.pyc", "*.egg-info")
            shutil.copytree(source, folder / name, symlinks=True, ignore=ignored)
        else:
            shutil.copy2(source, folder / name)
    return folder


def forked(work: Callable[[], None]) -> int:
    """Fork, do the work in the child, and end it; returns the child's process id."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            work()
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
    return child


def _try_some(target: Target, mutants: list[Mutant], copy: Path, log: Path) -> None:
    environment = {"PYTHONDONTWRITEBYTECODE": "1", "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    environment |= {"PYTHONPATH": f"{copy / '.package'}{os.pathsep}{copy}"}
    if target.compiled:
        environment["NUMBA_DISABLE_JIT"] = "1"
    os.environ.update(environment)
    os.chdir(copy)
    sys.path[:0] = [str(copy / ".package"), str(copy)]
    output, names = copy / "output.txt", copy / "modules.json"
    first = [*target.tests, "-q", "-n", "0", "-p", "no:cacheprovider", "--assert=plain"]
    first += ["-k", target.without] if target.without else []
    code, _ = _run(first, output, 3600.0, names)
    failing = [line.split(" - ")[0].split(" ", 1)[1] for line in _lines(output) if line.startswith("FAILED ")]
    if code not in (0, 1):
        raise SystemExit(output.read_text(encoding="utf-8"))
    if failing:
        sys.stderr.write(f"left out, they fail without any change: {', '.join(failing)}\n")
    for name in json.loads(names.read_text(encoding="utf-8")):
        with suppress(Exception):
            importlib.import_module(name)
    again = [*first, "-x", *(word for name in failing for word in ("--deselect", name))]
    code, seconds = _run(again, output, 3600.0)
    if code != 0:
        raise SystemExit(output.read_text(encoding="utf-8"))
    limit = MOST_TIMES * seconds + MOST_SECONDS
    for mutant in mutants:
        path = copy / mutant.file
        source = path.read_text(encoding="utf-8")
        path.write_text(_changed(source, mutant.index), encoding="utf-8")
        try:
            code, seconds = _run(again, output, limit)
        finally:
            path.write_text(source, encoding="utf-8")
        with log.open("a", encoding="utf-8") as out:
            out.write(json.dumps([vars(mutant), code, round(seconds, 2)]) + "\n")


def _changed(source: str, index: int) -> str:
    tree = ast.parse(source)
    for number, change in enumerate(mutations(tree)):
        if number == index:
            change.apply()
            break
    return ast.unparse(tree) + "\n"


def _lines(output: Path) -> list[str]:
    return output.read_text(encoding="utf-8", errors="replace").splitlines()


def _run(arguments: list[str], output: Path, limit: float, names: Path | None = None) -> tuple[int, float]:
    """Run pytest in a fork; gives its exit code (negative: ended by a signal) and its CPU seconds."""

    def work() -> None:
        os.setsid()
        resource.setrlimit(resource.RLIMIT_CPU, (int(limit) + 1, int(limit) + 2))
        with output.open("w", encoding="utf-8") as file:
            os.dup2(file.fileno(), 1)
            os.dup2(file.fileno(), 2)
        for name in [name for name in sys.modules if name.split(".")[0] in FROM_COPY[:3]]:
            del sys.modules[name]
        pytest = importlib.import_module("pytest")
        code = int(pytest.main(arguments))
        if names is not None:
            elsewhere = [name for name in sys.modules if name.split(".")[0] not in FROM_COPY]
            names.write_text(json.dumps(elsewhere), encoding="utf-8")
        sys.stdout.flush()
        os._exit(code)

    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    child, deadline = forked(work), time.monotonic() + WALL * limit
    status = 0
    while True:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            break
        if time.monotonic() > deadline:
            os.kill(child, signal.SIGKILL)
        time.sleep(0.01)
    with suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    seconds = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return os.waitstatus_to_exitcode(status), seconds
