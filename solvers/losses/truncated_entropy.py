"""The truncated top-k entropy, which is smooth and not convex."""

from __future__ import annotations

import math
from typing import Any, ClassVar

import numpy as np

from topline.solvers.losses.base import LossOfK, rank_form
from topline.solvers.losses.entropy import SOFTMAX
from topline.solvers.losses.form import Family, LossForm
from topline.solvers.losses.functions import gradient_function
from topline.solvers.losses.rank_weights import flat
from topline.solvers.projections.ordering import largest_values


@gradient_function
def _gradient(s: Any, own: Any, rho: Any, _: Any, u: Any, work: Any) -> Any:
    """Write minus the gradient of log(1 + sum exp(s_j - s_y)), and return that loss.

    The k - 1 largest others are left out of the sum, of equals at the edge the lower classes.
    """
    m, k = len(s), len(rho)
    cut, ties = np.inf, 0
    if k > 1:
        top = work[1]
        largest_values(s, m, k, own, top)
        cut = top[k - 2]
        for i in range(k - 1):
            ties += top[i] == cut
    highest = s[own]
    left_out = ties
    for j in range(m):
        if j != own and s[j] <= cut:
            if s[j] == cut and left_out > 0:
                left_out -= 1
            else:
                highest = max(highest, s[j])
    total = math.exp(s[own] - highest)
    for j in range(m):
        u[j] = 0.0
        if j == own or s[j] > cut:
            continue
        if s[j] == cut and ties > 0:
            ties -= 1
            continue
        u[j] = math.exp(s[j] - highest)
        total += u[j]
    mass = 0.0
    for j in range(m):
        if j != own:
            u[j] = -u[j] / total
            mass -= u[j]
    u[own] = mass
    return math.log(total) + (highest - s[own]), np.nan


_TRUNCATED = Family(
    "truncated_topk_entropy", None, None, smooth=True, gradient=_gradient, of_one_rank=SOFTMAX
)


class TruncatedTopKEntropy(LossOfK):
    """log(1 + sum of exp(s_j - s_y) over the m - k lowest of the others) (Lapin's thesis, section 6.2.3).

    The k - 1 highest others cost nothing, however high they are, so the loss is not convex: there is no dual
    problem and no certificate.  With k = 1 it is the softmax loss, which has both; k < m.

    Examples
    --------
    >>> from topline import TruncatedTopKEntropy
    >>> TruncatedTopKEntropy(k=2).form(m=4).convex
    False
    """

    name: ClassVar[str] = "truncated_topk_entropy"

    def form(self, m: int) -> LossForm:
        """Return the loss for m > k classes."""
        return rank_form(m, _TRUNCATED, flat(self.k), self.name, of_others=True)
