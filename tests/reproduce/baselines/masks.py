"""The mask of positives that rankings of scores are told."""

from __future__ import annotations

from typing import Any

import numpy as np

from topline.solvers.errors import InvalidProblemError


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
