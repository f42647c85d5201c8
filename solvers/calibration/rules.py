"""The calibration of a classifier as a whole: its probabilities, and rules that make sets of classes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from topline.solvers.calibration.conformal import CalibrationRows, prediction_sets, smallest_penalties
from topline.solvers.calibration.probabilities import ProbabilityMap
from topline.solvers.errors import InvalidProblemError
from topline.solvers.typing import Float64Array, IntArray

#: How classes are weighed for sets: by their rank alone, or by their probabilities too.
SetsBy = Literal["adaptive", "rank"]
#: A coverage, and the penalties of the smallest sets for it: on average, and in every class.
Penalties = tuple[tuple[float, float | None, float | None], ...]

TUNED_COVERAGES = (0.5, 0.8, 0.9, 0.95, 0.99)
# Fewer rows say next to nothing about the size of sets; more scores than these do not change it.
TUNING_ROWS = 20
TUNING_SCORES = 1 << 20


@dataclass(frozen=True, eq=False)
class SetRule:
    """Which classes are in a row's set: those whose conformity is at most their threshold (m,)."""

    coverage: float
    per_class: bool
    sets_by: SetsBy
    penalty: float | None
    thresholds: Float64Array
    probabilities: ProbabilityMap | None

    def sets(self, scores: NDArray[Any], draws: NDArray[Any]) -> NDArray[np.bool_]:
        """Return which classes are in the sets of rows with scores (r, m) and draws (r,), shape (r, m)."""
        p = None if self.probabilities is None else self.probabilities.probabilities(scores)
        return prediction_sets(scores, p, draws, self.penalty, self.thresholds)

    def facts(self) -> dict[str, Any]:
        """Return the rule as plain values for JSON."""
        return {
            "coverage": self.coverage,
            "per_class": self.per_class,
            "sets_by": self.sets_by,
            "penalty": self.penalty,
            "thresholds": self.thresholds.tolist(),
        }


@dataclass(frozen=True, eq=False)
class Calibration:
    """Probabilities of a classifier's scores, and its calibration rows.

    `probabilities` is None where there was nothing to fit them on, and `fitted_rows` is 0 where they are the
    loss's own.  `penalties` are those of the smallest sets on the rows that probabilities were fitted on
    (None: the rank), and empty without such rows.
    """

    class_names: tuple[str, ...]
    probabilities: ProbabilityMap | None = None
    fitted_rows: int = 0
    penalties: Penalties = ()
    rows: CalibrationRows | None = None

    def rule(self, coverage: float, *, per_class: bool = False, sets_by: SetsBy | None = None) -> SetRule:
        """Return the rule whose sets hold the right class with a probability of `coverage`.

        With `per_class` they do so in every class.  `sets_by` is "adaptive" where a penalty was chosen,
        "rank" elsewhere and where that was the choice.  Raises `InvalidProblemError` without calibration rows
        and for a coverage that so few cannot give.
        """
        if self.rows is None:
            raise InvalidProblemError(
                "there are no calibration rows, so sets would have no guarantee: hold out rows that serve"
                " nothing else (--calibration-share 0.2 of import, extract and run; conformalize in Python)"
            )
        if sets_by == "adaptive" and not self.penalties:
            raise InvalidProblemError(
                "adaptive sets need probabilities, and there are too few validation rows to fit them on: use"
                " sets by rank, or hold out more (--val-share; fit_probabilities in Python)"
            )
        penalty = self._penalty(coverage, per_class=per_class) if sets_by != "rank" else None
        thresholds = self.rows.thresholds(coverage, penalty, self.class_names, per_class=per_class)
        kind: SetsBy = "rank" if penalty is None else "adaptive"
        probabilities = self.probabilities if self.rows.weighed else None
        return SetRule(coverage, per_class, kind, penalty, thresholds, probabilities)

    def _penalty(self, coverage: float, *, per_class: bool) -> float | None:
        """Return the penalty that was chosen at the coverage with the nearest odds."""

        def distance(tuned: tuple[float, float | None, float | None]) -> float:
            return abs(math.log(tuned[0] / (1.0 - tuned[0])) - math.log(coverage / (1.0 - coverage)))

        if not self.penalties or not 0.0 < coverage < 1.0:
            return None
        return min(self.penalties, key=distance)[1 + per_class]


def tuned_penalties(
    probabilities: ProbabilityMap, scores: NDArray[Any], labels: IntArray, draws: NDArray[Any]
) -> Penalties:
    """Return the penalties with the smallest sets on rows with scores (n, m); none of too few rows.

    The rows are those that probabilities were fitted on, never calibration rows.
    """
    step = -(-scores.size // TUNING_SCORES)
    scores, y, u = scores[::step], np.asarray(labels)[::step], draws[::step]
    if len(scores) < TUNING_ROWS:
        return ()
    p = probabilities.probabilities(scores)
    on_average, in_every_class = (
        smallest_penalties(scores, p, y, u, TUNED_COVERAGES, per_class=per_class)
        for per_class in (False, True)
    )
    return tuple(zip(TUNED_COVERAGES, on_average, in_every_class, strict=True))


def members(classes: Sequence[Any], sets: NDArray[np.bool_], scores: NDArray[Any]) -> list[list[Any]]:
    """Return the classes in each row's set, those with the highest scores first."""
    order = np.argsort(-np.asarray(scores), axis=1, kind="stable")
    return [[classes[c] for c in best if row[c]] for best, row in zip(order.tolist(), sets, strict=True)]
