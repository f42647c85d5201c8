"""Fixtures that every room uses, the marks of whole folders, and what tests cost."""

from __future__ import annotations

import gc
import importlib
import os
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any
from zlib import crc32

import pytest

from tests.contracts.covering import covering_array

TESTS = Path(__file__).resolve().parent
#: Folders whose tests have the mark of the same name; see `addopts` in pyproject.toml for what is left out.
MARKED = ("benchmarks", "chaos", "e2e", "reproduce")
#: Marks whose tests are all in one folder.
FOLDER_OF = {**dict(zip(MARKED, MARKED, strict=True)), "deployment": "e2e", "guides": "guides"}
_costs: list[tuple[float, str]] = []


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """Folder of the public data sets, where they lie beside the checkout."""
    folder = TESTS.parents[1] / "shared" / "data"
    if not folder.is_dir():
        pytest.skip(f"no public data sets: put them at {folder}")
    return folder


@pytest.fixture(scope="session", autouse=True)
def _no_wait_for_the_disk() -> Iterator[None]:
    """No test cuts the power: what was written need not reach the disk, which takes some ms a file.

    That it is asked for, and when, is tested in `storage/stores/test_stores.py`.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda descriptor: None)
        yield


def pytest_configure(config: pytest.Config) -> None:
    """Keep bytecode, whatever the shell says: hundreds of processes of one run import the same modules.

    Where processes test side by side, BLAS has one thread in each: threads that share a core with other
    processes wait for each other in loops, and a decomposition of a second takes twenty.
    """
    if config.getoption("numprocesses", None):
        os.environ.setdefault("OMP_NUM_THREADS", "1")
    if "PYTEST_XDIST_WORKER" in os.environ:
        sys.dont_write_bytecode = False
        os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    if "PYTEST_XDIST_WORKER" in os.environ or not config.getoption("numprocesses", None):
        # Modules, tests and parameters stay: looking for garbage among them takes a fifth of the collection.
        gc.disable()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--cpu", type=int, metavar="N", help="report the CPU seconds of all tests, and the N dearest"
    )


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave out the folders of which a run has no test: imports and parameters cost seconds a process.

    That is the default run, and that of a mark whose tests are all in one folder.  Only where nobody names a
    path: else what is left out is reported as deselected.
    """
    if config.args_source is pytest.Config.ArgsSource.ARGS or collection_path.parent != TESTS:
        return None
    if config.option.markexpr in FOLDER_OF:
        return True if collection_path.name != FOLDER_OF[config.option.markexpr] else None
    words = config.getini("addopts")
    by_default = config.option.markexpr == words[words.index("-m") + 1]
    return True if by_default and collection_path.name in MARKED else None


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        folder = item.path.relative_to(TESTS).parts[0]
        if folder in MARKED:
            item.add_marker(folder)
    leave_what_others_cover_for_slow(items)
    leave_most_for_slow(items)


@pytest.hookimpl(tryfirst=True)
def pytest_collection(session: pytest.Session) -> None:
    """Import what each process of a run is going to collect, in another order in each.

    In a new checkout, and after a change, the asserts of a module are rewritten by the process that comes to
    it first, and the others load what that one kept.  In one order all of them would rewrite all asserts.
    """
    config = session.config
    worker = getattr(config, "workerinput", None)
    if worker is None or config.args_source is pytest.Config.ArgsSource.ARGS:
        return
    files = [
        path.relative_to(TESTS.parent)
        for folder in sorted(TESTS.iterdir())
        if not pytest_ignore_collect(folder, config)
        for path in ([folder] if folder.is_file() else sorted(folder.rglob("*.py")))
        if path.name.startswith("test_") and path.suffix == ".py"
    ]
    first = len(files) * int(worker["workerid"].removeprefix("gw")) // worker["workercount"]
    for path in files[first:] + files[:first]:
        # What cannot be imported, or skips itself, is reported where it is collected.
        with suppress(Exception, pytest.skip.Exception):
            importlib.import_module(".".join(path.with_suffix("").parts))


def pytest_collection_finish() -> None:
    """Let no collection of garbage go through all tests that there are: some tests ask for one each time."""
    gc.enable()
    gc.collect()
    gc.freeze()


def cases_of_tests(items: list[pytest.Item], mark: str) -> Iterator[list[pytest.Item]]:
    """Yield the cases of each test with a mark."""
    cases: dict[str, list[pytest.Item]] = {}
    for item in items:
        if item.get_closest_marker(mark):
            cases.setdefault(item.nodeid.partition("[")[0], []).append(item)
    yield from cases.values()


def leave_what_others_cover_for_slow(items: list[pytest.Item]) -> None:
    """Mark as slow all cases of a test with `@pytest.mark.covering(t)` but a covering array of strength t."""
    for some in cases_of_tests(items, "covering"):
        marker = some[0].get_closest_marker("covering")
        assert marker is not None
        for item in set(some).difference(covering_array(some, parameters_of, marker.args[0])):
            item.add_marker("slow")


def parameters_of(item: Any) -> tuple[object, ...]:
    """Return what stands for each parameter of a case; the values of some have no order and no hash."""
    plain = (str, int, float, bool, type(None))
    return tuple(value if isinstance(value, plain) else id(value) for value in item.callspec.params.values())


def leave_most_for_slow(items: list[pytest.Item]) -> None:
    """Mark as slow all cases of a test with `@pytest.mark.sampled(n)` but about one in `n`.

    Which ones is drawn by their names, so that it does not change from run to run.
    """
    for some in cases_of_tests(items, "sampled"):
        marker = some[0].get_closest_marker("sampled")
        assert marker is not None
        some.sort(key=lambda item: crc32(item.nodeid.encode()))
        for item in some[-(-len(some) // marker.args[0]) :]:
            item.add_marker("slow")


def cpu_seconds() -> float:
    """Return the CPU seconds of this process, all its threads, and the children that it waited for."""
    return sum(os.times()[:4])


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup(item: pytest.Item) -> Iterator[None]:
    item.user_properties.append(("cpu", -cpu_seconds()))
    return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item) -> Iterator[None]:
    result = yield
    item.user_properties.append(("cpu", cpu_seconds()))
    return result


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.when == "teardown":
        _costs.append((sum(value for name, value in report.user_properties if name == "cpu"), report.nodeid))


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    count = config.getoption("--cpu")
    if count is None:
        return
    terminalreporter.section("CPU seconds")
    folders: dict[str, float] = {}
    for seconds, name in _costs:
        folder = "/".join(name.split("::")[0].split("/")[:3])
        folders[folder] = folders.get(folder, 0.0) + seconds
    for seconds, name in sorted(_costs, reverse=True)[:count]:
        terminalreporter.write_line(f"{seconds:8.2f}  {name}")
    for folder, seconds in sorted(folders.items(), key=lambda pair: -pair[1]):
        terminalreporter.write_line(f"{seconds:8.1f}  {folder}")
    terminalreporter.write_line(f"{sum(folders.values()):8.1f}  in all, of {len(_costs)} tests")
