"""Usunier's hinge, sum_j rho_j max(0, a_[j]) (Tajima et al., eq. 2.6, 2.8)."""

from __future__ import annotations

from typing import Any, ClassVar

from topline.solvers.losses.base import LossOfK, rank_form
from topline.solvers.losses.form import Family, LossForm, Ranks
from topline.solvers.losses.functions import column_function, hinge_conjugate
from topline.solvers.losses.hinge import MAX
from topline.solvers.losses.rank_weights import flat
from topline.solvers.projections.violations import violations
from topline.solvers.projections.weighted_usunier import wusunier_column


@column_function
def _column(
    q: Any, y: Any, c: Any, c_own: Any, rho: Any, margins: Any, out: Any, work: Any, index_work: Any, _: Any
) -> Any:
    b = work[5][: q.shape[0]]
    violations(q, y, margins, b)
    return wusunier_column(b, y, c, c_own, rho, out, work, index_work)


HINGE_THEN_SUM = Family(
    "hinge_then_sum", _column, hinge_conjugate, linear=True, ranks=Ranks(hinge_first=True), of_one_rank=MAX
)


class UsunierHinge(LossOfK):
    """Mean over the k largest a_j of their hinges (top-k hinge beta; Tajima et al., eq. 2.6), k <= m.

    Examples
    --------
    >>> from topline import UsunierHinge
    >>> UsunierHinge(k=3).to_dict()
    {'name': 'usunier_hinge', 'k': 3}
    """

    name: ClassVar[str] = "usunier_hinge"

    def form(self, m: int) -> LossForm:
        """Return the loss for m >= k classes."""
        return rank_form(m, HINGE_THEN_SUM, flat(self.k), self.name)
