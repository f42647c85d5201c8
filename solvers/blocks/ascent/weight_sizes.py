"""How weights of which size are swept: in float64, row by row, or tile by tile."""

from __future__ import annotations

from typing import Any

import numpy as np

#: Weights of up to so many entries are kept in float64: they stay in the first-level cache all the same.
SMALL_W = 1 << 12
#: Weights of more entries and classes than these are swept tile by tile, and on several threads,
_TILED_W = 1 << 16
_TILED_CLASSES = 32
#: as are those of more bytes, which do not stay in a core's second-level cache.
_LARGE_W = 1 << 20


def weights_alike(entries: int) -> int:
    """Return a number of entries of W that is swept like so many, hardly above the least such number."""
    if entries <= SMALL_W:
        return 0
    large = _LARGE_W // np.dtype(np.float32).itemsize
    if entries <= _TILED_W:
        return 2 * SMALL_W
    return 2 * _TILED_W if entries <= large else 2 * large


def is_tiled(m: int, d: int, dtype: np.dtype[Any]) -> bool:
    """Return whether W (d, m), in a precision, is swept tile by tile."""
    return (m >= _TILED_CLASSES and m * d > _TILED_W) or m * d * dtype.itemsize > _LARGE_W
