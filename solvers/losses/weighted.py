"""The top-k hinges with rank weights rho (see `topline.solvers.losses.rank_weights`)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from topline.solvers.losses.base import Family, LossForm, checked_weights, rank_form
from topline.solvers.typing import Float64Array


@dataclass(frozen=True)
class WeightedTopKHinge:
    """max(0, sum_j rho_j a_[j]) (Hirohashi and Kato, eq. 12; Tajima et al., eq. 2.7).

    `rho` is non-negative and non-increasing with at most m entries; it is kept as a tuple.
    """

    rho: Sequence[float] | Float64Array
    name: ClassVar[str] = "weighted_topk_hinge"

    def __post_init__(self) -> None:
        object.__setattr__(self, "rho", checked_weights(self.rho))

    def form(self, m: int) -> LossForm:
        """Give the loss for m >= len(rho) classes."""
        return rank_form(m, Family.SUM_THEN_HINGE, np.array(self.rho), self.name)

    def to_dict(self) -> dict[str, Any]:
        """Give plain values for JSON."""
        return {"name": self.name, "rho": list(self.rho)}


@dataclass(frozen=True)
class WeightedUsunierHinge:
    """sum_j rho_j max(0, a_[j]) (Tajima et al., eq. 2.8).

    `rho` is non-negative and non-increasing with at most m entries; it is kept as a tuple.
    """

    rho: Sequence[float] | Float64Array
    name: ClassVar[str] = "weighted_usunier_hinge"

    def __post_init__(self) -> None:
        object.__setattr__(self, "rho", checked_weights(self.rho))

    def form(self, m: int) -> LossForm:
        """Give the loss for m >= len(rho) classes."""
        return rank_form(m, Family.HINGE_THEN_SUM, np.array(self.rho), self.name)

    def to_dict(self) -> dict[str, Any]:
        """Give plain values for JSON."""
        return {"name": self.name, "rho": list(self.rho)}
