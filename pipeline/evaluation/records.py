"""Stored evaluations of models; fields unknown to this version are ignored."""

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
    """Top-k accuracies by k on the rows of one class, with their `intervals`, which follow from them."""

    name: str
    rows: int
    topk: dict[int, float]
    intervals: dict[int, Interval] = field(default_factory=dict)

    def __post_init__(self) -> None:
        found = {k: share_interval(share, self.rows) for k, share in self.topk.items()}
        object.__setattr__(self, "intervals", found)


@dataclass(frozen=True)
class Confusion:
    """`count` rows of class `true` scored class `predicted` at least as high as any other."""

    true: str
    predicted: str
    count: int


@dataclass(frozen=True)
class ProbabilityQuality:
    """Quality of probabilities described by `text`, with the expected error over `bins`."""

    text: str
    fitted_rows: int
    log_loss: float
    calibration_error: float
    bins: tuple[ReliabilityBin, ...]


@dataclass(frozen=True)
class SetQuality:
    """Sets with nominal `coverage`, and the measured share that holds the right class.

    `mean_size` is their size, `empty` the share without any class, `least_class` the smallest coverage of a
    class, `fixed_k` the least number of guesses with at least the same accuracy (per class: at least
    `least_class` in every class).  `interval` is that of `measured`, and follows from it.
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
    """Top-k accuracies of a model of `rows` rows, with the standard error of its top-1 difference to all."""

    rows: int
    topk: dict[int, float]
    error: float


class Recorded:
    """An evaluation as a record stored with its model."""

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON, with numeric keys as strings."""
        return json_object(self)

    def measured(self) -> list[tuple[Metric, float]]:
        """Return all metrics with their values, in the order of the tables."""
        return measured(self.to_dict())

    def summary(self) -> dict[str, float]:
        """Return the metrics by name."""
        return {metric.name: value for metric, value in self.measured()}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """Read the result of `to_dict` from a model's record; raise `FormatError` if a field is missing."""
        return from_fields(cls, values, PLACE)


@dataclass(frozen=True)
class Evaluation(Recorded):
    """Metrics of a model of one label per row on one split.

    `topk` are by k, `metrics` and `intervals` by name.  `majority_baseline` is the top-1 accuracy of always
    predicting `majority_class`.  `confused` has the most frequent pairs first; `confusion` (m, m) counts rows
    by true and predicted class, and is empty for many classes.  `sizes` are accuracies by training rows,
    ending with the model itself, or empty.
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
        """Return a warning if these rows do not show the model to beat its largest class, or None."""
        low, _ = share_interval(self.topk[1], self.rows)
        if low > self.majority_baseline:
            return None
        return (
            f"{METRICS['top-1'].text_in(self.to_dict())} of {self.rows:,} {self.split} rows are right, no"
            f" better than always answering {self.majority_class} ({self.majority_baseline:.1%}), as far as"
            " these rows tell: scale columns that differ in size (--transforms standardize,bias),"
            " or use a larger --C, more rows or other features"
        )


@dataclass(frozen=True)
class Threshold:
    """Labels scoring above `value` are predicted; it is the best by `rule` on `rows` rows of `split`."""

    value: float
    rule: str
    split: str
    rows: int

    def text(self) -> str:
        """Return it in a line."""
        by_count = self.rule == CARDINALITY
        why = "matches labels per row as in training" if by_count else f"best for {METRICS[self.rule].label}"
        return f"{self.value:.4g}, {why} on the {self.rows:,} {self.split} rows"


@dataclass(frozen=True)
class Tuned:
    """A metric at the threshold tuned for it, not at the model's."""

    threshold: float
    value: float


@dataclass(frozen=True)
class LabelQuality:
    """One label: its rows, and how well the model finds them; 0 instead of 0/0."""

    name: str
    rows: int
    precision: float
    recall: float
    f1: float
    average_precision: float


@dataclass(frozen=True)
class MultilabelEvaluation(Recorded):
    """Metrics of a model of several labels per row on one split.

    `labels_per_row` and `predicted_per_row` are averages; `precision` and `recall` are at the first k labels,
    by k.  `metrics` are at the model's `threshold`, `tuned` at their own.  `per_label` has the occurring
    labels in order.
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
        """Return the scalar metrics by name, and the threshold."""
        return {**super().summary(), "threshold": self.threshold.value}

    def ranking(self) -> dict[str, str]:
        """Return the metrics without a tuned threshold, as text."""
        untuned = {m.label: m.text(value) for m, value in self.measured() if m.name not in self.tuned}
        return {
            **untuned,
            "precision": ", ".join(f"{share:.1%} at {k}" for k, share in self.precision.items()),
            "recall": ", ".join(f"{share:.1%} at {k}" for k, share in self.recall.items()),
        }

    def table(self) -> list[tuple[str, str, str, str]]:
        """Return a row per tuned metric: name, value, best value, and its threshold."""
        return [
            (m.label, m.text(value), m.text(self.tuned[m.name].value), f"{self.tuned[m.name].threshold:.4g}")
            for m, value in self.measured()
            if m.name in self.tuned
        ]


def read_evaluation(record: ModelRecord) -> tuple[Evaluation | None, MultilabelEvaluation | None]:
    """Return the evaluation in a record: one for a single label per row, one for several; None if absent."""
    if not record.evaluation:
        return None, None
    if record.multilabel:
        return None, MultilabelEvaluation.from_dict(record.evaluation)
    return Evaluation.from_dict(record.evaluation), None


def ranked_worst(per_class: Sequence[ClassAccuracy]) -> list[ClassAccuracy]:
    """Return classes by the upper end of their interval: 30 of 60 before 3 of 6, both before 1 of 1."""
    return sorted(per_class, key=lambda part: (part.intervals[1][1], part.topk[1], part.name))
