"""Rank weights rho of the weighted losses; each sums to 1 (Hirohashi and Kato 2020, section 7)."""

from __future__ import annotations

import operator

import numpy as np

from topline.solvers.errors import InvalidProblemError
from topline.solvers.typing import Float64Array


def flat(k: int) -> Float64Array:
    """Return rho_j = 1/k, shape (k,), for the unweighted top-k losses; InvalidProblemError unless k >= 1.

    Examples
    --------
    >>> from topline import flat
    >>> flat(4)
    array([0.25, 0.25, 0.25, 0.25])
    """
    k = _positive(k)
    return np.full(k, 1.0 / k)


def linear(k: int) -> Float64Array:
    """Return rho_j = 2(k+1-j)/(k(k+1)), j = 1..k, shape (k,); InvalidProblemError unless k >= 1.

    Examples
    --------
    >>> from topline import linear
    >>> linear(2).round(4)
    array([0.6667, 0.3333])
    """
    k = _positive(k)
    return np.arange(k, 0, -1, dtype=np.float64) * (2.0 / (k * (k + 1.0)))


def exponential(k: int) -> Float64Array:
    """Return rho_j proportional to exp(-j/k), j = 1..k, shape (k,); InvalidProblemError unless k >= 1.

    Examples
    --------
    >>> from topline import exponential
    >>> exponential(2).round(4)
    array([0.6225, 0.3775])
    """
    k = _positive(k)
    weights = np.exp(-np.arange(1, k + 1) / k)
    return np.asarray(weights / weights.sum())


def _positive(k: int) -> int:
    try:
        number = operator.index(k)
    except TypeError:
        raise InvalidProblemError(f"k is {k!r}; give a whole number of at least 1") from None
    if number < 1:
        raise InvalidProblemError(f"k is {number}; give a whole number of at least 1")
    return number
