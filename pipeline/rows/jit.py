"""Loops over the rows of features for which NumPy has no fast one."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from topline.solvers.jit_cache import jit


@jit(fastmath={"reassoc"})
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
