"""The unweighted top-k hinges: k classes share the blame equally."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from topline.solvers.errors import InvalidProblemError
from topline.solvers.losses.base import Family, LossForm, checked_k, rank_form
from topline.solvers.losses.rank_weights import flat


@dataclass(frozen=True)
class TopKHinge:
    """Mean of the k largest a_j, then the hinge (top-k hinge alpha; Tajima et al., eq. 2.5).

    The own class takes part in the sort, so k <= m; its dual domain is
    {x >= 0, sum x <= 1, x_j <= 1/k, x_j <= sum x / (k-1)} for x = -alpha over the other classes.
    """

    k: int
    name: ClassVar[str] = "topk_hinge"

    def __post_init__(self) -> None:
        object.__setattr__(self, "k", checked_k(self.k, self.name))

    def form(self, m: int) -> LossForm:
        """Give the loss for m >= k classes."""
        return rank_form(m, Family.SUM_THEN_HINGE, flat(self.k), self.name)

    def to_dict(self) -> dict[str, Any]:
        """Give plain values for JSON."""
        return {"name": self.name, "k": self.k}


@dataclass(frozen=True)
class UsunierHinge:
    """Mean over the k largest a_j of their hinges (top-k hinge beta; Tajima et al., eq. 2.6), k <= m."""

    k: int
    name: ClassVar[str] = "usunier_hinge"

    def __post_init__(self) -> None:
        object.__setattr__(self, "k", checked_k(self.k, self.name))

    def form(self, m: int) -> LossForm:
        """Give the loss for m >= k classes."""
        return rank_form(m, Family.HINGE_THEN_SUM, flat(self.k), self.name)

    def to_dict(self) -> dict[str, Any]:
        """Give plain values for JSON."""
        return {"name": self.name, "k": self.k}


@dataclass(frozen=True)
class TopKOthersHinge:
    """Mean of the k largest a_j of the other classes, then the hinge (Lapin's thesis, eq. 5.3), k < m.

    The own class is left out of the sort; its dual domain is the top-k simplex
    {x >= 0, sum x <= 1, x_j <= sum x / k}, smaller than that of TopKHinge (erratum e: the two losses are
    often taken for one).
    """

    k: int
    name: ClassVar[str] = "topk_others_hinge"

    def __post_init__(self) -> None:
        object.__setattr__(self, "k", checked_k(self.k, self.name))

    def form(self, m: int) -> LossForm:
        """Give the loss for m > k classes."""
        if m >= 2 and self.k >= m:
            raise InvalidProblemError(
                f"k of {self.name} is {self.k} but each of {m} classes has {m - 1} others; take k <= {m - 1}"
            )
        return rank_form(m, Family.OTHERS_SUM_THEN_HINGE, flat(self.k), self.name)

    def to_dict(self) -> dict[str, Any]:
        """Give plain values for JSON."""
        return {"name": self.name, "k": self.k}
