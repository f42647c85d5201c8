"""Loops over the rows of features for which NumPy has no fast one."""

from __future__ import annotations

import numba as nb
import numpy as np
from numpy.typing import NDArray


@nb.njit(cache=True, nogil=True, fastmath={"reassoc"})
def squared_norms(X: NDArray[np.float32]) -> NDArray[np.float64]:
    """Sums of squares of the rows of X (r, d) in float64; each depends on its row alone."""
    sums = np.zeros(len(X))
    for i in range(X.shape[0]):
        total = 0.0
        for j in range(X.shape[1]):
            value = np.float64(X[i, j])
            total += value * value
        sums[i] = total
    return sums
