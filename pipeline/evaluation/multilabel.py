"""Metrics of a model of several labels a row, and the threshold above which it predicts a label."""

from __future__ import annotations

import datetime as dt
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from topline.pipeline.errors import InputError
from topline.pipeline.progress import Progress
from topline.pipeline.rows.partition import TrainingRows
from topline.pipeline.rows.stored_model import StoredModel
from topline.solvers.estimators.multilabel_metrics import (
    PARTITION_METRICS,
    average_precisions,
    partition_metrics,
    ranking_metrics,
    tuned_thresholds,
)
from topline.storage.models import update_record

REPORTED_K = (1, 3, 5)
DEFAULT_RULE = "f1_micro"
# A threshold is chosen on so many scores at most: a gigabyte is sorted, and more would not move it.
TUNING_SCORES = 1 << 23

#: Metrics and rules as people read them.
TITLES: Mapping[str, str] = {
    "f1_micro": "F1, micro-averaged",
    "f1_macro": "F1, macro-averaged",
    "f1_instance": "F1, averaged over rows",
    "accuracy": "accuracy (Jaccard)",
    "subset_accuracy": "subset accuracy",
    "hamming_loss": "Hamming loss",
    "cardinality": "labels a row as in training",
}


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
        """Give it in a line."""
        best = "matches" if self.rule == "cardinality" else "best for"
        return f"{self.value:.4g}, {best} {TITLES[self.rule]} on the {self.rows:,} {self.split} rows"


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
class MultilabelEvaluation:
    """Metrics of a model on one split; `metrics` are those of `solvers.estimators.multilabel_metrics`.

    `labels_per_row` are those that rows have and `predicted_per_row` those that are predicted, on average.
    `metrics` hold at the model's `threshold`, `tuned` at thresholds of their own.  `per_label` has the labels
    that occur, in their order.
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

    def to_dict(self) -> dict[str, Any]:
        """Give plain values for JSON; the keys of `precision` and `recall` are strings there."""
        values = asdict(self)
        for name in ("precision", "recall"):
            values[name] = {str(k): share for k, share in values[name].items()}
        return values

    def summary(self) -> dict[str, float]:
        """Give the metrics that are one number each, by name."""
        ranking = {"rank_loss": self.rank_loss, "mean_average_precision": self.mean_average_precision}
        return {**ranking, **self.metrics, "threshold": self.threshold.value}

    def ranking(self) -> dict[str, str]:
        """Give the metrics of the order of the labels for people."""
        return {
            "rank loss": f"{self.rank_loss:.4f}",
            "mean average precision": f"{self.mean_average_precision:.1%}",
            "precision": ", ".join(f"{share:.1%} at {k}" for k, share in self.precision.items()),
            "recall": ", ".join(f"{share:.1%} at {k}" for k, share in self.recall.items()),
        }

    def table(self) -> list[tuple[str, str, str, str]]:
        """Give a row for each metric of the predictions: name, value, best value, and threshold of that."""
        rows = []
        for name in PARTITION_METRICS:
            best = self.tuned[name]
            values = _shown(name, self.metrics[name]), _shown(name, best.value)
            rows.append((TITLES[name], *values, f"{best.threshold:.4g}"))
        return rows

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> MultilabelEvaluation:
        """Read what `to_dict` gave, from a model's record."""
        shares = {
            name: {k: float(values[name][str(k)]) for k in sorted(map(int, values[name]))}
            for name in ("precision", "recall")
        }
        return cls(**{
            **values,
            **shares,
            "threshold": Threshold(**values["threshold"]),
            "tuned": {name: Tuned(**values["tuned"][name]) for name in PARTITION_METRICS},
            "per_label": tuple(LabelQuality(**part) for part in values["per_label"]),
        })  # fmt: skip


