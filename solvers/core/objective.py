"""The objective value of weights and a dual point: P, D and the gap, with the rules for reading them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import numpy as np

from topline.solvers.errors import CertificateError

#: "true" for P - D of the problem itself; "lifted" for its upper bound where smoothing > 0; "none" where the
#: loss is not convex: dual, gap and relative_gap are then NaN, and nothing bounds how far the optimum is.
GapKind: TypeAlias = Literal["true", "lifted", "none"]


def relative_gap(gap: float, primal: float) -> float:
    """Return gap / max(|P|, tiny)."""
    return gap / max(abs(primal), float(np.finfo(np.float64).tiny))


@dataclass(frozen=True)
class Objective:
    """An objective value P and a lower bound D of P and its minimum.

    Attributes
    ----------
    primal, dual : P and D.
    kind : which gap their difference is.
    stationarity : |grad P(W)| / |grad P(0)| where the loss is not convex and D is NaN, else None.

    Examples
    --------
    >>> from topline.solvers.core.objective import Objective
    >>> Objective(primal=2.0, dual=1.5).relative_gap
    0.25
    """

    primal: float
    dual: float
    kind: GapKind = "true"
    stationarity: float | None = None

    @classmethod
    def checked(cls, primal: float, dual: float, size: float, share: float = 1e-9) -> Objective:
        """Return P with min(D, P), which is a bound as well: D may exceed P by rounding.

        Raises CertificateError if it exceeds P by more than `share` of the terms' size.
        """
        if primal - dual < -share * size:
            raise CertificateError(
                f"the dual value {dual:.17g} exceeds the primal value {primal:.17g}; do not use this result"
            )
        return cls(primal, min(dual, primal))

    @classmethod
    def without_dual(cls, primal: float, stationarity: float | None = None) -> Objective:
        """Return P where no D is known."""
        return cls(primal, math.nan, "true" if stationarity is None else "none", stationarity)

    @property
    def gap(self) -> float:
        """P - D, an upper bound of the distance from P to its minimum."""
        return self.primal - self.dual

    @property
    def relative_gap(self) -> float:
        """The gap as a share of |P|."""
        return relative_gap(self.gap, self.primal)

    @property
    def left(self) -> float:
        """The value compared with a tolerance: the relative gap, or the stationarity if there is no gap."""
        return self.relative_gap if self.stationarity is None else self.stationarity

    @property
    def finite(self) -> bool:
        """Whether P and its gap or stationarity are finite."""
        bound = self.dual if self.stationarity is None else self.stationarity
        return math.isfinite(self.primal) and math.isfinite(bound)

    def reaches(self, tol: float) -> bool:
        """Return whether P is within the tolerance."""
        return self.finite and self.left <= tol

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON, under the names of a result's attributes."""
        return {
            "primal": self.primal,
            "dual": self.dual,
            "gap": self.gap,
            "relative_gap": self.relative_gap,
            "gap_kind": self.kind,
            "stationarity": self.stationarity,
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Objective:
        """Return the objective from a `to_dict` mapping, perhaps with more keys; JSON has null for NaN."""
        primal, dual = (math.nan if values[name] is None else values[name] for name in ("primal", "dual"))
        return cls(primal, dual, values.get("gap_kind", "true"), values.get("stationarity"))


class HasObjective:
    """Base class of values with an objective, whose parts become attributes."""

    objective: Objective

    @property
    def primal(self) -> float:
        """P."""
        return self.objective.primal

    @property
    def dual(self) -> float:
        """D, a lower bound of P and its minimum."""
        return self.objective.dual

    @property
    def gap(self) -> float:
        """P - D, an upper bound of the distance from P to its minimum."""
        return self.objective.gap

    @property
    def relative_gap(self) -> float:
        """The gap as a share of |P|."""
        return self.objective.relative_gap

    @property
    def gap_kind(self) -> GapKind:
        """Which gap it is: "true", "lifted", or "none" where nothing bounds it."""
        return self.objective.kind

    @property
    def stationarity(self) -> float | None:
        """|grad P(W)| / |grad P(0)| where the loss is not convex, else None."""
        return self.objective.stationarity
