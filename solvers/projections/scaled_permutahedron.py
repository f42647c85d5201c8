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
from topline.solvers.projections.isotonic import (
    MAX_EVALUATIONS,
    block_value,
    next_scale,
    pool_blocks,
    write_blocks,
)
from topline.solvers.projections.ordering import largest_other, mass_threshold, sorted_candidates
from topline.solvers.typing import Float64Array, Int64Array

_EPS = float(np.finfo(np.float64).eps)


@jit
def scaled_permutahedron(
    b: Float64Array,
    skip: int,
    c: float,
    c_sum: float,
    rho: Float64Array,
    t_max: float,
    out: Float64Array,
    work: Float64Array,
    index_work: Int64Array,
) -> tuple[float, int, bool]:
    """Write x to `out`.

    Parameters
    ----------
    b : (m,).
    skip : coordinate that is no part of the problem (its x is 0), or -1.
    c, c_sum : curvature of |x|^2 and of S^2, >= 0; c = c_sum = 0 needs a finite t_max.
    rho : (L,) positive, non-increasing, L at most the number of coordinates.
    t_max : largest scale, > 0.
    out : (m,).
    work, index_work : from `column_workspace`; `b` may not lie in them.

    Returns
    -------
    (t, number of coordinates with mass, whether x is a vertex: 0 or a permutation of t_max rho).
    """
    values = work[0]
    deviation = work[1]
    mass = work[2]
    index = index_work[0]
    start = index_work[1]
    m = b.shape[0]
    out[:] = 0.0
    top, _ = largest_other(b, m, skip)
    if not top > 0.0:
        return 0.0, 0, True
    total = rho.sum()
    # No smaller x is better: c |x|^2 + c_S S^2 <= <b, x> <= top S, and |x|^2 >= S^2 / m.
    limit = t_max
    if top < (c / m + c_sum) * total * t_max:
        limit = min(t_max, top / ((c / m + c_sum) * total) * (1.0 + 4.0 * _EPS))
    theta = mass_threshold(b, m, skip, c * limit, rho, work[3])
    n = sorted_candidates(b, m, skip, theta, values, index, work[3], index_work[2])
    ranks = min(rho.shape[0], n)
    if rho[:ranks] @ values[:ranks] <= 0.0:
        return 0.0, 0, True
    t = limit
    low = 0.0
    high = np.inf
    blocks = 0
    for _ in range(MAX_EVALUATIONS):
        blocks = pool_blocks(values, n, rho, c * t, start, deviation, mass)
        h = -c_sum * total * total * t
        slope = -c_sum * total * total
        scale = -h
        for k in range(blocks):
            v = block_value(values, k, c * t, start, deviation, mass)
            h += mass[k] * v
            scale += mass[k] * (abs(v) + c * t * mass[k])
            slope -= c * mass[k] * mass[k] / (start[k + 1] - start[k])
        t, low, high, moved = next_scale(t, h, slope, 8.0 * _EPS * scale, low, high, limit)
        if not moved:
            break
    _, support, apart = write_blocks(values, index, -1, 0, n, blocks, c, t, start, deviation, mass, 1.0, out)
    return t, support, apart and t == t_max


@jit
def wtopk_others_column(
    b: Float64Array,
    y: int,
    c: float,
    c_own: float,
    rho: Float64Array,
    out: Float64Array,
    work: Float64Array,
    index_work: Int64Array,
) -> tuple[float, int, bool]:
    """Write the optimal dual row of the weighted top-k hinge over the other classes only; L <= m - 1.

    Parameters and result are those of `wtopk_column`, with c_own the curvature of S^2.
    """
    t, support, vertex = scaled_permutahedron(b, y, c, c_own, rho, 1.0, out, work, index_work)
    s = 0.0
    for j in range(b.shape[0]):
        if out[j] > 0.0:
            s += out[j]
            out[j] = -out[j]
    out[y] = s
    return t, support, vertex
