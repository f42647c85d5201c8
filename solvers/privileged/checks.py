"""Checks of arguments of this room; each refusal is one sentence with the value and the fix."""

from __future__ import annotations

from typing import Any

import numpy as np

from topline.solvers.core.inputs import checked_rows
from topline.solvers.core.rows import nonfinite_rows
from topline.solvers.errors import InvalidProblemError, NonFiniteError
from topline.solvers.kernels.low_rank import symmetric
from topline.solvers.typing import Float64Array

#: Bytes that the matrix of a quadratic program, its copy and its factor may take together.
MEMORY_BYTES = 4 << 30


def signs(y: Any) -> Float64Array:
    """Return labels of -1 and +1, both of them, as (n,) float64."""
    values = np.asarray(y)
    if values.ndim != 1 or not np.isin(values, (-1, 1)).all():
        raise InvalidProblemError("the labels are not all -1 or +1; give one of the two for each example")
    if len(np.unique(values)) < 2:
        raise InvalidProblemError("all labels are equal; give examples of both classes")
    return values.astype(np.float64)


def checked_kernel_matrix(name: str, K: Any, n: int) -> Float64Array:
    """Return a symmetric kernel matrix (n, n) in float64; its eigenvalues are the caller's responsibility."""
    matrix = np.asarray(K, dtype=np.float64)
    if matrix.shape != (n, n):
        raise InvalidProblemError(f"{name} has the shape {matrix.shape}; give the kernel of {n} examples")
    if not np.isfinite(matrix).all():
        raise NonFiniteError(f"{name} holds NaN or infinity; fix or scale the features")
    return symmetric(matrix)


def finite_rows(X: Any) -> Any:
    """Return features (n, d), an array or CSR matrix, of which every value is finite."""
    rows: Any = checked_rows(X)
    bad = nonfinite_rows(rows)
    if len(bad):
        raise NonFiniteError(f"row {bad[0]} of the features holds NaN or infinity; fix or drop such rows")
    return rows


def finite_vector(name: str, values: Any, n: int) -> Float64Array:
    """Return n finite numbers as (n,) float64."""
    vector = np.asarray(values, dtype=np.float64)
    if vector.shape != (n,):
        raise InvalidProblemError(f"{name} has the shape {vector.shape}; give one number for each of {n}")
    if not np.isfinite(vector).all():
        raise NonFiniteError(f"{name} holds NaN or infinity; give finite numbers")
    return vector


def instance_weights(c: Any, y: Float64Array) -> Float64Array:
    """Return instance weights c >= 0 that leave examples of both classes, as (n,) float64."""
    weights = finite_vector("c", c, len(y))
    if (weights < 0.0).any():
        raise InvalidProblemError(f"the least weight in c is {weights.min():g}; give weights of at least 0")
    if len(np.unique(y[weights > 0.0])) < 2:
        raise InvalidProblemError("only one class has weight in c; give examples of both classes weight")
    return weights


def refuse_size(variables: int, what: str) -> None:
    """Refuse a dense program whose matrices do not fit `MEMORY_BYTES`."""
    needed = 3 * 8 * variables**2
    if needed > MEMORY_BYTES:
        raise InvalidProblemError(
            f"{what} of {variables:,} dual variables takes {needed / 2**30:.1f} GiB, and"
            f" {MEMORY_BYTES / 2**30:.1f} GiB are allowed; give fewer examples, or train TopKClassifier with"
            " sample_weight, which needs no matrix"
        )
