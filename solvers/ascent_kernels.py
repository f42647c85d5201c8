"""One sweep of exact column updates over a tile, through the tile's Gram matrix."""

from __future__ import annotations

import numba as nb
import numpy as np

from solvers.projections.columns import (
    BINARY_HINGE_KIND,
    BINARY_LOGISTIC_KIND,
    ENTROPY_KIND,
    column_update_two,
    minus_conjugate,
)
from solvers.projections.workspace import column_workspace
from solvers.typing import Float64Array, FloatArray, Int64Array, IntArray


@nb.njit(cache=True, nogil=True)
def sweep_tile(
    kind: int,
    scores: FloatArray,
    gram: FloatArray,
    members: Int64Array,
    order: Int64Array,
    y: IntArray,
    A: FloatArray,
    delta: FloatArray,
    weights: Float64Array,
    scale: float,
    smoothing: float,
    smoothing_own: float,
    rho: Float64Array,
    margins: Float64Array,
    threshold: float,
    moved: np.ndarray,
) -> None:
    """Replace the dual rows of a tile one by one by the maximisers of the dual in that row.

    Parameters
    ----------
    kind, rho, margins : the loss, as `column_update` takes it.
    scores : (m, t) scores of the visited rows at the weights of this moment; kept up to date.  One row per
        class, so that a change of one alpha_ij is an axpy along memory.
    gram : (T, T) inner products of all rows of the tile.
    members : (t,) places of the visited rows in the tile.
    order : (t,) positions in `members`, the order of the visits.
    y, A, delta : (T,) labels, (T, m) dual rows at the start of the round and their change so far, which is
        updated.
    weights : (T,) how often each row counts; A is that of a row that counts once.
    scale : s, the factor from a change of A to a change of scores; s = 1/(lam n) times the safety of a block
        that moves at the same time as others.
    smoothing, smoothing_own : gamma, and that of the own class.
    threshold : a row whose alpha changes by more than this anywhere has moved.
    moved : (T,) booleans, written for the visited rows.
    """
    m, t = scores.shape
    work, index_work = column_workspace(m)
    q = np.empty(m)
    alpha = np.empty(m)
    for position in order:
        i = members[position]
        if weights[i] == 0.0:
            moved[i] = False
            continue
        weighted = scale * weights[i]
        own = weighted * gram[i, i]
        for j in range(m):
            q[j] = scores[j, position] - own * (A[i, j] + delta[i, j])
        column_update_two(
            kind, q, y[i], own + smoothing, own + smoothing_own, rho, margins, alpha, work, index_work, -1.0
        )
        largest = 0.0
        for j in range(m):
            before = delta[i, j]
            if alpha[j] == A[i, j] + before:
                continue
            # What is stored is what counts: the change is taken after rounding to A's precision.
            delta[i, j] = alpha[j] - A[i, j]
            change = np.float64(delta[i, j]) - np.float64(before)
            if change == 0.0:
                continue
            largest = max(largest, abs(change))
            step = weighted * change
            for other in range(t):
                scores[j, other] += step * gram[i, members[other]]
        moved[i] = largest > threshold


@nb.njit(cache=True, nogil=True, fastmath={"contract"})
def add_change(X: FloatArray, change: FloatArray, scale: float, product: Float64Array, W: FloatArray) -> None:
    """Add X^T change to `product` and scale times it to W, both (m, d); change is (t, m), mostly zero."""
    for i in range(X.shape[0]):
        for j in range(change.shape[1]):
            v = np.float64(change[i, j])
            if v == 0.0:
                continue
            step = scale * v
            for f in range(X.shape[1]):
                product[j, f] += v * X[i, f]
                W[j, f] += step * X[i, f]


@nb.njit(cache=True, nogil=True)
def add_change_csr(
    data: FloatArray,
    indices: IntArray,
    indptr: IntArray,
    change: FloatArray,
    scale: float,
    product: Float64Array,
    W: FloatArray,
) -> None:
    """Do the same for sparse rows."""
    for i in range(change.shape[0]):
        for j in range(change.shape[1]):
            v = np.float64(change[i, j])
            if v == 0.0:
                continue
            for p in range(indptr[i], indptr[i + 1]):
                product[j, indices[p]] += v * data[p]
                W[j, indices[p]] += scale * v * data[p]


@nb.njit(cache=True, nogil=True)
def change_sums(
    kind: int,
    y: IntArray,
    weights: Float64Array,
    A: FloatArray,
    delta: FloatArray,
    margins: Float64Array,
    own_share: float,
) -> tuple[float, float, float, float, int]:
    """Sum the change of b, <alpha_i, delta_i>, |delta_i|^2 and |alpha_i|^2, and count the rows that change.

    Each row counts w_i times, and its own class `own_share` times in what is smoothed.  b(alpha) is
    -Phi*(-alpha), which is linear for the hinges.
    """
    m = A.shape[1]
    before, after = np.empty(m), np.empty(m)
    linear = cross = square = alpha_sq = 0.0
    rows = 0
    for i in range(A.shape[0]):
        changed = False
        row_cross = row_square = row_sq = 0.0
        for j in range(m):
            share = own_share if j == y[i] else 1.0
            before[j] = A[i, j]
            change = np.float64(delta[i, j])
            after[j] = before[j] + change
            row_sq += share * before[j] * before[j]
            row_cross += share * before[j] * change
            row_square += share * change * change
            changed = changed or change != 0.0
        alpha_sq += weights[i] * row_sq
        if not changed:
            continue
        rows += 1
        cross += weights[i] * row_cross
        square += weights[i] * row_square
        linear += weights[i] * _change_of_b(kind, before, after, y[i], margins)
    return linear, cross, square, alpha_sq, rows


@nb.njit(cache=True, nogil=True)
def _change_of_b(
    kind: int, before: Float64Array, after: Float64Array, y: int, margins: Float64Array
) -> float:
    """Give b(after) - b(before); where b is linear, without the cancellation of two large values."""
    if kind in (ENTROPY_KIND, BINARY_LOGISTIC_KIND):
        return minus_conjugate(kind, after, y, margins) - minus_conjugate(kind, before, y, margins)
    total = 0.0
    for j in range(len(before)):
        change = after[j] - before[j]
        if j == y:
            total += change if kind == BINARY_HINGE_KIND else 0.0
        else:
            total -= change if margins.shape[0] == 0 else margins[y, j] * change
    return total
