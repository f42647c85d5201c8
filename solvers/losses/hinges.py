"""Hinges of single labels: the largest margin violations a_[1] >= a_[2] >= ..., summed and cut at 0.

They differ in the number and weights of ranks, what is cut at 0, whether the own class takes a rank, and the
margins; all have a conjugate linear in the margins.

The exception is the polyhedral surrogate of the top-k error, whose minimisers rank the k likeliest classes on
top: with p = e_y - alpha in the simplex, -Phi*(-alpha) = 1 - (the sum of the k largest p_j), the least top-k
error at the class probabilities p.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from topline.solvers.errors import InvalidProblemError
from topline.solvers.losses.base import (
    Family,
    LossForm,
    LossOfK,
    LossOfWeights,
    LossWithoutParameters,
    Ranks,
    checked_k,
    flat,
    rank_form,
)
from topline.solvers.losses.rows import conjugate_function, hinge_conjugate, nearest_in_simplex
from topline.solvers.projections.columns import largest_values
from topline.solvers.projections.isotonic import (
    wtopk_alike_column,
    wtopk_column,
    wtopk_others_column,
    wusunier_column,
)
from topline.solvers.projections.simplex import polyhedral_column, simplex_column
from topline.solvers.typing import Float64Array


@conjugate_function
def _polyhedral_conjugate(alpha: Any, y: Any, table: Any) -> Any:
    """Return the sum of all but the k largest entries of p = e_y - alpha."""
    m, k = len(alpha), int(table[0, 0])
    p, top = np.empty(m), np.empty(k)
    for j in range(m):
        p[j] = -alpha[j]
    p[y] += 1.0
    largest_values(p, m, k, -1, top)
    left, above, level = 0.0, 0, top[k - 1]
    for j in range(m):
        left += p[j] if p[j] <= level else 0.0
        above += p[j] > level
    return left - (k - above) * level


#: Any hinge over one rank.
MAX = Family("max_hinge", simplex_column, hinge_conjugate, linear=True, ranks=Ranks())
SUM_THEN_HINGE = Family(
    "sum_then_hinge", wtopk_column, hinge_conjugate, column_alike=wtopk_alike_column, linear=True,
    ranks=Ranks(), of_one_rank=MAX,
)  # fmt: skip
HINGE_THEN_SUM = Family(
    "hinge_then_sum", wusunier_column, hinge_conjugate, linear=True, ranks=Ranks(hinge_first=True),
    of_one_rank=MAX,
)  # fmt: skip
OTHERS_SUM_THEN_HINGE = Family(
    "others_sum_then_hinge", wtopk_others_column, hinge_conjugate, linear=True,
    ranks=Ranks(own_in_sort=False), of_one_rank=MAX,
)  # fmt: skip
_POLYHEDRAL = Family("polyhedral_topk", polyhedral_column, _polyhedral_conjugate, nearest=nearest_in_simplex)


@dataclass(frozen=True)
class MaxHinge(LossWithoutParameters):
    """Crammer and Singer's hinge max_j ([j != y] + s_j - s_y) (Tajima et al., eq. 2.2).

    Examples
    --------
    >>> from topline import MaxHinge
    >>> MaxHinge().form(m=3).rho
    array([1.])
    """

    name: ClassVar[str] = "max_hinge"
    family: ClassVar[Family] = MAX


@dataclass(frozen=True)
class TopKHinge(LossOfK):
    """Mean of the k largest a_j, then the hinge (top-k hinge alpha; Tajima et al., eq. 2.5).

    The own class takes part in the sort, so k <= m; its dual domain is
    {x >= 0, sum x <= 1, x_j <= 1/k, x_j <= sum x / (k-1)} for x = -alpha over the other classes.

    Examples
    --------
    >>> from topline import TopKHinge
    >>> TopKHinge(k=2).form(m=5).rho
    array([0.5, 0.5])
    """

    name: ClassVar[str] = "topk_hinge"
    family: ClassVar[Family] = SUM_THEN_HINGE


@dataclass(frozen=True)
class TopKOthersHinge(LossOfK):
    """Mean of the k largest a_j of the other classes, then the hinge (Lapin's thesis, eq. 5.3), k < m.

    The own class is left out of the sort; the dual domain is the top-k simplex {x >= 0, sum x <= 1, x_j <=
    sum x / k}, smaller than that of TopKHinge (erratum e: the two losses are often confused).

    Examples
    --------
    >>> from topline import TopKOthersHinge
    >>> TopKOthersHinge(k=5).form(m=5)
    Traceback (most recent call last):
        ...
    topline.solvers.errors.InvalidProblemError: k of topk_others_hinge is 5 but each of 5 classes has 4 ...
    """

    name: ClassVar[str] = "topk_others_hinge"
    family: ClassVar[Family] = OTHERS_SUM_THEN_HINGE
    of_others: ClassVar[bool] = True


@dataclass(frozen=True)
class UsunierHinge(LossOfK):
    """Mean over the k largest a_j of their hinges (top-k hinge beta; Tajima et al., eq. 2.6), k <= m.

    Examples
    --------
    >>> from topline import UsunierHinge
    >>> UsunierHinge(k=3).to_dict()
    {'name': 'usunier_hinge', 'k': 3}
    """

    name: ClassVar[str] = "usunier_hinge"
    family: ClassVar[Family] = HINGE_THEN_SUM


@dataclass(frozen=True)
class WeightedTopKHinge(LossOfWeights):
    """max(0, sum_j rho_j a_[j]) (Hirohashi and Kato, eq. 12; Tajima et al., eq. 2.7).

    `rho` is non-negative and non-increasing with at most m entries.

    Examples
    --------
    >>> from topline import WeightedTopKHinge, linear
    >>> WeightedTopKHinge(linear(3)).rho
    (0.5, 0.3333333333333333, 0.16666666666666666)
    """

    name: ClassVar[str] = "weighted_topk_hinge"
    family: ClassVar[Family] = SUM_THEN_HINGE


@dataclass(frozen=True)
class WeightedUsunierHinge(LossOfWeights):
    """sum_j rho_j max(0, a_[j]) (Tajima et al., eq. 2.8).

    `rho` is non-negative and non-increasing with at most m entries.

    Examples
    --------
    >>> from topline import WeightedUsunierHinge
    >>> WeightedUsunierHinge([0.7, 0.3]).form(m=4).rho
    array([0.7, 0.3])
    """

    name: ClassVar[str] = "weighted_usunier_hinge"
    family: ClassVar[Family] = HINGE_THEN_SUM


@dataclass(frozen=True)
class PolyhedralTopK(LossOfK):
    """max_r ((s_[1] + ... + s_[r]) / r + 1 - min(k, r) / r) - s_y, k < m.

    Thilagar, Frongillo, Finocchiaro and Goodwill, "Consistent polyhedral surrogates for top-k classification
    and variants", ICML 2022: the support function of the least top-k error.

    Examples
    --------
    >>> from topline import PolyhedralTopK
    >>> PolyhedralTopK(k=2).form(m=4).convex
    True
    """

    name: ClassVar[str] = "polyhedral_topk"
    family: ClassVar[Family] = _POLYHEDRAL
    of_others: ClassVar[bool] = True

    def form(self, m: int) -> LossForm:
        """Return the loss for m classes."""
        return replace(super().form(m), constants=(float(self.k),))


@dataclass(frozen=True, eq=False)
class StructuredHinge:
    """The hinge with class-dependent margins, max_j (delta_yj + s_j - s_y) (Tajima et al., eq. 2.4).

    `margins` is (m, m), row = true class, finite, non-negative, with a zero diagonal.  With k > 1 it is the
    top-k hinge of these margins: the mean of the k largest terms, cut at 0 (eq. 2.5).

    Examples
    --------
    >>> from topline import StructuredHinge
    >>> StructuredHinge([[0, 1, 2], [1, 0, 1], [2, 1, 0]]).form(m=3).margins[0]
    array([0., 1., 2.])
    """

    margins: Float64Array
    k: int = 1
    name: ClassVar[str] = "structured_hinge"

    def __post_init__(self) -> None:
        object.__setattr__(self, "margins", _checked_margins(self.margins))
        object.__setattr__(self, "k", checked_k(self.k, self.name))

    def form(self, m: int) -> LossForm:
        """Return the loss for m classes, which must be the number of rows of `margins`."""
        if self.margins.shape[0] != m:
            given = self.margins.shape[0]
            raise InvalidProblemError(f"margins are for {given} classes but there are {m}; give {m} rows")
        base = rank_form(m, SUM_THEN_HINGE, flat(self.k), self.name)
        return LossForm(m=m, family=base.family, rho=base.rho, margins=self.margins)

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        of_k = {"k": self.k} if self.k > 1 else {}
        return {"name": self.name, "margins": self.margins.tolist(), **of_k}

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, StructuredHinge):
            return False
        return self.k == other.k and np.array_equal(self.margins, other.margins)

    def __hash__(self) -> int:
        return hash((self.name, self.k, self.margins.shape, self.margins.tobytes()))


def _checked_margins(margins: Any) -> Float64Array:
    try:
        matrix = np.array(margins, dtype=np.float64, order="C")
    except (TypeError, ValueError):
        raise InvalidProblemError(
            "margins are not a matrix of numbers; give one row of margins per class"
        ) from None
    if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1]:
        raise InvalidProblemError(
            f"margins have the shape {matrix.shape}; give a square matrix, one row per class"
        )
    if not np.isfinite(matrix).all():
        raise InvalidProblemError("margins hold NaN or infinity; give finite margins")
    if matrix.min(initial=0.0) < 0:
        raise InvalidProblemError(f"margins hold {matrix.min():g}; a margin must not be negative")
    bad = np.flatnonzero(np.diag(matrix))
    if bad.size:
        row = int(bad[0])
        raise InvalidProblemError(
            f"the margin of class {row} towards itself is {matrix[row, row]:g}; the diagonal must be zero"
        )
    matrix.setflags(write=False)
    return matrix
