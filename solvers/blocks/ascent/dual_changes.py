"""What a change of dual rows does to W and to the dual, and the nearest points of their domain, compiled."""

from __future__ import annotations

import numpy as np

from topline.solvers.jit_cache import jit
from topline.solvers.jit_pointers import JitFunction, borrowed, keep
from topline.solvers.losses import LossForm
from topline.solvers.losses.batches import update_rows
from topline.solvers.losses.rows import change_of_conjugate
from topline.solvers.projections.ordering import room
from topline.solvers.typing import Float64Array, FloatArray, Int64Array, IntArray

#: Sparse rows carry their change into all classes at once unless fewer than one class in so many changes.
_FEW = 8
#: Rows that are projected at once.
_PROJECTED_ROWS = 4096


@jit(fastmath={"contract"})
def carry_dense(W: FloatArray, j: int, X: FloatArray, place: int, step: float) -> None:
    """Add step x to the weights of class j, for one row of X."""
    factor = W.dtype.type(step)
    for f in range(X.shape[1]):
        W[j, f] += factor * X[place, f]


@jit(fastmath={"contract"})
def carry_csr(
    W: FloatArray,
    data: FloatArray,
    indices: IntArray,
    low: int,
    high: int,
    changed: Int64Array,
    steps: Float64Array,
    n_changed: int,
    spare: FloatArray,
) -> None:
    """Add the outer product of a sparse row, at low..high-1 of the CSR arrays, and a few steps to W (d, m).

    `spare` (m,) is room for the steps of all classes: with more than a few it is faster to go along memory.
    """
    m = W.shape[1]
    if _FEW * n_changed > m:
        spare[:] = 0.0
        for k in range(n_changed):
            spare[changed[k]] = steps[k]
        for p in range(low, high):
            f = indices[p]
            v = data[p]
            for j in range(m):
                W[f, j] += v * spare[j]
    elif n_changed > 0:
        for p in range(low, high):
            f = indices[p]
            for k in range(n_changed):
                W[f, changed[k]] += steps[k] * data[p]


@jit
def add_rows_csr(
    data: FloatArray,
    indices: IntArray,
    indptr: IntArray,
    places: Int64Array,
    changes: FloatArray,
    factors: Float64Array,
    out: Float64Array,
) -> None:
    """Add sum_t f_t x_t change_t^T to `out` (d, m) for sparse rows; changes (t, m), mostly zero."""
    m = out.shape[1]
    changed, steps, spare = np.empty(m, dtype=np.int64), room(m), room(m)
    for t in range(len(places)):
        n_changed = 0
        for j in range(m):
            if changes[t, j] != 0.0:
                changed[n_changed] = j
                steps[n_changed] = factors[t] * np.float64(changes[t, j])
                n_changed += 1
        low, high = indptr[places[t]], indptr[places[t] + 1]
        carry_csr(out, data, indices, low, high, changed, steps, n_changed, spare)


def project_rows(Z: Float64Array, y: IntArray, form: LossForm) -> None:
    """Replace each row of Z (t, m) by the nearest point of the domain of the loss, a hinge.

    Nearest in |alpha|^2: the column problem with c = 1 whose free solution is the row.
    """
    column, ones = form.column_where(alike=True), np.ones(len(Z))
    for low in range(0, len(Z), _PROJECTED_ROWS):
        part = slice(low, low + _PROJECTED_ROWS)
        scores = -Z[part] - form.margin_rows(y[part])
        update_rows(column, scores, y[part], ones[part], ones[part], form.rho, form.table, Z[part])


@jit
def change_sums(
    conjugate: JitFunction,
    linear: bool,
    y: IntArray,
    weights: Float64Array,
    A: FloatArray,
    delta: FloatArray,
    margins: Float64Array,
    own_share: float,
) -> tuple[float, float, float, float, int]:
    """Sum the change of b, <alpha_i, delta_i>, |delta_i|^2 and |alpha_i|^2, and count the rows that change.

    Each row counts w_i times, and its own class `own_share` times in what is smoothed.  b(alpha) is
    -Phi*(-alpha), given as `conjugate`, and `linear` where it is linear.
    """
    m = A.shape[1]
    owners = room(m), room(m), margins
    before, after, margins = borrowed(owners[0]), borrowed(owners[1]), borrowed(margins)
    total = cross = square = alpha_sq = 0.0
    rows = 0
    for i in range(A.shape[0]):
        changed = False
        row_cross = row_square = row_sq = 0.0
        for j in range(m):
            share = own_share if j == y[i] else 1.0
            before[j] = A[i, j]
            change = np.float64(delta[i, j])
            after[j] = before[j] + change
            row_sq += share * before[j] * before[j]
            row_cross += share * before[j] * change
            row_square += share * change * change
            changed = changed or change != 0.0
        alpha_sq += weights[i] * row_sq
        if not changed:
            continue
        rows += 1
        cross += weights[i] * row_cross
        square += weights[i] * row_square
        total += weights[i] * change_of_conjugate(conjugate, linear, before, after, y[i], margins)
    keep(owners)
    return total, cross, square, alpha_sq, rows
