"""Compiled gradients, losses, conjugates, column updates and nearest points of any loss, row by row.

u = -grad Phi_gamma(s) solves the column problem at q = s, c = gamma (`projections.columns`), and the
Fenchel-Young equality gives the loss: Phi_gamma(s) = -<u, s> - Phi*(-u) - (gamma/2) |u|^2.

The functions of a loss that are declared here read and write float64 rows (m,).  `rho` (L,) are the rank
weights; `margins` is `LossForm.table`: margins (m, m), the table of label sets, a row of constants, or (0, 0)
for single labels with the margins 1 - e_y.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numba import types

from topline.solvers.errors import NonFiniteError
from topline.solvers.jit_cache import JitFunction, borrowed, jit, keep
from topline.solvers.losses.base import Labels, LossForm
from topline.solvers.losses.ranking import ACTIVE, B_U, LOSS, U_SQ
from topline.solvers.projections.columns import ColumnProblem, column_workspace, linear_in_margins, room
from topline.solvers.typing import Float64Array, FloatArray, IntArray


class LossRows(NamedTuple):
    """Rows of a problem at given scores, and the outputs for their losses and gradients.

    Attributes
    ----------
    scores, y, weights : (b, m), (b,) and (b,).
    rho, margins : rank weights and table of the form.
    U : (b, m) receives u_i = -grad Phi, 0 where scores are not finite; may be `scores`.
    losses : (b,) receives the loss of each row, NaN where scores are not finite; empty to skip.
    sums : the accumulators of `gradient_rows`.
    """

    scores: FloatArray
    y: IntArray
    weights: Float64Array
    rho: Float64Array
    margins: Float64Array
    U: FloatArray
    losses: Float64Array
    sums: Float64Array


@jit
def rows_between(rows: LossRows, start: int, stop: int) -> LossRows:
    """Return the rows start..stop - 1, sharing the sums."""
    some = slice(start, stop)
    return LossRows(
        rows.scores[some], rows.y[some], rows.weights[some], rows.rho, rows.margins, rows.U[some],
        rows.losses[some], rows.sums,
    )  # fmt: skip


_ROW = types.Array(types.float64, 1, "C")
_ROWS = types.Array(types.float64, 2, "C")
_TABLE = types.Array(types.float64, 2, "C", readonly=True)
_number, _whole = types.float64, types.int64

_CONJUGATE = _number(_ROW, _whole, _TABLE)
_TWO = types.UniTuple(_number, 2)  # type: ignore[no-untyped-call]
_GRADIENT = _TWO(_ROW, _whole, _ROW, _TABLE, _ROW, _ROWS)


def conjugate_function(function: Callable[..., float]) -> JitFunction:
    """Declare a function (alpha, y, margins) that returns -Phi*(-alpha) of a row inside its domain.

    If linear there, it must be linear everywhere: it is also applied to differences of rows.
    """
    return JitFunction(function, _CONJUGATE)


def gradient_function(function: Callable[..., tuple[float, float]]) -> JitFunction:
    """Declare a function (s, y, rho, margins, u, work) that evaluates the loss in closed form.

    It writes u = -grad Phi(s), a point of the domain, and returns Phi(s) and -Phi*(-u) (NaN without a dual).
    """
    return JitFunction(function, _GRADIENT)


@conjugate_function
def hinge_conjugate(alpha: Any, y: Any, margins: Any) -> Any:
    """Return -<delta_y, alpha>, as for every hinge of single labels (Hirohashi and Kato, lemma 1)."""
    return linear_in_margins(alpha, y, margins)


#: Placeholder for losses that are not requested.
_NOT_ASKED = np.empty(0)


def gradient_rows(
    form: LossForm,
    scores: FloatArray,
    y: IntArray,
    weights: Float64Array,
    gammas: tuple[float, float],
    U: FloatArray,
    sums: Float64Array,
    losses: Float64Array = _NOT_ASKED,
) -> None:
    """Write u_i = -grad Phi_gamma(s_i) to U (b, m), which may be `scores`, and add to `sums`.

    Adds w_i times the loss, -Phi*(-u_i) - (gamma/2) |u_i|^2 and |u_i|^2; and the number of rows with u_i !=
    0.  With gamma = 0, u_i is minus a subgradient.  `gammas` is (gamma, gamma), or (gamma, 0) where only the
    other classes are smoothed.  `losses` (b,), if given, receives the loss of each row.
    """
    family, rows = form.family, LossRows(scores, y, weights, form.rho, form.table, U, losses, sums)
    if gammas[0] == 0.0 and family.gradient_rows is not None:
        family.gradient_rows(rows)
        return
    if gammas[0] == 0.0 and family.gradient is not None:
        _closed_rows(family.gradient, rows)
        return
    single = family.labels is Labels.ONE
    column = form.column_where(alike=gammas[0] == gammas[1])
    _envelope_rows(column, form.conjugate, rows, single, family.balanced, *gammas)


@jit
def _closed_rows(gradient: JitFunction, rows: LossRows) -> None:
    """Evaluate rows by the closed form of a loss."""
    rows = borrowed(rows)
    m = rows.scores.shape[1]
    owners = column_workspace(m)[0], room(m), room(m), rows.rho, rows.margins
    work, row, u = borrowed(owners[0]), borrowed(owners[1]), borrowed(owners[2])
    rho, margins = borrowed(owners[3]), borrowed(owners[4])
    for i in range(rows.scores.shape[0]):
        loss, conjugate = np.nan, 0.0
        if _copy_row(rows.scores, i, row, u):
            loss, conjugate = gradient(row, rows.y[i], rho, margins, u, work)
        _write_row(i, u, loss, conjugate, rows)
    keep(owners)


@jit
def _envelope_rows(
    column: JitFunction,
    conjugate: JitFunction,
    rows: LossRows,
    single: bool,
    balanced: bool,
    gamma: float,
    gamma_own: float,
) -> None:
    """Evaluate rows by the column update."""
    rows = borrowed(rows)
    scores, m = rows.scores, rows.scores.shape[1]
    owners = column_workspace(m), room(m), room(m), rows.rho, rows.margins
    work, index_work = borrowed(owners[0][0]), borrowed(owners[0][1])
    row, u = borrowed(owners[1]), borrowed(owners[2])
    rho, margins = borrowed(owners[3]), borrowed(owners[4])
    for i in range(scores.shape[0]):
        loss, value = np.nan, 0.0
        if _copy_row(scores, i, row, u):
            own = rows.y[i]
            column(
                ColumnProblem(
                    row, np.int64(own), gamma, gamma_own, rho, margins, u, work, index_work,
                    scores.itemsize == 4,
                )
            )  # fmt: skip
            common = row[own] if single else row[0] if balanced else 0.0
            value = conjugate(u, own, margins)
            loss, value = _loss_of_row(row, common, own if single else -1, (gamma, gamma_own), u, value)
        _write_row(i, u, loss, value, rows)
    keep(owners)


@jit
def _copy_row(scores: FloatArray, i: int, row: Float64Array, u: Float64Array) -> bool:
    """Copy the scores of a row; if they are not finite, set u to 0 and return False."""
    total = 0.0
    for j in range(len(row)):
        row[j] = scores[i, j]
        total += row[j]
    if math.isfinite(total):
        return True
    u[:] = 0.0
    return False


@jit
def _write_row(i: int, u: Float64Array, loss: float, conjugate: float, rows: LossRows) -> None:
    """Write u to row i of U and its loss, and add to the sums."""
    square = 0.0
    for j in range(len(u)):
        rows.U[i, j] = u[j]
        square += u[j] * u[j]
    add_to_sums(rows, i, loss, conjugate, square)


@jit
def _loss_of_row(
    s: Float64Array, common: float, own: int, gammas: tuple[float, float], u: Float64Array, conjugate: float
) -> tuple[float, float]:
    """Return the loss and -Phi*(-u) - (gamma/2) |u|^2 from u and -Phi*(-u).

    `gammas` are those of the others and of the class `own` (-1: none).  Where rows sum to zero, an offset
    `common` of the scores drops out.
    """
    linear = 0.0
    for j in range(len(s)):
        conjugate -= 0.5 * (gammas[1] if j == own else gammas[0]) * u[j] * u[j]
        linear -= u[j] * (s[j] - common)
    return conjugate + linear, conjugate


@jit
def conjugate_sum(
    conjugate: JitFunction, A: FloatArray, y: IntArray, weights: Float64Array, margins: Float64Array
) -> float:
    """Return sum_i w_i (-Phi*(-alpha_i)) of the rows A (b, m), which lie in their domains."""
    owners = room(A.shape[1]), margins
    row, margins = borrowed(owners[0]), borrowed(margins)
    total = 0.0
    for i in range(A.shape[0]):
        for j in range(A.shape[1]):
            row[j] = A[i, j]
        total += weights[i] * conjugate(row, y[i], margins)
    keep(owners)
    return total


@jit
def add_to_sums(rows: LossRows, i: int, loss: float, conjugate: float, square: float) -> None:
    """Store the loss of row i if requested, and add it, -Phi*(-u) and |u|^2, times its weight."""
    weight, sums = rows.weights[i], rows.sums
    if len(rows.losses):
        rows.losses[i] = loss
    sums[LOSS] += weight * loss
    sums[B_U] += weight * conjugate
    sums[U_SQ] += weight * square
    sums[ACTIVE] += square > 0.0


@jit
def is_finite(x: float) -> bool:
    """Return whether x is finite, even under fast-math, which folds x - x to 0."""
    return math.isfinite(x)


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


def nearest_rows(form: LossForm, A: Float64Array, y: IntArray) -> Float64Array:
    """Return points of the domain nearest to the rows A (b, m) float64, up to rounding."""
    nearest = form.family.nearest or nearest_by_column
    return nearest(form, A, y)


def nearest_by_column(form: LossForm, A: Float64Array, y: IntArray) -> Float64Array:
    """Return the solutions of the column problem whose free solutions are the rows A (b, m).

    NonFiniteError for NaN or infinity.
    """
    if not np.isfinite(A).all():
        raise NonFiniteError(
            "the dual variables hold NaN or infinity; the features or the weights are out of range"
        )
    # Scaling rows far above the margins, which the column problem adds again, keeps the digits of small ones.
    if form.needs_label_sets:
        own, size = np.zeros((len(A), 1)), np.abs(A).max(axis=1, keepdims=True, initial=0.0)
    else:
        own = size = np.take_along_axis(A, y[:, None].astype(np.int64), axis=1)
    c = _FAR / np.maximum(size, _TINY)
    q = np.ascontiguousarray(c * (own - A) - form.margin_rows(y))
    nearest = np.empty_like(q)
    # Stored labels are int32 too, so that one compiled function serves both.
    update_rows(form.column, q, y.astype(np.int32), (c[:, 0], c[:, 0]), form.rho, form.table, nearest)
    return nearest


def nearest_in_simplex(form: LossForm, A: Float64Array, y: IntArray) -> Float64Array:
    """Return points of {x >= 0, sum x <= 1}, x = -alpha, near the rows A: positive parts, scaled.

    They are the nearest points in the entropy's divergence.  A domain without bounds takes any sum.
    """
    x, own = np.maximum(-A, 0.0), y[:, None].astype(np.int64)
    np.put_along_axis(x, own, 0.0, axis=1)
    if form.family.bounded:
        x /= np.maximum(x.sum(axis=1, keepdims=True), 1.0)
    mass = x.sum(axis=1, keepdims=True)
    np.negative(x, out=x)
    np.put_along_axis(x, own, mass, axis=1)
    return x
