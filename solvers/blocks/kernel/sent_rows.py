"""Rows of a block as they are sent to others."""

from __future__ import annotations

import numpy as np

from topline.solvers.blocks.kernel.products import holds_values
from topline.solvers.core.kernel_rows import PairValues, PickedRows
from topline.solvers.core.rows import Rows, is_sparse
from topline.solvers.core.tiles import Tile
from topline.solvers.typing import FloatArray, Int64Array


def sent(kernel: PairValues, tile: Tile, places: Int64Array) -> Rows:
    """Return what other blocks need of rows: nothing but their numbers where these hold kernel values."""
    if holds_values(kernel):
        return np.empty((len(places), 0), dtype=np.float32)
    X: Rows = tile.X[places]
    return X if is_sparse(X) else np.ascontiguousarray(X)


def picked_of(
    kernel: PairValues, tile: Tile, places: Int64Array, first: int, A: FloatArray, S: FloatArray
) -> PickedRows:
    """Return rows at some places of a tile, from `first` on, as they are sent."""
    X = sent(kernel, tile, places)
    return PickedRows(first + places, X, tile.y[places], tile.weights[places], A[places], S[places])
