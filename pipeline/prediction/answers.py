"""What is said of rows with given scores: the best classes, their probabilities, and sets of classes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from topline.pipeline.calibration import calibration_of, in_words, row_draws
from topline.pipeline.errors import ConfigError
from topline.pipeline.options import PredictConfig
from topline.pipeline.prediction.decision_rule import DecisionRule
from topline.pipeline.progress import Progress
from topline.pipeline.rows import StoredModel
from topline.solvers.calibration import ProbabilityMap, SetRule


@dataclass(frozen=True, eq=False)
class Answers:
    """Classes (r, k), the best first and -1 if not predicted, with scores and probabilities, both (r, k).

    `sets` (r, m) says which classes are in each row's set.  Probabilities and sets are None where there are
    none.
    """

    classes: NDArray[np.int32]
    scores: NDArray[np.float32]
    probabilities: NDArray[np.float32] | None
    sets: NDArray[np.bool_] | None


@dataclass(frozen=True, eq=False)
class AnswerRule:
    """How scores become answers; pickles to the workers.  `seed` is that of the draws of sets."""

    best: DecisionRule
    calibration: str
    probabilities: ProbabilityMap | None
    sets: SetRule | None
    seed: int

    @classmethod
    def of(cls, stored: StoredModel, config: PredictConfig, progress: Progress | None = None) -> AnswerRule:
        """Return what the options mean for a model, whose calibration is made and stored if need be.

        Raises `ConfigError` for options that the model has no use for, and for sets that it cannot give.
        """
        best = DecisionRule.of(stored.model.record, config)
        if config.coverage is None and (config.per_class or config.sets_by is not None):
            raise ConfigError("--per-class and --sets-by are about sets: give their --coverage, such as 0.9")
        if config.coverage is not None and stored.model.record.multilabel:
            raise ConfigError(
                f"model {stored.model.record.id} predicts several labels per row, and sets hold one right"
                " class: leave --coverage out"
            )
        known = calibration_of(stored, progress)
        sets = None
        if config.coverage is not None:
            sets = known.rule(config.coverage, per_class=config.per_class, sets_by=config.sets_by)
        return cls(best, in_words(known), known.probabilities, sets, config.seed)

    def answer(self, scores: NDArray[np.float64], ids: Sequence[str]) -> Answers:
        """Return the answers for rows with scores (r, m) and ids (r,)."""
        classes, kept = self.best.best(scores)
        p = None
        if self.probabilities is not None:
            every = self.probabilities.probabilities(scores)
            known = np.take_along_axis(every, np.maximum(classes, 0), axis=1)
            p = np.where(classes >= 0, known, np.nan).astype(np.float32)
        sets = None if self.sets is None else self.sets.sets(scores, row_draws(ids, self.seed))
        return Answers(classes, kept, p, sets)

    def facts(self) -> dict[str, Any]:
        """Return all that answers follow from besides model and rows."""
        return {
            "top_k": self.best.top_k,
            **({} if self.best.threshold is None else {"threshold": self.best.threshold}),
            **({} if self.probabilities is None else {"probabilities": self.probabilities.to_dict()}),
            **({} if self.sets is None else {"sets": {**self.sets.facts(), "seed": self.seed}}),
        }


def ordered_members(members: NDArray[np.bool_], classes: NDArray[np.int32]) -> list[int]:
    """Return the codes of a set (m,): those among the best `classes` in their order, then the others."""
    first = [code for code in classes.tolist() if code >= 0 and members[code]]
    return first + sorted(set(np.flatnonzero(members).tolist()) - set(first))
