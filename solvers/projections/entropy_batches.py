"""Softmax and top-k entropy for many examples at once: column updates, losses and their Moreau envelopes."""

from __future__ import annotations

import math

import numba as nb
import numpy as np

from topline.solvers.errors import InvalidProblemError
from topline.solvers.projections.checks import checked_curvature, checked_rows, checked_smoothing
from topline.solvers.projections.entropic import entropic_column
from topline.solvers.projections.workspace import column_workspace
from topline.solvers.typing import Float64Array, FloatArray, Int64Array, IntArray


@nb.njit(cache=True, nogil=True, error_model="numpy")
def _update_rows(q: Float64Array, y: Int64Array, c: Float64Array, k: int, alpha: Float64Array) -> None:
    work, _ = column_workspace(q.shape[1])
    b = np.empty(q.shape[1])
    for i in range(q.shape[0]):
        b[:] = q[i] - q[i, y[i]]
        entropic_column(b, y[i], c[i], k, alpha[i], work, np.nan)


@nb.njit(cache=True, nogil=True, error_model="numpy")
def _loss_rows(scores: Float64Array, y: Int64Array, gamma: float, k: int, out: Float64Array) -> None:
    m = scores.shape[1]
    work, _ = column_workspace(m)
    b = np.empty(m)
    alpha = np.empty(m)
    for i in range(scores.shape[0]):
        own = y[i]
        b[:] = scores[i] - scores[i, own]
        _, p = entropic_column(b, own, gamma, k, alpha, work, np.nan)
        value = -0.5 * gamma * alpha[own] ** 2
        if p > 0.0:
            value -= p * math.log(p)
        for j in range(m):
            x = -alpha[j]
            if j != own and x > 0.0:
                value += x * (b[j] - 0.5 * gamma * x - math.log(x))
        out[i] = value


def entropy_updates(q: FloatArray, y: IntArray, c: float | Float64Array, k: int = 1) -> Float64Array:
    """Give the dual rows of softmax (k = 1) or the top-k entropy loss (Lapin's thesis, prop. 6.15 and 6.16).

    Parameters
    ----------
    q : (b, m) scores without each example's own contribution.
    y : (b,) own classes.
    c : curvature K_ii / (lambda n) + gamma, one number or (b,); 0 gives -gradient of the loss at q.
    k : 1 <= k <= m - 1.

    Returns
    -------
    (b, m) float64 alpha with alpha_j = -x_j <= 0 for j != y and alpha_y = sum x.

    Raises
    ------
    InvalidProblemError for shapes, labels or k that do not fit, NonFiniteError for NaN or infinity.
    """
    scores, labels = checked_rows(_checked_classes(q, k), q, y)
    alpha = np.empty_like(scores)
    _update_rows(scores, labels, checked_curvature(c, len(labels)), int(k), alpha)
    return alpha


def entropy_losses(scores: FloatArray, y: IntArray, gamma: float = 0.0, k: int = 1) -> Float64Array:
    """Give the softmax loss log(1 + sum_j e^(s_j - s_y)) (k = 1) or the top-k entropy loss of each example.

    Parameters
    ----------
    scores : (b, m).
    y : (b,) own classes.
    gamma : smoothing of the Moreau envelope over all m coordinates; 0 for the loss itself.
    k : 1 <= k <= m - 1.

    Returns
    -------
    (b,) float64.

    Raises
    ------
    InvalidProblemError for shapes, labels, gamma or k that do not fit, NonFiniteError for NaN or infinity.
    """
    rows, labels = checked_rows(_checked_classes(scores, k), scores, y)
    out = np.empty(len(labels))
    _loss_rows(rows, labels, checked_smoothing(gamma), int(k), out)
    return out


def _checked_classes(scores: FloatArray, k: int) -> int:
    """Give m, refusing a k that leaves the top-k simplex of the m - 1 other classes undefined."""
    m = np.shape(scores)[-1] if np.ndim(scores) == 2 else 0
    if not 1 <= k < m:
        raise InvalidProblemError(f"k is {k}; with {m} classes it must lie in 1..{m - 1}")
    return m
