"""Joint moves of rows that look alike and have different labels.

For rows i and j with x_i near x_j and labels a and b, the change t (e_a - e_b) of alpha_i together with
t (e_b - e_a) of alpha_j leaves W nearly as it is, while D rises with t up to the bounds of their domains.
Visits of one row at a time move it by about 1/|x|^2 each.  Here the dual rows of such a group are moved
together, one group after the other.
"""

from __future__ import annotations

import numpy as np

from topline.solvers.blocks.ascent.alike_steps import ascend
from topline.solvers.blocks.ascent.dual_changes import carry_csr, carry_dense
from topline.solvers.blocks.ascent.sweeps import dense_scores, sparse_scores
from topline.solvers.jit_cache import jit
from topline.solvers.jit_pointers import JitFunction, borrowed, keep
from topline.solvers.typing import Float64Array, FloatArray, Int64Array, IntArray


@jit
def _stored(
    i: int,
    p: int,
    alpha: Float64Array,
    start: Float64Array,
    weighted: float,
    A: FloatArray,
    delta: FloatArray,
    changed: Int64Array,
    steps: Float64Array,
) -> int:
    """Store row p of alpha as dual row i, and what the weights change by along x_i; count the classes."""
    count = 0
    for j in range(alpha.shape[1]):
        if alpha[p, j] == start[p, j]:
            continue
        before = np.float64(delta[i, j])
        # What is stored is what counts: the change is taken after rounding to A's precision.
        delta[i, j] = alpha[p, j] - A[i, j]
        change = np.float64(delta[i, j]) - before
        if change != 0.0:
            changed[count] = j
            steps[count] = weighted * change
            count += 1
    return count


@jit
def _gram(
    grams: Float64Array, at: int, rows: Int64Array, along: Float64Array, kept_apart: float, scale: float
) -> Float64Array:
    """Return the matrix from changes of the dual rows of a group to those of their scores."""
    c = len(rows)
    K = np.empty((c, c))
    for p in range(c):
        for k in range(c):
            K[p, k] = scale * (grams[at + p * c + k] - kept_apart * along[rows[p]] * along[rows[k]])
    return K


@jit
def _moved(
    S: Float64Array,
    low: int,
    at: int,
    rows: Int64Array,
    grams: Float64Array,
    y: IntArray,
    weights: Float64Array,
    along: Float64Array,
    kept_apart: float,
    A: FloatArray,
    delta: FloatArray,
    scale: float,
    column: JitFunction,
    conjugate: JitFunction,
    rho: Float64Array,
    margins: Float64Array,
    offsets: Float64Array,
    apart: Float64Array,
    changed: Int64Array,
    steps: Float64Array,
    counts: Int64Array,
) -> float:
    """Move the group whose first row is number `low` and whose Gram matrix begins `at`; return the rise.

    S (c, m) are the scores of its rows by W alone.  What the weights are to change by along each of them is
    left in the first `counts` (c,) of `changed` and `steps` (c, m).
    """
    c, m = S.shape
    some = rows[low : low + c]
    alpha, start = np.empty((c, m)), np.empty((c, m))
    for p in range(c):
        i = some[p]
        for j in range(m):
            S[p, j] += apart[j] * along[i]
            alpha[p, j] = np.float64(A[i, j]) + np.float64(delta[i, j])
            start[p, j] = alpha[p, j]
    K = _gram(grams, at, some, along, kept_apart, scale)
    rise = ascend(
        S, K, alpha, y[some], weights[some], offsets[low : low + c], column, conjugate, rho, margins
    )
    for p in range(c):
        i = some[p]
        counts[p] = _stored(i, p, alpha, start, scale * weights[i], A, delta, changed[p], steps[p])
        for k in range(counts[p]):
            apart[changed[p, k]] -= kept_apart * steps[p, k] * along[i]
    return float(rise)


@jit
def ascend_dense(
    X: FloatArray,
    starts: Int64Array,
    rows: Int64Array,
    grams: Float64Array,
    y: IntArray,
    weights: Float64Array,
    along: Float64Array,
    kept_apart: float,
    A: FloatArray,
    delta: FloatArray,
    scale: float,
    column: JitFunction,
    conjugate: JitFunction,
    rho: Float64Array,
    margins: Float64Array,
    offsets: Float64Array,
    W: FloatArray,
    apart: Float64Array,
) -> float:
    """Move all groups one after the other; return what D rises by.

    Parameters
    ----------
    X, rows : (t, d) features of the rows in groups, and their places in the arrays of the block.
    starts : where each group begins in X, and the end of the last.
    grams : the Gram matrices of the groups, one behind the other.
    offsets : (t, m) margins.
    y, weights, along, kept_apart, A, delta, scale, column, rho, margins, W, apart : as in `sweep_dense`.
    conjugate : -Phi*(-alpha), which is linear.
    """
    m = W.shape[0]
    owners = rho, margins
    rho, margins = borrowed(rho), borrowed(margins)
    scores = np.empty(m, dtype=W.dtype)
    total, at = 0.0, 0
    for g in range(len(starts) - 1):
        low, c = starts[g], starts[g + 1] - starts[g]
        S, steps = np.empty((c, m)), np.empty((c, m))
        changed, counts = np.empty((c, m), dtype=np.int64), np.empty(c, dtype=np.int64)
        for p in range(c):
            dense_scores(W, X, low + p, scores)
            S[p] = scores
        total += _moved(
            S, low, at, rows, grams, y, weights, along, kept_apart, A, delta, scale, column, conjugate,
            rho, margins, offsets, apart, changed, steps, counts,
        )  # fmt: skip
        at += c * c
        for p in range(c):
            for k in range(counts[p]):
                carry_dense(W, changed[p, k], X, low + p, steps[p, k])
    keep(owners)
    return total


@jit
def ascend_csr(
    data: FloatArray,
    indices: IntArray,
    indptr: IntArray,
    starts: Int64Array,
    rows: Int64Array,
    grams: Float64Array,
    y: IntArray,
    weights: Float64Array,
    along: Float64Array,
    kept_apart: float,
    A: FloatArray,
    delta: FloatArray,
    scale: float,
    column: JitFunction,
    conjugate: JitFunction,
    rho: Float64Array,
    margins: Float64Array,
    offsets: Float64Array,
    W: FloatArray,
    apart: Float64Array,
) -> float:
    """Do the same for sparse rows, with W (d, m)."""
    m = W.shape[1]
    owners = rho, margins
    rho, margins = borrowed(rho), borrowed(margins)
    scores = np.empty(m, dtype=W.dtype)
    total, at = 0.0, 0
    for g in range(len(starts) - 1):
        low, c = starts[g], starts[g + 1] - starts[g]
        S, steps = np.empty((c, m)), np.empty((c, m))
        changed, counts = np.empty((c, m), dtype=np.int64), np.empty(c, dtype=np.int64)
        for p in range(c):
            sparse_scores(W, data, indices, indptr[low + p], indptr[low + p + 1], scores)
            S[p] = scores
        total += _moved(
            S, low, at, rows, grams, y, weights, along, kept_apart, A, delta, scale, column, conjugate,
            rho, margins, offsets, apart, changed, steps, counts,
        )  # fmt: skip
        at += c * c
        for p in range(c):
            start, stop = indptr[low + p], indptr[low + p + 1]
            carry_csr(W, data, indices, start, stop, changed[p], steps[p], counts[p], scores)
    keep(owners)
    return total
