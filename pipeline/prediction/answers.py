"""Answers for rows with given scores: the best classes, their probabilities, and sets of classes."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from topline.pipeline.calibration import calibration_of, calibration_text, guesses_of, row_draws
from topline.pipeline.errors import ConfigError
from topline.pipeline.evaluation import with_interval
from topline.pipeline.options import PredictConfig
from topline.pipeline.progress import Progress
from topline.pipeline.rows import StoredModel
from topline.solvers.calibration import GuessRule, Interval, ProbabilityMap, SetRule, share_interval
from topline.solvers.counts import how_many
from topline.storage.models import ModelRecord
from topline.storage.records import PlainRecord

logger = logging.getLogger(__name__)


@dataclass(frozen=True, eq=False)
class NewRows:
    """Rows from outside any store: ids, rows as classified, scores (r, m), known splits, reading errors."""

    names: Sequence[str]
    X: Any
    scores: NDArray[np.float64]
    splits: Sequence[str | None]
    errors: Sequence[str | None]


@dataclass(frozen=True, eq=False)
class Answers:
    """Classes (r, k), best first and -1 if not predicted, scores, probabilities, and `sets` (r, m) if any."""

    classes: NDArray[np.int32]
    scores: NDArray[Any]
    probabilities: NDArray[np.float32] | None
    sets: NDArray[np.bool_] | None

    def columns(
        self, class_names: Sequence[str], order: NDArray[Any] | None = None, read: NDArray[Any] | None = None
    ) -> dict[str, list[Any]]:
        """Return the list columns of a table of predictions; None in rows that are not `read`.

        Members of a set follow the `order` (r, m) of all classes, by default the predicted ones first.
        """
        names = np.array([*class_names, None], dtype=object)
        there = np.ones(len(self.classes), bool) if read is None else read

        def lists(values: NDArray[Any]) -> list[Any]:
            rows = zip(values, self.classes >= 0, there, strict=True)
            return [row[kept].tolist() if known else None for row, kept, known in rows]

        columns = {
            "classes": lists(names[self.classes]),
            "scores": lists(self.scores),
            "probabilities": (
                [None] * len(self.classes) if self.probabilities is None else lists(self.probabilities)
            ),
        }
        if self.sets is not None:
            rows = zip(self.sets, self.classes if order is None else order, there, strict=True)
            columns["set"] = [
                names[_members_in_order(members, best)].tolist() if known else None
                for members, best, known in rows
            ]
        return columns


def _members_in_order(members: NDArray[np.bool_], best: NDArray[Any]) -> list[int]:
    """Return the codes of a set (m,): the best classes in their order, then the others."""
    first = [code for code in best.tolist() if code >= 0 and members[code]]
    return first + sorted(set(np.flatnonzero(members).tolist()) - set(first))


@dataclass(frozen=True)
class Scored:
    """Accuracy on labelled new rows on which the model was not trained, by k with intervals.

    `in_training` further rows were training rows; `unknown` counts labels that are no class of the model.
    """

    rows: int
    in_training: int
    unknown: dict[str, int]
    topk: dict[int, float]
    intervals: dict[int, Interval]

    def text(self) -> str:
        """Return one line of text."""
        if not self.rows:
            return f"none: all {how_many(self.in_training, 'labelled rows')} were in training"
        shares = "   ".join(
            with_interval(f"top-{k} {share:.1%}", self.intervals[k]) for k, share in self.topk.items()
        )
        trained = f", {self.in_training:,} more were in training" if self.in_training else ""
        known = ", ".join(f"{name} {count:,}" for name, count in self.unknown.items())
        wrong = f", counted as wrong of unknown classes: {known}" if known else ""
        return f"{shares}   ({how_many(self.rows, 'labelled rows')}{trained}){wrong}"


@dataclass(frozen=True, kw_only=True)
class Predicted(PlainRecord):
    """Predictions of a `model` for new rows: their probabilities in words, sets, accuracy and files."""

    model: str
    probabilities: str
    coverage: float | None = None
    sets: dict[str, Any] | None = None
    scored: Scored | None = None
    output: str | None = None
    page: str | None = None


def summary(
    tables: Iterable[pa.Table], class_names: Sequence[str], rule: AnswerRule
) -> dict[Literal["scored", "sets"], Any]:
    """Return the accuracy and the sets of tables of predictions, each None where there is none."""
    ranks: list[int] = []
    sizes = [np.empty(0, dtype=np.int64)]
    in_training, unknown, known, most = 0, Counter[str](), frozenset(class_names), 1
    for table in tables:
        if rule.sets is not None:
            sizes.append(table["set_size"].drop_null().to_numpy())
        for label, split, classes in zip(
            *(table[name].to_pylist() for name in ("label", "split", "classes")), strict=True
        ):
            if label is None or classes is None or split == "train":
                in_training += None not in (label, classes)
                continue
            unknown.update([] if label in known else [label])
            ranks.append(classes.index(label) + 1 if label in classes else len(class_names) + 1)
            most = max(most, len(classes))
    sets = rule.set_facts(np.concatenate(sizes))
    if not ranks and not in_training:
        return {"scored": None, "sets": sets}
    ks = [k for k in (1, 2, 3, 5, 10) if k <= most] if ranks else []
    topk = {k: sum(rank <= k for rank in ranks) / len(ranks) for k in ks}
    intervals = {k: share_interval(share, len(ranks)) for k, share in topk.items()}
    return {"scored": Scored(len(ranks), in_training, dict(unknown), topk, intervals), "sets": sets}


@dataclass(frozen=True, eq=False)
class AnswerRule:
    """How scores become answers: the best `top_k` classes above a `threshold`; `seed` is for sets."""

    top_k: int
    threshold: float | None
    calibration: str
    probabilities: ProbabilityMap | None
    sets: SetRule | GuessRule | None
    seed: int

    @classmethod
    def of(cls, stored: StoredModel, config: PredictConfig, progress: Progress | None = None) -> AnswerRule:
        """Return the rule of these options for a model, whose calibration is made and stored if need be.

        Raises `ConfigError` for options that do not apply to the model, and for sets it cannot give.
        """
        record = stored.model.record
        asked = "top_k" in config.model_fields_set
        if asked and config.top_k > record.m:
            raise ConfigError(f"--top-k {config.top_k} is more than the model's {record.m} classes")
        threshold = _threshold(record, config)
        if config.coverage is None and (config.per_class or config.never_empty or config.sets_by is not None):
            raise ConfigError(
                "--per-class, --never-empty and --sets-by are about sets: give their --coverage, such as 0.9"
            )
        if config.coverage is not None and config.guess_price is not None:
            raise ConfigError("--coverage and --guess-price both say which classes a set holds: give one")
        if record.multilabel and (config.coverage is not None or config.guess_price is not None):
            raise ConfigError(
                f"model {record.id} predicts several labels per row, and sets hold one right class: leave"
                " --coverage and --guess-price out"
            )
        known = calibration_of(stored, progress)
        sets: SetRule | GuessRule | None = None
        if config.guess_price is not None:
            sets = guesses_of(stored, config.guess_price, progress)
        if config.coverage is not None:
            sets = known.rule(config.coverage, per_class=config.per_class, sets_by=config.sets_by)
            sets = replace(sets, never_empty=config.never_empty)
            if sets.note is not None:
                logger.warning("%s", sets.note)
        top_k = record.m if record.multilabel and not asked else min(config.top_k, record.m)
        return cls(top_k, threshold, calibration_text(known), known.probabilities, sets, config.seed)

    def answer(self, scores: NDArray[np.float64], ids: Sequence[str]) -> Answers:
        """Return the answers for rows with scores (r, m) and ids (r,)."""
        classes = np.argsort(-scores, axis=1, kind="stable")[:, : self.top_k]
        kept = np.take_along_axis(scores, classes, axis=1)
        if self.threshold is not None:
            # In float64, before the scores are rounded.
            classes = np.where(kept > self.threshold, classes, -1)
            kept = np.where(classes >= 0, kept, np.nan)
        p = None
        if self.probabilities is not None:
            every = self.probabilities.probabilities(scores)
            known = np.take_along_axis(every, np.maximum(classes, 0), axis=1)
            p = np.where(classes >= 0, known, np.nan).astype(np.float32)
        sets = None if self.sets is None else self.sets.sets(scores, row_draws(ids, self.seed))
        return Answers(classes.astype(np.int32), kept.astype(np.float32), p, sets)

    def set_facts(self, sizes: NDArray[np.integer[Any]]) -> dict[str, Any] | None:
        """Return the kind, the mean size and the empty ones of sets of `sizes` (r,); None without sets."""
        if self.sets is None:
            return None
        kind = self.sets.facts()
        return {
            **{name: kind[name] for name in kind if name not in ("thresholds", "weights")},
            "mean_size": float(sizes.mean()) if len(sizes) else 0.0,
            "empty": int(np.count_nonzero(sizes == 0)),
        }

    def facts(self) -> dict[str, Any]:
        """Return everything that determines the answers besides model and rows."""
        return {
            "top_k": self.top_k,
            **({} if self.threshold is None else {"threshold": self.threshold}),
            **({} if self.probabilities is None else {"probabilities": self.probabilities.to_dict()}),
            **({} if self.sets is None else {"sets": {**self.sets.facts(), "seed": self.seed}}),
        }


def _threshold(record: ModelRecord, config: PredictConfig) -> float | None:
    if not record.multilabel:
        if config.threshold is not None:
            raise ConfigError(f"model {record.id} predicts the best classes of a row: leave --threshold out")
        return None
    if config.threshold is not None:
        return config.threshold
    if record.threshold is None:
        raise ConfigError(
            f"model {record.id} has no threshold yet, above which it predicts a label: topline evaluate"
            " chooses one, or give --threshold"
        )
    return float(record.threshold["value"])
