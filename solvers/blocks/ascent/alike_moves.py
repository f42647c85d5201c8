"""Joint moves of rows that look alike and have different labels.

For rows i and j with x_i near x_j and labels a and b, the change t (e_a - e_b) of alpha_i together with
t (e_b - e_a) of alpha_j leaves W nearly as it is, while D rises with t up to the bounds of their domains.
Visits of one row at a time move it by about 1/|x|^2 each.  Here the dual rows of such a group are moved
together, group by group, using only their scores and their Gram matrix.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from topline.solvers.blocks.ascent.row_tiles import carry, scores
from topline.solvers.blocks.ascent.sweeps import Scratch, SweptPart, scratch_for, store_row
from topline.solvers.jit_cache import jit
from topline.solvers.jit_pointers import JitFunction, borrowed, keep
from topline.solvers.projections.columns import ColumnProblem
from topline.solvers.typing import Float64Array, FloatArray, Int64Array, IntArray

#: Penalties of the method of multipliers, in scores per dual variable: both are about 1.
_PENALTIES = (10.0, 100.0)
#: Least penalty as a share of the largest Gram entry: the Gram matrix of equal rows is singular.
_LEAST_PENALTY = 1e-12
#: Least rise of D per squared change of dual variables: where D hardly depends on them they stay, because W
#: and P do depend on them.
_LEAST_RISE = 0.01
#: Iterations and relaxation factor of the method.
_TURNS, _RELAXED = 40, 1.6


class _Group(NamedTuple):
    """Some rows that look alike.

    Attributes
    ----------
    S, alpha : (c, m) their scores and dual rows, kept up to date.
    K : (c, c) their Gram matrix times the factor from a change of A to one of scores.
    y, weights, offsets : (c,) labels, (c,) how often each counts, and (c, m) margins.
    rho, margins : as in `SweptPart`.
    """

    S: Float64Array
    alpha: Float64Array
    K: Float64Array
    y: IntArray
    weights: Float64Array
    offsets: Float64Array
    rho: Float64Array
    margins: Float64Array


@jit
def ascend_groups(
    owned: SweptPart,
    column: JitFunction,
    conjugate: JitFunction,
    starts: Int64Array,
    grams: Float64Array,
    offsets: Float64Array,
) -> float:
    """Move all groups in turn; return the rise of D.

    Parameters
    ----------
    owned : the rows in groups, with all classes; row t lies at place t of its tile.
    column, conjugate : the column update, and -Phi*(-alpha), which is linear.
    starts : where each group begins among the rows, and the end of the last.
    grams : the Gram matrices of the groups, concatenated.
    offsets : (t, m) margins.
    """
    part = borrowed(owned)
    tile, m = part.tile, len(part.apart)
    spare, scratch = np.empty(m, dtype=tile.W.dtype), scratch_for(m)
    total, at = 0.0, 0
    for g in range(len(starts) - 1):
        low, c = starts[g], starts[g + 1] - starts[g]
        rows = part.rows[low : low + c]
        S, alpha = np.empty((c, m)), np.empty((c, m))
        for p in range(c):
            i = rows[p]
            scores(tile, low + p, spare)
            for j in range(m):
                S[p, j] = spare[j] + part.apart[j] * part.along[i]
                alpha[p, j] = np.float64(part.A[i, j]) + np.float64(part.delta[i, j])
        group = _Group(
            S, alpha, _gram(part, rows, grams[at : at + c * c]), part.y[rows], part.weights[rows],
            offsets[low : low + c], part.rho, part.margins,
        )  # fmt: skip
        total += ascend(group, column, conjugate)
        at += c * c
        for p in range(c):
            n_changed, _ = store_row(part, rows[p], 0, alpha[p], scratch)
            carry(tile, low + p, scratch.changed, scratch.steps, n_changed, spare)
    return total


@jit
def _gram(part: SweptPart, rows: Int64Array, products: Float64Array) -> Float64Array:
    """Return the matrix that maps changes of a group's dual rows to changes of their scores."""
    c = len(rows)
    K = np.empty((c, c))
    for p in range(c):
        for k in range(c):
            both = part.along[rows[p]] * part.along[rows[k]]
            K[p, k] = part.scale * (products[p * c + k] - part.kept_apart * both)
    return K


