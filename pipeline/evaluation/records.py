"""Evaluations as they are stored with a model; fields that this version does not know are ignored."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

from topline.pipeline.evaluation.metrics import METRICS, Metric, measured
from topline.solvers.calibration import Interval, ReliabilityBin, share_interval
from topline.solvers.estimators.multilabel_metrics import CARDINALITY
from topline.storage.models import ModelRecord
from topline.storage.records import from_fields, json_object

PLACE = "the evaluation of a model"


@dataclass(frozen=True)
class ClassAccuracy:
    """Accuracies on the rows of one class: share of rows whose own class is among the first k.

    `intervals` are those of the accuracies, by k; they follow from the others.
    """

    name: str
    rows: int
    topk: dict[int, float]
    intervals: dict[int, Interval] = field(default_factory=dict)

    def __post_init__(self) -> None:
        found = {k: share_interval(share, self.rows) for k, share in self.topk.items()}
        object.__setattr__(self, "intervals", found)


@dataclass(frozen=True)
class Confusion:
    """`count` rows of class `true` scored class `predicted` highest, or as high as their own."""

    true: str
    predicted: str
    count: int


@dataclass(frozen=True)
class ProbabilityQuality:
    """Quality of the probabilities of the rows: `text` says what they are, `fitted_rows` on how many rows.

    `calibration_error` is the expected one over the `bins` of the first class's probability.
    """

    text: str
    fitted_rows: int
    log_loss: float
    calibration_error: float
    bins: tuple[ReliabilityBin, ...]


@dataclass(frozen=True)
class SetQuality:
    """Sets that are to hold the right class with probability `coverage`, and the share that does.

    `mean_size` is that of the sets, `empty` the share that holds no class, `least_class` the smallest share
    that does in a class, `fixed_k` the least number of guesses with at least the same accuracy (per class: in
    every class that of `least_class`).  `interval` is that of `measured`, and follows from it.
    """

    coverage: float
    per_class: bool
    sets_by: str
    rows: int
    measured: float
    mean_size: float
    empty: float
    least_class: float
    fixed_k: int
    interval: Interval = (0.0, 1.0)

    def __post_init__(self) -> None:
        object.__setattr__(self, "interval", share_interval(self.measured, self.rows))


@dataclass(frozen=True)
class SizePoint:
    """Top-k accuracies, by k, of a model of the same options trained on a draw of `rows` training rows.

    `error` is the standard error of its top-1 accuracy less that of the model of all rows, on the same
    held-out rows.
    """

    rows: int
    topk: dict[int, float]
    error: float


class Recorded:
    """An evaluation as a record that is stored with its model."""

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON; keys that are numbers are strings there."""
        return json_object(self)

    def measured(self) -> list[tuple[Metric, float]]:
        """Return all metrics with their values, in the order of the tables."""
        return measured(self.to_dict())

    def summary(self) -> dict[str, float]:
        """Return the metrics by name."""
        return {metric.name: value for metric, value in self.measured()}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """Return what `to_dict` made, from a model's record; `FormatError` if a field is missing."""
        return from_fields(cls, values, PLACE)


@dataclass(frozen=True)
class Evaluation(Recorded):
    """Metrics of a model of one label per row on one split.

    `topk` are the top-k accuracies by k, and `metrics` the other metrics by name.  `majority_baseline` is the
    top-1 accuracy of always answering `majority_class`, the largest in training.  `per_class` has the classes
    that occur, in class order; `confused` the most frequent pairs first.  `probabilities` is None where the
    model has none, and `sets` are empty where it has no calibration rows.  `confusion` (m, m) counts the rows
    of each class by the class that they were given, and is empty where there are very many classes.  `sizes`
    are accuracies against training rows, smallest first and the model itself last; empty where not measured.
    `intervals` are those of the shares among the metrics, by name.
    """

    model: str
    dataset: str
    split: str
    rows: int
    topk: dict[int, float]
    majority_class: str
    majority_baseline: float
    per_class: tuple[ClassAccuracy, ...]
    confused: tuple[Confusion, ...]
    seconds: float
    created: str
    metrics: dict[str, float] = field(default_factory=dict)
    probabilities: ProbabilityQuality | None = None
    sets: tuple[SetQuality, ...] = ()
    confusion: tuple[tuple[int, ...], ...] = ()
    sizes: tuple[SizePoint, ...] = ()
    intervals: dict[str, Interval] = field(default_factory=dict)

    @property
    def no_better(self) -> str | None:
        """What is to be said of a model that these rows do not show to be better than its largest class."""
        low, _ = share_interval(self.topk[1], self.rows)
        if low > self.majority_baseline:
            return None
        return (
            f"{METRICS['top-1'].said(self.to_dict())} of {self.rows:,} {self.split} rows are right, no"
            f" better than always answering {self.majority_class} ({self.majority_baseline:.1%}), as far as"
            " these rows tell: scale columns that differ in size (--transforms standardize,bias),"
            " or use a larger --C, more rows or other features"
        )


