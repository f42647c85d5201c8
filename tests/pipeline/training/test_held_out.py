"""Accuracy on held-out rows while a run goes on: which rows, when, what is said of it; it decides nothing."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.pipeline.small_data import make_features, make_split, write_dataset
from topline.pipeline.cli.display import fact_text
from topline.pipeline.dashboard.overview import tiles
from topline.pipeline.options import ClusterConfig, TrainConfig
from topline.pipeline.report.run_section import run_charts
from topline.pipeline.telemetry import view_run
from topline.pipeline.training import session, train
from topline.pipeline.training.plan import plan_training
from topline.pipeline.training.session import HeldOutRows, Watch
from topline.solvers.core.state import Best, Point, SolverState
from topline.storage.datasets import Dataset
from topline.storage.errors import IntegrityError
from topline.storage.runs import read_history
from topline.storage.schema import SPLITS
from topline.storage.stores import Store, open_store

N, D, M = 400, 12, 5
HERE = ClusterConfig(workers=0)


def stored(place: Path, split: Any) -> Store:
    store = open_store(place / "store", create=True)
    X, labels = make_features(N, D, M)
    write_dataset(store, X, labels, split, key="one", m=M)
    return store


def held(store: Store, **options: Any) -> HeldOutRows | None:
    plan = plan_training(TrainConfig(store=store.url, **{"loss": "max_hinge", **options}))
    return HeldOutRows.of(plan.rows, plan.problem.m)


def test_validation_rows_go_before_test_rows_and_training_rows_are_never_looked_at(tmp_path: Path) -> None:
    split = make_split(N)
    split[:40] = SPLITS["val"]
    rows = held(stored(tmp_path / "both", split))
    assert (rows.rows.split, len(rows.rows)) == ("val", int((split == SPLITS["val"]).sum()))
    split[split == SPLITS["val"]] = SPLITS["train"]
    only_test = held(stored(tmp_path / "test", split))
    assert (only_test.rows.split, len(only_test.rows)) == ("test", int((split == SPLITS["test"]).sum()))
    split[:] = SPLITS["train"]
    assert held(stored(tmp_path / "none", split)) is None


def test_a_model_with_a_kernel_has_no_weights_to_look_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session, "FIRST_SECONDS", 0.0)
    store = stored(tmp_path, make_split(N))
    seen = train(TrainConfig(store=store.url, loss="max_hinge", kernel="rbf", transforms=()), HERE)
    assert not any("held_out" in record for record in read_history(store, seen.run))


def test_the_accuracy_is_the_share_of_rows_whose_class_scores_most(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By argmax over stored features; a tie, as with W = 0, counts against the row."""
    monkeypatch.setattr(session, "MOST_ROWS", 30)
    store = stored(tmp_path, make_split(N))
    rows = held(store, transforms=("bias",))
    assert len(rows.rows) == 30
    dataset = Dataset.open(store, rows.rows.dataset.info.id)
    X, places = np.asarray(dataset.rows(0, N), dtype=np.float64), rows.rows.indices
    W = np.random.default_rng(0).normal(size=(D + 1, M))
    right = (X[places] @ W[:-1] + W[-1]).argmax(axis=1) == dataset.labels()[places]
    assert rows.accuracy(W) == pytest.approx(right.mean())
    assert rows.accuracy(np.zeros((D + 1, M))) == 0.0


def test_looks_come_ever_more_rarely_and_take_a_hundredth_of_the_time(tmp_path: Path) -> None:
    """Each look takes a hundredth of a second of the clock that is passed in."""
    rows = held(stored(tmp_path, make_split(N)), transforms=())
    now = [0.0]

    class Slow(HeldOutRows):
        def accuracy(self, W: Any) -> float:
            now[0] += 0.01
            return super().accuracy(W)

    watch = Watch(Slow(rows.rows), clock=lambda: now[0])
    state = SolverState(Point(3, np.ones((D, M))), Best(0.5, np.eye(D)[:, :M]))
    looks = []
    while now[0] < 60.0:
        if watch.look(state):
            looks.append(now[0])
        now[0] += 0.05
    assert watch.look(SolverState.at(np.zeros((D, M)))) == {}
    assert looks[0] == pytest.approx(1.0, abs=0.1)
    ratios = np.divide(looks[1:], looks[:-1])
    assert ratios.min() >= session.LONGER * 0.99
    assert len(looks) * 0.01 <= 0.01 * 60.0 + 0.01


def test_a_run_records_and_shows_what_it_saw(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A model is bitwise the same whether anybody looks; the views show what the history has."""
    monkeypatch.setattr(session, "FIRST_SECONDS", 0.0)
    monkeypatch.setattr(session, "LONGER", 0.0)
    monkeypatch.setattr(session, "SHARE", math.inf)
    store = stored(tmp_path, make_split(N))
    # A checkpoint applies a step that waits, and rounds it: one more on a slow machine changes the last bit.
    options: dict[str, Any] = {"method": "dual_ascent", "checkpoint_seconds": 1e6}
    config = TrainConfig(store=store.url, loss="max_hinge", C=10.0, tol=1e-4, **options)
    seen = train(config, HERE)
    records = [record for record in read_history(store, seen.run) if "round" in record]
    looks = [record for record in records if "held_out" in record]
    assert looks
    assert {record["held_out_split"] for record in looks} == {"val"}
    view = view_run(store, seen.run)
    assert np.nanmax(view.columns["held_out"]) == max(record["held_out"] for record in looks)
    assert "Accuracy on held-out rows" in [title for title, _, _ in run_charts(view.columns, 1e-4)]
    assert "held-out top-1" in [tile.label for tile in tiles(view)]
    rows = looks[-1]["held_out_rows"]
    share = looks[-1]["held_out"]
    assert fact_text(looks[-1]).endswith(f", top-1 {100 * share:.1f}% of {rows} val rows")
    monkeypatch.setattr(session, "FIRST_SECONDS", math.inf)
    unseen = train(config, HERE)
    assert unseen.primal == seen.primal
    quiet = view_run(store, unseen.run)
    assert np.isnan(quiet.columns["held_out"]).all()
    assert "Accuracy on held-out rows" not in [title for title, _, _ in run_charts(quiet.columns, 1e-4)]
    assert "held-out top-1" not in [tile.label for tile in tiles(quiet)]


def test_a_training_goes_on_where_held_out_rows_can_be_read_no_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def torn(self: HeldOutRows, W: Any) -> float:
        raise IntegrityError("a shard of the test rows is torn")

    monkeypatch.setattr(session, "FIRST_SECONDS", 0.0)
    monkeypatch.setattr(HeldOutRows, "accuracy", torn)
    store = stored(tmp_path, make_split(N))
    trained = train(TrainConfig(store=store.url, loss="max_hinge", C=10.0, tol=1e-4), HERE)
    assert trained.status == "solved"
    assert caplog.text.count("held-out rows are not looked at any more: a shard") == 1
