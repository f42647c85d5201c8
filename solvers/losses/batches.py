"""Column updates and nearest points of the domain for many rows, with checked arguments."""

from __future__ import annotations

import numpy as np

from topline.solvers.errors import InvalidProblemError, NonFiniteError
from topline.solvers.jit_cache import jit
from topline.solvers.jit_pointers import JitFunction, borrowed, keep
from topline.solvers.losses.form import LossForm
from topline.solvers.projections.columns import ColumnProblem, column_workspace
from topline.solvers.typing import Float64Array, FloatArray, Int64Array, IntArray

_FAR = 2.0**40
_TINY = 1e-200


@jit
def update_rows(
    column: JitFunction,
    q: Float64Array,
    y: IntArray,
    curvatures: tuple[Float64Array, Float64Array],
    rho: Float64Array,
    margins: Float64Array,
    alpha: Float64Array,
) -> None:
    """Write the solutions of the column problems at the scores q (b, m) to alpha (b, m).

    `curvatures` are c and c_own of the rows, each (b,).
    """
    owners = column_workspace(q.shape[1]), q, rho, margins, alpha
    work, index_work = borrowed(owners[0])
    q, rho, margins, alpha = borrowed(q), borrowed(rho), borrowed(margins), borrowed(alpha)
    c, c_own = curvatures
    for i in range(q.shape[0]):
        column(
            ColumnProblem(
                q[i], np.int64(y[i]), c[i], c_own[i], rho, margins, alpha[i], work, index_work, False
            )
        )
    keep(owners)


def column_updates(
    form: LossForm,
    q: FloatArray,
    y: IntArray,
    c: float | Float64Array,
    *,
    c_own: float | Float64Array | None = None,
) -> Float64Array:
    """Return the dual rows that maximise the restricted dual of each example.

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
    # Stored labels are int32 too, so that one compiled function serves both.
    rows = labels.astype(np.int32)
    column = form.column_where(alike=c_own is None)
    update_rows(column, scores, rows, (curvature, own), form.rho, form.table, alpha)
    return alpha


def nearest_rows(form: LossForm, A: Float64Array, y: IntArray) -> Float64Array:
    """Return points of the domain nearest to the rows A (b, m) float64, up to rounding."""
    nearest = form.family.nearest or nearest_by_column
    return nearest(form, A, y)


def nearest_by_column(form: LossForm, A: Float64Array, y: IntArray) -> Float64Array:
    """Return the solutions of the column problem whose free solutions are the rows A (b, m)."""
    # Scaling rows far above the margins, which the column problem adds again, keeps the digits of small ones.
    if form.needs_label_sets:
        own, size = np.zeros((len(A), 1)), np.abs(A).max(axis=1, keepdims=True, initial=0.0)
    else:
        own = size = np.take_along_axis(A, y[:, None].astype(np.int64), axis=1)
    c = _FAR / np.maximum(size, _TINY)
    return column_updates(form, c * (own - A) - form.margin_rows(y), y, c[:, 0])


def checked_curvature(c: float | Float64Array, rows: int) -> Float64Array:
    """Return the curvature of each row; refuse negative or non-finite values."""
    curvature = np.ascontiguousarray(np.broadcast_to(np.asarray(c, dtype=np.float64), (rows,)))
    if not np.isfinite(curvature).all():
        raise NonFiniteError("the curvature c holds NaN or infinity; the features or lambda are out of range")
    if (curvature < 0).any():
        raise InvalidProblemError(f"the curvature c is {curvature.min():g}; it must not be negative")
    return curvature


def checked_rows(
    m: int, q: FloatArray, y: IntArray, codes: int | None = None
) -> tuple[Float64Array, Int64Array]:
    """Return checked scores and labels, 0 <= y < `codes` (default m): compiled code checks no index."""
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
