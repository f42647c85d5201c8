"""Sums over the change of the dual rows, and the product of features and changes."""

from __future__ import annotations

import numba as nb
import numpy as np

from topline.solvers.projections.columns import minus_conjugate
from topline.solvers.projections.kinds import (
    BINARY_LOGISTIC_KIND,
    ENTROPY_KIND,
    MULTILABEL_ENTROPY_KIND,
    margin_at,
    own_class_of,
)
from topline.solvers.typing import Float64Array, FloatArray, IntArray


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
    if kind in (ENTROPY_KIND, BINARY_LOGISTIC_KIND, MULTILABEL_ENTROPY_KIND):
        return minus_conjugate(kind, after, y, margins) - minus_conjugate(kind, before, y, margins)
    total = 0.0
    place, own = 1, own_class_of(kind, margins, y, 1)
    for j in range(len(before)):
        total -= margin_at(kind, margins, y, j, j == own) * (after[j] - before[j])
        if j == own:
            place += 1
            own = own_class_of(kind, margins, y, place)
    return total
