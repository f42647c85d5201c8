"""Sums of Hessians over the curved rows of a block: those of single classes, and the whole."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from topline.solvers.blocks.second_order.envelopes import CurvedRows, Envelopes
from topline.solvers.blocks.tile_products import add_weighted_grams
from topline.solvers.core.answers import Clock
from topline.solvers.core.problem import Problem
from topline.solvers.core.rows import Rows
from topline.solvers.typing import Float64Array


def diagonal_blocks(
    curved_rows: Iterable[tuple[CurvedRows, Rows]],
    envelopes: Envelopes,
    problem: Problem,
    clock: Clock,
    stride: int = 1,
) -> tuple[Float64Array, int]:
    """Sum J_i,jj x_i x_i^T for every class j, with J as of a centring of the classes in which u moves.

    Of the curved rows of a tile one in `stride` takes part, for all.  Returns (m d, d), and the rows in it.
    """
    m, d = problem.m, problem.d
    grams, visited = np.zeros((m, d, d)), 0
    for curved, X in curved_rows:
        clock.product()
        diagonals = envelopes.diagonals(curved) * curved.weights[:, None]
        taken = diagonals[::stride] * (len(diagonals) / len(diagonals[::stride]))
        clock.row_work()
        add_weighted_grams(grams, X[::stride], taken)
        visited += len(taken)
        clock.product()
    return grams.reshape(m * d, d), visited


def hessian(
    curved_rows: Iterable[tuple[CurvedRows, Rows]], envelopes: Envelopes, problem: Problem, clock: Clock
) -> tuple[Float64Array, int]:
    """Sum J_i,jk x_i x_i^T for every pair of classes j and k; return (m d, m d), and the rows in it."""
    m, d = problem.m, problem.d
    second, first = np.tril_indices(m)
    total, visited = np.zeros((len(first), d, d)), 0
    for curved, X in curved_rows:
        clock.product()
        if envelopes.closed:
            entries = envelopes.pairs(curved, X.dtype)
        else:
            entries = envelopes.jacobians(curved)[:, second, first] * curved.weights[:, None]
        clock.row_work()
        add_weighted_grams(total, X, entries)
        visited += len(curved.rows)
        clock.product()
    return _laid_out(total, m), visited


def _laid_out(pairs: Float64Array, m: int) -> Float64Array:
    """Return the (m d, m d) matrix of the sums of all pairs of classes k <= j, of shape (pairs, d, d).

    It lies in columns, as LAPACK factors it in its place.
    """
    d = pairs.shape[1]
    total = np.empty((m * d, m * d), order="F")
    columns = total.T.reshape(m, d, m, d)
    for pair, j, k in zip(pairs, *np.tril_indices(m), strict=True):
        columns[k, :, j, :] = columns[j, :, k, :] = pair.T
    return total
