"""Dual ascent of the max hinge on a kernel matrix in the metric of a low-rank factor; to compare with.

A round finds a change of A by sweeps with L L^T + diag(K - L L^T) in the place of K, around the scores that
are those of K, and takes the exact step along it on K itself.
"""

from __future__ import annotations

import numpy as np

from topline import MaxHinge
from topline.solvers.blocks.ascent.sweeps import DenseTile, SweptPart, carry, scores, scratch_for, update_row
from topline.solvers.blocks.kernel import PickedRows, part_of
from topline.solvers.core.problem import Problem
from topline.solvers.jit_cache import JitFunction, borrowed, jit, keep
from topline.solvers.typing import Float64Array, Int64Array, IntArray

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
    owned: SweptPart, column: JitFunction, order: Int64Array, rest: Float64Array, S: Float64Array
) -> float:
    """Update rows in an order; their tile has the rows of L, and for W (m, rank) the change of L^T A.

    `rest` is what L leaves of diag(K), and S (n, m) the scores.
    """
    part = borrowed(owned)
    m = S.shape[1]
    room = scratch_for(m), np.empty(m, dtype=part.tile.W.dtype)
    scratch, spare = borrowed(room)
    total = 0.0
    for i in order:
        scores(part.tile, i, spare)
        for j in range(m):
            scratch.q[j] = S[i, j] + spare[j] + part.scale * rest[i] * part.delta[i, j]
        n_changed = update_row(part, column, i, 0, part.y[i], scratch.q, scratch)
        carry(part.tile, i, scratch.changed, scratch.steps, n_changed, spare)
        total += max(part.rises[i], 0.0)
    keep(room)
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
    problem = Problem(MaxHinge(), n, 1, m, 1.0 / (n * C))
    column, everyone, none = problem.form.column_where(alike=True), np.arange(n), np.zeros((n, 0))
    factor, rest = L.astype(np.float32), np.maximum(np.diag(K) - (L * L).sum(axis=1), 0.0)
    A, S, random, taken = np.zeros((n, m)), np.zeros((n, m)), np.random.default_rng(0), 0.0
    while (gap := relative_gap(A, S, y)) > tol and taken < passes:
        tile = DenseTile(factor, np.zeros((m, L.shape[1]), dtype=np.float32))
        part = part_of(problem, tile, PickedRows(everyone, none, y, np.ones(n), A, S))
        part.norms[:] = (L * L).sum(axis=1) + rest
        order, first = everyone, 0.0
        for sweeps in range(1, MOST_SWEEPS + 1):
            rise = sweep(part, column, random.permutation(order), rest, S)
            first = first or rise
            if rise <= PAYS * first and len(order) == n:
                break
            order = np.flatnonzero(part.rises >= 0.0)
            if rise <= PAYS * first or not len(order) or sweeps % VISIT_ALL == 0:
                order = everyone
        delta = part.delta
        changed = np.flatnonzero(delta.any(axis=1))
        scored = C * (K[:, changed] @ delta[changed])
        rises_by = float(delta[np.arange(n), y].sum()) - float(np.vdot(delta, S))
        step = min(1.0, rises_by / max(float(np.vdot(delta, scored)), 1e-300))
        A, S, taken = A + step * delta, S + step * scored, taken + len(changed) / n
    return gap, taken