def evaluate_multilabel(
    stored: StoredModel, split: str, rule: str = DEFAULT_RULE, progress: Progress | None = None
) -> MultilabelEvaluation:
    """Choose the threshold by `rule` and measure the model on one split; records both with the model.

    The threshold comes from the validation rows, or where there are none from the training rows.  The scores
    of all rows of the split are in memory.  `InputError` if it has no rows.
    """
    started = time.perf_counter()
    record = stored.model.record
    rows, tuning = stored.rows(split), tuning_rows(stored)
    if len(rows) == 0:
        counts = ", ".join(f"{name} {count}" for name, count in rows.dataset.info.counts.items())
        raise InputError(f"dataset {record.dataset} has no {split} rows to evaluate on (it has {counts})")
    relevant, scores = _scored(stored, rows, "evaluate", progress)
    step = -(-len(tuning) * record.m // TUNING_SCORES)
    known = relevant[::step], scores[::step]
    if tuning.split != split:
        known = _scored(stored, tuning, "threshold", progress, step)
    thresholds = tuned_thresholds(*known, _labels_per_row(stored.rows("train")))
    predicted = scores > thresholds[rule]
    ranking = ranking_metrics(relevant, scores, [k for k in REPORTED_K if k <= record.m])
    found = MultilabelEvaluation(
        model=record.id,
        dataset=record.dataset,
        split=split,
        rows=len(rows),
        labels_per_row=_labels_per_row(rows),
        predicted_per_row=float(predicted.sum(axis=1).mean()),
        rank_loss=ranking.rank_loss,
        mean_average_precision=ranking.mean_average_precision,
        precision=dict(ranking.precision),
        recall=dict(ranking.recall),
        threshold=Threshold(thresholds[rule], rule, tuning.split, len(known[0])),
        metrics=partition_metrics(relevant, predicted),
        tuned={
            name: Tuned(thresholds[name], partition_metrics(relevant, scores > thresholds[name])[name])
            for name in PARTITION_METRICS
        },
        per_label=_qualities(record.class_names, relevant, scores, predicted),
        seconds=time.perf_counter() - started,
        created=dt.datetime.now(dt.UTC).isoformat(timespec="seconds"),
    )
    update_record(stored.model.url, evaluation=found.to_dict(), threshold=asdict(found.threshold))
    return found


def _shown(name: str, value: float) -> str:
    """Losses as numbers, shares in percent."""
    return f"{value:.4f}" if name == "hamming_loss" else f"{value:.1%}"


def tuning_rows(stored: StoredModel) -> TrainingRows:
    """The rows that thresholds are chosen on: for validation, or where there are none for training."""
    held = stored.rows("val")
    return held if len(held) else stored.rows("train")


def _labels_per_row(rows: TrainingRows) -> float:
    return float(rows.class_counts().sum() / len(rows))


def _scored(
    stored: StoredModel, rows: TrainingRows, stage: str, progress: Progress | None, step: int = 1
) -> tuple[NDArray[np.bool_], NDArray[np.float64]]:
    """Labels as an indicator and scores of every `step`-th row, both (r, m); one pass, batch by batch."""
    sets = rows.solver_label_sets
    if sets is None:
        raise InputError(f"dataset {rows.dataset.info.id} has one label a row, and the model several")
    if progress is not None:
        progress.begin(stage, len(rows), "rows")
    wanted = np.arange(0, len(rows), step)
    scores = np.empty((len(wanted), stored.model.record.m))
    for start, stop, X in rows.tiles():
        first, last = np.searchsorted(wanted, (start, stop))
        if first < last:
            scores[first:last] = stored.scores(X[wanted[first:last] - start])
        if progress is not None:
            progress.advance(stop - start)
    return sets.indicator(rows.labels()[wanted]), scores


def _qualities(
    names: tuple[str, ...],
    relevant: NDArray[np.bool_],
    scores: NDArray[np.float64],
    predicted: NDArray[np.bool_],
) -> tuple[LabelQuality, ...]:
    hits, rows, said = ((part).sum(axis=0) for part in (relevant & predicted, relevant, predicted))
    average = average_precisions(relevant, scores)
    return tuple(
        LabelQuality(
            name=names[j],
            rows=int(rows[j]),
            precision=float(hits[j] / max(said[j], 1)),
            recall=float(hits[j] / rows[j]),
            f1=float(2.0 * hits[j] / (rows[j] + said[j])),
            average_precision=float(average[j]),
        )
        for j in np.flatnonzero(rows).tolist()
    )
