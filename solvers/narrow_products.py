"""Products of many rows with few columns, for which BLAS spends most of its time packing the rows.

Groups of rows and columns share their loads, and their sums stay in registers.
"""

from __future__ import annotations

import numpy as np

from topline.solvers.jit_cache import jit
from topline.solvers.jit_pointers import fetch
from topline.solvers.typing import Float64Array, FloatArray

#: Rows and columns of a group.
_ROWS, _COLUMNS = 4, 5
#: BLAS is slower up to this many columns and from this many features.
_MOST_COLUMNS, _LEAST_FEATURES = 31, 128


def is_narrow(X: FloatArray, m: int) -> bool:
    """Return whether products of the rows X (b, d) with m columns are faster here than in BLAS."""
    b, d = X.shape
    return b >= _ROWS and d >= _LEAST_FEATURES and m <= _MOST_COLUMNS


@jit(fastmath={"reassoc", "contract", "nsz"})
def multiply_rows(X: FloatArray, columns: FloatArray, out: FloatArray) -> None:
    """Write the inner products of at least four rows of X (b, d) with `columns` (m, d) to `out` (b, m)."""
    b, m = out.shape
    size, grouped = X.shape[1] * X.itemsize, m - m % _COLUMNS
    for start in range(0, b, _ROWS):
        # The last group overlaps the one before and recomputes the same numbers.
        i = min(start, b - _ROWS)
        for following in range(i + _ROWS, min(i + 2 * _ROWS, b)):
            fetch(X, following, size)
        for j in range(0, grouped, _COLUMNS):
            _four_times_five(X, i, columns, j, out)
        for j in range(grouped, m):
            _four_times_one(X, i, columns, j, out)


@jit(fastmath={"reassoc", "contract", "nsz"})
def _four_times_five(X: FloatArray, i: int, columns: FloatArray, j: int, out: FloatArray) -> None:
    a0 = a1 = a2 = a3 = a4 = out.dtype.type(0.0)
    b0 = b1 = b2 = b3 = b4 = c0 = c1 = c2 = c3 = c4 = d0 = d1 = d2 = d3 = d4 = a0
    for k in range(X.shape[1]):
        a, b, c, d = X[i, k], X[i + 1, k], X[i + 2, k], X[i + 3, k]
        w = columns[j, k]
        a0, b0, c0, d0 = a0 + a * w, b0 + b * w, c0 + c * w, d0 + d * w
        w = columns[j + 1, k]
        a1, b1, c1, d1 = a1 + a * w, b1 + b * w, c1 + c * w, d1 + d * w
        w = columns[j + 2, k]
        a2, b2, c2, d2 = a2 + a * w, b2 + b * w, c2 + c * w, d2 + d * w
        w = columns[j + 3, k]
        a3, b3, c3, d3 = a3 + a * w, b3 + b * w, c3 + c * w, d3 + d * w
        w = columns[j + 4, k]
        a4, b4, c4, d4 = a4 + a * w, b4 + b * w, c4 + c * w, d4 + d * w
    out[i, j], out[i, j + 1], out[i, j + 2], out[i, j + 3], out[i, j + 4] = a0, a1, a2, a3, a4
    i += 1
    out[i, j], out[i, j + 1], out[i, j + 2], out[i, j + 3], out[i, j + 4] = b0, b1, b2, b3, b4
    i += 1
    out[i, j], out[i, j + 1], out[i, j + 2], out[i, j + 3], out[i, j + 4] = c0, c1, c2, c3, c4
    i += 1
    out[i, j], out[i, j + 1], out[i, j + 2], out[i, j + 3], out[i, j + 4] = d0, d1, d2, d3, d4


@jit(fastmath={"reassoc", "contract", "nsz"})
def _four_times_one(X: FloatArray, i: int, columns: FloatArray, j: int, out: FloatArray) -> None:
    a = b = c = d = out.dtype.type(0.0)
    for k in range(X.shape[1]):
        w = columns[j, k]
        a, b, c, d = a + X[i, k] * w, b + X[i + 1, k] * w, c + X[i + 2, k] * w, d + X[i + 3, k] * w
    out[i, j], out[i + 1, j], out[i + 2, j], out[i + 3, j] = a, b, c, d


def add_rows_times(U: FloatArray, X: FloatArray, product: Float64Array) -> None:
    """Add U^T X of the rows of U (b, m) and X (b, d) to `product` (m, d)."""
    total = np.zeros(product.shape, X.dtype)
    _add_rows(np.ascontiguousarray(U), X, total)
    product += total


@jit(fastmath={"contract"})
def _add_rows(U: FloatArray, X: FloatArray, total: FloatArray) -> None:
    b, m = U.shape
    grouped = m - m % _COLUMNS
    alone = b - b % _ROWS
    for i in range(0, alone, _ROWS):
        for j in range(0, grouped, _COLUMNS):
            _add_four_to_five(U, X, i, j, total)
        for j in range(grouped, m):
            a, b, c, d = U[i, j], U[i + 1, j], U[i + 2, j], U[i + 3, j]
            for k in range(X.shape[1]):
                total[j, k] += (a * X[i, k] + b * X[i + 1, k]) + (c * X[i + 2, k] + d * X[i + 3, k])
    for i in range(alone, U.shape[0]):
        for j in range(m):
            u = U[i, j]
            for k in range(X.shape[1]):
                total[j, k] += u * X[i, k]


@jit(fastmath={"contract"})
def _add_four_to_five(U: FloatArray, X: FloatArray, i: int, j: int, total: FloatArray) -> None:
    a0, a1, a2, a3, a4 = U[i, j], U[i, j + 1], U[i, j + 2], U[i, j + 3], U[i, j + 4]
    i += 1
    b0, b1, b2, b3, b4 = U[i, j], U[i, j + 1], U[i, j + 2], U[i, j + 3], U[i, j + 4]
    i += 1
    c0, c1, c2, c3, c4 = U[i, j], U[i, j + 1], U[i, j + 2], U[i, j + 3], U[i, j + 4]
    i += 1
    d0, d1, d2, d3, d4 = U[i, j], U[i, j + 1], U[i, j + 2], U[i, j + 3], U[i, j + 4]
    i -= 3
    for k in range(X.shape[1]):
        a, b, c, d = X[i, k], X[i + 1, k], X[i + 2, k], X[i + 3, k]
        total[j, k] += (a0 * a + b0 * b) + (c0 * c + d0 * d)
        total[j + 1, k] += (a1 * a + b1 * b) + (c1 * c + d1 * d)
        total[j + 2, k] += (a2 * a + b2 * b) + (c2 * c + d2 * d)
        total[j + 3, k] += (a3 * a + b3 * b) + (c3 * c + d3 * d)
        total[j + 4, k] += (a4 * a + b4 * b) + (c4 * c + d4 * d)
