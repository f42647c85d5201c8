"""Slabs of rows in a given order, read and converted before they are asked for."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np

from solvers.rows import Rows, RowSource, as_rows


def read_slabs(
    X: RowSource, bounds: Iterable[tuple[int, int]], dtype: np.dtype[np.generic]
) -> Iterator[tuple[int, int, Rows]]:
    """Yield (start, stop, rows start:stop of X as floats of `dtype`) for each of `bounds`, in their order."""
    for start, stop in bounds:
        yield start, stop, as_rows(X[start:stop], dtype)
