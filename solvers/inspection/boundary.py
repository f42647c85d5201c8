"""Rows that carry a class's boundary."""

from __future__ import annotations

import numpy as np

from topline.solvers.typing import FloatArray, Int64Array, IntArray


def boundary_rows(A: FloatArray, y: IntArray, m: int, most: int) -> dict[int, Int64Array]:
    """Return for each class with rows the `most` of them with the largest |alpha_i|, the largest first.

    W is a sum of rows times their alpha_i: where |alpha_i| is 0 a row carries nothing.  A (n, m), y (n,).
    """
    sizes = np.linalg.norm(np.asarray(A, dtype=np.float64), axis=1)
    found = {}
    for code in range(m):
        rows = np.flatnonzero((y == code) & (sizes > 0.0))
        if len(rows):
            found[code] = rows[np.argsort(-sizes[rows], kind="stable")[:most]]
    return found
