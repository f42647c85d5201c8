"""What a metric is: its names, how it is computed, and which way is better."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from topline.solvers.estimators.multilabel_metrics import RankingMetrics, partition_metrics, ranking_metrics

#: The k at which precision and recall of several labels are reported.
LABELS_K = (1, 3, 5)


@dataclass(frozen=True, eq=False)
class ScoredRows:
    """Scores (r, m) of a block of rows, and the codes (r,) of their own classes."""

    scores: NDArray[np.float64]
    labels: NDArray[np.int64]

    @cached_property
    def ranks(self) -> NDArray[np.int64]:
        """Rank of each row's own class, shape (r,); ties count against the model."""
        return ranks_against_ties(self.scores, self.labels)


@dataclass(frozen=True, eq=False)
class ScoredLabelSets:
    """Labels as an indicator, their scores, and which are predicted, each (n, m)."""

    relevant: NDArray[np.bool_]
    scores: NDArray[np.float64]
    predicted: NDArray[np.bool_]

    @cached_property
    def ranking(self) -> RankingMetrics:
        """Metrics of the order that the scores give to the labels."""
        ks = [k for k in LABELS_K if k <= self.scores.shape[1]]
        return ranking_metrics(self.relevant, self.scores, ks)

    @cached_property
    def partition(self) -> Mapping[str, float]:
        """Metrics of the predicted label sets, by name."""
        return partition_metrics(self.relevant, self.predicted)


@dataclass(frozen=True, kw_only=True)
class Metric:
    """What all metrics have in common.

    Parameters
    ----------
    name : key in stored records and in --json, and the name that the promotion rule takes
    label : name for people
    column : short name for the heads of tables, the label by default
    higher_is_better : whether a gain is an increase
    percent : whether values are shares, written in percent, or plain numbers
    headline : whether it has a tile or a column where there is room for few
    stored_at : keys that lead to it in an evaluation record, ("metrics", name) by default

    """

    name: str
    label: str
    column: str = ""
    higher_is_better: bool = True
    percent: bool = True
    headline: bool = True
    stored_at: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "column", self.column or self.label)
        object.__setattr__(self, "stored_at", self.stored_at or ("metrics", self.name))

    def text(self, value: float, digits: int = 1, sign: str = "") -> str:
        """Return a value for people, with `digits` decimals of a percent; `sign` is "+" for a difference."""
        return f"{value:{sign}.{digits}%}" if self.percent else f"{value:{sign}.{digits + 3}f}"

    def read(self, evaluation: Mapping[str, Any]) -> float | None:
        """Return the value in an evaluation record, None where it was not measured."""
        found: Any = evaluation
        for key in self.stored_at:
            found = found.get(key) if isinstance(found, Mapping) else None
        return None if found is None else float(found)


@dataclass(frozen=True, kw_only=True)
class RowMetric(Metric):
    """A metric of models of one label per row: the mean over the rows of a value that each row has.

    Parameters
    ----------
    row_values : a value for each row of a block, shape (r,), of type bool where it is right or wrong
    class_weights : how much the mean of each class counts, shape (p,), from the codes of the p classes that
        occur among the rows and from their numbers of training rows; every row counts alike without it
    unknown_class : value of a row whose class the model does not know
    classes : the metric is 1 for every model of at most so many classes
    topk : where a row is right if its class is among the `topk` best, that number

    """

    row_values: Callable[[ScoredRows], NDArray[Any]]
    class_weights: Callable[[NDArray[np.int64], NDArray[np.int64]], NDArray[Any]] | None = None
    unknown_class: float = 0.0
    classes: int = 1
    topk: int | None = None

    @property
    def k(self) -> int | None:
        """The k of a top-k accuracy over rows that count alike, None for another metric."""
        return int(self.stored_at[1]) if self.stored_at[0] == "topk" else None

    def row_weights(self, labels: NDArray[np.int64], trained: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return how much each row counts (n,), of sum 1, from the classes (n,) of all of them.

        `trained` (m,) are the training rows of every class.
        """
        if self.class_weights is None:
            return np.full(len(labels), 1.0 / len(labels))
        classes, own, counts = np.unique(labels, return_inverse=True, return_counts=True)
        shares = np.asarray(self.class_weights(classes, trained[classes]), dtype=np.float64)
        return np.asarray((shares / shares.sum() / counts)[own])

    def mean(self, values: NDArray[Any], labels: NDArray[np.int64], trained: NDArray[np.int64]) -> float:
        """Return the metric of rows with these values and classes, both (n,)."""
        if self.class_weights is None:
            return float(np.average(values))
        return float(values @ self.row_weights(labels, trained))


@dataclass(frozen=True, kw_only=True)
class ProbabilityMetric(Metric):
    """A metric of the probabilities of models of one label per row, which evaluation measures as a whole."""


@dataclass(frozen=True, kw_only=True)
class LabelSetMetric(Metric):
    """A metric of models of several labels per row, computed from all rows of a split at once."""

    compute: Callable[[ScoredLabelSets], float]


def ranks_against_ties(scores: NDArray[Any], y: NDArray[Any]) -> NDArray[np.int64]:
    """Return the rank of the own class, 1 + #{j != y: s_j >= s_y}, of each row of `scores` (r, m).

    A tie counts against the model: a model that gives every class the same score knows nothing.  NaN counts
    as a tie.
    """
    own = np.take_along_axis(scores, np.asarray(y, dtype=np.int64)[:, None], axis=1)
    return np.asarray((~(scores < own)).sum(axis=1), dtype=np.int64)
