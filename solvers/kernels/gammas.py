"""The parameter gamma of kernels: a number, or a rule by which the training rows decide it."""

from __future__ import annotations

import math
from typing import Any, TypeAlias

import numpy as np

from topline.solvers.core.rows import RowSource, is_sparse, without_repeats
from topline.solvers.errors import InvalidProblemError

#: A number, "scale" = 1 / (d var X) (None is the same), "auto" = 1 / d, or "median" = 1 over the median of
#: the distances that the kernel is of.
Gamma: TypeAlias = float | str | None
_RULES = ("scale", "auto", "median")

#: Rows that are read at once, and about so many of which the distances are looked at.
_TILE_ROWS, _SAMPLED_ROWS = 4096, 1000


def real_number(value: Any) -> float | None:
    """Return a finite number as a float, None for anything else."""
    if isinstance(value, bool | np.bool_) or not isinstance(value, int | float | np.integer | np.floating):
        return None
    return float(value) if math.isfinite(value) else None


def checked_gamma(gamma: Any, name: str) -> Gamma:
    """Return a gamma that a kernel takes; InvalidProblemError for any other."""
    if gamma is None or (isinstance(gamma, str) and gamma in _RULES):
        return gamma
    number = real_number(gamma)
    if number is None or number <= 0.0:
        raise InvalidProblemError(
            f'gamma of the kernel {name} is {gamma!r}; give a positive number, "scale", "auto" or "median"'
        )
    return number


def gamma_of(gamma: Gamma, X: Any, power: int = 2) -> float:
    """Return the number for these training rows, "scale" and "auto" as in scikit-learn's SVC.

    The median is that of sum_j |x_j - y_j|^power, over pairs of rows evenly spread, those of 0 left out.
    """
    if isinstance(gamma, float):
        return gamma
    if gamma == "auto":
        return 1.0 / int(X.shape[1])
    if gamma == "median":
        median = _median_distance(X, power)
        return 1.0 / median if median > 0.0 else 1.0
    variance = _variance(X)
    return 1.0 / (int(X.shape[1]) * variance) if variance > 0.0 else 1.0


def _median_distance(X: Any, power: int) -> float:
    step = max(1, int(X.shape[0]) // _SAMPLED_ROWS)
    found = []
    for start in range(0, int(X.shape[0]), _TILE_ROWS):
        rows = X[start : start + _TILE_ROWS][-start % step :: step]
        found.append(np.asarray(rows.toarray() if is_sparse(rows) else rows, dtype=np.float64))
    rows = np.concatenate(found)
    # Its import would take a tenth of a second from all who have no such rule.
    from scipy.spatial.distance import pdist

    distances = pdist(rows, "sqeuclidean" if power == 2 else "cityblock")
    distances = distances[distances > 0.0]
    return float(np.median(distances)) if len(distances) else 0.0


def _variance(X: Any) -> float:
    """Variance of all entries, those that are not stored included."""
    if isinstance(X, np.ndarray):
        return float(np.var(X, dtype=np.float64))
    if not is_sparse(X):
        return _variance_by_tiles(X)
    values = np.asarray(without_repeats(X).data, dtype=np.float64)
    size = float(X.shape[0]) * X.shape[1]
    mean = float(values.sum()) / size
    unstored = (size - len(values)) * mean**2
    return float((np.sum((values - mean) ** 2) + unstored) / size)


def _variance_by_tiles(X: RowSource) -> float:
    """Return the variance of all entries of rows that are read a few at a time."""
    size = mean = squares = 0.0
    n, d = int(X.shape[0]), int(X.shape[1])
    for start in range(0, n, _TILE_ROWS):
        rows = X[start : start + _TILE_ROWS]
        values = rows.data if is_sparse(rows) else np.asarray(rows)
        new = float(rows.shape[0]) * d
        here = float(values.sum(dtype=np.float64)) / new
        about = float(np.square(values.astype(np.float64) - here).sum()) + (new - values.size) * here**2
        # Chan, Golub and LeVeque: the squares about a common mean from those about two.
        shift = here - mean
        squares += about + shift**2 * size * new / (size + new)
        size += new
        mean += shift * new / size
    return squares / max(size, 1.0)


def number_of(gamma: Gamma, name: str) -> float:
    """Return a gamma that is a number; InvalidProblemError where it waits for the training rows."""
    if not isinstance(gamma, float):
        raise InvalidProblemError(
            f"gamma of the kernel {name} still waits for data; call resolved(X) with the training rows first"
        )
    return gamma
