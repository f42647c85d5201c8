"""The unweighted top-k hinges: k classes share the blame equally."""

from __future__ import annotations

from typing import ClassVar

from topline.solvers.losses.base import Family, LossForm, LossOfK, rank_form
from topline.solvers.losses.rank_weights import flat


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
        return rank_form(m, Family.SUM_THEN_HINGE, flat(self.k), self.name)


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
        return rank_form(m, Family.HINGE_THEN_SUM, flat(self.k), self.name)


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
        return rank_form(m, Family.OTHERS_SUM_THEN_HINGE, flat(self.k), self.name, of_others=True)
