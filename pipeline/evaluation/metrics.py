"""The metrics by which models are judged: what each is called, how it is computed, and which way is better.

A metric is one value here, a `RowMetric` for models of one label per row or a `LabelSetMetric` for models of
several.  Evaluation, records, reports, the dashboard, the model registry, its promotion rule and the flows'
summaries walk over `METRICS`, so that a metric that is registered appears in all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from topline.pipeline.errors import ConfigError
from topline.solvers.calibration import Interval, class_mean_interval, share_interval
from topline.solvers.estimators.multilabel_metrics import RankingMetrics, partition_metrics, ranking_metrics
from topline.solvers.names import not_known

#: The k at which precision and recall of several labels are reported.
LABELS_K = (1, 3, 5)


def with_interval(text: str, interval: Interval | None, digits: int = 1) -> str:
    """Return the text of a share with its interval, such as "90.9%, 88.4 to 92.9"."""
    if interval is None:
        return text
    low, high = (f"{100.0 * end:.{digits}f}" for end in interval)
    return f"{text}, {low} to {high}"


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

    def text_in(self, evaluation: Mapping[str, Any], digits: int = 1) -> str:
        """Return the value in an evaluation record for people, with its interval where there is one."""
        value, interval = self.read(evaluation), self.interval_in(evaluation)
        if value is None:
            return "-"
        return with_interval(self.text(value, digits), interval, digits)

    def interval_in(self, evaluation: Mapping[str, Any]) -> Interval | None:
        """Return the interval of the value in an evaluation record, None where none is known."""
        found = (evaluation.get("intervals") or {}).get(self.name)
        return None if found is None else (float(found[0]), float(found[1]))

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
        """Return weights (n,) of sum 1 from classes (n,) and training rows per class `trained` (m,)."""
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

    def interval(
        self, values: NDArray[Any], labels: NDArray[np.int64], trained: NDArray[np.int64]
    ) -> Interval | None:
        """Return the interval of the metric of such rows; None where they are neither right nor wrong."""
        if values.dtype != np.bool_:
            return None
        if self.class_weights is None:
            return share_interval(float(values.mean()), len(values))
        return class_mean_interval(values, labels, self.row_weights(labels, trained))

    def interval_in(self, evaluation: Mapping[str, Any]) -> Interval | None:
        """Return the interval in a record; of top-k accuracies it follows from the rows as well."""
        found, value = super().interval_in(evaluation), self.read(evaluation)
        if found is None and self.k is not None and value is not None and evaluation.get("rows"):
            return share_interval(value, evaluation["rows"])
        return found


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


#: The k at which top-k accuracy is reported.
REPORTED_K = (1, 2, 3, 5, 10)


def topk_shares(ranks: NDArray[np.int64], ks: Sequence[int]) -> dict[int, float]:
    """Return the share of rows whose own class ranks among the first k, for each k."""
    return {k: float(np.mean(ranks <= k)) for k in ks}


def top_k_accuracy(k: int, *, headline: bool = True) -> RowMetric:
    """Return top-k accuracy: the share of rows whose own class is among the k best."""
    return RowMetric(
        name=f"top-{k}",
        label=f"top-{k} accuracy",
        column=f"top-{k}",
        headline=headline,
        stored_at=("topk", str(k)),
        row_values=lambda rows: rows.ranks <= k,
        classes=k,
        topk=k,
    )


def macro_top_k_accuracy(k: int) -> RowMetric:
    """Return macro top-k accuracy: the mean over the classes of their top-k accuracies."""
    return replace(
        top_k_accuracy(k),
        name=f"macro-top-{k}",
        label=f"top-{k} accuracy, mean over classes",
        column=f"macro top-{k}",
        headline=False,
        stored_at=(),
        class_weights=lambda classes, trained: np.ones(len(classes)),  # noqa: ARG005 - names say what comes
    )


def tail_top_k_accuracy(k: int) -> RowMetric:
    """Return tail top-k accuracy: the mean over the rarest third of the classes of their top-k accuracies."""
    return replace(
        macro_top_k_accuracy(k),
        name=f"tail-top-{k}",
        label=f"top-{k} accuracy, mean over the rarest third of the classes",
        column=f"tail top-{k}",
        stored_at=(),
        class_weights=lambda classes, trained: rarest_third(trained),  # noqa: ARG005
    )


def rarest_third(trained: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Return which of p classes are the tail (p,): the rarest third, rounded up, and its ties."""
    last = -(-len(trained) // 3) - 1
    return np.asarray(trained <= np.sort(trained)[last])


def _partition(name: str, label: str) -> LabelSetMetric:
    loss, first = name == "hamming_loss", name == "f1_micro"
    return LabelSetMetric(
        name=name, label=label, percent=not loss, higher_is_better=not loss, headline=first,
        compute=lambda rows: rows.partition[name],
    )  # fmt: skip


def _ranking(name: str, label: str, column: str = "") -> LabelSetMetric:
    loss = name == "rank_loss"
    return LabelSetMetric(
        name=name, label=label, column=column, percent=not loss, higher_is_better=not loss,
        stored_at=(name,), compute=lambda rows: float(getattr(rows.ranking, name)),
    )  # fmt: skip


def _probability(name: str, label: str, column: str = "", *, percent: bool) -> ProbabilityMetric:
    return ProbabilityMetric(
        name=name, label=label, column=column, percent=percent, higher_is_better=False, headline=False,
        stored_at=("probabilities", name),
    )  # fmt: skip


#: Every metric by name, in the order of the tables.  `register_metric` adds one.
METRICS: dict[str, Metric] = {
    metric.name: metric
    for metric in (
        *(top_k_accuracy(k, headline=k in (1, 5)) for k in REPORTED_K),
        *(kind(k) for kind in (macro_top_k_accuracy, tail_top_k_accuracy) for k in (1, 5)),
        _probability("log_loss", "log loss", percent=False),
        _probability("calibration_error", "expected calibration error", "ECE", percent=True),
        _ranking("rank_loss", "rank loss"),
        _ranking("mean_average_precision", "mean average precision", "mAP"),
        _partition("f1_micro", "F1, micro-averaged"),
        _partition("f1_macro", "F1, macro-averaged"),
        _partition("f1_instance", "F1, averaged over rows"),
        _partition("accuracy", "accuracy (Jaccard)"),
        _partition("subset_accuracy", "subset accuracy"),
        _partition("hamming_loss", "Hamming loss"),
    )
}


_TOP_K: dict[str, Callable[[int], RowMetric]] = {
    "top-": top_k_accuracy,
    "macro-top-": macro_top_k_accuracy,
    "tail-top-": tail_top_k_accuracy,
}


def register_metric(metric: Metric) -> None:
    """Add a metric to all that is measured and shown; `ConfigError` if its name is taken."""
    if metric.name in METRICS:
        raise ConfigError(f"there is a metric {metric.name!r} already: choose another name")
    METRICS[metric.name] = metric


def row_metrics() -> tuple[RowMetric, ...]:
    """Return the metrics of models of one label per row."""
    return tuple(metric for metric in METRICS.values() if isinstance(metric, RowMetric))


def label_set_metrics() -> tuple[LabelSetMetric, ...]:
    """Return the metrics of models of several labels per row."""
    return tuple(metric for metric in METRICS.values() if isinstance(metric, LabelSetMetric))


def row_metric(name: str) -> RowMetric:
    """Return the single-label metric `name`, with any k; raise `ConfigError` if there is none."""
    found = METRICS.get(name)
    if isinstance(found, RowMetric):
        return found
    for prefix, kind in _TOP_K.items():
        k = name.removeprefix(prefix)
        if name != k and k.isdecimal() and int(k):
            return kind(int(k))
    raise ConfigError(
        not_known("metric of one label per row", name, [metric.name for metric in row_metrics()])
    )


def measured(evaluation: Mapping[str, Any] | None) -> list[tuple[Metric, float]]:
    """Return the metrics that an evaluation record holds, with their values; none without a record."""
    if not evaluation:
        return []
    several = evaluation.get("kind") == "multilabel"
    known = [m for m in METRICS.values() if isinstance(m, LabelSetMetric) == several]
    found = ((metric, metric.read(evaluation)) for metric in known)
    return [(metric, value) for metric, value in found if value is not None]


def known_intervals(evaluation: Mapping[str, Any] | None) -> dict[str, Interval]:
    """Return the intervals of the metrics that an evaluation record holds, by name."""
    found = {metric.name: metric.interval_in(evaluation or {}) for metric, _ in measured(evaluation)}
    return {name: ends for name, ends in found.items() if ends is not None}


def placed(values: Mapping[str, float]) -> dict[str, Any]:
    """Return values of metrics, by name, under the keys that evaluation records have for them."""
    record: dict[str, Any] = {"metrics": {}}
    for name, value in values.items():
        *parents, key = METRICS[name].stored_at
        into = record
        for parent in parents:
            into = into.setdefault(parent, {})
        into[key] = value
    return record
