"""The direction that all examples share, kept apart as a primal variable while blocks ascend.

Features of one sign, or far from their centre, share their mean direction u.  Through it every dual row is
coupled to every other: the dual holds -lam/2 |v(A)|^2 with v(A) = u^T W(A), which is stiff in the sum of the
rows and free in their differences.  Blocks that ascend at the same time all answer to the same v and
overshoot; safe steps are as many times too short.  With p (m,), the proximal point method puts

    -lam/2 |v|^2  =  min over p of  -lam <p, v> + lam/2 |p|^2

and lets p go to its minimum by steps p <- kappa v + (1 - kappa) p.  What a block then sees is the same
problem with the examples' part along u shrunk by sqrt(kappa), and weights whose part along u is
kappa v + (1 - kappa) p.  The line search is still on D itself.  The smoothness of the risk in p,
C sum t_i^2 / m with t_i = <x_i, u>, says how far kappa may fall before p's own steps are the slower part.
`python -m tests.benchmarks.solvers.block_rounds` prints rounds with and without it.
Sources: R. T. Rockafellar, "Augmented Lagrangians and applications of the proximal point algorithm in convex
programming", 1976; for blocks C. Ma et al., "Adding vs. averaging in distributed primal-dual optimization",
2015.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from topline.solvers.core.problem import Problem
from topline.solvers.typing import Float64Array, FloatArray

#: Names in `SolverState.memory`.
_DIRECTION, _KAPPA, _POINT = "shared.direction", "shared.kappa", "shared.point"
#: kappa is its natural scale 1 / (1 + C sum t_i^2 / m) over the number of blocks, at least this part of it.
_LEAST_SHARE = 0.35
#: Below this p hardly moves, however stiff its direction is: long rows, or a large C, ask for less.
_LEAST_KAPPA = 0.03
#: A mean that holds less than this part of the rows' squares couples them no more than other directions do.
_LEAST_MEAN = 0.05


@dataclass(frozen=True, eq=False)
class DeflatedDirection:
    """A unit vector u (d,) along which examples are shrunk by sqrt(kappa), 0 < kappa < 1.

    With M = I - (1 - sqrt(kappa)) u u^T the shrunk examples are X M.
    """

    u: Float64Array
    kappa: float


def looked_for(memory: Mapping[str, Float64Array]) -> bool:
    """Return whether a state knows its direction, or that it has none."""
    return _KAPPA in memory


def found(problem: Problem, total: FloatArray | None, squares: float, blocks: int) -> dict[str, Float64Array]:
    """Return what to remember of the direction of `total` = sum x_i (d, 1), with `squares` = sum |x_i|^2.

    None as total stands for sparse examples.
    """
    mean = np.zeros(problem.d) if total is None else np.asarray(total[:, 0], dtype=np.float64) / problem.n
    size = float(np.linalg.norm(mean))
    if not (math.isfinite(size) and size * size > _LEAST_MEAN * squares / problem.n):
        return without()
    natural = 1.0 / (1.0 + size * size / (problem.lam * problem.m))
    kappa = max(natural * max(_LEAST_SHARE, 1.0 / blocks), _LEAST_KAPPA)
    if kappa >= 1.0:
        return without()
    return {_DIRECTION: mean / size, _KAPPA: np.array([kappa])}


def without() -> dict[str, Float64Array]:
    """Return what to remember where no direction is kept apart."""
    return {_KAPPA: np.ones(1)}


def remembered(memory: Mapping[str, Float64Array]) -> DeflatedDirection | None:
    """Return the direction that a state remembers."""
    if _DIRECTION not in memory:
        return None
    return DeflatedDirection(memory[_DIRECTION], float(memory[_KAPPA][0]))


def drawn_to_point(
    direction: DeflatedDirection, W: Float64Array, memory: Mapping[str, Float64Array]
) -> tuple[Float64Array, dict[str, Float64Array]]:
    """Return what weights have along u besides W = W(A) (d, m) at the start, and the memory with p moved on.

    That is (1 - kappa) (p - v), a number a class.
    """
    v = direction.u @ W
    p = direction.kappa * v + (1.0 - direction.kappa) * memory.get(_POINT, v)
    return (1.0 - direction.kappa) * (p - v), {**memory, _POINT: p}
