"""The structured hinge: mistakes of unequal cost, in one guess or in k."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from topline.solvers.errors import InvalidProblemError
from topline.solvers.losses.base import checked_k, rank_form
from topline.solvers.losses.form import LossForm
from topline.solvers.losses.rank_weights import flat
from topline.solvers.losses.topk import SUM_THEN_HINGE
from topline.solvers.typing import Float64Array


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
