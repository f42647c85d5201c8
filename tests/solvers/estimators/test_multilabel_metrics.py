"""Multilabel metrics against their definitions, written as loops over labels, and against scikit-learn."""

from __future__ import annotations

from itertools import permutations
from typing import Any

import numpy as np
import pytest
from sklearn import metrics

from topline.solvers.errors import InvalidProblemError, NonFiniteError
from topline.solvers.estimators.multilabel_metrics import (
    PARTITION_METRICS,
    mean_average_precision,
    partition_metrics,
    ranking_metrics,
    tuned_thresholds,
)


def rows(seed: int, n: int = 30, m: int = 6, *, ties: bool) -> tuple[Any, Any]:
    """Labels (n, m) with an empty and a full row and a class without rows; scores in halves if `ties`."""
    rng = np.random.default_rng(seed)
    relevant = rng.random((n, m)) < 0.35
    relevant[0], relevant[1] = False, True
    relevant[:, m - 1] = False
    relevant[1, : m - 1] = True
    scores = rng.standard_normal((n, m)) + relevant
    return relevant, np.round(2.0 * scores) / 2.0 if ties else scores


def f1(tp: int, fp: int, fn: int, of_nothing: float) -> float:
    return 2 * tp / (2 * tp + fp + fn) if tp + fp + fn else of_nothing


def by_definition(relevant: Any, predicted: Any) -> dict[str, float]:
    """Section 6.2.1 of the thesis, counted in sets."""
    n, m = relevant.shape
    sets = [({*np.flatnonzero(y)}, {*np.flatnonzero(h)}) for y, h in zip(relevant, predicted, strict=True)]
    columns = [({*np.flatnonzero(relevant[:, j])}, {*np.flatnonzero(predicted[:, j])}) for j in range(m)]

    def counts(y: set[Any], h: set[Any]) -> tuple[int, int, int]:
        return len(y & h), len(h - y), len(y - h)

    total = np.sum([counts(y, h) for y, h in sets], axis=0).tolist()
    return {
        "f1_micro": f1(*total, 0.0),
        "f1_macro": float(np.mean([f1(*counts(y, h), 0.0) for y, h in columns])),
        "f1_instance": float(np.mean([f1(*counts(y, h), 1.0) for y, h in sets])),
        "accuracy": float(np.mean([len(y & h) / len(y | h) if y | h else 1.0 for y, h in sets])),
        "subset_accuracy": float(np.mean([y == h for y, h in sets])),
        "hamming_loss": sum(len(y ^ h) for y, h in sets) / (m * n),
    }


@pytest.mark.parametrize("ties", [False, True])
def test_the_rank_loss_counts_pairs_in_the_wrong_order_and_ties(ties: bool) -> None:
    relevant, scores = rows(0, ties=ties)
    expected = 0.0
    for y, f in zip(relevant, scores, strict=True):
        wrong = sum(f[a] <= f[b] for a in np.flatnonzero(y) for b in np.flatnonzero(~y))
        expected += wrong / max(1, int(y.sum()) * int((~y).sum()))
    found = ranking_metrics(relevant, scores, [1]).rank_loss
    assert found == pytest.approx(expected / len(scores), abs=1e-14)
    assert found == pytest.approx(metrics.label_ranking_loss(relevant, scores), abs=1e-14)


def test_precision_and_recall_at_k_take_the_worst_order_of_ties() -> None:
    relevant, scores = rows(1, n=25, m=5, ties=True)
    ks = [1, 2, 3, 5]
    hits = {k: [] for k in ks}
    for y, f in zip(relevant, scores, strict=True):
        orders = [list(order) for order in permutations(range(5)) if (np.diff(f[list(order)]) <= 0).all()]
        for k in ks:
            hits[k].append(min(int(y[order[:k]].sum()) for order in orders))
    found = ranking_metrics(relevant, scores, ks)
    sizes = relevant.sum(axis=1)
    for k in ks:
        assert found.precision[k] == pytest.approx(np.mean(hits[k]) / k, abs=1e-14)
        shares = [hit / size for hit, size in zip(hits[k], sizes, strict=True) if size]
        assert found.recall[k] == pytest.approx(np.mean(shares), abs=1e-14)


