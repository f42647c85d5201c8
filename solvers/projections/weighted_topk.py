"""Exact column update of the weighted top-k hinge: projection on conv({0} u P(rho)), own class in the sort.

    min over beta in t P(rho), 0 <= t <= 1, of (c/2)(|x|^2 + S^2) - <b, x>,   x = beta without the own class
    y, S = sum x,   b_j = delta_j + q_j - q_y.

Keeping beta_y and writing S = t R - beta_y with R = sum rho makes it, for fixed t, the Euclidean projection
of p_j = b_j / c, p_y = t R on the permutahedron t P(rho): one isotonic regression v (in units of b here).
The derivative of the minimum in t is -H(t), H(t) = sum_j rho_j v_[j] - R v_y, non-increasing and piecewise
linear.  So t = 0 if H(0) <= 0, t = 1 if H(1) >= 0, and else t is the root of H: Newton's method on the
pieces, bisection as a safeguard.
"""

from __future__ import annotations

import numpy as np

from topline.solvers.jit_cache import jit
from topline.solvers.projections.isotonic import (
    MAX_EVALUATIONS,
    block_value,
    next_scale,
    pool_blocks,
    write_blocks,
)
from topline.solvers.projections.ordering import (
    few_largest,
    largest_other,
    mass_threshold,
    sorted_candidates,
)
from topline.solvers.typing import Float64Array, Int64Array

_EPS = float(np.finfo(np.float64).eps)


@jit
def wtopk_column(
    b: Float64Array,
    y: int,
    c: float,
    rho: Float64Array,
    out: Float64Array,
    work: Float64Array,
    index_work: Int64Array,
) -> tuple[float, int, bool]:
    """Write the optimal dual row alpha of one example to `out`.

    Parameters
    ----------
    b : (m,) delta_j + q_j - q_y; b[y] is ignored.
    y : own class.
    c : curvature K_ii / (lambda n) + gamma >= 0; 0 gives a maximising vertex.
    rho : (L,) positive, non-increasing, L <= m.
    out : (m,) receives alpha_j = -x_j and alpha_y = sum x.
    work, index_work : from `column_workspace`; `b` may not lie in them.

    Returns
    -------
    (t, number of classes other than y with mass, whether alpha is a vertex of the domain).
    """
    values = work[0]
    deviation = work[1]
    mass = work[2]
    index = index_work[0]
    start = index_work[1]
    m = b.shape[0]
    out[:] = 0.0
    top, _ = largest_other(b, m, y)
    if not top > 0.0:
        return 0.0, 0, True
    total = rho.sum()
    limit = _largest_scale(top, c, total - rho[0])
    theta = mass_threshold(b, m, y, c * limit, rho, work[3])
    reached = few_largest(b, m, y, theta, rho.shape[0], work[3])
    n = sorted_candidates(b, m, y, reached, values, index, work[3], index_work[2])
    if loss_of_sorted(values, n, rho) <= 0.0:
        return 0.0, 0, True
    at = n
    index[n] = y
    t = limit
    low = 0.0
    high = np.inf
    blocks = 0
    for _ in range(MAX_EVALUATIONS):
        at = _place_own_class(values, index, n + 1, at, c * t * total)
        blocks = pool_blocks(values, n + 1, rho, c * t, start, deviation, mass)
        if start[blocks] >= n and reached > theta:
            # The last block may go on.
            reached = theta
            n = sorted_candidates(b, m, y, theta, values, index, work[3], index_work[2])
            index[n] = y
            at = _place_own_class(values, index, n + 1, n, c * t * total)
            blocks = pool_blocks(values, n + 1, rho, c * t, start, deviation, mass)
        h, slope, scale = _derivative(values, blocks, at, c, t, total, start, deviation, mass)
        t, low, high, moved = next_scale(t, h, slope, 8.0 * _EPS * scale, low, high, 1.0)
        if not moved:
            break
    out[y], support, vertex = write_blocks(
        values, index, y, 0, n + 1, blocks, c, t, start, deviation, mass, -1.0, out
    )
    return t, support, vertex and t == 1.0


@jit
def _largest_scale(top: float, c: float, rest: float) -> float:
    """Bound t, rest = R - rho_1: S >= t rest, and c S^2 <= <b, x> <= top S where no smaller x is better."""
    if c * rest <= top:
        return 1.0
    return min(1.0, top / (c * rest) * (1.0 + 4.0 * _EPS))


@jit
def loss_of_sorted(values: Float64Array, n: int, rho: Float64Array) -> float:
    """Return H(0) = sum_j rho_j a_[j] for the sorted values with the own class's 0 in its place."""
    total = 0.0
    i = 0
    own = False
    for k in range(rho.shape[0]):
        if i < n and (values[i] > 0.0 or own):
            total += rho[k] * values[i]
            i += 1
        else:
            own = True
    return total


@jit
def _place_own_class(values: Float64Array, index: Int64Array, n: int, at: int, value: float) -> int:
    """Move the own class, which stands at `at` among n sorted values, to where `value` belongs."""
    own = index[at]
    while at > 0 and values[at - 1] < value:
        values[at] = values[at - 1]
        index[at] = index[at - 1]
        at -= 1
    while at < n - 1 and values[at + 1] > value:
        values[at] = values[at + 1]
        index[at] = index[at + 1]
        at += 1
    values[at] = value
    index[at] = own
    return at


@jit
def _derivative(
    b: Float64Array,
    blocks: int,
    at: int,
    c: float,
    t: float,
    total: float,
    start: Int64Array,
    deviation: Float64Array,
    mass: Float64Array,
) -> tuple[float, float, float]:
    """Return H(t), its slope on the current piece, and the size of the terms that make H up."""
    own = -1
    v_own = b[at]
    if at < start[blocks]:
        low = 0
        high = blocks - 1
        while low < high:
            middle = (low + high + 1) // 2
            if start[middle] <= at:
                low = middle
            else:
                high = middle - 1
        own = low
        v_own = block_value(b, own, c * t, start, deviation, mass)
    h = 0.0
    curvature = total * total if own < 0 else (total - mass[own]) ** 2 / (start[own + 1] - start[own])
    scale = c * t * total * total
    for k in range(blocks):
        if k == own:
            continue
        v = block_value(b, k, c * t, start, deviation, mass)
        h += mass[k] * (v - v_own)
        scale += mass[k] * (abs(v) + abs(v_own))
        curvature += mass[k] * mass[k] / (start[k + 1] - start[k])
    return h, -c * curvature, scale
