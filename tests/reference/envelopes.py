"""Losses and their envelopes of many rows, from the gradient of each: what a round sums, row by row."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from topline.solvers.losses import LossForm, TopKEntropy
from topline.solvers.losses.ranking import N_SUMS
from topline.solvers.losses.rows import gradient_rows, update_rows

Array = NDArray[np.float64]


def envelope_losses(
    form: LossForm, scores: Array, y: NDArray[np.int_], gamma: float, *, smooth_own: bool = True
) -> Array:
    """Return Phi_gamma(s_i) (b,) of scores (b, m); y (b,) own classes or label sets.

    smooth_own : True for the Moreau envelope over all m coordinates (Tajima et al., eq. 2.21), False for that
        over the others only (Lapin's thesis, prop. 6.2): erratum h1.
    """
    own = gamma if smooth_own else 0.0
    rows, losses = np.array(scores, dtype=np.float64, order="C"), np.empty(len(y))
    sums, codes = np.zeros(N_SUMS), np.asarray(y, dtype=np.int32)
    gradient_rows(form, rows, codes, np.ones(len(y)), (gamma, own), rows, sums, losses)
    return losses


def column_updates(
    form: LossForm, q: Array, y: NDArray[np.int_], c: float | Array, *, c_own: float | Array | None = None
) -> Array:
    """Return the dual rows (b, m) that maximise the restricted dual of each example.

    q (b, m) are the scores without each example's own contribution, y (b,) own classes, or numbers of the
    form's label sets; c is the curvature, one number or (b,), where 0 gives a maximising vertex, and c_own
    that of alpha_y, at most c; None for c itself (the Moreau envelope).
    """
    scores = np.ascontiguousarray(q, dtype=np.float64)
    curvatures = [np.ascontiguousarray(np.broadcast_to(np.float64(c), len(scores)))] * 2
    if c_own is not None:
        curvatures[1] = np.ascontiguousarray(np.broadcast_to(np.float64(c_own), len(scores)))
    alpha = np.empty_like(scores)
    codes = np.asarray(y, dtype=np.int32)
    column = form.column_where(alike=c_own is None)
    update_rows(column, scores, codes, (curvatures[0], curvatures[1]), form.rho, form.table, alpha)
    return alpha


def entropy_updates(q: Array, y: NDArray[np.int_], c: float | Array, k: int = 1) -> Array:
    """Return the dual rows (b, m) of the top-k entropy loss, softmax where k is 1."""
    return column_updates(TopKEntropy(k).form(q.shape[1]), q, y, c)


def entropy_losses(scores: Array, y: NDArray[np.int_], gamma: float = 0.0, k: int = 1) -> Array:
    """Return the top-k entropy loss (b,) of each row, smoothed by gamma."""
    return envelope_losses(TopKEntropy(k).form(scores.shape[1]), scores, y, gamma)
