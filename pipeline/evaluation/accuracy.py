"""Top-k accuracy of a stored model on held-out rows, ties counted against it.

Models of several labels a row have metrics of their own (`topline.pipeline.evaluation.multilabel`).
"""

from __future__ import annotations

import datetime as dt
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from topline.pipeline.errors import ConfigError, InputError
from topline.pipeline.evaluation.multilabel import DEFAULT_RULE, MultilabelEvaluation, evaluate_multilabel
from topline.pipeline.progress import Progress
from topline.pipeline.rows.partition import TrainingRows
from topline.pipeline.rows.stored_model import StoredModel
from topline.solvers.estimators.multilabel_metrics import THRESHOLD_RULES
from topline.storage.models import update_record
from topline.storage.schema import SPLITS

REPORTED_K = (1, 2, 3, 5, 10)


@dataclass(frozen=True)
class ClassAccuracy:
    """Accuracies on the rows of one class: share of rows whose own class is among the first k."""

    name: str
    rows: int
    topk: dict[int, float]


@dataclass(frozen=True)
class Confusion:
    """`count` rows of class `true` scored class `predicted` highest, or as high as their own."""

    true: str
    predicted: str
    count: int


@dataclass(frozen=True)
class Evaluation:
    """Accuracies of a model on one split.

    `majority_baseline` is the top-1 accuracy of always answering `majority_class`, the largest in training.
    `per_class` has the classes that occur, in class order; `confused` the most frequent pairs first.
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

    def to_dict(self) -> dict[str, Any]:
        """Give plain values for JSON; the keys of `topk` are strings there."""
        values = asdict(self)
        for part in (values, *values["per_class"]):
            part["topk"] = {str(k): share for k, share in part["topk"].items()}
        return values

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Evaluation:
        """Read what `to_dict` gave, from a model's record."""

        def shares(topk: Mapping[str, float]) -> dict[int, float]:
            return {k: float(topk[str(k)]) for k in sorted(map(int, topk))}

        per_class = tuple(
            ClassAccuracy(part["name"], part["rows"], shares(part["topk"])) for part in values["per_class"]
        )
        confused = tuple(Confusion(**pair) for pair in values["confused"])
        return cls(**{**values, "topk": shares(values["topk"]), "per_class": per_class, "confused": confused})


def evaluate_model(
    model_url: str,
    split: str = "test",
    progress: Progress | None = None,
    *,
    confused: int = 20,
    threshold_for: str | None = None,
) -> Evaluation | MultilabelEvaluation:
    """Evaluate the model at `model_url`, of one label a row or of several, and record the result.

    `threshold_for` (one of `THRESHOLD_RULES`) is what the threshold of several labels is chosen by.  Raises
    `InputError` if the split has no rows or the dataset is gone or another one, and `ConfigError` for another
    rule and for a threshold of a model of single labels.
    """
    stored = StoredModel.open(model_url)
    check_split(split)
    if stored.model.record.multilabel:
        if threshold_for not in (None, *THRESHOLD_RULES):
            raise ConfigError(
                f"a threshold is not chosen by {threshold_for!r}: take one of {', '.join(THRESHOLD_RULES)}"
            )
        return evaluate_multilabel(stored, split, threshold_for or DEFAULT_RULE, progress)
    if threshold_for is not None:
        raise ConfigError(
            f"model {stored.model.record.id} predicts one label a row, which takes no threshold: leave"
            " --threshold-for out"
        )
    return evaluate(model_url, split, progress, confused=confused)


def check_split(split: str) -> None:
    """`InputError` for a split that has no rows to evaluate on."""
    if split not in SPLITS or split == "rejected":
        raise InputError(f"there is no split {split!r}: use train, val or test")


