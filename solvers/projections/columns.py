"""The exact column update of any hinge of the family, for one row inside a kernel and for many rows at once.

With the other columns fixed, q = W^T x_i - (K_ii / (lambda n)) alpha_i and c = K_ii / (lambda n) + gamma, the
dual in alpha_i is <b, x> - (c/2)(|x|^2 + S^2) with b_j = delta_j + q_j - q_y, x = -alpha without the own
class and S = sum x = alpha_y (mathematics, part 1, section 3).  The Moreau envelope Phi_gamma(s) (Tajima et
al., eq. 2.21; Hirohashi and Kato, eq. 31) is the value of the same problem at q = s, c = gamma.
"""

from __future__ import annotations

import numba as nb
import numpy as np

from solvers.errors import InvalidProblemError, NonFiniteError
from solvers.losses import Aggregate, LossForm
from solvers.projections.simplex import simplex_column
from solvers.projections.weighted_topk import wtopk_column
from solvers.projections.weighted_usunier import wusunier_column
from solvers.projections.workspace import column_workspace
from solvers.typing import Float64Array, FloatArray, Int64Array, IntArray

# What `column_kind` gives and `column_update` takes: an integer, so that it may cross into a kernel.
MAX_KIND = 0
SUM_KIND = 1
HINGE_KIND = 2

_NO_MARGINS = np.empty((0, 0))


def column_kind(form: LossForm) -> int:
    """Give the integer by which `column_update` knows the loss."""
    if len(form.rho) == 1:
        return MAX_KIND
    return SUM_KIND if form.aggregate is Aggregate.SUM_THEN_HINGE else HINGE_KIND


def margins_or_empty(form: LossForm) -> Float64Array:
    """Give the margins as C-ordered float64, or the (0, 0) array that stands for 1 - e_y in kernels."""
    return _NO_MARGINS if form.margins is None else np.ascontiguousarray(form.margins, dtype=np.float64)


@nb.njit(cache=True, nogil=True)
def violations(q: FloatArray, y: int, margins: Float64Array, out: Float64Array) -> None:
    """Write b_j = delta_j + q_j - q_y to out (m,); `margins` is (m, m), or empty for 1 - e_y."""
    own = q[y]
    if margins.shape[0] == 0:
        for j in range(q.shape[0]):
            out[j] = (q[j] - own) + 1.0
    else:
        for j in range(q.shape[0]):
            out[j] = (q[j] - own) + margins[y, j]
    out[y] = 0.0


@nb.njit(cache=True, nogil=True)
def column_update(
    kind: int,
    q: FloatArray,
    y: int,
    c: float,
    rho: Float64Array,
    margins: Float64Array,
    out: Float64Array,
    work: Float64Array,
    index_work: Int64Array,
    guess: float,
) -> tuple[float, int, bool]:
    """Write the optimal dual row of one example to `out`; made for the inner loop of other kernels.

    Parameters
    ----------
    kind : from `column_kind`.
    q : (m,) scores of the example without its own contribution.
    y : own class.
    c : curvature K_ii / (lambda n) + gamma >= 0.
    rho : (L,) positive, non-increasing.
    margins : from `margins_or_empty`.
    out : (m,) receives alpha; it may not be part of the buffers.
    work, index_work : from `column_workspace(m)`.
    guess : first value that an earlier call for this example returned, or -1.

    Returns
    -------
    (value to pass as `guess` next time, number of classes other than y with mass, whether alpha is a vertex
    of the domain).  A column that stays at one vertex is a candidate for shrinking.
    """
    b = work[5][: q.shape[0]]
    violations(q, y, margins, b)
    if kind == 0:
        return simplex_column(b, y, c, c, rho[0], out, work, index_work)
    if kind == 1:
        return wtopk_column(b, y, c, rho, out, work, index_work, guess)
    return wusunier_column(b, y, c, c, rho, out, work, index_work)


@nb.njit(cache=True, nogil=True)
def _update_rows(
    kind: int,
    q: Float64Array,
    y: Int64Array,
    c: Float64Array,
    rho: Float64Array,
    margins: Float64Array,
    alpha: Float64Array,
) -> None:
    work, index_work = column_workspace(q.shape[1])
    for i in range(q.shape[0]):
        column_update(kind, q[i], y[i], c[i], rho, margins, alpha[i], work, index_work, -1.0)


