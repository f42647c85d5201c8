"""Squared distances between rows by inner products, and by differences where products round too much."""

from __future__ import annotations

from typing import Any

import numpy as np

from topline.solvers.core.rows import is_sparse, squared_norms
from topline.solvers.typing import Float64Array, FloatArray

#: Errors of an exponent through products that are looked at, in float64 and in float32, and how many
#: roundings of |x|^2 + |y|^2 a squared distance is off by.
_FINE, _COARSE, _ROUNDINGS = 1e-9, 1e-5, 8.0
#: exp of minus more than this is 0 beside a diagonal of 1.
_VANISHES = 50.0
#: Differences that are formed at once, in numbers.
_AT_ONCE = 1 << 22


def squared_distances(X: Any, Y: Any, gamma: float, *, same: bool) -> Any:
    """Return |x - y|^2 of the rows of X and Y, dense or CSR, in their precision.

    Where exp(-gamma |x - y|^2) would not have nine digits from products, it is from differences: the rows of
    a tile are then equal to themselves, and to rows of another tile, whatever gamma.  `same` says that X is
    Y.
    """
    if not is_sparse(X) and not is_sparse(Y):
        # Distances do not change with the origin, and about the mean less of them is rounded away.
        centre = Y.mean(axis=0) if len(Y) else 0.0
        X = X - centre
        Y = X if same else Y - centre
    products: Any = X @ Y.T
    squares: FloatArray = np.ascontiguousarray(products.toarray() if is_sparse(products) else products)
    squares *= -2.0
    left = squared_norms(X)
    right = left if same else squared_norms(Y)
    squares += left[:, None].astype(squares.dtype)
    squares += right.astype(squares.dtype)
    np.maximum(squares, 0.0, out=squares)
    if same:
        np.fill_diagonal(squares, 0.0)
    if gamma * _off_by(left, right, squares.dtype) > _FINE:
        _by_differences(X, Y, gamma, left, right, squares)
    return squares


def is_exact_enough(X: Any, Y: Any, gamma: float) -> bool:
    """Whether products of rows in float32 give five digits of exp(-gamma |x - y|^2) about their mean."""
    if is_sparse(X) or is_sparse(Y):
        return gamma * _off_by(squared_norms(X), squared_norms(Y), np.dtype(np.float32)) <= _COARSE
    centre = Y.mean(axis=0) if len(Y) else 0.0
    left, right = squared_norms(X - centre), squared_norms(Y - centre)
    return gamma * _off_by(left, right, np.dtype(np.float32)) <= _COARSE


def _off_by(left: Float64Array, right: Float64Array, dtype: Any) -> float:
    """Return how far off products leave the largest squared distances."""
    return _ROUNDINGS * float(np.finfo(dtype).eps) * float(left.max(initial=0.0) + right.max(initial=0.0))


def _by_differences(
    X: Any, Y: Any, gamma: float, left: Float64Array, right: Float64Array, squares: FloatArray
) -> None:
    """Replace the squared distances that matter and are rounded too much."""
    unit = _ROUNDINGS * float(np.finfo(squares.dtype).eps)
    step = max(1, _AT_ONCE // max(1, int(X.shape[1])))
    for i in range(squares.shape[0]):
        rounding = unit * (left[i] + right)
        close = gamma * (squares[i] - rounding) < _VANISHES
        places = np.flatnonzero(close & (gamma * rounding > _FINE))
        for start in range(0, len(places), step):
            chosen = places[start : start + step]
            one = X[np.full(len(chosen), i)] if is_sparse(X) else X[i]
            squares[i, chosen] = squared_norms(Y[chosen] - one)