@dataclass(frozen=True)
class Threshold:
    """Labels that score above `value` are predicted; it is the best one by `rule` on some `rows`.

    `split` says which rows: "val" where the dataset has them, "train" where it has not.  Of very many it is
    every second, third, ... of them that `rows` counts.
    """

    value: float
    rule: str
    split: str
    rows: int

    def text(self) -> str:
        """Return it in a line."""
        if self.rule == CARDINALITY:
            chosen = "matches labels per row as in training"
        else:
            chosen = f"best for {METRICS[self.rule].label}"
        return f"{self.value:.4g}, {chosen} on the {self.rows:,} {self.split} rows"


@dataclass(frozen=True)
class Tuned:
    """A metric at the threshold that was tuned for it, instead of at the model's."""

    threshold: float
    value: float


@dataclass(frozen=True)
class LabelQuality:
    """One label: rows that have it, and how well the model finds them; 0 where there is nothing to divide."""

    name: str
    rows: int
    precision: float
    recall: float
    f1: float
    average_precision: float


@dataclass(frozen=True)
class MultilabelEvaluation(Recorded):
    """Metrics of a model of several labels per row on one split.

    `labels_per_row` are those that rows have and `predicted_per_row` those that are predicted, on average.
    `precision` and `recall` are those of the first k labels, by k.  `metrics` hold at the model's
    `threshold`, `tuned` at thresholds of their own.  `per_label` has the labels that occur, in their order.
    """

    model: str
    dataset: str
    split: str
    rows: int
    labels_per_row: float
    predicted_per_row: float
    rank_loss: float
    mean_average_precision: float
    precision: dict[int, float]
    recall: dict[int, float]
    threshold: Threshold
    metrics: dict[str, float]
    tuned: dict[str, Tuned]
    per_label: tuple[LabelQuality, ...]
    seconds: float
    created: str
    kind: str = "multilabel"

    def summary(self) -> dict[str, float]:
        """Return the metrics that are one number each, by name, and the threshold."""
        return {**super().summary(), "threshold": self.threshold.value}

    def ranking(self) -> dict[str, str]:
        """Return the metrics that no threshold was tuned for, as people read them."""
        untuned = {m.label: m.text(value) for m, value in self.measured() if m.name not in self.tuned}
        return {
            **untuned,
            "precision": ", ".join(f"{share:.1%} at {k}" for k, share in self.precision.items()),
            "recall": ", ".join(f"{share:.1%} at {k}" for k, share in self.recall.items()),
        }

    def table(self) -> list[tuple[str, str, str, str]]:
        """Return a row for each tuned metric: name, value, best value, and the threshold of that."""
        return [
            (m.label, m.text(value), m.text(self.tuned[m.name].value), f"{self.tuned[m.name].threshold:.4g}")
            for m, value in self.measured()
            if m.name in self.tuned
        ]


def read_evaluation(record: ModelRecord) -> tuple[Evaluation | None, MultilabelEvaluation | None]:
    """Return the evaluation in a model's record, the first for one label per row, the second for several."""
    if not record.evaluation:
        return None, None
    if record.multilabel:
        return None, MultilabelEvaluation.from_dict(record.evaluation)
    return Evaluation.from_dict(record.evaluation), None


def ranked_worst(per_class: Sequence[ClassAccuracy]) -> list[ClassAccuracy]:
    """Return the classes by the upper end of the interval of their top-1 accuracy, lowest first.

    So 30 of 60 come before 3 of 6, and both before 1 of 1.
    """
    return sorted(per_class, key=lambda part: (part.intervals[1][1], part.topk[1], part.name))
