"""The top-k hinge, max(0, sum_j rho_j a_[j]): k guesses share the blame (Tajima et al., eq. 2.5, 2.7)."""

from __future__ import annotations

from typing import Any, ClassVar

from topline.solvers.losses.base import LossOfK, rank_form
from topline.solvers.losses.form import Family, LossForm, Ranks
from topline.solvers.losses.functions import column_function, hinge_conjugate
from topline.solvers.losses.hinge import MAX
from topline.solvers.losses.rank_weights import flat
from topline.solvers.projections.violations import violations
from topline.solvers.projections.weighted_topk import wtopk_column, wtopk_two_curvatures_column


@column_function
def _column_alike(
    q: Any, y: Any, c: Any, _: Any, rho: Any, margins: Any, out: Any, work: Any, index_work: Any, _s: Any
) -> Any:
    b = work[5][: q.shape[0]]
    violations(q, y, margins, b)
    return wtopk_column(b, y, c, rho, out, work, index_work)


@column_function
def _column(
    q: Any,
    y: Any,
    c: Any,
    c_own: Any,
    rho: Any,
    margins: Any,
    out: Any,
    work: Any,
    index_work: Any,
    _s: Any,
) -> Any:
    b = work[5][: q.shape[0]]
    violations(q, y, margins, b)
    if c_own == c:
        return wtopk_column(b, y, c, rho, out, work, index_work)
    return wtopk_two_curvatures_column(b, y, c, c_own, rho, out, work, index_work)


SUM_THEN_HINGE = Family(
    "sum_then_hinge",
    _column,
    hinge_conjugate,
    column_alike=_column_alike,
    linear=True,
    ranks=Ranks(),
    of_one_rank=MAX,
)


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

    def form(self, m: int) -> LossForm:
        """Return the loss for m >= k classes."""
        return rank_form(m, SUM_THEN_HINGE, flat(self.k), self.name)