def evaluate(
    model_url: str,
    split: str = "test",
    progress: Progress | None = None,
    *,
    confused: int = 20,
    store: bool = True,
) -> Evaluation:
    """Evaluate the model at `model_url` on one split of its dataset; with `store`, record the result.

    Raises `InputError` if the split has no rows, or if the dataset is gone or is another one.
    """
    started = time.perf_counter()
    stored = StoredModel.open(model_url)
    record = stored.model.record
    check_split(split)
    if record.multilabel:
        raise InputError(f"model {record.id} predicts several labels a row, which have no top-k accuracy")
    rows = stored.rows(split)
    if len(rows) == 0:
        counts = ", ".join(f"{name} {count}" for name, count in rows.dataset.info.counts.items())
        raise InputError(f"dataset {record.dataset} has no {split} rows to evaluate on (it has {counts})")
    ranks, firsts = _ranks(rows, stored.scores, progress)
    y = rows.labels()
    shown = [k for k in REPORTED_K if k <= record.m]
    majority = _majority(rows)
    evaluation = Evaluation(
        model=record.id,
        dataset=record.dataset,
        split=split,
        rows=len(y),
        topk=topk_shares(ranks, shown),
        majority_class=record.class_names[majority],
        majority_baseline=float(np.mean(y == majority)),
        per_class=tuple(
            ClassAccuracy(record.class_names[c], int((y == c).sum()), topk_shares(ranks[y == c], shown))
            for c in np.unique(y)
        ),
        confused=_confused_pairs(y, firsts, ranks, record.class_names, confused),
        seconds=time.perf_counter() - started,
        created=dt.datetime.now(dt.UTC).isoformat(timespec="seconds"),
    )
    if store:
        update_record(model_url, evaluation=evaluation.to_dict())
    return evaluation


def ranks_against_ties(scores: NDArray[Any], y: NDArray[Any]) -> NDArray[np.int64]:
    """Rank of the own class, 1 + #{j != y: s_j >= s_y}, for each row of `scores` (r, m).

    A tie counts against the model: a model that gives every class the same score knows nothing.  NaN counts
    as a tie.
    """
    own = np.take_along_axis(scores, np.asarray(y, dtype=np.int64)[:, None], axis=1)
    return np.asarray((~(scores < own)).sum(axis=1), dtype=np.int64)


def topk_shares(ranks: NDArray[np.int64], ks: Sequence[int]) -> dict[int, float]:
    """Share of rows whose own class ranks among the first k, for each k."""
    return {k: float(np.mean(ranks <= k)) for k in ks}


def _ranks(
    rows: TrainingRows, score: Callable[[Any], NDArray[np.float64]], progress: Progress | None
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Rank of the own class, and the best of the other classes, for every row; one pass, batch by batch."""
    labels = rows.labels()
    if progress is not None:
        progress.begin("evaluate", len(rows), "rows")
    ranks = np.empty(len(rows), dtype=np.int64)
    firsts = np.empty(len(rows), dtype=np.int64)
    for start, stop, X in rows.tiles():
        scores = score(X)
        y = labels[start:stop]
        ranks[start:stop] = ranks_against_ties(scores, y)
        scores[np.arange(stop - start), y] = -np.inf
        firsts[start:stop] = scores.argmax(axis=1)
        if progress is not None:
            progress.advance(stop - start)
    return ranks, firsts


def _majority(rows: TrainingRows) -> int:
    """Class with the most training rows, the first of equals."""
    dataset = rows.dataset
    training = dataset.labels()[dataset.split() == SPLITS["train"]]
    return int(np.bincount(training[training >= 0], minlength=1).argmax())


def _confused_pairs(
    y: NDArray[Any], firsts: NDArray[np.int64], ranks: NDArray[np.int64], names: Sequence[str], most: int
) -> tuple[Confusion, ...]:
    wrong = ranks > 1
    m = len(names)
    pairs, counts = np.unique(y[wrong].astype(np.int64) * m + firsts[wrong], return_counts=True)
    order = np.argsort(-counts, kind="stable")[:most]
    return tuple(Confusion(names[pairs[i] // m], names[pairs[i] % m], int(counts[i])) for i in order)
