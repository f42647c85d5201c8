"""The multiclass hinge: the largest margin violation, max(0, a_[1])."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from topline.solvers.losses.base import LossWithoutParameters, rank_form
from topline.solvers.losses.form import Family, LossForm, Ranks
from topline.solvers.losses.functions import column_function, hinge_conjugate
from topline.solvers.projections.simplex import one_class_column, simplex_column
from topline.solvers.projections.violations import violations


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
