"""What a recorder writes while a run goes on, and what it tells who watches."""

from __future__ import annotations

import math
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tests.pipeline.small_data import make_features
from topline import SerialExecutor, ThreadExecutor, TopKHinge, solve
from topline.pipeline.interrupts import StopFlag
from topline.pipeline.training import checkpointing
from topline.pipeline.training.checkpointing import RunPlace, RunRecorder
from topline.storage.runs import read_history
from topline.storage.runs.checkpoints import checkpoint_folder
from topline.storage.stores import open_store

X, Y = make_features(200, 8, 4)


class Watcher:
    def __init__(self) -> None:
        self.facts: list[Any] = []

    def begin(self, stage: str, total: int | None = None, unit: str = "") -> None:
        pass

    def advance(self, amount: int = 1) -> None:
        pass

    def note(self, facts: Any) -> None:
        self.facts.append(facts)


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
) -> Watcher:
    watcher = Watcher()
    with SerialExecutor() as executor, RunRecorder(place, executor, flag, seconds, watcher, tol) as recorder:

        def record(one: Any, state: Any) -> bool:
            if one.round == stop_after:
                flag.ask(15)
            return recorder(one, state)

        solve(X, Y, TopKHinge(2), 0.01, 0.5, "fw", tol=tol, executor=executor, callbacks=[record], **options)
    return watcher


def test_checkpoints_are_in_the_history_with_their_seconds_and_bytes(
    place: RunPlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A clock that strikes when it is read: a second checkpoint would take too large a share of the time.
    monkeypatch.setattr(checkpointing, "time", SimpleNamespace(monotonic=count().__next__))
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
    monkeypatch.setattr(checkpointing, "FORECAST_SECONDS", 0.0)
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
