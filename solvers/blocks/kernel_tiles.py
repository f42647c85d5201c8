"""Values of a kernel for some rows and others, in the precision of the products, a tile at a time."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from topline.solvers.core.kernel_rows import Change, PairValues
from topline.solvers.core.rows import Rows, as_rows
from topline.solvers.typing import FloatArray, Int64Array

#: Rows and columns of a tile: its values stay in a core's second-level cache from one step to the next.
_ROWS, _COLUMNS = 256, 1024
#: The name of kernels whose rows hold the values.
_PRECOMPUTED = "precomputed"


def holds_values(kernel: PairValues) -> bool:
    """Whether the features of a row are its kernel values with all rows."""
    return kernel.name == _PRECOMPUTED


def values_of(kernel: PairValues, X: Rows, Y: Rows, columns: Int64Array, dtype: np.dtype[Any]) -> FloatArray:
    """Return k(x, y) of rows X with the rows Y of these numbers: (rows of X, rows of Y) of a precision."""
    if holds_values(kernel):
        chosen = X[:, columns]
        return np.ascontiguousarray(chosen.toarray() if hasattr(chosen, "toarray") else chosen, dtype=dtype)
    if dtype == np.float32:
        tile = getattr(kernel, "tile", None)
        if tile is not None:
            return np.asarray(tile(X, Y), dtype=np.float32)
    return np.asarray(kernel.matrix(X, X if Y is X else Y), dtype=dtype)


def add_products(kernel: PairValues, X: Rows, change: Change, scale: float, scores: FloatArray) -> None:
    """Add `scale` K(X, rows of a change) times the change to scores (rows of X, m), in their precision."""
    dtype = scores.dtype
    changes = np.ascontiguousarray(scale * change.values, dtype=dtype)
    for low, high in _cuts(X.shape[0], _ROWS):
        rows = as_rows(X[low:high], dtype)
        for left, right in _cuts(len(changes), _COLUMNS):
            values = values_of(kernel, rows, change.X[left:right], change.numbers[left:right], dtype)
            scores[low:high] += values @ changes[left:right]


def _cuts(n: int, step: int) -> Iterator[tuple[int, int]]:
    for start in range(0, n, step):
        yield start, min(n, start + step)
