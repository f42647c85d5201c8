"""The undisturbed run, the disturbed ones, and the table of their outcomes."""

from __future__ import annotations

import random
import time
from collections import defaultdict
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from tests.chaos.harness import FREE, Chaos, Row, copy_store
from tests.pipeline.small_data import make_features, make_split, write_dataset
from topline.storage.stores import open_store

ROWS = "chaos"
FAILED = pytest.StashKey[bool]()
#: Outcomes of disturbed runs, in whichever process, and of the undisturbed one of this process.
_rows: list[Row] = []
_undisturbed: list[Row] = []


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--repeats", type=int, default=1, help="chaos: so many seeds of every fault")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "chaos" in metafunc.fixturenames:
        metafunc.parametrize("seed", range(metafunc.config.getoption("--repeats", 1)))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark what lies here, and leave out what takes long where nobody asked for it."""
    asked = config.getoption("--repeats", 1) > 1 or "chaos_long" in config.option.markexpr
    left_out = []
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.chaos)
            if item.get_closest_marker("chaos_long") and not asked:
                left_out.append(item)
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item not in left_out]


@pytest.fixture(scope="session")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with one small data set, in several blocks."""
    folder = tmp_path_factory.mktemp("chaos") / "store"
    X, labels = make_features(2000, 16, 5)
    write_dataset(open_store(folder, create=True), X, labels, make_split(2000), m=5)
    return folder


@pytest.fixture(scope="session")
def undisturbed(data: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What the run comes to when nobody disturbs it, and its rounds."""
    folder = tmp_path_factory.mktemp("undisturbed")
    chaos = Chaos(folder, copy_store(data, folder / "store"), {}, Row("none"))
    ended = chaos.train(*FREE).wait()
    result = ended.result
    row = Row("none", "nothing", 0, result["primal"], result["primal"], ended.seconds)
    _undisturbed.append(row)
    assert len(chaos.rounds()) > 80, "a run must be long enough to be disturbed"
    return {**result, "rounds": len(chaos.rounds())}


@pytest.fixture
def rng(chaos: Chaos, seed: int, request: pytest.FixtureRequest) -> random.Random:
    return random.Random(f"{request.node.originalname} {seed}")


@pytest.fixture
def chaos(
    data: Path, undisturbed: dict[str, Any], tmp_path: Path, seed: int, request: pytest.FixtureRequest
) -> Iterator[Chaos]:
    name = request.node.originalname.removeprefix("test_").replace("_", " ")
    details = dict(request.node.callspec.params)
    del details["seed"]
    fault = " ".join([name, *map(str, details.values())])
    row = Row(f"{fault} (seed {seed})" if seed else fault, of=fault)
    chaos = Chaos(tmp_path, copy_store(data, tmp_path / "store"), undisturbed, row)
    began = time.monotonic()
    try:
        yield chaos
    finally:
        chaos.close()
        row.seconds = time.monotonic() - began
        row.lost = request.node.stash.get(FAILED, False)
        told, _undisturbed[:] = [*_undisturbed, row], []
        # A report brings them to the process that prints, where several test side by side.
        request.node.user_properties.append((ROWS, [asdict(row) for row in told]))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.when == "call":
        item.stash[FAILED] = report.failed
    return report


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.when == "teardown":
        _rows.extend(Row(**row) for row in dict(report.user_properties).get(ROWS, ()))


def pytest_terminal_summary(terminalreporter: Any) -> None:
    if not _rows:
        return
    write = terminalreporter.write_line
    terminalreporter.section("faults")
    width = max(len(row.fault) for row in _rows)
    write(f"{'fault':<{width}}  repeated  {'primal':>12}  {'off by':>8}  seconds  what the user saw")
    for row in sorted(_rows, key=lambda row: row.fault != "none"):
        primal, off = "-", "-"
        if row.primal is not None and row.undisturbed is not None:
            primal, off = f"{row.primal:.8f}", f"{abs(row.primal / row.undisturbed - 1):.1e}"
        repeated = "-" if row.repeated is None else f"{row.repeated:g}"
        text = f"{row.fault:<{width}}  {repeated:>8}  {primal:>12}  {off:>8}  {row.seconds:7.1f}  {row.saw}"
        write(text)
    _write_kinds(write, [row for row in _rows if row.fault != "none"])


def _write_kinds(write: Callable[[str], None], rows: Sequence[Row]) -> None:
    """Write a line a kind of fault: how often it was tried, after how many something was lost, its worst."""
    kinds = defaultdict(list)
    for row in rows:
        kinds[row.of].append(row)
    width = max(map(len, kinds), default=0)
    write("")
    write(f"{'':<{width}}  trials  losses  most rounds repeated  most off by")
    for kind, same in sorted(kinds.items()):
        repeated = max((row.repeated for row in same if row.repeated is not None), default=0)
        off = [abs(row.primal / row.undisturbed - 1) for row in same if row.primal and row.undisturbed]
        numbers = f"{len(same):6d}  {sum(row.lost for row in same):6d}  {repeated:20g}"
        write(f"{kind:<{width}}  {numbers}  {max(off, default=0.0):11.1e}")
    lost, seconds = sum(row.lost for row in rows), sum(row.seconds for row in rows)
    write(f"{len(rows)} faults, {lost} with a loss, {seconds:.0f} s")
