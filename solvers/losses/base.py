"""What every loss consists of: a family, rank weights and margins.

Throughout, a = delta_y + s - s_y 1 (so a_y = 0) and a_[1] >= a_[2] >= ... (ties: lower class first).  The
docstring of each class gives its loss Phi(s; y), and its module the dual problem of one example.

Sources: K. Tajima, Y. Hirohashi, E. R. R. Zara, T. Kato, "Frank-Wolfe algorithm for learning SVM-type
multi-category classifiers", arXiv:2008.08894; Y. Hirohashi, T. Kato, "Learning Weighted Top-k Support Vector
Machine", 2020; M. Lapin, "Image Classification with Limited Training Data and Class Ambiguity", 2017.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, ClassVar, Protocol, runtime_checkable

import numpy as np

from topline.solvers.errors import InvalidProblemError
from topline.solvers.losses.form import Family, LossForm
from topline.solvers.losses.rank_weights import flat
from topline.solvers.typing import Float64Array


@runtime_checkable
class Loss(Protocol):
    """A loss as a value: frozen, comparable, and serialised by `to_dict`.

    Examples
    --------
    >>> from topline import Loss, TopKHinge
    >>> isinstance(TopKHinge(k=5), Loss)
    True
    """

    @property
    def name(self) -> str:
        """Name in configurations and model records."""
        ...

    def form(self, m: int) -> LossForm:
        """Return the loss for m classes; InvalidProblemError if it is undefined for that m."""
        ...

    def to_dict(self) -> dict[str, Any]:
        """Return plain values from which `loss_from_dict` rebuilds the loss."""
        ...


@dataclass(frozen=True)
class LossWithoutParameters:
    """A loss defined by its name and family alone; `of_others`: only the other classes have ranks."""

    name: ClassVar[str]
    family: ClassVar[Family]
    of_others: ClassVar[bool] = False

    def form(self, m: int) -> LossForm:
        """Return the loss for m classes."""
        return rank_form(m, self.family, self._rank_weights(), self.name, of_others=self.of_others)

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return {"name": self.name, **asdict(self)}

    def _rank_weights(self) -> Float64Array:
        return np.ones(1)


@dataclass(frozen=True)
class LossOfK(LossWithoutParameters):
    """A loss that counts k guesses; InvalidProblemError unless k is a whole number of at least 1."""

    k: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "k", checked_k(self.k, self.name))

    def _rank_weights(self) -> Float64Array:
        return flat(self.k)


@dataclass(frozen=True)
class LossOfWeights(LossWithoutParameters):
    """A loss with rank weights rho, a tuple; InvalidProblemError unless non-negative and non-increasing."""

    rho: Sequence[float] | Float64Array

    def __post_init__(self) -> None:
        object.__setattr__(self, "rho", checked_weights(self.rho))

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return {"name": self.name, "rho": list(self.rho)}

    def _rank_weights(self) -> Float64Array:
        return np.array(self.rho)


def rank_form(m: int, family: Family, rho: Float64Array, name: str, *, of_others: bool = False) -> LossForm:
    """Return the form with margins 1 - e_y; refuse m < 2 and fewer classes (or others) than ranks."""
    if m < 2:
        raise InvalidProblemError(f"there are {m} classes; {name} needs at least 2")
    if of_others and len(rho) >= m:
        raise InvalidProblemError(
            f"k of {name} is {len(rho)} but each of {m} classes has {m - 1} others; use k <= {m - 1}"
        )
    if len(rho) > m:
        raise InvalidProblemError(
            f"{name} weighs {len(rho)} ranks but there are only {m} classes; use k <= {m}"
        )
    return LossForm(m=m, family=family, rho=np.trim_zeros(rho, "b"))


def checked_weights(rho: Any) -> tuple[float, ...]:
    """Return rank weights as floats; refuse any that are not finite, non-negative and non-increasing."""
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
    """Return k as an int of at least 1."""
    if isinstance(k, bool | np.bool_) or not isinstance(k, int | np.integer) or k < 1:
        raise InvalidProblemError(f"k of {name} is {k!r}; give a whole number of at least 1")
    return int(k)
