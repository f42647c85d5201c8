"""The direction common to all examples, held as a separate primal variable while blocks ascend.

Features of one sign, or far from their centre, share their mean direction u.  It couples every dual row to
every other: the dual holds -lam/2 |v(A)|^2 with v(A) = u^T W(A), which is stiff in the sum of the rows and
free in their differences.  Blocks that ascend in parallel all respond to the same v and overshoot; safe steps
are shorter by the same factor.  With p (m,), the proximal point method puts

    -lam/2 |v|^2  =  min over p of  -lam <p, v> + lam/2 |p|^2

and moves p towards its minimum by steps p <- kappa v + (1 - kappa) p.  Each block then sees the same problem
with the examples' part along u shrunk by sqrt(kappa), and weights whose part along u is
kappa v + (1 - kappa) p.  The line search is still on D itself.  The smoothness of the risk in p,
C sum t_i^2 / m with t_i = <x_i, u>, limits how far kappa may fall before the steps of p are slower.
Sources: R. T. Rockafellar, "Augmented Lagrangians and applications of the proximal point algorithm in convex
programming", 1976; for blocks C. Ma et al., "Adding vs. averaging in distributed primal-dual optimization",
2015.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from topline.solvers.core.codec import stored
from topline.solvers.core.problem import Problem
from topline.solvers.typing import Float64Array, FloatArray

#: Least kappa as a share of its natural scale 1 / (1 + C sum t_i^2 / m) over the number of blocks.
_LEAST_SHARE = 0.35
#: Least kappa: below it p hardly moves, as long rows or a large C would otherwise demand.
_LEAST_KAPPA = 0.03
#: A mean with less than this share of the rows' squares couples them no more than other directions do.
_LEAST_MEAN = 0.05


@stored
@dataclass(frozen=True, eq=False)
class DeflatedDirection:
    """A unit vector u (d,) along which examples are shrunk by sqrt(kappa), 0 < kappa < 1.

    With M = I - (1 - sqrt(kappa)) u u^T the shrunk examples are X M.
    """

    u: Float64Array
    kappa: float


@stored
@dataclass(frozen=True, eq=False)
class Deflation:
    """The deflated direction, None if there is none, and its p (m,), None before the first step."""

    direction: DeflatedDirection | None = None
    p: Float64Array | None = None

    @classmethod
    def of(cls, problem: Problem, total: FloatArray | None, squares: float, blocks: int) -> Deflation:
        """Return the deflation for `total` = sum x_i (d, 1), None if sparse, and `squares` = sum |x_i|^2."""
        mean = np.zeros(problem.d) if total is None else np.asarray(total[:, 0], dtype=np.float64) / problem.n
        size = float(np.linalg.norm(mean))
        if not (math.isfinite(size) and size * size > _LEAST_MEAN * squares / problem.n):
            return cls()
        natural = 1.0 / (1.0 + size * size / (problem.lam * problem.m))
        kappa = max(natural * max(_LEAST_SHARE, 1.0 / blocks), _LEAST_KAPPA)
        return cls(DeflatedDirection(mean / size, kappa)) if kappa < 1.0 else cls()

    def moved(self, W: Float64Array) -> tuple[Float64Array | None, Deflation]:
        """Return the part along u to add to W = W(A) (d, m), and the deflation after a step of p.

        That part is (1 - kappa) (p - v), one number per class; None without a direction.
        """
        if self.direction is None:
            return None, self
        kappa, v = self.direction.kappa, self.direction.u @ W
        p = kappa * v + (1.0 - kappa) * (v if self.p is None else self.p)
        return (1.0 - kappa) * (p - v), replace(self, p=p)
