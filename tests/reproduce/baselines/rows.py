"""The rows that a baseline is trained on, checked."""

from __future__ import annotations

from typing import Any

import numpy as np

from topline.solvers.core.problem import checked_rows
from topline.solvers.core.rows import nonfinite_rows
from topline.solvers.errors import InvalidProblemError, NonFiniteError


def finite_rows(X: Any) -> Any:
    """Return features (n, d), an array or CSR matrix, of which every value is finite."""
    rows: Any = checked_rows(X)
    bad = nonfinite_rows(rows)
    if len(bad):
        raise NonFiniteError(f"row {bad[0]} of the features holds NaN or infinity; fix or drop such rows")
    return rows


def positives_of(positive: Any, n: int) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """Return a mask (n,) or (n, m) as (n, m), checked to have positives and negatives."""
    mask = np.asarray(positive, dtype=bool)
    mask = mask[:, None] if mask.ndim == 1 else mask
    if mask.ndim != 2 or len(mask) != n or mask.all() or not mask.any():
        raise InvalidProblemError(
            f"positive has the shape {mask.shape} and {int(mask.sum())} positives; give a row for each of"
            f" {n} examples, with positives and negatives"
        )
    return mask
