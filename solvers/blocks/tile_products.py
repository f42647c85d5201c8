"""Sums of weighted outer products of rows: Gram matrices."""

from __future__ import annotations

import numpy as np

from topline.solvers.core.rows import Rows, is_sparse
from topline.solvers.jit_cache import jit
from topline.solvers.typing import Float64Array, FloatArray

#: Gram matrices from which on, and columns up to which, the products of all pairs of columns are made once.
_MANY_GRAMS, _FEW_COLUMNS = 12, 128
#: Columns up to which rows that are in few of the matrices are added one by one.
_NARROW = 48
#: Rows whose pairs stay in the cache between their making and their use.
_ROWS_OF_PAIRS = 256


def add_weighted_grams(grams: Float64Array, X: Rows, weights: FloatArray) -> None:
    """Add sum_i weights[i, q] x_i x_i^T for every column q of weights (r, q) to grams (q, d, d)."""
    count, d = weights.shape[1], X.shape[1]
    few = 2 * np.count_nonzero(weights) < weights.size
    if few and d <= _NARROW and not is_sparse(X):
        _add_few(grams, X, weights)
        return
    if is_sparse(X) or few or count < _MANY_GRAMS or d > _FEW_COLUMNS:
        for q in range(count):
            grams[q] += weighted_gram(X, weights[:, q])
        return
    room = np.empty((min(_ROWS_OF_PAIRS, len(weights)), d * (d + 1) // 2), X.dtype)
    total, weights = np.zeros((count, room.shape[1])), weights.astype(X.dtype, copy=False)
    for start in range(0, len(weights), _ROWS_OF_PAIRS):
        part = X[start : start + _ROWS_OF_PAIRS]
        pairs = room[: len(part)]
        _pairs(part, pairs)
        total += weights[start : start + len(part)].T @ pairs
    rows, columns = np.tril_indices(d)
    gram = np.empty((d, d))
    for q in range(count):
        gram[rows, columns] = gram[columns, rows] = total[q]
        grams[q] += gram


def weighted_gram(X: Rows, weights: FloatArray) -> Float64Array:
    """Return sum w_i x_i x_i^T (d, d) over the rows whose weight is not 0."""
    rows = np.flatnonzero(weights)
    if not rows.size:
        return np.zeros((X.shape[1], X.shape[1]))
    part = X if len(rows) == len(weights) else X[rows]
    if not is_sparse(part) and (weights >= 0).all():
        # Of one matrix with itself BLAS computes half.
        part = part * np.sqrt(weights[rows, None]).astype(X.dtype)
        return np.asarray(part.T @ part)
    scaled = weights[rows, None].astype(X.dtype)
    product = part.multiply(scaled).T @ part if is_sparse(part) else (part * scaled).T @ part
    return np.asarray(product.toarray() if is_sparse(product) else product)


@jit
def _add_few(grams: Float64Array, X: FloatArray, weights: FloatArray) -> None:
    """Add what `add_weighted_grams` does, row by row."""
    for i in range(X.shape[0]):
        for q in range(grams.shape[0]):
            if weights[i, q] != 0.0:
                for j in range(X.shape[1]):
                    x = weights[i, q] * X[i, j]
                    for k in range(X.shape[1]):
                        grams[q, j, k] += x * X[i, k]


@jit
def _pairs(X: FloatArray, pairs: FloatArray) -> None:
    """Write x_ij x_ik for k <= j of every row to `pairs`."""
    for i in range(X.shape[0]):
        at = 0
        for j in range(X.shape[1]):
            x = X[i, j]
            for k in range(j + 1):
                pairs[i, at + k] = x * X[i, k]
            at += j + 1
