"""Values of a kernel for some rows and others, in the precision of the products, a tile at a time."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from topline.solvers.blocks.kernel.columns import TileColumns
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


def add_products(
    kernel: PairValues,
    X: Rows,
    change: Change,
    scale: float,
    scores: FloatArray,
    columns: TileColumns | None = None,
) -> None:
    """Add `scale` K(X, rows of a change) times the change to scores (rows of X, m), in their precision.

    `columns` are what the block keeps in float32; what they lack is computed, and kept there.
    """
    dtype = scores.dtype
    changes = np.ascontiguousarray(scale * change.values, dtype=dtype)
    known, others = np.empty(0, dtype=np.int64), np.arange(len(changes))
    if columns is not None:
        known, others = np.flatnonzero(columns.places.known), np.flatnonzero(~columns.places.known)
    for low, high in _cuts(X.shape[0], _ROWS):
        if columns is not None:
            for left, right in _cuts(len(known), _COLUMNS):
                here = known[left:right]
                scores[low:high] += columns.read(here, low, high).T @ changes[here]
        if not len(others):
            continue
        rows = as_rows(X[low:high], dtype)
        for left, right in _cuts(len(others), _COLUMNS):
            here = others[left:right]
            values = values_of(kernel, rows, change.X[here], change.numbers[here], dtype)
            scores[low:high] += values @ changes[here]
            if columns is not None:
                columns.write(here, low, values)


def _cuts(n: int, step: int) -> Iterator[tuple[int, int]]:
    for start in range(0, n, step):
        yield start, min(n, start + step)
