"""Biased projection on {x in t P(rho), 0 <= t <= t_max}: top-k cone, top-k simplex and their weighted forms.

    min over x of (c/2)|x|^2 + (c_S/2) S^2 - <b, x>,   S = sum x = t R,   R = sum rho.

For fixed t the minimiser is x = (b - v) / c with v the isotonic regression of sorted b - c t rho, and the
derivative of the minimum in t is -H(t), H(t) = sum_j rho_j v_[j] - c_S R^2 t.  With rho = 1/k on k ranks
t_max = inf gives the top-k cone {0 <= x_j <= S/k}, and t_max = r its cut S <= r, the top-k simplex alpha
(Lapin, Hein, Schiele, NIPS 2015, and Lapin's thesis, definition 5.2), where c_S = 0 is the plain and c_S > 0
the biased projection.  In a column problem these are the other classes only: the own class does not take part
in the sort.
"""

from __future__ import annotations

import numpy as np

from topline.solvers.jit_cache import jit
from topline.solvers.jit_pointers import borrowed
from topline.solvers.projections.columns import ColumnProblem, column_function, violations
from topline.solvers.projections.isotonic import (
    MAX_EVALUATIONS,
    Blocks,
    block_value,
    next_scale,
    pool_blocks,
    write_blocks,
)
from topline.solvers.projections.ordering import largest_other, mass_threshold, sorted_candidates
from topline.solvers.typing import Float64Array

_EPS = float(np.finfo(np.float64).eps)


@jit
def scaled_permutahedron(
    problem: ColumnProblem, b: Float64Array, c_sum: float, t_max: float
) -> tuple[float, int, bool]:
    """Write -x to `out` and, if there is an own class (not projected), S to its entry.

    `b` (m,) may lie in the row of `violations`; `c_sum` is the curvature of S^2, `t_max` > 0 the largest
    scale, finite if all curvature is 0.  There are at least as many other classes as ranks.

    Returns (t, number of coordinates with mass, whether x is a vertex: 0 or a permutation of t_max rho).
    """
    problem = borrowed(problem)
    skip, c, rho, out, work = problem.y, problem.c, problem.rho, problem.out, problem.work
    index = problem.index_work[0]
    blocks = Blocks(work[0], problem.index_work[1], work[1], work[2])
    m = b.shape[0]
    out[:] = 0.0
    top, _ = largest_other(b, m, skip)
    if not top > 0.0:
        return 0.0, 0, True
    total = rho.sum()
    # The optimum satisfies c |x|^2 + c_S S^2 <= <b, x> <= top S, and |x|^2 >= S^2 / m.
    limit = t_max
    if top < (c / m + c_sum) * total * t_max:
        limit = min(t_max, top / ((c / m + c_sum) * total) * (1.0 + 4.0 * _EPS))
    theta = mass_threshold(b, m, skip, c * limit, rho, work[3])
    n = sorted_candidates(b, skip, theta, problem)
    ranks = min(rho.shape[0], n)
    if rho[:ranks] @ work[0, :ranks] <= 0.0:
        return 0.0, 0, True
    t = limit
    low = 0.0
    high = np.inf
    count = 0
    for _ in range(MAX_EVALUATIONS):
        count = pool_blocks(blocks, n, rho, c * t)
        h = -c_sum * total * total * t
        slope = -c_sum * total * total
        scale = -h
        for k in range(count):
            v, mass = block_value(blocks, k, c * t), blocks.mass[k]
            h += mass * v
            scale += mass * (abs(v) + c * t * mass)
            slope -= c * mass * mass / (blocks.start[k + 1] - blocks.start[k])
        t, low, high, moved = next_scale(t, h, slope, 8.0 * _EPS * scale, low, high, limit)
        if not moved:
            break
    s, support, apart = write_blocks(blocks, (count, 0, n), index, c, t, -1, out)
    if skip >= 0:
        out[skip] = s
    return t, support, apart and t == t_max


@column_function
def wtopk_others_column(problem: ColumnProblem) -> tuple[float, int, bool]:
    """Solve the problem of the weighted top-k hinge over the other classes only; L <= m - 1."""
    return scaled_permutahedron(problem, violations(problem), problem.c_own, 1.0)
