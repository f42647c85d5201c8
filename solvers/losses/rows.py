"""Compiled gradients, losses and conjugates of any loss, row by row.

u = -grad Phi_gamma(s) solves the column problem at q = s, c = gamma (`topline.solvers.losses.functions`), and
the Fenchel-Young equality gives the loss: Phi_gamma(s) = -<u, s> - Phi*(-u) - (gamma/2) |u|^2.
"""

from __future__ import annotations

import math

import numpy as np

from topline.solvers.jit_cache import jit
from topline.solvers.jit_pointers import JitFunction, borrowed, keep
from topline.solvers.losses.form import Labels, LossForm
from topline.solvers.losses.functions import LossRows
from topline.solvers.losses.ranking import ACTIVE, B_U, LOSS, U_SQ
from topline.solvers.projections.columns import ColumnProblem, column_workspace
from topline.solvers.projections.ordering import room
from topline.solvers.typing import Float64Array, FloatArray, IntArray

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
            value = conjugate(u, own, margins)
            if single:
                loss, value = _loss_of_class(row, own, gamma, gamma_own, u, value)
            else:
                loss, value = _loss_of_sets(row, balanced, gamma, u, value)
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
def _loss_of_class(
    s: Float64Array, own: int, gamma: float, gamma_own: float, u: Float64Array, conjugate: float
) -> tuple[float, float]:
    """Return the loss and -Phi*(-u) - (gamma/2) |u|^2 from u and -Phi*(-u), for single labels."""
    conjugate -= 0.5 * gamma_own * u[own] * u[own]
    linear = 0.0
    for j in range(len(s)):
        if j != own:
            conjugate -= 0.5 * gamma * u[j] * u[j]
            linear -= u[j] * (s[j] - s[own])
    return conjugate + linear, conjugate


@jit
def _loss_of_sets(
    s: Float64Array, balanced: bool, gamma: float, u: Float64Array, conjugate: float
) -> tuple[float, float]:
    """Return the same for label sets."""
    # For rows that sum to zero a common offset of the scores drops out.
    common = s[0] if balanced else 0.0
    linear = 0.0
    for j in range(len(s)):
        conjugate -= 0.5 * gamma * u[j] * u[j]
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
def change_of_conjugate(
    conjugate: JitFunction,
    linear: bool,
    before: Float64Array,
    after: Float64Array,
    y: int,
    margins: Float64Array,
) -> float:
    """Return -Phi*(-after) + Phi*(-before); overwrites `after` if the conjugate is linear.

    Applying a linear one to the difference avoids cancellation of two large values.
    """
    value: float = 0.0
    if linear:
        for j in range(len(after)):
            after[j] -= before[j]
    else:
        value -= conjugate(before, y, margins)
    value += conjugate(after, y, margins)
    return value


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
