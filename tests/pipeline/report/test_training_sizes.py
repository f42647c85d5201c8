from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.pipeline.small_data import small_dataset
from topline.pipeline.evaluation import Evaluation, SizePoint
from topline.pipeline.evaluation.measurement import evaluate
from topline.pipeline.options import ClusterConfig, TrainConfig
from topline.pipeline.report import write_report
from topline.pipeline.report.training_sizes import _nested_order, measure_training_sizes, size_words
from topline.pipeline.rows import StoredModel
from topline.pipeline.training import train
from topline.solvers.losses import TopKHinge
from topline.solvers.run import solve


def trained(folder: Path, **options: object) -> str:
    small_dataset(folder, n=700, d=12, m=5)
    here = ClusterConfig(workers=0)
    return train(TrainConfig(store=str(folder), k=2, tol=1e-3, **options), here).model  # type: ignore[arg-type]


def test_points_are_those_of_models_trained_from_nothing_on_the_same_rows(tmp_path: Path) -> None:
    url = trained(tmp_path / "store")
    before = evaluate(url)
    assert measure_training_sizes(StoredModel.open(url)) == ""
    stored = StoredModel.open(url)
    assert stored.model.record.evaluation is not None
    found = Evaluation.from_dict(stored.model.record.evaluation)
    assert isinstance(before, Evaluation)
    rows, held = stored.rows("train"), stored.rows("test")
    n = len(rows)
    assert [point.rows for point in found.sizes] == [n // 8, n // 4, n // 2, n]
    assert found.sizes[-1].topk == before.topk
    X, y = np.array(rows[0:n]), rows.labels().astype(np.int64)
    X_held, y_held = np.array(held[0 : len(held)]), held.labels()
    right = (X_held @ stored.W).argmax(axis=1) == y_held
    order = _nested_order(rows.labels())
    for point in found.sizes[:-1]:
        here = np.sort(order[: point.rows])
        alone = solve(X[here], y[here], TopKHinge(2), 1.0 / point.rows, tol=1e-6, m=5)
        shares = (X_held @ alone.W).argmax(axis=1) == y_held
        # Both are within 1e-3 of the optimum, where a row or two of 140 may lie on the border.
        assert point.topk[1] == pytest.approx(shares.mean(), abs=2.5 / len(y_held))
        assert point.error == pytest.approx(np.sqrt(np.sum(shares != right)) / len(right), abs=0.012)
    # What is known is neither measured again nor lost by another evaluation.
    assert measure_training_sizes(StoredModel.open(url)) == ""
    again = evaluate(url)
    assert isinstance(again, Evaluation)
    assert again.sizes == found.sizes
    assert "Would more images help?" in Path(write_report(url)).read_text(encoding="utf-8")


def test_draws_are_nested_and_hold_every_class_alike() -> None:
    labels = np.repeat(np.arange(4), [400, 200, 100, 100])
    order = _nested_order(labels)
    assert sorted(order.tolist()) == list(range(800))
    for size in (100, 200, 400):
        assert np.abs(np.bincount(labels[order[:size]]) - np.array([4, 2, 1, 1]) * size / 8).max() <= 1


def test_what_has_no_curve_says_why(tmp_path: Path) -> None:
    url = trained(tmp_path / "store", kernel="rbf")
    assert "has not been evaluated" in measure_training_sizes(StoredModel.open(url))
    evaluate(url)
    assert "kernel" in measure_training_sizes(StoredModel.open(url))


def test_the_verdict_weighs_the_gain_against_chance() -> None:
    def points(gain: float, error: float) -> list[SizePoint]:
        return [SizePoint(500, {1: 0.80}, error), SizePoint(1000, {1: 0.80 + gain}, 0.0)]

    assert "likely to help, as many images again may bring up to 5.0% more" in size_words(points(0.05, 0.01))
    assert "not more than chance" in size_words(points(0.01, 0.01))
    assert "look at their labels" in size_words(points(-0.05, 0.01))
    assert size_words(()) == ""
    first, last = points(0.05, 0.01)
    assert size_words((first, replace(last, topk={1: 1.0}))).endswith(
        "nothing is left to gain on these held-out rows."
    )
