"""What every loss is made of: an order of aggregation, rank weights and margins.

With a = delta_y + s - s_y 1 (so a_y = 0) and a_[1] >= a_[2] >= ... (ties: lower class first), every loss of
this family is one of

    SUM_THEN_HINGE   Phi(s; y) = max(0, sum_j rho_j a_[j])    top-k hinges (Tajima et al., eq. 2.5, 2.7)
    HINGE_THEN_SUM   Phi(s; y) = sum_j rho_j max(0, a_[j])    Usunier hinges (Tajima et al., eq. 2.6, 2.8)

The own class takes part in the sort with the value 0.  The conjugate is Phi*(-alpha; y) = <delta_y, alpha> on
its domain (Hirohashi and Kato, lemma 1), which holds for any margins with a zero at the own class.

Sources: K. Tajima, Y. Hirohashi, E. R. R. Zara, T. Kato, "Frank-Wolfe algorithm for learning SVM-type
multi-category classifiers", arXiv:2008.08894; Y. Hirohashi, T. Kato, "Learning Weighted Top-k Support Vector
Machine", 2020.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Any, ClassVar, Protocol, runtime_checkable

import numpy as np

from solvers.errors import InvalidProblemError
from solvers.typing import Float64Array


class Aggregate(Enum):
    """Which comes first, the weighted sum over ranks or the hinge."""

    SUM_THEN_HINGE = "sum_then_hinge"
    HINGE_THEN_SUM = "hinge_then_sum"


@dataclass(frozen=True, eq=False)
class LossForm:
    """One loss for a known number of classes, in the terms that kernels work with.

    Attributes
    ----------
    m : number of classes.
    aggregate : order of sum and hinge.
    rho : (L,) float64, positive and non-increasing, L <= m: only the L largest a_j matter.
    margins : (m, m) float64, row = true class, zero diagonal; None stands for 1 - e_y.
    """

    m: int
    aggregate: Aggregate
    rho: Float64Array
    margins: Float64Array | None = None

    def margin_rows(self, y: np.ndarray[Any, Any]) -> Float64Array:
        """Give delta_y of each example, shape (len(y), m)."""
        if self.margins is not None:
            return np.asarray(self.margins[y])
        rows = np.ones((len(y), self.m))
        rows[np.arange(len(y)), y] = 0.0
        return rows


@runtime_checkable
class Loss(Protocol):
    """A loss as a value: frozen, comparable, and written to JSON by `to_dict`."""

    name: ClassVar[str]

    def form(self, m: int) -> LossForm:
        """Give the loss for m classes; InvalidProblemError where it does not exist for that m."""
        ...

    def to_dict(self) -> dict[str, Any]:
        """Give plain values from which `loss_from_dict` makes the same loss again."""
        ...


def rank_form(m: int, aggregate: Aggregate, rho: Float64Array, name: str) -> LossForm:
    """Build a LossForm with margins 1 - e_y, refusing m < 2 and m < len(rho)."""
    if m < 2:
        raise InvalidProblemError(f"there are {m} classes; {name} needs at least 2")
    if len(rho) > m:
        raise InvalidProblemError(
            f"{name} weighs {len(rho)} ranks but there are only {m} classes; take k <= {m}"
        )
    return LossForm(m=m, aggregate=aggregate, rho=np.trim_zeros(rho, "b"))


def checked_weights(rho: Any) -> tuple[float, ...]:
    """Give rank weights as floats, refusing what is not finite, non-negative and non-increasing."""
    try:
        weights = np.asarray(rho, dtype=np.float64)
    except (TypeError, ValueError):
        raise InvalidProblemError(f"rho is {rho!r}; give a sequence of numbers") from None
    if weights.ndim != 1 or weights.size == 0:
        raise InvalidProblemError(
            f"rho has the shape {weights.shape}; give a sequence of at least one number"
        )
    if not np.isfinite(weights).all():
        raise InvalidProblemError("rho holds NaN or infinity; give finite weights")
    if weights.min() < 0:
        raise InvalidProblemError(f"rho holds {weights.min():g}; weights must not be negative")
    rises = np.flatnonzero(np.diff(weights) > 0)
    if rises.size:
        j = int(rises[0])
        raise InvalidProblemError(
            f"rho rises from {weights[j]:g} to {weights[j + 1]:g} at rank {j + 2}; weights must not increase"
        )
    if weights[0] == 0:
        raise InvalidProblemError("rho is all zero; at least the first weight must be positive")
    return tuple(float(w) for w in weights)


def checked_k(k: Any, name: str) -> int:
    """Give k as an int of at least 1."""
    if isinstance(k, bool | np.bool_) or not isinstance(k, int | np.integer) or k < 1:
        raise InvalidProblemError(f"k of {name} is {k!r}; give a whole number of at least 1")
    return int(k)
