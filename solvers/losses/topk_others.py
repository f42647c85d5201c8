"""The top-k hinge of Lapin's thesis (eq. 5.3): the own class is left out of the sort."""

from __future__ import annotations

from typing import Any, ClassVar

from topline.solvers.losses.base import LossOfK, rank_form
from topline.solvers.losses.form import Family, LossForm, Ranks
from topline.solvers.losses.functions import column_function, hinge_conjugate
from topline.solvers.losses.hinge import MAX
from topline.solvers.losses.rank_weights import flat
from topline.solvers.projections.scaled_permutahedron import wtopk_others_column
from topline.solvers.projections.violations import violations


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
    return wtopk_others_column(b, y, c, c_own, rho, out, work, index_work)


OTHERS_SUM_THEN_HINGE = Family(
    "others_sum_then_hinge",
    _column,
    hinge_conjugate,
    linear=True,
    ranks=Ranks(own_in_sort=False),
    of_one_rank=MAX,
)


class TopKOthersHinge(LossOfK):
    """Mean of the k largest a_j of the other classes, then the hinge (Lapin's thesis, eq. 5.3), k < m.

    The own class is left out of the sort; its dual domain is the top-k simplex
    {x >= 0, sum x <= 1, x_j <= sum x / k}, smaller than that of TopKHinge (erratum e: the two losses are
    often taken for one).

    Examples
    --------
    >>> from topline import TopKOthersHinge
    >>> TopKOthersHinge(k=5).form(m=5)
    Traceback (most recent call last):
        ...
    topline.solvers.errors.InvalidProblemError: k of topk_others_hinge is 5 but each of 5 classes has 4 ...
    """

    name: ClassVar[str] = "topk_others_hinge"

    def form(self, m: int) -> LossForm:
        """Return the loss for m > k classes."""
        return rank_form(m, OTHERS_SUM_THEN_HINGE, flat(self.k), self.name, of_others=True)