@jit
def ascend(group: _Group, column: JitFunction, conjugate: JitFunction) -> float:
    """Move the dual rows of a group towards the maximum of D in them; return the rise of D."""
    S, alpha, K, weights = group.S, group.alpha, group.K, group.weights
    c, m = S.shape
    owned = scratch_for(m)
    scratch = borrowed(owned)
    best = np.empty((c, m))
    total = 0.0
    least = _LEAST_PENALTY * np.max(weights * np.diag(K))
    for wanted in _PENALTIES:
        _alternate(group, max(wanted, least), column, best, scratch)
        square = 0.0
        for p in range(c):
            for j in range(m):
                best[p, j] -= alpha[p, j]
                square += weights[p] * best[p, j] * best[p, j]
        slope, curvature = _parabola(group, best, conjugate)
        step = 0.0
        if slope > 0.0:
            step = min(slope / curvature, 1.0) if curvature > 0.0 else 1.0
        rise = step * (slope - 0.5 * step * curvature)
        if rise > _LEAST_RISE * step * step * square:
            total += rise
            for p in range(c):
                for j in range(m):
                    alpha[p, j] += step * best[p, j]
                    _carry_change(group, p, j, step * best[p, j])
        for p in range(c):
            total += _visit(group, p, column, scratch)
    keep(owned)
    return total


@jit
def _carry_change(group: _Group, p: int, j: int, change: float) -> None:
    """Add the effect of a change of one dual variable of row p to the scores."""
    if change != 0.0:
        for k in range(len(group.weights)):
            group.S[k, j] += group.weights[p] * group.K[k, p] * change


@jit
def _visit(group: _Group, p: int, column: JitFunction, scratch: Scratch) -> float:
    """Replace one dual row of a group by its maximiser; return the rise."""
    q, alpha = scratch.q, scratch.alpha
    own = group.weights[p] * group.K[p, p]
    for j in range(len(q)):
        q[j] = group.S[p, j] - own * group.alpha[p, j]
    column(_problem(group, p, own, q, alpha, scratch))
    square = 0.0
    for j in range(len(q)):
        change = alpha[j] - group.alpha[p, j]
        square += change * change
        group.alpha[p, j] = alpha[j]
        _carry_change(group, p, j, change)
    return float(0.5 * own * group.weights[p] * square)


@jit
def _problem(
    group: _Group, p: int, c: float, q: Float64Array, alpha: Float64Array, scratch: Scratch
) -> ColumnProblem:
    return ColumnProblem(
        q,
        np.int64(group.y[p]),
        c,
        c,
        group.rho,
        group.margins,
        alpha,
        scratch.work,
        scratch.index_work,
        False,
    )


@jit
def _parabola(group: _Group, change: Float64Array, conjugate: JitFunction) -> tuple[float, float]:
    """Return slope and curvature of D along a change of the dual rows of a group."""
    S, K, weights = group.S, group.K, group.weights
    c, m = S.shape
    slope = curvature = 0.0
    for p in range(c):
        scored = 0.0
        for j in range(m):
            scored += S[p, j] * change[p, j]
        slope += weights[p] * (conjugate(change[p], group.y[p], group.margins) - scored)
        for k in range(p + 1):
            product = 0.0
            for j in range(m):
                product += change[p, j] * change[k, j]
            curvature += (1.0 if k == p else 2.0) * weights[p] * weights[k] * K[p, k] * product
    return slope, max(curvature, 0.0)


@jit
def _alternate(
    group: _Group, penalty: float, column: JitFunction, best: Float64Array, scratch: Scratch
) -> None:
    """Write nearly the best dual rows of a group, inside their domains, to `best` (c, m).

    Uses the alternating direction method of multipliers, with one copy of the rows that maximises D without
    bounds and one inside the domains.  In the units w_i |alpha_i|^2 all classes share one system matrix.
    """
    alpha, offsets, q = group.alpha, group.offsets, scratch.q
    c, m = alpha.shape
    root = np.sqrt(group.weights)
    inverse = _inverse(group.K, root, penalty)
    # D at the rows alpha + v is quadratic in v with the gradient -(offsets + S) at 0.
    apart, free = np.empty((c, m)), np.empty((c, m))
    right = np.empty((c, m))
    gradient = -(offsets + group.S)
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
            column(_problem(group, p, 1.0, q, best[p], scratch))
            for j in range(m):
                apart[p, j] -= best[p, j]


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
