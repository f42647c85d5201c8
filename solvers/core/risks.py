"""How the losses of the examples make one risk: their mean, or the mean of the k largest.

    MeanRisk        (1/n) sum_i Phi_i
    AverageTopK(k)  (1/k) (sum of the k largest Phi_i)  =  max { <p, Phi> : 0 <= p_i <= 1/k, sum p <= 1 }

k is real, from 1 (the largest loss) to n (the mean); its fractional part is the weight of the next loss.
With w_i = n p_i it is a mean of weighted losses whose weights an adversary chooses, so at any W

    W_U = (1/(lam n)) sum w_i x_i u_i^T,   b_U = (1/n) sum w_i b(u_i),   b(u) = -Phi*(-u)

belong to one dual feasible pair (p, A), alpha_i in p_i times the domain, and convex combinations of such
pairs are feasible: their b is a lower bound of the concave -sum p_i Phi*(-alpha_i / p_i), of which the dual
is made (`methods.frank_wolfe` finds the best combination).  Smoothing applies to each Phi_i, in the risk.
Source: Y. Fan, S. Lyu, Y. Ying, B.-G. Hu, "Learning with average top-k loss", NIPS 2017, eq. 1 and lemma 1.
Its objective (3) at C is k/n times P with this risk at lam = n/(k C), which is C k/n^2 where lam = 1/(n C).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from numbers import Real
from typing import Any, ClassVar, TypeAlias

import numpy as np

from topline.solvers.errors import InvalidProblemError
from topline.solvers.typing import Float64Array, Int64Array


@dataclass(frozen=True)
class MeanRisk:
    """The mean of the losses.

    Examples
    --------
    >>> from topline.solvers.core.risks import MeanRisk
    >>> MeanRisk().to_dict()
    {'name': 'mean'}
    """

    name: ClassVar[str] = "mean"

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return {"name": self.name}


MEAN_RISK = MeanRisk()


@dataclass(frozen=True)
class AverageTopK:
    """The mean of the k largest losses; k is a real number of at least 1 and at most n.

    Raises InvalidProblemError where k is not a number of at least 1.

    Examples
    --------
    >>> from topline import AverageTopK
    >>> AverageTopK(k=12.5).rows
    13
    """

    k: float
    name: ClassVar[str] = "average_top_k"

    def __post_init__(self) -> None:
        k: Any = self.k
        if isinstance(k, bool) or not isinstance(k, Real) or not 1.0 <= float(k) < math.inf:
            raise InvalidProblemError(f"k of {self.name} is {k!r}; give a number from 1 to the rows")
        object.__setattr__(self, "k", float(k))

    @property
    def rows(self) -> int:
        """Number of losses that take part, the last one perhaps fractionally."""
        return math.ceil(self.k)

    def refuse(self, n: int) -> None:
        """Raise InvalidProblemError if there are fewer than k examples."""
        if self.k > n:
            raise InvalidProblemError(f"k of {self.name} is {self.k:g} but there are {n} rows; use k <= {n}")

    def selected(self, losses: LargestLosses, n: int) -> SelectedRows:
        """Return the rows that attain the maximum over p, each with the weight w_i = n p_i."""
        weights = np.full(len(losses.rows), n / self.k)
        part = self.k - math.floor(self.k)
        if part > 0.0:
            weights[losses.smallest] *= part
        return SelectedRows(losses.rows, weights)

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return {"name": self.name, "k": self.k}


#: Risks accepted by `solve`.
Risk: TypeAlias = MeanRisk | AverageTopK


@dataclass(frozen=True, eq=False)
class LargestLosses:
    """The largest losses of some rows; ties go to the lower rows.

    Attributes
    ----------
    most : how many are kept at most.
    rows : (c,) their row numbers in the problem, ascending.
    losses : (c,) float64.
    """

    most: int
    rows: Int64Array
    losses: Float64Array

    @classmethod
    def of(cls, most: int, rows: Int64Array, losses: Float64Array) -> LargestLosses:
        """Return the `most` largest of some losses, whose row numbers ascend; NaN counts as infinite."""
        losses = np.where(np.isnan(losses), np.inf, losses)
        if len(losses) > most:
            least = np.partition(losses, len(losses) - most)[len(losses) - most]
            kept = losses > least
            kept[np.flatnonzero(losses == least)[: most - int(kept.sum())]] = True
            rows, losses = rows[kept], losses[kept]
        return cls(most, rows, losses)

    def merge(self, other: LargestLosses) -> LargestLosses:
        """Return the largest of both; the rows of `other` come after these."""
        rows, losses = np.concatenate([self.rows, other.rows]), np.concatenate([self.losses, other.losses])
        return LargestLosses.of(self.most, rows, losses)

    @property
    def smallest(self) -> int:
        """Position of the smallest loss, the last one of a tie."""
        return len(self.losses) - 1 - int(np.argmin(self.losses[::-1]))


@dataclass(frozen=True, eq=False)
class SelectedRows:
    """Some rows of the problem, each with a weight: rows (c,) ascending, weights (c,) float64."""

    rows: Int64Array
    weights: Float64Array

    def __len__(self) -> int:
        return len(self.rows)

    def between(self, start: int, stop: int) -> SelectedRows:
        """Return the selection within the rows [start, stop), numbered from `start`."""
        low, high = np.searchsorted(self.rows, [start, stop])
        return SelectedRows(self.rows[low:high] - start, self.weights[low:high])
