"""What is recorded of a run while it goes on, and how it is shown, tabled and forecast."""

from __future__ import annotations

import math
from contextlib import closing
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tests.pipeline.dashboards import view_of
from tests.pipeline.small_data import make_features
from tests.pipeline.watching import Recorder
from topline import SerialExecutor, ThreadExecutor, TopKHinge, solve
from topline.pipeline.interrupts import StopFlag
from topline.pipeline.telemetry import RunFollower, view_run
from topline.pipeline.telemetry.run_view import (
    LEVELS,
    MOST_STRETCHES,
    MOST_WORKERS,
    SUMS,
    HistoryRecorder,
    RunTable,
    TimeLeft,
    WorkerTimelines,
    written_together,
)
from topline.pipeline.training import run as training_run
from topline.pipeline.training.run import RunPlace, RunRecorder
from topline.solvers.core.state import IterationRecord, Objective, WorkerActivity
from topline.storage.errors import IntegrityError
from topline.storage.runs import HistoryWriter, create_run, finish_run, read_history
from topline.storage.runs.checkpoints import checkpoint_folder
from topline.storage.runs.history import history_path
from topline.storage.stores import Store, open_store

X, Y = make_features(200, 8, 4)


@pytest.fixture
def place(tmp_path: Path) -> RunPlace:
    return RunPlace(open_store(tmp_path, create=True), "r0001", {}, {}, keep_duals=True)


def run(
    place: RunPlace,
    flag: StopFlag,
    seconds: float,
    stop_after: int | None = None,
    tol: float = 1e-6,
    **options: Any,
) -> Recorder:
    watcher = Recorder()
    with SerialExecutor() as executor, RunRecorder(place, executor, flag, seconds, watcher, tol) as recorder:

        def record(one: Any, state: Any) -> bool:
            if one.round == stop_after:
                flag.number = 15
            return recorder(one, state)

        solve(X, Y, TopKHinge(2), 0.01, 0.5, "fw", tol=tol, executor=executor, callbacks=[record], **options)
    return watcher


