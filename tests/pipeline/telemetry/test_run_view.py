from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.pipeline.dashboards import view_of
from topline.pipeline.telemetry import RunFollower, view_run
from topline.pipeline.telemetry.recorder import HistoryRecorder, written_together
from topline.solvers.core.state import IterationRecord, Objective, WorkerActivity
from topline.storage.errors import IntegrityError
from topline.storage.runs import HistoryWriter, create_run, finish_run, read_history
from topline.storage.runs.history import history_path
from topline.storage.stores import Store, open_store


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
def run(store: Store) -> str:
    return create_run(store, {"tol": 1e-3})


def test_a_run_from_its_beginning_to_its_end(store: Store, run: str) -> None:
    follower = RunFollower(store, run)
    assert (follower.poll().stage, follower.poll().rounds) == ("waiting", 0)
    history = HistoryRecorder(store, run, remote=True)
    seen = follower.poll()
    assert (seen.stage, seen.rounds, seen.events[0].kind) == ("running", 0, "begin")
    for number in range(40):
        history.round(record_of(number, 0.5 * 0.9**number))
    history.event("checkpoint", rounds=40, seconds=0.2, bytes=1000)
    seen = follower.poll()
    assert (seen.stage, seen.rounds, seen.tol, seen.repeated) == ("running", 40, 1e-3, 0)
    np.testing.assert_allclose(seen.columns["dual"], np.ones(40))
    assert seen.left is not None
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
    finish_run(store, run, {"status": "solved", "gap": 1e-4})
    seen = follower.poll()
    assert (seen.stage, seen.left) == ("finished", None)
    assert (seen.outcome or {})["status"] == "solved"
    assert view_run(store, run).columns["round"].tolist() == seen.columns["round"].tolist()


def test_a_run_that_is_stopped_resumed_and_loses_a_worker(store: Store, run: str) -> None:
    history = HistoryRecorder(store, run, remote=True)
    for number in range(10):
        history.round(record_of(number))
    history.close("SIGTERM")
    seen = view_run(store, run)
    assert (seen.stage, seen.reason, seen.rounds) == ("stopped", "SIGTERM", 10)
    history = HistoryRecorder(store, run, remote=True)
    history.round(record_of(8))
    history.round(record_of(9, names="ac"))
    history.event("rollback", reason="b is gone")
    history.round(record_of(9, names="ac"))
    history.write()
    seen = view_run(store, run)
    history.close(None)
    assert (seen.stage, seen.reason, seen.rounds, seen.repeated) == ("running", None, 10, 3)
    assert [(event.kind, event.after) for event in seen.events] == [
        ("begin", -1), ("end", 9), ("begin", 9), ("worker-lost", 8), ("worker-joined", 8), ("rollback", 9),
    ]  # fmt: skip
    assert seen.events[3].facts == {"worker": "b"}
    assert {timeline.name: timeline.here for timeline in seen.workers} == {"a": True, "b": False, "c": True}


def test_threads_neither_join_nor_leave(store: Store, run: str) -> None:
    history = HistoryRecorder(store, run, remote=False)
    for number, names in enumerate(["ab", "a", "abc"]):
        history.round(record_of(number, names=names))
    history.close(None)
    assert [event.kind for event in view_run(store, run).events] == ["begin", "end"]


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


def test_a_second_look_reads_what_is_new(store: Store, run: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with HistoryWriter(store, run) as writer:
        for number in range(2000):
            writer.append({**record_of(number).to_dict(), "at": float(number)})
        follower = RunFollower(store, run)
        follower.poll()
        writer.append({**record_of(2000).to_dict(), "at": 2000.0})
        line = store.size(history_path(run)) // 2001
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


def test_a_history_that_lost_lines_to_a_power_cut_is_read_anew(store: Store, run: str) -> None:
    history = HistoryRecorder(store, run, remote=False)
    for number in range(5):
        history.round(record_of(number))
    history.close(None)
    follower = RunFollower(store, run)
    assert follower.poll().rounds == 5
    place = store.local_path / history_path(run)  # type: ignore[operator]
    place.write_bytes(b"".join(place.read_bytes().splitlines(keepends=True)[:3]))
    seen = follower.poll()
    assert (seen.rounds, len(seen.events), seen.repeated) == (2, 1, 0)


@pytest.mark.parametrize(
    "crafted",
    [{"round": "x"}, {"round": 1.5}, {"round": 10**400}, {"round": 1, "at": 1e300}, {"at": "now"}, {"at": []},
     {"round": 1, "primal": {}}, {"round": 1, "at": 1.0, "activity": [{}]}],
    ids=str,
)  # fmt: skip
def test_a_record_that_training_never_writes_is_damage(store: Store, run: str, crafted: Any) -> None:
    with HistoryWriter(store, run) as writer:
        writer.append({"round": 0, "at": 1.0}, crafted)
    with pytest.raises(IntegrityError, match="is none that training writes"):
        view_run(store, run)


def test_a_history_of_before_events(store: Store, run: str) -> None:
    with HistoryWriter(store, run) as writer:
        writer.append(
            {"round": 0, "passes": 1, "seconds": 1.0, "primal": 1.0, "dual": 0.0, "relative_gap": 1.0}
        )
    assert view_run(store, run).stage == "running"
    finish_run(store, run, {"status": "solved"})
    assert view_run(store, run).stage == "finished"


def test_what_recorders_write_is_what_views_read(store: Store, run: str) -> None:
    history = HistoryRecorder(store, run, remote=True)
    for number in range(30):
        history.round(record_of(number))
    history.close(None)
    in_memory, stored = view_of(read_history(store, run), 1e-3), view_run(store, run)
    for name, values in stored.columns.items():
        np.testing.assert_array_equal(values, in_memory.columns[name])
    assert [event.kind for event in in_memory.events] == [event.kind for event in stored.events]
