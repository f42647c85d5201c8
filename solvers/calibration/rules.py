"""The calibration of a classifier: its probabilities, and rules that make sets of classes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from topline.solvers.calibration.conformal import (
    CalibrationRows,
    Weighing,
    least_rows,
    prediction_sets,
    smallest_weighings,
)
from topline.solvers.calibration.probabilities import ProbabilityMap
from topline.solvers.errors import InvalidProblemError
from topline.solvers.typing import Float64Array, IntArray

#: Conformity of a class: cumulative probability, rank, or its own probability.
SetsBy = Literal["adaptive", "rank", "probability"]
#: A coverage, and the weighings with the smallest sets for it: on average, and within every class.
Weighings = tuple[tuple[float, Weighing, Weighing], ...]

TUNED_COVERAGES = (0.5, 0.8, 0.9, 0.95, 0.99)
# Fewer rows say little about the size of sets; more scores do not change the choice.
TUNING_ROWS = 20
TUNING_SCORES = 1 << 20
#: Most class names listed in a sentence.
_NAMED = 8
# Penalty of requested adaptive sets when other sets are smaller.
PENALTY = 0.01


@dataclass(frozen=True, eq=False)
class SetRule:
    """Rule for sets: a row's set holds the classes whose conformity is at most their threshold (m,).

    With `never_empty` an otherwise empty set holds the class with the highest score.  `note` is a sentence on
    classes that are in every set because they have too few calibration rows.
    """

    coverage: float
    per_class: bool
    sets_by: SetsBy
    weighing: Weighing
    thresholds: Float64Array
    probabilities: ProbabilityMap | None
    never_empty: bool = False
    note: str | None = None

    def sets(self, scores: NDArray[Any], draws: NDArray[Any]) -> NDArray[np.bool_]:
        """Return a mask (r, m) of the classes in the sets of rows with scores (r, m) and draws (r,)."""
        p = None if self.probabilities is None else self.probabilities.probabilities(scores)
        found = prediction_sets(scores, p, draws, self.weighing, self.thresholds)
        if self.never_empty:
            empty = np.flatnonzero(~found.any(axis=1))
            found[empty, scores[empty].argmax(axis=1)] = True
        return found

    def facts(self) -> dict[str, Any]:
        """Return the rule as plain values for JSON."""
        return {
            "coverage": self.coverage,
            "per_class": self.per_class,
            "sets_by": self.sets_by,
            "penalty": self.weighing if self.sets_by == "adaptive" else None,
            "thresholds": [bound if math.isfinite(bound) else None for bound in self.thresholds.tolist()],
            **({} if self.note is None else {"note": self.note}),
            **({"never_empty": True} if self.never_empty else {}),
        }


@dataclass(frozen=True, eq=False)
class Calibration:
    """Probabilities of a classifier's scores, and its calibration rows.

    `probabilities` is None if there were no rows to fit them on, and `fitted_rows` is 0 if they are the
    loss's own; `fitted_on` names the rows they were fitted on.  `weighings` give the smallest sets on these
    rows, and are empty without them.
    """

    class_names: tuple[str, ...]
    probabilities: ProbabilityMap | None = None
    fitted_rows: int = 0
    weighings: Weighings = ()
    rows: CalibrationRows | None = None
    fitted_on: str = "validation rows"

    def rule(self, coverage: float, *, per_class: bool = False, sets_by: SetsBy | None = None) -> SetRule:
        """Return the rule whose sets hold the right class with probability `coverage`.

        With `per_class` they do so within every class; a class with too few calibration rows is in every set.
        `sets_by` defaults to the kind that gave the smallest sets on the rows probabilities were fitted on,
        "rank" without such rows.  Raises `InvalidProblemError` without calibration rows and if they are too
        few for the coverage.
        """
        if self.rows is None:
            raise InvalidProblemError(
                "there are no calibration rows, so sets would have no guarantee: hold out rows that serve"
                " nothing else (--calibration-share 0.2 of import, extract and run; conformalize in Python)"
            )
        if sets_by in ("adaptive", "probability") and not self.rows.weighed:
            raise InvalidProblemError(
                f"sets by {sets_by!r} need probabilities, and there are too few validation rows to fit them"
                " on: use sets by rank, or hold out more (--val-share; fit_probabilities in Python)"
            )
        weighing = self._weighing(coverage, sets_by, per_class=per_class)
        thresholds = self.rows.thresholds(coverage, weighing, self.class_names, per_class=per_class)
        kind: SetsBy = "adaptive"
        if weighing is None or weighing == "probability":
            kind = weighing or "rank"
        probabilities = self.probabilities if self.rows.weighed else None
        return SetRule(
            coverage, per_class, kind, weighing, thresholds, probabilities,
            note=self._note(coverage, np.flatnonzero(np.isinf(thresholds)).tolist()),
        )  # fmt: skip

    def _note(self, coverage: float, always: Sequence[int]) -> str | None:
        if not always:
            return None
        names = ", ".join(self.class_names[code] for code in always[:_NAMED])
        more = f" and {len(always) - _NAMED} more" if len(always) > _NAMED else ""
        return (
            f"{len(always)} of {len(self.class_names)} classes are in every set ({names}{more}), as they have"
            f" fewer than the {least_rows(coverage)} calibration rows that a coverage of {coverage:g} in each"
            " class needs: lower the coverage, or hold out more of them"
        )

    def _weighing(self, coverage: float, sets_by: SetsBy | None, *, per_class: bool) -> Weighing:
        """Return the requested weighing, or the one tuned for the coverage with the nearest odds."""

        def distance(tuned: tuple[float, Weighing, Weighing]) -> float:
            return abs(math.log(tuned[0] / (1.0 - tuned[0])) - math.log(coverage / (1.0 - coverage)))

        if sets_by == "rank" or sets_by == "probability":
            return None if sets_by == "rank" else sets_by
        tuned: Weighing = None
        if self.weighings and 0.0 < coverage < 1.0:
            tuned = min(self.weighings, key=distance)[1 + per_class]
        if sets_by == "adaptive" and not isinstance(tuned, float):
            return PENALTY
        return tuned


def tuned_weighings(
    probabilities: ProbabilityMap, scores: NDArray[Any], labels: IntArray, draws: NDArray[Any]
) -> Weighings:
    """Return the weighings with the smallest sets on rows with scores (n, m); empty for too few rows.

    The rows are those that probabilities were fitted on, never calibration rows.
    """
    step = -(-scores.size // TUNING_SCORES)
    scores, y, u = scores[::step], np.asarray(labels)[::step], draws[::step]
    if len(scores) < TUNING_ROWS:
        return ()
    p = probabilities.probabilities(scores)
    on_average, in_every_class = (
        smallest_weighings(scores, p, y, u, TUNED_COVERAGES, per_class=per_class)
        for per_class in (False, True)
    )
    return tuple(zip(TUNED_COVERAGES, on_average, in_every_class, strict=True))


def members(classes: Sequence[Any], sets: NDArray[np.bool_], scores: NDArray[Any]) -> list[list[Any]]:
    """Return the classes in each row's set, those with the highest scores first."""
    order = np.argsort(-np.asarray(scores), axis=1, kind="stable")
    return [[classes[c] for c in best if row[c]] for best, row in zip(order.tolist(), sets, strict=True)]
