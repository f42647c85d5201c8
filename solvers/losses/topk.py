"""The unweighted top-k hinges: k classes share the blame equally."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from solvers.losses.base import Aggregate, LossForm, checked_k, rank_form
from solvers.rank_weights import flat


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
        return rank_form(m, Aggregate.SUM_THEN_HINGE, flat(self.k), self.name)

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
        return rank_form(m, Aggregate.HINGE_THEN_SUM, flat(self.k), self.name)

    def to_dict(self) -> dict[str, Any]:
        """Give plain values for JSON."""
        return {"name": self.name, "k": self.k}
