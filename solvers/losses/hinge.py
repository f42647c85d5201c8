"""The multiclass hinge: the largest margin violation, max(0, a_[1])."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from topline.solvers.losses.base import LossWithoutParameters, rank_form
from topline.solvers.losses.form import Family, LossForm, Ranks
from topline.solvers.losses.functions import column_function, hinge_conjugate
from topline.solvers.projections.simplex import simplex_column


@column_function
def _column(
    q: Any, y: Any, c: Any, c_own: Any, rho: Any, margins: Any, out: Any, work: Any, _i: Any, _g: Any
) -> Any:
    return simplex_column(q, y, c, c_own, rho[0], margins, out, work[5][: q.shape[0]])


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
