"""Arguments of the batch functions: what is refused before a kernel sees it."""

from __future__ import annotations

import numpy as np

from topline.solvers.errors import InvalidProblemError, NonFiniteError
from topline.solvers.typing import Float64Array, FloatArray, Int64Array, IntArray


def checked_curvature(c: float | Float64Array, rows: int) -> Float64Array:
    """Give the curvature of each row, refusing what is negative or not finite."""
    curvature = np.ascontiguousarray(np.broadcast_to(np.asarray(c, dtype=np.float64), (rows,)))
    if not np.isfinite(curvature).all():
        raise NonFiniteError("the curvature c holds NaN or infinity; the features or lambda are out of range")
    if (curvature < 0).any():
        raise InvalidProblemError(f"the curvature c is {curvature.min():g}; it must not be negative")
    return curvature


def checked_rows(
    m: int, q: FloatArray, y: IntArray, codes: int | None = None
) -> tuple[Float64Array, Int64Array]:
    """Give scores and labels as the kernels read them; a kernel does not check its indices.

    Labels lie below `codes`, by default m.
    """
    codes = m if codes is None else codes
    scores = np.ascontiguousarray(q, dtype=np.float64)
    labels = np.ascontiguousarray(y, dtype=np.int64)
    if scores.ndim != 2 or scores.shape[1] != m or labels.shape != (scores.shape[0],):
        raise InvalidProblemError(f"scores {scores.shape} and labels {labels.shape} do not fit {m} classes")
    if len(labels) and (labels.min() < 0 or labels.max() >= codes):
        raise InvalidProblemError(
            f"labels lie in {labels.min()}..{labels.max()}; give labels in 0..{codes - 1}"
        )
    if not np.isfinite(scores).all():
        raise NonFiniteError("the scores hold NaN or infinity; the features or the weights are out of range")
    return scores, labels


def checked_smoothing(gamma: float) -> float:
    """Give gamma, refusing what is negative or not finite."""
    if not (np.isfinite(gamma) and gamma >= 0):
        raise InvalidProblemError(f"smoothing is {gamma:g}; give a finite number that is not negative")
    return float(gamma)
