"""The multiclass hinge: the largest margin violation, max(0, a_[1])."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from topline.solvers.errors import InvalidProblemError
from topline.solvers.losses.base import LossWithoutParameters, rank_form
from topline.solvers.losses.form import Family, LossForm, Ranks
from topline.solvers.losses.functions import column_function, hinge_conjugate
from topline.solvers.projections.simplex import one_class_column, simplex_column
from topline.solvers.projections.violations import violations
from topline.solvers.typing import Float64Array


@column_function
def _column(
    q: Any, y: Any, c: Any, c_own: Any, rho: Any, margins: Any, out: Any, work: Any, index_work: Any, _: Any
) -> Any:
    if margins.shape[0] == 0 and one_class_column(q, y, c, c_own, rho[0], out):
        mass = out[y]
        return mass, int(mass > 0.0), mass == 0.0 or mass == rho[0]
    b = work[5][: q.shape[0]]
    violations(q, y, margins, b)
    return simplex_column(b, y, c, c_own, rho[0], out, work, index_work)


#: Any hinge over one rank.
MAX = Family("max_hinge", _column, hinge_conjugate, linear=True, ranks=Ranks())


class MaxHinge(LossWithoutParameters):
    """Crammer and Singer's hinge max_j ([j != y] + s_j - s_y) (Tajima et al., eq. 2.2).

    Examples
    --------
    >>> from topline import MaxHinge
    >>> MaxHinge().form(m=3).rho
    array([1.])
    """

    name: ClassVar[str] = "max_hinge"

    def form(self, m: int) -> LossForm:
        """Return the loss for m classes."""
        return rank_form(m, MAX, np.ones(1), self.name)


@dataclass(frozen=True, eq=False)
class StructuredHinge:
    """The hinge with class-dependent margins, max_j (delta_yj + s_j - s_y) (Tajima et al., eq. 2.4).

    `margins` is (m, m), row = true class, finite, non-negative, with a zero diagonal.

    Examples
    --------
    >>> from topline import StructuredHinge
    >>> StructuredHinge([[0, 1, 2], [1, 0, 1], [2, 1, 0]]).form(m=3).margins[0]
    array([0., 1., 2.])
    """

    margins: Float64Array
    name: ClassVar[str] = "structured_hinge"

    def __post_init__(self) -> None:
        object.__setattr__(self, "margins", _checked_margins(self.margins))

    def form(self, m: int) -> LossForm:
        """Return the loss for m classes, which must be the number of rows of `margins`."""
        if self.margins.shape[0] != m:
            given = self.margins.shape[0]
            raise InvalidProblemError(f"margins are for {given} classes but there are {m}; give {m} rows")
        base = rank_form(m, MAX, np.ones(1), self.name)
        return LossForm(m=m, family=base.family, rho=base.rho, margins=self.margins)

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return {"name": self.name, "margins": self.margins.tolist()}

    def __eq__(self, other: object) -> bool:
        return isinstance(other, StructuredHinge) and np.array_equal(self.margins, other.margins)

    def __hash__(self) -> int:
        return hash((self.name, self.margins.shape, self.margins.tobytes()))


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
