"""Moves of the dual rows of one small group together, from their scores and their Gram matrix alone."""

from __future__ import annotations

import numpy as np

from topline.solvers.jit_cache import jit
from topline.solvers.jit_pointers import JitFunction, borrowed, keep
from topline.solvers.projections.ordering import column_workspace
from topline.solvers.typing import Float64Array, FloatArray, Int64Array, IntArray

#: Penalties of the method of multipliers, in scores a dual variable: both are about 1.
_PENALTIES = (10.0, 100.0)
#: Their least share of the largest number of the Gram matrix: that of equal rows has no inverse without them.
_LEAST_PENALTY = 1e-12
#: What D rises by at least, for the square of the change of dual variables: where it hardly depends on them
#: they stay, for W and P do depend on them.
_LEAST_RISE = 0.01
#: Its turns, and its relaxation.
_TURNS, _RELAXED = 40, 1.6


@jit
def _visit(
    S: Float64Array,
    K: Float64Array,
    alpha: Float64Array,
    p: int,
    label: int,
    weights: Float64Array,
    column: JitFunction,
    rho: Float64Array,
    margins: Float64Array,
    q: Float64Array,
    out: Float64Array,
    work: Float64Array,
    index_work: Int64Array,
) -> float:
    """Replace one dual row of a group by its maximiser, carry that into the scores; return the rise."""
    c, m = S.shape
    own = weights[p] * K[p, p]
    for j in range(m):
        q[j] = S[p, j] - own * alpha[p, j]
    column(q, label, own, own, rho, margins, out, work, index_work, False)
    square = 0.0
    for j in range(m):
        change = out[j] - alpha[p, j]
        if change != 0.0:
            square += change * change
            alpha[p, j] = out[j]
            for k in range(c):
                S[k, j] += weights[p] * K[k, p] * change
    return float(0.5 * own * weights[p] * square)


@jit
def _parabola(
    S: Float64Array,
    K: Float64Array,
    change: Float64Array,
    y: IntArray,
    weights: Float64Array,
    conjugate: JitFunction,
    margins: Float64Array,
) -> tuple[float, float]:
    """Return slope and curvature of D along a change of the dual rows of a group."""
    c, m = S.shape
    slope = curvature = 0.0
    for p in range(c):
        scored = 0.0
        for j in range(m):
            scored += S[p, j] * change[p, j]
        slope += weights[p] * (conjugate(change[p], y[p], margins) - scored)
        for k in range(p + 1):
            product = 0.0
            for j in range(m):
                product += change[p, j] * change[k, j]
            curvature += (1.0 if k == p else 2.0) * weights[p] * weights[k] * K[p, k] * product
    return slope, max(curvature, 0.0)


@jit
def _inverse(K: Float64Array, root: Float64Array, penalty: float) -> FloatArray:
    """Return the inverse of K, in the units of `root`, plus the penalty."""
    c = len(root)
    matrix = np.empty((c, c))
    for p in range(c):
        for k in range(c):
            matrix[p, k] = root[p] * K[p, k] * root[k]
        matrix[p, p] += penalty
    return np.linalg.inv(matrix)


@jit
def _alternate(
    S: Float64Array,
    K: Float64Array,
    alpha: Float64Array,
    penalty: float,
    y: IntArray,
    weights: Float64Array,
    offsets: Float64Array,
    column: JitFunction,
    rho: Float64Array,
    margins: Float64Array,
    best: Float64Array,
    q: Float64Array,
    work: Float64Array,
    index_work: Int64Array,
) -> None:
    """Write to `best` (c, m) nearly the best dual rows of a group, inside their domains.

    The alternating direction method of multipliers, for one copy of the rows that maximises D without bounds
    and one that is inside them.  In the units w_i |alpha_i|^2 the system has the same matrix for all classes.
    """
    c, m = S.shape
    root = np.sqrt(weights)
    inverse = _inverse(K, root, penalty)
    # D at the rows alpha + v is quadratic in v with the gradient -(offsets + S) at 0.
    apart, free = np.empty((c, m)), np.empty((c, m))
    right = np.empty((c, m))
    gradient = -(offsets + S)
    apart[:] = gradient / penalty
    best[:] = alpha
    for _ in range(_TURNS):
        for p in range(c):
            for j in range(m):
                moved = best[p, j] - alpha[p, j] - apart[p, j]
                right[p, j] = root[p] * (gradient[p, j] + penalty * moved)
        for p in range(c):
            for j in range(m):
                free[p, j] = 0.0
            for k in range(c):
                factor = inverse[p, k] / root[p]
                for j in range(m):
                    free[p, j] += factor * right[k, j]
            for j in range(m):
                value = alpha[p, j] + _RELAXED * free[p, j] + (1.0 - _RELAXED) * (best[p, j] - alpha[p, j])
                apart[p, j] += value
                q[j] = -apart[p, j] - offsets[p, j]
            column(q, y[p], 1.0, 1.0, rho, margins, best[p], work, index_work, False)
            for j in range(m):
                apart[p, j] -= best[p, j]


@jit
def ascend(
    S: Float64Array,
    K: Float64Array,
    alpha: Float64Array,
    y: IntArray,
    weights: Float64Array,
    offsets: Float64Array,
    column: JitFunction,
    conjugate: JitFunction,
    rho: Float64Array,
    margins: Float64Array,
) -> float:
    """Move the dual rows alpha (c, m) of a group towards the maximum of D in them; return what D rises by.

    S (c, m) are their scores, kept up to date, K (c, c) their Gram matrix times the factor from a change of A
    to one of scores, `offsets` the margins of each row.
    """
    c, m = S.shape
    owners = column_workspace(m), np.empty(m), np.empty(m)
    work, index_work = borrowed(owners[0][0]), borrowed(owners[0][1])
    q, out = borrowed(owners[1]), borrowed(owners[2])
    best = np.empty((c, m))
    total = 0.0
    least = _LEAST_PENALTY * np.max(weights * np.diag(K))
    for wanted in _PENALTIES:
        penalty = max(wanted, least)
        _alternate(S, K, alpha, penalty, y, weights, offsets, column, rho, margins, best, q, work, index_work)
        square = 0.0
        for p in range(c):
            for j in range(m):
                best[p, j] -= alpha[p, j]
                square += weights[p] * best[p, j] * best[p, j]
        slope, curvature = _parabola(S, K, best, y, weights, conjugate, margins)
        step = 0.0
        if slope > 0.0:
            step = min(slope / curvature, 1.0) if curvature > 0.0 else 1.0
        rise = step * (slope - 0.5 * step * curvature)
        if rise > _LEAST_RISE * step * step * square:
            total += rise
            for p in range(c):
                for j in range(m):
                    change = step * best[p, j]
                    if change != 0.0:
                        alpha[p, j] += change
                        for k in range(c):
                            S[k, j] += weights[p] * K[k, p] * change
        for p in range(c):
            total += _visit(S, K, alpha, p, y[p], weights, column, rho, margins, q, out, work, index_work)
    keep(owners)
    return total