@nb.njit(cache=True, nogil=True)
def _envelope_rows(
    kind: int,
    scores: Float64Array,
    y: Int64Array,
    gamma: float,
    rho: Float64Array,
    margins: Float64Array,
    out: Float64Array,
) -> None:
    m = scores.shape[1]
    work, index_work = column_workspace(m)
    alpha = np.empty(m)
    for i in range(scores.shape[0]):
        column_update(kind, scores[i], y[i], gamma, rho, margins, alpha, work, index_work, -1.0)
        b = work[5]
        value = -0.5 * gamma * alpha[y[i]] ** 2
        for j in range(m):
            if alpha[j] < 0.0:
                value -= alpha[j] * (b[j] + 0.5 * gamma * alpha[j])
        out[i] = value


def column_updates(form: LossForm, q: FloatArray, y: IntArray, c: float | Float64Array) -> Float64Array:
    """Give the dual rows that maximise the restricted dual of each example.

    Parameters
    ----------
    form : the loss for m classes.
    q : (b, m) scores without each example's own contribution.
    y : (b,) own classes.
    c : curvature, one number or (b,); 0 gives a maximising vertex.

    Returns
    -------
    (b, m) float64 alpha with alpha_j <= 0 for j != y, rows that sum to zero, inside the domain of the
    conjugate.

    Raises
    ------
    InvalidProblemError for shapes or labels that do not fit, NonFiniteError for NaN or infinity.
    """
    scores, labels = _checked_rows(form, q, y)
    curvature = np.ascontiguousarray(np.broadcast_to(np.asarray(c, dtype=np.float64), labels.shape))
    if not np.isfinite(curvature).all():
        raise NonFiniteError("the curvature c holds NaN or infinity; the features or lambda are out of range")
    if (curvature < 0).any():
        raise InvalidProblemError(f"the curvature c is {curvature.min():g}; it must not be negative")
    alpha = np.empty_like(scores)
    _update_rows(column_kind(form), scores, labels, curvature, form.rho, margins_or_empty(form), alpha)
    return alpha


def envelope_losses(form: LossForm, scores: FloatArray, y: IntArray, gamma: float) -> Float64Array:
    """Give the Moreau envelope Phi_gamma(s_i) of each example's loss, over all m coordinates.

    Parameters
    ----------
    form : the loss for m classes.
    scores : (b, m).
    y : (b,) own classes.
    gamma : smoothing >= 0; 0 gives the loss itself.

    Returns
    -------
    (b,) float64, <b, x> - (gamma/2)(|x|^2 + S^2) at the maximising x.

    Raises
    ------
    InvalidProblemError for shapes, labels or gamma that do not fit, NonFiniteError for NaN or infinity.
    """
    rows, labels = _checked_rows(form, scores, y)
    if not (np.isfinite(gamma) and gamma >= 0):
        raise InvalidProblemError(f"smoothing is {gamma:g}; give a finite number that is not negative")
    out = np.empty(len(labels))
    _envelope_rows(column_kind(form), rows, labels, float(gamma), form.rho, margins_or_empty(form), out)
    return out


def _checked_rows(form: LossForm, q: FloatArray, y: IntArray) -> tuple[Float64Array, Int64Array]:
    """Give scores and labels as the kernels read them; a kernel does not check its indices."""
    scores = np.ascontiguousarray(q, dtype=np.float64)
    labels = np.ascontiguousarray(y, dtype=np.int64)
    if scores.ndim != 2 or scores.shape[1] != form.m or labels.shape != (scores.shape[0],):
        raise InvalidProblemError(
            f"scores {scores.shape} and labels {labels.shape} do not fit {form.m} classes"
        )
    if len(labels) and (labels.min() < 0 or labels.max() >= form.m):
        raise InvalidProblemError(
            f"labels lie in {labels.min()}..{labels.max()}; give labels in 0..{form.m - 1}"
        )
    if not np.isfinite(scores).all():
        raise NonFiniteError("the scores hold NaN or infinity; the features or the weights are out of range")
    return scores, labels
