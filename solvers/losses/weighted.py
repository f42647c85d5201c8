"""The top-k hinges with rank weights rho (see `topline.solvers.losses.rank_weights`)."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from topline.solvers.losses.base import LossOfWeights, rank_form
from topline.solvers.losses.form import LossForm
from topline.solvers.losses.topk import SUM_THEN_HINGE
from topline.solvers.losses.usunier import HINGE_THEN_SUM


class WeightedTopKHinge(LossOfWeights):
    """max(0, sum_j rho_j a_[j]) (Hirohashi and Kato, eq. 12; Tajima et al., eq. 2.7).

    `rho` is non-negative and non-increasing with at most m entries; it is kept as a tuple.

    Examples
    --------
    >>> from topline import WeightedTopKHinge, linear
    >>> WeightedTopKHinge(linear(3)).rho
    (0.5, 0.3333333333333333, 0.16666666666666666)
    """

    name: ClassVar[str] = "weighted_topk_hinge"

    def form(self, m: int) -> LossForm:
        """Return the loss for m >= len(rho) classes."""
        return rank_form(m, SUM_THEN_HINGE, np.array(self.rho), self.name)


class WeightedUsunierHinge(LossOfWeights):
    """sum_j rho_j max(0, a_[j]) (Tajima et al., eq. 2.8).

    `rho` is non-negative and non-increasing with at most m entries; it is kept as a tuple.

    Examples
    --------
    >>> from topline import WeightedUsunierHinge
    >>> WeightedUsunierHinge([0.7, 0.3]).form(m=4).rho
    array([0.7, 0.3])
    """

    name: ClassVar[str] = "weighted_usunier_hinge"

    def form(self, m: int) -> LossForm:
        """Return the loss for m >= len(rho) classes."""
        return rank_form(m, HINGE_THEN_SUM, np.array(self.rho), self.name)
