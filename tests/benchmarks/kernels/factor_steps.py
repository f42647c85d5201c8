"""Dual ascent of the max hinge on a kernel matrix in the metric of a low-rank factor; to compare with.

A round finds a change of A by sweeps with L L^T + diag(K - L L^T) in the place of K, around the scores that
are those of K, and takes the exact step along it on K itself.
"""

from __future__ import annotations

import numpy as np

from topline import MaxHinge
from topline.solvers.blocks.ascent.dual_changes import carry_dense
from topline.solvers.blocks.ascent.sweeps import dense_scores, update_row
from topline.solvers.core.problem import Problem
from topline.solvers.jit_cache import jit
from topline.solvers.jit_pointers import JitFunction, borrowed, keep
from topline.solvers.projections.ordering import column_workspace, room
from topline.solvers.typing import Float64Array, FloatArray, Int64Array, IntArray

#: As in the tile updates of dual ascent.
PAYS, MOST_SWEEPS, VISIT_ALL = 0.02, 200, 5


def pivoted_columns(K: Float64Array, rank: int) -> Float64Array:
    """Give the first columns of a pivoted Cholesky factor of K."""
    left, L = np.diag(K).copy(), np.zeros((len(K), rank))
    for j in range(rank):
        pivot = int(left.argmax())
        L[:, j] = (K[:, pivot] - L[:, :j] @ L[pivot, :j]) / np.sqrt(left[pivot])
        left = np.maximum(left - L[:, j] ** 2, 0.0)
    return L


@jit
def sweep(
    order: Int64Array,
    L: FloatArray,
    rest: Float64Array,
    S: Float64Array,
    y: IntArray,
    scale: float,
    column: JitFunction,
    rho: Float64Array,
    margins: Float64Array,
    A: Float64Array,
    delta: Float64Array,
    V: FloatArray,
    rises: Float64Array,
) -> float:
    """Update rows in an order, V (m, rank) being the change of L^T A; `rest` is what L leaves of diag(K)."""
    m, rank = V.shape
    owners = column_workspace(m), room(m), room(m), rho, margins
    work, index_work = borrowed(owners[0][0]), borrowed(owners[0][1])
    q, alpha = borrowed(owners[1]), borrowed(owners[2])
    rho, margins = borrowed(rho), borrowed(margins)
    changed, steps, scores = np.empty(m, dtype=np.int64), room(m), np.empty(m, dtype=V.dtype)
    total = 0.0
    for i in order:
        dense_scores(V, L, i, scores)
        square = rest[i]
        for f in range(rank):
            square += np.float64(L[i, f]) * L[i, f]
        for j in range(m):
            q[j] = S[i, j] + scores[j] + scale * rest[i] * delta[i, j]
        n_changed, rises[i] = update_row(
            i, y[i], scale, square, 0.0, 0.0, column, rho, margins, A, delta, q, alpha, work, index_work,
            changed, steps,
        )  # fmt: skip
        total += max(rises[i], 0.0)
        for e in range(n_changed):
            carry_dense(V, changed[e], L, i, steps[e])
    keep(owners)
    return total


def relative_gap(A: Float64Array, S: Float64Array, y: IntArray) -> float:
    """Give (P - D) / P of the max hinge, of A and its scores."""
    own = np.arange(len(y)), y
    margins = 1.0 + S - S[own][:, None]
    margins[own] = 0.0
    norm = float(np.vdot(A, S)) / len(y)
    primal = 0.5 * norm + float(margins.max(axis=1).mean())
    return (primal - float(A[own].mean()) + 0.5 * norm) / primal


def solve_with_factor(
    K: Float64Array, L: Float64Array, y: IntArray, m: int, C: float, tol: float, passes: float
) -> tuple[float, float]:
    """Give the gap that is reached, and the passes over K that it took, `passes` at most or a little more."""
    n = len(y)
    form = Problem(MaxHinge(), n, 1, m, 1.0 / (n * C)).form
    factor, rest = L.astype(np.float32), np.maximum(np.diag(K) - (L * L).sum(axis=1), 0.0)
    A, S, random, taken = np.zeros((n, m)), np.zeros((n, m)), np.random.default_rng(0), 0.0
    while (gap := relative_gap(A, S, y)) > tol and taken < passes:
        V, delta, rises = np.zeros((m, L.shape[1]), dtype=np.float32), np.zeros_like(A), np.zeros(n)
        order, first = np.arange(n), 0.0
        for sweeps in range(1, MOST_SWEEPS + 1):
            rise = sweep(
                random.permutation(order), factor, rest, S, y, C, form.column_where(alike=True), form.rho,
                form.table, A, delta, V, rises,
            )  # fmt: skip
            first = first or rise
            if rise <= PAYS * first and len(order) == n:
                break
            order = np.flatnonzero(rises >= 0.0)
            if rise <= PAYS * first or not len(order) or sweeps % VISIT_ALL == 0:
                order = np.arange(n)
        changed = np.flatnonzero(delta.any(axis=1))
        scored = C * (K[:, changed] @ delta[changed])
        rises_by = float(delta[np.arange(n), y].sum()) - float(np.vdot(delta, S))
        step = min(1.0, rises_by / max(float(np.vdot(delta, scored)), 1e-300))
        A, S, taken = A + step * delta, S + step * scored, taken + len(changed) / n
    return gap, taken
