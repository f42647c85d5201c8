"""The polyhedral surrogate of the top-k error, whose minimisers rank the k likeliest classes on top.

With p = e_y - alpha in the simplex, -Phi*(-alpha) = 1 - (the sum of the k largest p_j), the least top-k error
at the class probabilities p.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from topline.solvers.losses.base import Family, LossForm, LossOfK
from topline.solvers.losses.entropy import nearest_in_simplex
from topline.solvers.losses.functions import conjugate_function
from topline.solvers.projections.columns import largest_values
from topline.solvers.projections.simplex import polyhedral_column


@conjugate_function
def _conjugate(alpha: Any, y: Any, table: Any) -> Any:
    """Return the sum of all but the k largest entries of p = e_y - alpha."""
    m, k = len(alpha), int(table[0, 0])
    p, top = np.empty(m), np.empty(k)
    for j in range(m):
        p[j] = -alpha[j]
    p[y] += 1.0
    largest_values(p, m, k, -1, top)
    left, above, level = 0.0, 0, top[k - 1]
    for j in range(m):
        left += p[j] if p[j] <= level else 0.0
        above += p[j] > level
    return left - (k - above) * level


@dataclass(frozen=True)
class PolyhedralTopK(LossOfK):
    """max_r ((s_[1] + ... + s_[r]) / r + 1 - min(k, r) / r) - s_y, k < m.

    Thilagar, Frongillo, Finocchiaro and Goodwill, "Consistent polyhedral surrogates for top-k classification
    and variants", ICML 2022: the support function of the least top-k error.

    Examples
    --------
    >>> from topline import PolyhedralTopK
    >>> PolyhedralTopK(k=2).form(m=4).convex
    True
    """

    name: ClassVar[str] = "polyhedral_topk"
    family: ClassVar[Family] = Family(name, polyhedral_column, _conjugate, nearest=nearest_in_simplex)
    of_others: ClassVar[bool] = True

    def form(self, m: int) -> LossForm:
        """Return the loss for m classes."""
        return replace(super().form(m), constants=(float(self.k),))
