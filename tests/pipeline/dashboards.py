"""A store made by hand for the dashboard: runs in every state, versions of a model, decisions on them."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np

from topline.pipeline.telemetry import HistoryRecorder, RunView
from topline.pipeline.telemetry.run_view import RunState
from topline.solvers.core.state import IterationRecord, Objective, WorkerActivity
from topline.storage.models import DecisionRecord, ModelRecord, read_standing, record_decision, save_model
from topline.storage.runs import create_run, finish_run
from topline.storage.stores import Store, open_store

NASTY = '<script>alert("x")</script> & "mug"'
CONFIG = {"loss": "topk_hinge", "k": 3, "C": 1.0, "method": "dual_ascent", "tol": 1e-3}


def view_of(records: Iterable[Mapping[str, Any]], tol: float | None = None) -> RunView:
    """The view of a history in memory."""
    state = RunState()
    state.take(iter(records))
    return state.view("", tol, None)


def record_of(number: int, *, names: str = "ab", decay: float = 0.9) -> IterationRecord:
    gap = 0.5 * decay**number
    return IterationRecord(
        round=number, passes=number + 1, seconds=0.1 * (number + 1), objective=Objective(1.0 + gap, 1.0),
        step=1.0 / (1 + number),
        active=0.2 + 0.8 / (1 + number),
        seconds_products=0.06, seconds_kernels=0.04, seconds_waiting=0.03, bytes_sent=8_000_000,
        bytes_received=9_000_000, bytes_read=30_000_000 if number == 0 else 0,
        memory_bytes=(2 << 30) + (number << 20),
        workers=len(names),
        activity=tuple(WorkerActivity(f"tcp://{name}", 400, 0.05, 99) for name in names),
    )  # fmt: skip


class Story:
    """A run's history as if each round had taken a tenth of a second."""

    def __init__(self, store: Store, began: float, **config: Any) -> None:
        self.run = create_run(store, {**CONFIG, **config}, dataset="d0001-ab12")
        self.at = began
        with self._clock():
            self.history = HistoryRecorder(store, self.run, remote=True)

    def rounds(self, first: int, stop: int, **options: Any) -> None:
        for number in range(first, stop):
            self.at += 0.1
            with self._clock():
                self.history.round(record_of(number, **options))
        self.history.write()

    def event(self, kind: str, /, **facts: Any) -> None:
        with self._clock():
            self.history.event(kind, **facts)

    def end(self, reason: str | None = None) -> None:
        with self._clock():
            self.history.close(reason)

    def leave(self) -> None:
        """Let go of the file as a killed process would."""
        self.history._writer.close()

    def _clock(self) -> Any:
        return patch("topline.pipeline.telemetry.run_view._now", return_value=self.at)


def begun_run(store: Store, rounds: int = 30, **config: Any) -> Story:
    """Begin a run that loses a worker and goes on until now, and leave its history open."""
    story = Story(store, time.time() - 0.1 * rounds, **config)
    story.rounds(0, rounds // 2)
    blocks = {"moved_blocks": [3, 4], "lost_blocks": [3], "saved_round": 2}
    story.event("loss", workers=[NASTY], reason=NASTY, **blocks)
    story.rounds(rounds // 2, rounds, names="a")
    story.event("checkpoint", rounds=rounds, seconds=0.25, bytes=4_000_000)
    return story


def finished_run(store: Store, model: str | None = None, status: str = "solved") -> str:
    story = begun_run(store)
    story.end()
    outcome = {"status": status, "relative_gap": 9e-4, "passes": 30, "seconds": 3.0}
    finish_run(store, story.run, outcome if model is None else {**outcome, "model": model})
    return story.run


def published(store: Store, top1: float | None, run: str | None = None, **changes: Any) -> str:
    """Publish a version with top-1 accuracy `top1`, and give its name."""
    topk = (
        None if top1 is None else {"1": top1, "2": top1 + 0.03, "3": top1 + 0.06, "5": top1 + 0.08, "10": 1.0}
    )
    values: dict[str, Any] = {
        "dataset": "d0001-ab12", "dataset_digest": "ab" * 32, "config": CONFIG, "lam": 1e-3, "C": 1.0,
        "loss": {"name": "topk_hinge", "k": 3}, "smoothing": 0.0, "method": "dual_ascent",
        "n": 400, "d": 3, "m": 4,
        "class_names": ("a", "b", "c", NASTY), "features": {}, "run": run,
        "result": {"passes": 30, "seconds": 3.0, "status": "solved"},
        "certificate": {"relative_gap": 8.5e-4, "certified": True, "valid": True, "tol": 1e-3},
        "evaluation": None if topk is None else evaluation_of(topk),
        **changes,
    }  # fmt: skip
    return save_model(store, ModelRecord(**values), {"W": np.zeros((3, 4))}).rpartition("/")[2]


def evaluation_of(topk: dict[str, float]) -> dict[str, Any]:
    """An evaluation of four classes of 25 rows each."""
    names = ("a", "b", "c", NASTY)
    return {
        "model": "", "dataset": "d0001-ab12", "split": "test", "rows": 100, "topk": topk,
        "majority_class": "a", "majority_baseline": 0.25, "seconds": 0.1, "created": "2026-10-01",
        "per_class": [{"name": name, "rows": 25, "topk": topk} for name in names],
        "confused": [{"true": NASTY, "predicted": "a", "count": 3}],
        "confusion": [[25, 0, 0, 0], [0, 25, 0, 0], [0, 0, 25, 0], [3, 0, 0, 22]],
    }  # fmt: skip


def decided(store: Store, action: str, model: str, reason: str, when: str, by: str = "r0001") -> None:
    with patch("topline.storage.models.now", return_value=when):
        record_decision(store, read_standing(store), DecisionRecord(action, model, reason, by))


def hand_made_store(folder: Path) -> Store:
    """Four versions: the second champion after the first, the third kept out, the fourth rolled back."""
    store = open_store(folder, create=True)
    runs = [finished_run(store, f"models/m000{number}") for number in (1, 2, 3)]
    names = [published(store, top1, run) for top1, run in zip((0.85, 0.88, 0.80), runs, strict=True)]
    names.append(published(store, 0.90, None, certificate=None))
    decided(store, "promote", names[0], "the first model", "2026-10-01T02:00:05+00:00", "r0001")
    decided(store, "promote", names[1], "top-3 +3.0%", "2026-10-09T02:00:05+00:00", "r0002")
    decided(store, "keep", names[2], f"top-3 fell by 8.0% {NASTY}", "2026-10-17T02:00:05+00:00", "r0003")
    decided(store, "promote", names[3], "by hand", "2026-10-20T08:00:00+00:00", "command line")
    decided(store, "rollback", names[1], "complaints", "2026-10-21T09:00:00+00:00", "command line")
    return store