def test_checkpoints_are_in_the_history_with_their_seconds_and_bytes(
    place: RunPlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A clock that strikes when it is read: a second checkpoint would take too large a share of the time.
    monkeypatch.setattr(training_run, "time", SimpleNamespace(monotonic=count().__next__))
    run(place, StopFlag(), 0.0, max_passes=2)
    records = read_history(place.store, place.run_id)
    assert [record.get("event", record.get("round")) for record in records] == [
        "begin",
        0,
        "checkpoint",
        1,
        "end",
    ]
    saved = records[2]
    folder = checkpoint_folder(place.run_id)
    files = [path for path in place.store.walk(folder) if "/00000001-" in path]
    assert saved["bytes"] == sum(place.store.size(path) for path in files)
    assert saved["rounds"] == 1
    assert saved["seconds"] == 1


def test_why_a_run_stopped_is_its_last_record(place: RunPlace) -> None:
    run(place, StopFlag(), math.inf, stop_after=4, max_passes=100)
    assert read_history(place.store, place.run_id)[-1]["reason"] == "SIGTERM"
    with (
        pytest.raises(OSError, match="gone"),
        SerialExecutor() as executor,
        RunRecorder(place, executor, StopFlag(), math.inf, None),
    ):
        raise OSError("the disk is gone")
    assert read_history(place.store, place.run_id)[-1]["reason"] == "the disk is gone"
    run(place, StopFlag(), math.inf, max_passes=3)
    assert read_history(place.store, place.run_id)[-1]["reason"] is None


def test_who_watches_is_told_how_long_it_will_take(place: RunPlace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(training_run, "FORECAST_SECONDS", 0.0)
    watcher = run(place, StopFlag(), math.inf, tol=1e-2, max_passes=400)
    assert watcher.facts[0]["left"] is None
    left = [facts["left"] for facts in watcher.facts if facts["left"] is not None]
    assert left
    assert all(0.0 <= one.low <= one.seconds <= one.high < math.inf for one in left)
    assert np.isfinite([facts["relative_gap"] for facts in watcher.facts]).all()


def test_threads_with_a_budget_of_memory_are_no_workers_that_come_and_go(place: RunPlace) -> None:
    with (
        ThreadExecutor(4, blocks=8, dual_bytes=1 << 30) as executor,
        RunRecorder(place, executor, StopFlag(), math.inf, None) as recorder,
    ):
        solve(X, Y, TopKHinge(2), 0.01, 0.5, "fw", max_passes=20, executor=executor, callbacks=[recorder])
    events = [record["event"] for record in read_history(place.store, place.run_id) if "event" in record]
    assert events == ["begin", "end"]


def record_of(number: int, gap: float = 0.5, names: str = "ab") -> IterationRecord:
    return IterationRecord(
        round=number, passes=number + 1, seconds=0.1 * (number + 1), objective=Objective(1.0 + gap, 1.0),
        step=0.5, active=0.25, seconds_products=0.06,
        seconds_kernels=0.04, seconds_waiting=0.03, bytes_sent=10, bytes_received=20, bytes_read=30,
        memory_bytes=1 << 30, workers=2, activity=tuple(WorkerActivity(name, 4, 0.05, 99) for name in names),
    )  # fmt: skip


@pytest.fixture
def store(tmp_path: Any) -> Store:
    return open_store(tmp_path / "store", create=True)


@pytest.fixture
def finished_run(store: Store) -> str:
    return create_run(store, {"tol": 1e-3})


def test_a_run_from_its_beginning_to_its_end(store: Store, finished_run: str) -> None:
    follower = RunFollower(store, finished_run)
    assert (follower.poll().stage, follower.poll().rounds) == ("waiting", 0)
    history = HistoryRecorder(store, finished_run, remote=True)
    seen = follower.poll()
    assert (seen.stage, seen.rounds, seen.events[0].kind) == ("running", 0, "begin")
    for number in range(40):
        history.round(record_of(number, 0.5 * 0.9**number))
    history.event("checkpoint", rounds=40, seconds=0.2, bytes=1000)
    seen = follower.poll()
    assert (seen.stage, seen.rounds, seen.tol, seen.repeated) == ("running", 40, 1e-3, 0)
    np.testing.assert_allclose(seen.columns["dual"], np.ones(40))
    # The relative gap falls as gap / (1 + gap), which is geometric in the end.
    assert seen.left.seconds == pytest.approx(0.1 * (np.log(1e-3 / 0.5) / np.log(0.9) - 39), rel=0.1)
    split = seen.time_split()
    assert {part: pytest.approx(values[5]) for part, values in split.items()} == {
        "products": 0.03, "kernels": 0.02, "waiting": 0.03, "other": 0.02,
    }  # fmt: skip
    assert [(timeline.name, timeline.rows, timeline.here) for timeline in seen.workers] == [
        ("a", 4, True),
        ("b", 4, True),
    ]
    assert seen.workers[0].seconds_busy == pytest.approx(40 * 0.05)
    history.close(None)
    assert follower.poll().stage == "publishing"
    finish_run(store, finished_run, {"status": "solved", "gap": 1e-4})
    seen = follower.poll()
    assert (seen.stage, seen.left) == ("finished", None)
    assert (seen.outcome or {})["status"] == "solved"
    assert view_run(store, finished_run).columns["round"].tolist() == seen.columns["round"].tolist()


def test_a_run_that_is_stopped_resumed_and_loses_a_worker(store: Store, finished_run: str) -> None:
    history = HistoryRecorder(store, finished_run, remote=True)
    for number in range(10):
        history.round(record_of(number))
    history.close("SIGTERM")
    seen = view_run(store, finished_run)
    assert (seen.stage, seen.reason, seen.rounds) == ("stopped", "SIGTERM", 10)
    history = HistoryRecorder(store, finished_run, remote=True)
    history.round(record_of(8))
    history.round(record_of(9, names="ac"))
    history.event("rollback", reason="b is gone")
    history.round(record_of(9, names="ac"))
    history.write()
    seen = view_run(store, finished_run)
    history.close(None)
    assert (seen.stage, seen.reason, seen.rounds, seen.repeated) == ("running", None, 10, 3)
    assert [(event.kind, event.after) for event in seen.events] == [
        ("begin", -1), ("end", 9), ("begin", 9), ("worker-lost", 8), ("worker-joined", 8), ("rollback", 9),
    ]  # fmt: skip
    assert seen.events[3].facts == {"worker": "b"}
    assert {timeline.name: timeline.here for timeline in seen.workers} == {"a": True, "b": False, "c": True}


def test_threads_neither_join_nor_leave(store: Store, finished_run: str) -> None:
    history = HistoryRecorder(store, finished_run, remote=False)
    for number, names in enumerate(["ab", "a", "abc"]):
        history.round(record_of(number, names=names))
    history.close(None)
    assert [event.kind for event in view_run(store, finished_run).events] == ["begin", "end"]


def test_what_workers_did_in_rounds_written_together_is_in_the_last_one() -> None:
    records = [
        {"event": "begin"},
        *({**record_of(n).to_dict(), "at": 1.0 * n} for n in range(5)),
        {"event": "x"},
    ]
    together = written_together(records)
    assert ["activity" in record for record in together] == [False] * 5 + [True, False]
    assert together[5]["activity"] == [
        {"name": name, "rows": 4, "seconds_busy": pytest.approx(0.25), "memory_bytes": 99} for name in "ab"
    ]
    assert [record.get("round") for record in together] == [None, 0, 1, 2, 3, 4, None]
    assert written_together([{"round": 0, "activity": ()}]) == [{"round": 0}]


def test_a_second_look_reads_what_is_new(
    store: Store, finished_run: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with closing(HistoryWriter(store, finished_run)) as writer:
        for number in range(2000):
            writer.append({**record_of(number).to_dict(), "at": float(number)})
        follower = RunFollower(store, finished_run)
        follower.poll()
        writer.append({**record_of(2000).to_dict(), "at": 2000.0})
        line = store.size(history_path(finished_run)) // 2001
        read: list[int] = []
        original = type(store).read_range

        def counted(self: Store, path: str, start: int, length: int) -> bytes:
            data = original(self, path, start, length)
            read.append(len(data))
            return data

        monkeypatch.setattr(type(store), "read_range", counted)
        seen = follower.poll()
    assert seen.rounds == 2001
    assert sum(read) < 2 * line


def test_a_history_that_lost_lines_to_a_power_cut_is_read_anew(store: Store, finished_run: str) -> None:
    history = HistoryRecorder(store, finished_run, remote=False)
    for number in range(5):
        history.round(record_of(number))
    history.close(None)
    follower = RunFollower(store, finished_run)
    assert follower.poll().rounds == 5
    place = store.local_path / history_path(finished_run)
    place.write_bytes(b"".join(place.read_bytes().splitlines(keepends=True)[:3]))
    seen = follower.poll()
    assert (seen.rounds, len(seen.events), seen.repeated) == (2, 1, 0)


@pytest.mark.parametrize(
    "crafted",
    [{"round": "x"}, {"round": 1.5}, {"round": 10**400}, {"round": 1, "at": 1e300}, {"at": "now"}, {"at": []},
     {"round": 1, "primal": {}}, {"round": 1, "at": 1.0, "activity": [{}]}],
    ids=str,
)  # fmt: skip
def test_a_record_that_training_never_writes_is_damage(store: Store, finished_run: str, crafted: Any) -> None:
    with closing(HistoryWriter(store, finished_run)) as writer:
        writer.append({"round": 0, "at": 1.0}, crafted)
    with pytest.raises(IntegrityError, match="is none that training writes"):
        view_run(store, finished_run)


def test_a_history_of_before_events(store: Store, finished_run: str) -> None:
    with closing(HistoryWriter(store, finished_run)) as writer:
        writer.append(
            {"round": 0, "passes": 1, "seconds": 1.0, "primal": 1.0, "dual": 0.0, "relative_gap": 1.0}
        )
    assert view_run(store, finished_run).stage == "running"
    finish_run(store, finished_run, {"status": "solved"})
    assert view_run(store, finished_run).stage == "finished"


def test_what_recorders_write_is_what_views_read(store: Store, finished_run: str) -> None:
    history = HistoryRecorder(store, finished_run, remote=True)
    for number in range(30):
        history.round(record_of(number))
    history.close(None)
    in_memory, stored = view_of(read_history(store, finished_run), 1e-3), view_run(store, finished_run)
    for name, values in stored.columns.items():
        np.testing.assert_array_equal(values, in_memory.columns[name])
    assert [event.kind for event in in_memory.events] == [event.kind for event in stored.events]


MOST = 500


def rounds_of(count: int, first: int = 0, seed: int = 0) -> list[dict[str, Any]]:
    """Smooth lines with rare peaks, each in one round."""
    rng = np.random.default_rng(seed)
    t = first + np.arange(count)
    fields: dict[str, Any] = {
        name: 1.0 + rng.random(count) + 50.0 * (rng.random(count) < 1e-3) for name in LEVELS
    }
    fields |= {name: rng.integers(0, 100, count) for name in SUMS}
    fields["stationarity"] = [None] * count
    return [
        {"round": int(t[i]), "passes": int(t[i]) + 1, "seconds": 0.01 * (t[i] + 1), "at": 1e9 + t[i]}
        | {name: values[i] for name, values in fields.items()}
        for i in range(count)
    ]


def test_few_rounds_stay_as_they_are() -> None:
    records = rounds_of(2 * MOST)
    table = RunTable(MOST)
    for start in range(0, len(records), 7):
        table.add(records[start : start + 7])
    columns = table.columns()
    for name in ("round", "passes", "seconds", "at", "primal", "step", *SUMS):
        np.testing.assert_array_equal(columns[name], [record[name] for record in records])
    gaps = np.minimum.accumulate([record["relative_gap"] for record in records])
    np.testing.assert_array_equal(columns["best_gap"], gaps)


@pytest.mark.parametrize("batch", [50, 5000])
def test_many_rounds_keep_their_peaks_and_their_sums(batch: int) -> None:
    records = rounds_of(20_000)
    table = RunTable(MOST)
    for start in range(0, len(records), batch):
        table.add(records[start : start + batch])
    columns = table.columns()
    rounds = columns["round"].astype(int)
    assert len(rounds) <= 2 * MOST
    assert (np.diff(rounds) > 0).all()
    assert (rounds[0], rounds[-1]) == (0, len(records) - 1)
    for name in SUMS:
        whole = np.cumsum([record[name] for record in records])
        np.testing.assert_allclose(np.cumsum(columns[name]), whole[rounds])
    for name in ("primal", "relative_gap", "step", "memory_bytes"):
        values = np.asarray([record[name] for record in records])
        np.testing.assert_array_equal(columns[name], values[rounds])
        for start in range(0, len(records), 2048):
            stretch = range(start, min(start + 2048, len(records)))
            kept = values[rounds[(rounds >= stretch[0]) & (rounds <= stretch[-1])]]
            assert kept.max() == values[stretch].max()
            assert kept.min() == values[stretch].min()
    assert np.isnan(columns["stationarity"]).all()


def test_rounds_that_come_again_replace_those_before() -> None:
    table = RunTable(MOST)
    table.add([*rounds_of(100), *rounds_of(30, first=80, seed=1)])
    table.add(rounds_of(5, first=105, seed=2))
    columns = table.columns()
    np.testing.assert_array_equal(columns["round"], np.arange(110))
    expected = [*rounds_of(100)[:80], *rounds_of(30, first=80, seed=1)[:25], *rounds_of(5, first=105, seed=2)]
    np.testing.assert_array_equal(columns["primal"], [record["primal"] for record in expected])
    assert table.repeated == 20 + 5


def test_work_of_all_workers_is_that_of_an_average_one() -> None:
    table = RunTable()
    record = rounds_of(1)[0] | {"seconds_products": 8.0, "seconds_kernels": 4.0, "seconds_waiting": 1.0}
    table.add([record | {"workers": 4}])
    columns = table.columns()
    assert [columns[f"seconds_{part}"][0] for part in ("products", "kernels", "waiting")] == [2.0, 1.0, 1.0]


def test_records_of_an_older_version() -> None:
    table = RunTable()
    table.add([{"round": 0, "passes": 1, "seconds": 0.5, "primal": 1.0, "dual": 0.0, "relative_gap": 1.0}])
    columns = table.columns()
    assert columns["bytes_sent"][0] == 0.0
    assert np.isnan(columns["memory_bytes"][0])
    assert np.isnan(columns["at"][0])


def test_lanes_of_workers_that_come_and_go() -> None:
    timelines = WorkerTimelines()
    a, b = ({"name": name, "rows": 5, "seconds_busy": 0.5, "memory_bytes": 7} for name in "ab")
    for second in range(3 * MOST_STRETCHES):
        timelines.add(float(second), [a, b] if second < 10 else [a])
    first, second_lane = timelines.timelines()
    assert (first.name, first.rows, first.memory_bytes, first.here) == ("a", 5, 7, True)
    assert not second_lane.here
    assert second_lane.seconds_busy == 5.0
    assert len(first.at) == len(first.busy) <= 2 * MOST_STRETCHES
    assert first.at[-1] == 3 * MOST_STRETCHES - 1
    # Half busy all the time, in whatever stretches.
    np.testing.assert_allclose(np.cumsum(first.busy), 0.5 * (first.at + 1))


def test_lanes_are_bounded() -> None:
    timelines = WorkerTimelines()
    for second in range(2 * MOST_WORKERS):
        worker = {"name": str(second), "rows": 1, "seconds_busy": 1.0, "memory_bytes": 0}
        timelines.add(float(second), [worker])
    names = [timeline.name for timeline in timelines.timelines()]
    assert names == [str(second) for second in range(MOST_WORKERS, 2 * MOST_WORKERS)]


PACE = 0.02
TOL = 1e-4


def estimated_seconds_left(history: list[dict[str, Any]], tol: float) -> TimeLeft | None:
    table = RunTable()
    table.add(history)
    return table.left(tol)


def measured_rounds(gaps: Any, first: int = 0) -> list[dict[str, Any]]:
    return [
        {"round": first + t, "seconds": PACE * (first + t + 1), "relative_gap": float(gap)}
        for t, gap in enumerate(gaps)
    ]


def test_a_constant_factor_a_round() -> None:
    t = np.arange(101)
    left = estimated_seconds_left(measured_rounds(0.5 * 0.97**t), TOL)
    truth = PACE * (math.log(TOL / 0.5) / math.log(0.97) - 100)
    assert (left.low, left.seconds, left.high) == pytest.approx((truth, truth, truth), rel=1e-6)


@pytest.mark.parametrize("power", [0.5, 0.8])
def test_a_power_of_the_rounds(power: float) -> None:
    t = np.arange(101)
    tol = 0.01
    left = estimated_seconds_left(measured_rounds(0.5 / (t + 1) ** power), tol)
    truth = PACE * ((0.5 / tol) ** (1 / power) - 1 - 100)
    assert (left.low, left.seconds, left.high) == pytest.approx((truth, truth, truth), rel=1e-6)


def test_the_range_of_a_noisy_decline_holds_the_truth() -> None:
    held, said = 0, 0
    for seed in range(40):
        noise = np.random.default_rng(seed).standard_normal(2000)
        gaps = 0.5 * 0.99 ** np.arange(2000) * np.exp(0.1 * noise)
        end = int(np.argmax(gaps <= TOL))
        left = estimated_seconds_left(measured_rounds(gaps[:400]), TOL)
        if left is not None:
            said += 1
            held += left.low <= PACE * (end - 400) <= left.high
    assert said >= 30
    assert held >= 0.9 * said


@pytest.mark.parametrize(
    "gaps",
    [
        np.ones(100),
        np.maximum(0.9 ** np.arange(100), 0.9**60),  # stands still
        0.9 ** np.minimum(np.arange(100), 80 + np.arange(100) / 1e3),  # hardly moves any more
        1.0 + 0.5 * np.random.default_rng(0).standard_normal(200) ** 2,
        0.999 ** np.arange(50),  # far from the tolerance
        0.5 ** np.arange(5),  # too few
        [],
        [math.nan] * 50,
    ],
    ids=["flat", "plateau", "crawl", "noise", "far", "few", "none", "nan"],
)
def test_it_says_nothing_where_nothing_can_be_said(gaps: Any) -> None:
    assert estimated_seconds_left(measured_rounds(gaps), TOL) is None


def test_nothing_is_left_once_the_tolerance_was_reached() -> None:
    left = estimated_seconds_left(measured_rounds([0.5, 1e-5, 0.2]), TOL)
    assert (left.seconds, left.low, left.high) == (0.0, 0.0, 0.0)


def test_the_gradient_where_there_is_no_gap() -> None:
    records = measured_rounds(0.8 ** np.arange(20))
    for record in records:
        record |= {"relative_gap": None, "stationarity": record["relative_gap"]}
    left = estimated_seconds_left(records, 0.8**30)
    assert left.seconds == pytest.approx(11 * PACE)


def test_rounds_that_are_done_again_and_events() -> None:
    gaps = 0.9 ** np.arange(100)
    records = [
        *measured_rounds(gaps[:50]), {"event": "rollback", "reason": "a worker was lost", "at": 1.0},
        *measured_rounds(gaps[20:60], first=20),
    ]  # fmt: skip
    left = estimated_seconds_left(records, 0.9**99)
    assert left.seconds == pytest.approx(40 * PACE)


def test_a_forecast_of_an_endless_run_keeps_little() -> None:
    table = RunTable(512)
    for record in measured_rounds(1.0 / (np.arange(20_000) + 1)):
        table.add([record])
    assert len(table.columns()["round"]) <= 2 * 512
    left = table.left(1e-5)
    assert left.seconds == pytest.approx(PACE * 80_000, rel=1e-3)
