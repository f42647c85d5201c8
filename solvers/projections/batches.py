"""Column updates and envelopes of many examples at once, with checked arguments."""

from __future__ import annotations

import numba as nb
import numpy as np

from topline.solvers.errors import InvalidProblemError
from topline.solvers.losses import LossForm
from topline.solvers.projections.checks import checked_curvature, checked_rows, checked_smoothing
from topline.solvers.projections.columns import column_kind, column_update_two, margins_or_empty
from topline.solvers.projections.gradients import gradient_row
from topline.solvers.projections.workspace import column_workspace
from topline.solvers.typing import Float64Array, FloatArray, Int64Array, IntArray


@nb.njit(cache=True, nogil=True, error_model="numpy")
def _update_rows(
    kind: int,
    q: Float64Array,
    y: Int64Array,
    c: Float64Array,
    c_own: Float64Array,
    rho: Float64Array,
    margins: Float64Array,
    alpha: Float64Array,
) -> None:
    work, index_work = column_workspace(q.shape[1])
    for i in range(q.shape[0]):
        column_update_two(kind, q[i], y[i], c[i], c_own[i], rho, margins, alpha[i], work, index_work, -1.0)


@nb.njit(cache=True, nogil=True, error_model="numpy")
def _envelope_rows(
    kind: int,
    scores: Float64Array,
    y: Int64Array,
    gamma: float,
    gamma_own: float,
    rho: Float64Array,
    margins: Float64Array,
    out: Float64Array,
) -> None:
    m = scores.shape[1]
    work, index_work = column_workspace(m)
    alpha = np.empty(m)
    for i in range(scores.shape[0]):
        out[i], _ = gradient_row(
            kind, scores[i], y[i], gamma, gamma_own, rho, margins, alpha, work, index_work
        )


def column_updates(
    form: LossForm,
    q: FloatArray,
    y: IntArray,
    c: float | Float64Array,
    *,
    c_own: float | Float64Array | None = None,
) -> Float64Array:
    """Give the dual rows that maximise the restricted dual of each example.

    Parameters
    ----------
    form : the loss for m classes.
    q : (b, m) scores without each example's own contribution.
    y : (b,) own classes, or numbers of the form's label sets.
    c : curvature, one number or (b,); 0 gives a maximising vertex.
    c_own : curvature of alpha_y, at most c; None for c itself (the Moreau envelope).

    Returns
    -------
    (b, m) float64 alpha inside the domain of the conjugate: alpha_j <= 0 for j != y and, but for one-vs-all,
    rows that sum to zero.

    Raises
    ------
    InvalidProblemError for shapes or labels that do not fit, NonFiniteError for NaN or infinity.
    """
    scores, labels = checked_rows(form.m, q, y, form.codes)
    curvature = checked_curvature(c, len(labels))
    own = curvature if c_own is None else checked_curvature(c_own, len(labels))
    if (own > curvature).any():
        raise InvalidProblemError("the curvature of the own class exceeds that of the others; it must not")
    alpha = np.empty_like(scores)
    kind = column_kind(form)
    _update_rows(kind, scores, labels, curvature, own, form.rho, margins_or_empty(form), alpha)
    return alpha


def envelope_losses(
    form: LossForm,
    scores: FloatArray,
    y: IntArray,
    gamma: float,
    *,
    smooth_own: bool = True,
) -> Float64Array:
    """Give the smoothed loss Phi_gamma(s_i) of each example.

    Parameters
    ----------
    form : the loss for m classes.
    scores : (b, m).
    y : (b,) own classes, or numbers of the form's label sets.
    gamma : smoothing >= 0; 0 gives the loss itself.
    smooth_own : True for the Moreau envelope over all m coordinates (Tajima et al., eq. 2.21; Hirohashi and
    Kato,
        eq. 31), False for the envelope over the others only (Lapin's thesis, prop. 6.2): erratum h1.

    Returns
    -------
    (b,) float64, <b, x> - (gamma/2)(|x|^2 + S^2) at the maximising x, without S^2 if not smooth_own.

    Raises
    ------
    InvalidProblemError for shapes, labels or gamma that do not fit, NonFiniteError for NaN or infinity.
    """
    rows, labels = checked_rows(form.m, scores, y, form.codes)
    gamma = checked_smoothing(gamma)
    out = np.empty(len(labels))
    kind = column_kind(form)
    own = gamma if smooth_own else 0.0
    _envelope_rows(kind, rows, labels, gamma, own, form.rho, margins_or_empty(form), out)
    return out
