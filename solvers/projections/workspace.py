"""Buffers of the column kernels, allocated once and handed to every call."""

from __future__ import annotations

import numba as nb
import numpy as np

from topline.solvers.typing import Float64Array, Int64Array

# Rows of the two buffers.  Each kernel documents which rows it uses by unpacking them at its start.
FLOAT_ROWS = 6
INDEX_ROWS = 4


@nb.njit(cache=True, nogil=True, error_model="numpy")
def column_workspace(m: int) -> tuple[Float64Array, Int64Array]:
    """Give the two buffers that every column kernel for m classes needs.

    Returns
    -------
    (FLOAT_ROWS, m + 1) float64 and (INDEX_ROWS, m + 1) int64, uninitialised; one pair serves one thread.
    """
    return np.empty((FLOAT_ROWS, m + 1)), np.empty((INDEX_ROWS, m + 1), dtype=np.int64)
