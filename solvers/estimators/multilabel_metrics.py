"""Metrics of multilabel scores and of the label sets that a threshold makes of them.

With scores f (n, m), the labels Y_i of row i out of m and the prediction h_i = {j : f_ij > delta},

    rank loss        (1/n) sum_i |{(y, j) in Y_i x not Y_i : f_iy <= f_ij}| / (|Y_i| (m - |Y_i|))
    precision at k   (1/n) sum_i |top-k(f_i) & Y_i| / k        recall at k   ... / |Y_i|
    accuracy         (1/n) sum_i |h_i & Y_i| / |h_i | Y_i|     subset accuracy   (1/n) sum_i [h_i = Y_i]
    Hamming loss     (1/(m n)) sum_i |h_i ^ Y_i|               F1   2 tp / (2 tp + fp + fn), three averages

Source: Lapin's thesis, section 6.2.1.  Scikit-learn's functions compute what it has.  A tie counts against
the classifier: a label that scores as much as a wrong one stands behind it, and one at the threshold is not
predicted; only in the average precision do equal scores enter together, as in scikit-learn.  A row without
labels has rank loss 0, as a row with all labels does, is left out of the recall, and is answered rightly by
the empty set alone.  A class that neither occurs nor is predicted has F1 = 0.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from topline.solvers.errors import InvalidProblemError, NonFiniteError
from topline.solvers.typing import Float64Array, Int64Array

BoolArray: TypeAlias = NDArray[np.bool_]
#: Maps hits, predicted labels and labels of rows (each broadcast to (n, m)) to a measure of each.
Measure: TypeAlias = Callable[[Int64Array, Int64Array, Int64Array], Float64Array]

#: Metrics of a prediction; higher is better, except for losses.
PARTITION_METRICS: Final = (
    "f1_micro", "f1_macro", "f1_instance", "accuracy", "subset_accuracy", "hamming_loss",
)  # fmt: skip
CARDINALITY: Final = "cardinality"
#: Rules by which a threshold can be chosen.
THRESHOLD_RULES: Final = (*PARTITION_METRICS, CARDINALITY)


@dataclass(frozen=True)
class RankingMetrics:
    """Metrics of the ranking of labels by scores; precision and recall by k."""

    rank_loss: float
    mean_average_precision: float
    precision: Mapping[int, float]
    recall: Mapping[int, float]


def ranking_metrics(relevant: BoolArray, scores: Float64Array, ks: Sequence[int]) -> RankingMetrics:
    """Return the metrics that need no threshold; `relevant` and `scores` are (n, m), 1 <= k <= m.

    `NonFiniteError` for non-finite scores, `InvalidProblemError` for mismatched shapes.
    """
    from sklearn.metrics import label_ranking_loss

    _check(relevant, scores)
    # Wrong labels come first among equals.
    order = np.lexsort((relevant, -scores), axis=1)
    hits = np.cumsum(np.take_along_axis(relevant, order, axis=1), axis=1)
    sizes = relevant.sum(axis=1)
    known = sizes > 0
    return RankingMetrics(
        rank_loss=float(label_ranking_loss(relevant, scores)),
        mean_average_precision=mean_average_precision(relevant, scores),
        precision={k: float(np.mean(hits[:, k - 1] / k)) for k in ks},
        recall={k: float(np.mean(hits[known, k - 1] / sizes[known])) if known.any() else 0.0 for k in ks},
    )


def mean_average_precision(relevant: BoolArray, scores: Float64Array) -> float:
    """Return the mean average precision over classes that have a row; 0 if none has one."""
    found = average_precisions(relevant, scores)
    known = ~np.isnan(found)
    return float(found[known].mean()) if known.any() else 0.0


def average_precisions(relevant: BoolArray, scores: Float64Array) -> Float64Array:
    """Return the average precision of each class (m,); NaN for a class without a row."""
    from sklearn.metrics import average_precision_score

    found = np.full(relevant.shape[1], np.nan)
    for j in np.flatnonzero(relevant.any(axis=0)):
        found[j] = average_precision_score(relevant[:, j], scores[:, j])
    return found


def partition_metrics(relevant: BoolArray, predicted: BoolArray) -> dict[str, float]:
    """Return `PARTITION_METRICS` of predicted label sets; both arrays are (n, m)."""
    from sklearn import metrics

    if relevant.shape != predicted.shape:
        raise InvalidProblemError(f"labels are {relevant.shape} and predictions {predicted.shape}")
    return {
        "f1_micro": float(metrics.f1_score(relevant, predicted, average="micro", zero_division=0.0)),
        "f1_macro": float(metrics.f1_score(relevant, predicted, average="macro", zero_division=0.0)),
        "f1_instance": float(metrics.f1_score(relevant, predicted, average="samples", zero_division=1.0)),
        "accuracy": float(metrics.jaccard_score(relevant, predicted, average="samples", zero_division=1.0)),
        "subset_accuracy": float(metrics.accuracy_score(relevant, predicted)),
        "hamming_loss": float(metrics.hamming_loss(relevant, predicted)),
    }


def tuned_thresholds(relevant: BoolArray, scores: Float64Array, cardinality: float) -> dict[str, float]:
    """Return the best threshold on these rows by each of `THRESHOLD_RULES`.

    Tries every threshold, halfway between neighbouring scores; the highest of equally good ones wins.
    "cardinality" aims at `cardinality` predicted labels per row on average.  Sorts the n m scores once and
    takes about a hundred bytes for each.
    """
    _check(relevant, scores)
    order = np.argsort(-scores, axis=None, kind="stable")
    ranked = scores.ravel()[order]
    # A threshold lies after the last of equal scores, or before all.
    ends = np.flatnonzero(np.append(ranked[1:] < ranked[:-1], True)) + 1
    ends = np.concatenate([np.zeros(1, np.int64), ends])
    chosen = {rule: int(np.argmax(goodness[ends])) for rule, goodness in _goodness(relevant, scores, order)}
    chosen[CARDINALITY] = int(np.argmin(np.abs(ends - cardinality * len(scores))))
    return {rule: _between(ranked, int(ends[place])) for rule, place in chosen.items()}


def _goodness(
    relevant: BoolArray, scores: Float64Array, order: NDArray[np.int64]
) -> Iterator[tuple[str, Float64Array]]:
    """Yield each metric (higher is better) with the first 0, 1, ..., n m scores of `order` predicted."""
    hits = np.concatenate([np.zeros(1, np.int64), np.cumsum(relevant.ravel()[order], dtype=np.int64)])
    predicted, wanted = np.arange(relevant.size + 1), int(relevant.sum())
    yield "f1_micro", 2.0 * hits / np.maximum(predicted + wanted, 1)
    yield "hamming_loss", (2.0 * hits - predicted - wanted) / relevant.size

    n, m = relevant.shape
    nothing = float(np.mean(~relevant.any(axis=1)))
    measures: dict[str, Measure] = {
        "f1_instance": _f1,
        "accuracy": lambda hits, predicted, sizes: np.asarray(hits / (predicted + sizes - hits)),
        "subset_accuracy": lambda hits, predicted, sizes: (hits == sizes) * (1.0 * (predicted == sizes)),
    }
    for name, measure in measures.items():
        changes = _changes(relevant, scores, measure, of_empty=1.0)
        yield name, np.cumsum(np.concatenate([[nothing], changes.ravel()[order] / n]))
    changes = _changes(relevant.T, scores.T, _f1, of_empty=0.0).T
    yield "f1_macro", np.cumsum(np.concatenate([[0.0], changes.ravel()[order] / m]))


def _changes(relevant: BoolArray, scores: Float64Array, measure: Measure, *, of_empty: float) -> Float64Array:
    """Return the change of each row's measure as each of its scores is predicted, highest first.

    `of_empty` is the measure of an empty prediction for a row without labels.  For equal scores of a row only
    the sum of the changes is meaningful.
    """
    order = np.argsort(-scores, axis=1, kind="stable")
    hits = np.cumsum(np.take_along_axis(relevant, order, axis=1), axis=1, dtype=np.int64)
    sizes = relevant.sum(axis=1, dtype=np.int64)[:, None]
    values = measure(hits, np.arange(1, relevant.shape[1] + 1), sizes)
    changes = np.empty_like(values)
    before = np.where(sizes == 0, of_empty, 0.0)
    np.put_along_axis(changes, order, np.diff(values, axis=1, prepend=before), axis=1)
    return changes


def _f1(hits: Int64Array, predicted: Int64Array, sizes: Int64Array) -> Float64Array:
    return np.asarray(2.0 * hits / (predicted + sizes))


def _between(ranked: Float64Array, count: int) -> float:
    """Return a threshold exceeded by exactly the first `count` of the descending scores."""
    if count == 0:
        return float(ranked[0])
    if count == len(ranked):
        return float(np.nextafter(ranked[-1], -np.inf))
    above, below = float(ranked[count - 1]), float(ranked[count])
    middle = below + 0.5 * (above - below)
    return middle if middle < above else below


def _check(relevant: BoolArray, scores: Float64Array) -> None:
    if relevant.shape != scores.shape or scores.ndim != 2 or not len(scores):
        raise InvalidProblemError(
            f"labels are {relevant.shape} and scores {scores.shape}: give both as (rows, classes)"
        )
    if not np.isfinite(scores).all():
        row = int(np.argmin(np.isfinite(scores).all(axis=1)))
        raise NonFiniteError(f"the scores of row {row} are not finite: scale the features, or train again")