def test_recall_at_k_of_single_labels_is_the_topk_accuracy() -> None:
    rng = np.random.default_rng(2)
    y, scores = rng.integers(0, 7, 40), rng.standard_normal((40, 7))
    found = ranking_metrics(np.eye(7, dtype=bool)[y], scores, [1, 3])
    for k in (1, 3):
        assert found.recall[k] == pytest.approx(
            metrics.top_k_accuracy_score(y, scores, k=k, labels=range(7)), abs=1e-14
        )


def test_the_mean_average_precision_is_that_of_the_classes_that_occur() -> None:
    relevant, scores = rows(3, ties=False)
    expected = []
    for j in range(relevant.shape[1] - 1):
        ranked = relevant[np.argsort(-scores[:, j]), j]
        precisions = np.cumsum(ranked) / np.arange(1, len(ranked) + 1)
        expected.append(precisions[ranked].mean())
    assert mean_average_precision(relevant, scores) == pytest.approx(np.mean(expected), abs=1e-14)
    assert mean_average_precision(np.zeros((3, 2), dtype=bool), scores[:3, :2]) == 0.0


def test_metrics_of_a_prediction_are_those_of_the_thesis() -> None:
    relevant, scores = rows(4, ties=True)
    for threshold in (-9.0, 0.0, 0.5, 9.0):
        expected = by_definition(relevant, scores > threshold)
        found = partition_metrics(relevant, scores > threshold)
        assert tuple(found) == PARTITION_METRICS
        assert found == pytest.approx(expected, abs=1e-14)


@pytest.mark.parametrize("ties", [pytest.param(False, marks=pytest.mark.slow), True])
def test_no_other_threshold_is_better_than_the_tuned_one(ties: bool) -> None:
    relevant, scores = rows(5, ties=ties)
    values = np.unique(scores)
    every = [values[0] - 1.0, *(0.5 * (values[1:] + values[:-1])), values[-1]]
    tuned = tuned_thresholds(relevant, scores, cardinality=1.7)
    table = [partition_metrics(relevant, scores > threshold) for threshold in every]
    for name in PARTITION_METRICS:
        best = min if name == "hamming_loss" else max
        found = partition_metrics(relevant, scores > tuned[name])[name]
        assert found == pytest.approx(best(row[name] for row in table), abs=1e-12)
    sizes = [abs((scores > threshold).sum() - 1.7 * len(scores)) for threshold in every]
    assert abs((scores > tuned["cardinality"]).sum() - 1.7 * len(scores)) == min(sizes)


def test_a_threshold_may_predict_nothing_or_everything() -> None:
    scores = np.array([[2.0, 1.0], [0.0, -1.0]])
    nothing = tuned_thresholds(np.zeros((2, 2), dtype=bool), scores, cardinality=0.0)
    everything = tuned_thresholds(np.ones((2, 2), dtype=bool), scores, cardinality=2.0)
    for rule in (*PARTITION_METRICS[2:], "cardinality"):
        assert not (scores > nothing[rule]).any()
        assert (scores > everything[rule]).all()


def test_neighbouring_scores_are_told_apart() -> None:
    high = np.nextafter(1.0, 2.0)
    tuned = tuned_thresholds(np.array([[True, False]]), np.array([[high, 1.0]]), cardinality=1.0)
    assert 1.0 <= tuned["f1_micro"] < high


def test_scores_that_cannot_be_ranked_are_refused() -> None:
    relevant, scores = rows(6, ties=False)
    with pytest.raises(InvalidProblemError, match="give both as"):
        ranking_metrics(relevant[:, :2], scores, [1])
    with pytest.raises(InvalidProblemError, match="predictions"):
        partition_metrics(relevant, relevant[:3])
    scores[7, 2] = np.nan
    with pytest.raises(NonFiniteError, match="row 7"):
        tuned_thresholds(relevant, scores, 1.0)
