"""Exact column update of the weighted Usunier hinge: one isotonic regression and one biased knapsack.

    min over x >= 0, weakly submajorised by rho_1..rho_{m-1}, of (c/2)|x|^2 + (c_y/2) S^2 - <b, x>,  S = sum
    x.

The multiplier T = c_y S of the second term only shifts b, and isotonic regression commutes with shifts.  With
v = the regression of sorted b - c rho over the m - 1 other classes the solution is
x_j = max(0, b_j - max(T, v_j)) / c, and T >= 0 is the root of (c_y/c) sum_j max(0, b_j - max(T, v_j)) = T.
"""

from __future__ import annotations

import numpy as np

from topline.solvers.jit_cache import jit
from topline.solvers.jit_pointers import borrowed
from topline.solvers.projections.columns import ColumnProblem, column_function, violations
from topline.solvers.projections.isotonic import Blocks, block_base, block_value, pool_blocks
from topline.solvers.projections.ordering import largest_other, mass_threshold, sorted_candidates
from topline.solvers.typing import Float64Array

_EPS = float(np.finfo(np.float64).eps)


@column_function
def wusunier_column(problem: ColumnProblem) -> tuple[float, int, bool]:
    """Solve it, with c_own = c for the Moreau envelope; returns S = sum x first."""
    problem = borrowed(problem)
    y, c, c_own, rho = problem.y, problem.c, problem.c_own, problem.rho
    out, work, index = problem.out, problem.work, problem.index_work[0]
    values, bound, level = work[0], work[3], work[4]
    b = violations(problem)
    m = b.shape[0]
    out[:] = 0.0
    top, _ = largest_other(b, m, y)
    if not top > 0.0:
        return 0.0, 0, True
    # S is at least what the first class alone would take; classes below T = c_y S have no mass.
    theta = c_own * min(rho[0], top / (c + c_own)) * (1.0 - 4.0 * _EPS) if c_own > 0.0 else 0.0
    theta = max(theta, mass_threshold(b, m, y, c, rho, work[3]))
    n = sorted_candidates(b, y, theta, problem)
    blocks = Blocks(values, problem.index_work[1], work[1], work[2])
    pooled = _bounds(blocks, n, c, rho, bound, level)
    ratio = c_own / c if c > 0.0 else 1.0
    threshold, saturated, active = _threshold(values, bound, level, pooled, c_own, ratio)
    s = 0.0
    support = 0
    vertex = saturated == active
    for i in range(active):
        x = bound[i]
        if i >= saturated:
            x = min(x, (values[i] - threshold) / c)
        if x > 0.0:
            out[index[i]] = -x
            s += x
            support += 1
        vertex = vertex and i < rho.shape[0] and x == rho[i]
    out[y] = s
    return s, support, vertex


@jit
def _bounds(
    blocks: Blocks, n: int, c: float, rho: Float64Array, bound: Float64Array, level: Float64Array
) -> int:
    """Write u = (b - v) / c and v for each pooled class; return the number of classes that can carry mass."""
    values, start = blocks.values, blocks.start
    count = 0
    for k in range(pool_blocks(blocks, n, rho, c)):
        first = start[k]
        base, v = block_base(blocks, k, 1.0, c), block_value(blocks, k, c)
        for i in range(first, start[k + 1]):
            bound[i] = max(0.0, base + (values[i] - values[first]) / c) if i > first else base
            level[i] = v
            count += 1
    return count


@jit
def _threshold(
    values: Float64Array, bound: Float64Array, level: Float64Array, n: int, c_own: float, ratio: float
) -> tuple[float, int, int]:
    """Solve the biased knapsack: return T, the number of classes at their bound and the number with mass.

    Both `values` and `level` are non-increasing with level <= values, so the classes at their bound are the
    first `saturated` ones and the classes with mass the first `active` ones.  T falls from its largest
    possible value to the interval between breakpoints in which it solves its own equation.
    """
    top = 0.0
    for i in range(n):
        top += bound[i]
    top *= c_own
    saturated = 0
    full = 0.0
    while saturated < n and level[saturated] >= top and values[saturated] > 0.0:
        full += bound[saturated]
        saturated += 1
    active = saturated
    free = 0.0
    while True:
        threshold = (c_own * full + ratio * free) / (1.0 + ratio * (active - saturated))
        event = 0.0
        if active < n:
            event = max(event, values[active])
        if saturated < active:
            event = max(event, level[saturated])
        if threshold >= event:
            return threshold, saturated, active
        if active == saturated or (active < n and values[active] >= event):
            free += values[active]
            active += 1
        else:
            free -= values[saturated]
            full += bound[saturated]
            saturated += 1
            if saturated == active:
                free = 0.0
