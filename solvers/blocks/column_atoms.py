"""Away and pairwise steps inside the domain of every example, on one block.

A is kept as convex combinations: every example has its own active set of vertices, as ranked lists of
classes, and its own direction inside it.  All examples then take one step, along the sum of their directions.

A direction that always led to the border of its polytope would make that one step tiny: the best step of the
sum is that of the most of its members.  So an example goes as far as its own closed form says for a dual that
is curved 1/length times as much as its own row alone makes it, and the request's `length` stands for what the
other examples add.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from topline.solvers.blocks import column_atom_jit, jit
from topline.solvers.blocks.ascent_jit import change_sums
from topline.solvers.blocks.row_sets import RowSets
from topline.solvers.blocks.vertices import vertices_of
from topline.solvers.core.block_stats import BlockStats
from topline.solvers.core.clock import Clock
from topline.solvers.core.problem import Problem
from topline.solvers.core.requests import ColumnRequest, PendingStep
from topline.solvers.core.rows import Rows, is_sparse
from topline.solvers.core.tiles import Scratch, TileReader
from topline.solvers.errors import StateLostError
from topline.solvers.losses import ranking
from topline.solvers.projections.columns import column_kind, margins_or_empty
from topline.solvers.typing import Float64Array, FloatArray, IntArray

_NEVER = -1


class BlockColumnAtoms:
    """The active sets of one block.

    Parameters
    ----------
    problem : what is solved; its loss has sparse vertices.
    tiles, y, weights : the rows of the block, (rows,) labels, and how often each row counts.
    A : (rows, m) float64, the dual rows to start from.
    dtype : precision of products, where a request does not ask for float64.
    pending_step : the last one that A has been given.
    """

    def __init__(
        self,
        problem: Problem,
        tiles: TileReader,
        y: IntArray,
        weights: Float64Array,
        A: FloatArray,
        dtype: np.dtype[Any],
        pending_step: PendingStep | None = None,
    ) -> None:
        self.problem = problem
        self._tiles, self._y, self._weights, self._dtype = tiles, y, weights, dtype
        self._sets = RowSets(problem, y, weights, A)
        # |x_i|^2, NaN until it is known.
        self._norms = np.full(len(y), np.nan)
        self._pending = _NEVER
        self._applied = _NEVER if pending_step is None else pending_step.round

    def run(self, request: ColumnRequest, A: FloatArray, change: FloatArray) -> BlockStats:
        """Write to `change` (rows, m) the directions of the rows of A (rows, m), and sum them.

        A has been given the step of the request; the sets are given it here, once.  `loss` in the answer is
        the true one, as in that to an EvaluateRequest.
        """
        self._apply_step(request.pending_step)
        clock = Clock()
        dtype = np.dtype(np.float64) if request.exact else self._dtype
        W = np.ascontiguousarray(request.W, dtype=dtype)
        scratch = Scratch(self._tiles.rows, self.problem.m, dtype)
        product = np.zeros((self.problem.m, self.problem.d))
        sums, smoothed_sums = np.zeros(ranking.N_SUMS), np.zeros(ranking.N_SUMS)
        smoothed = vertices_of(self.problem, self._tiles.rows, smoothed=True)
        form, gammas = self.problem.form, (self.problem.smoothing, self.problem.smoothing_own)
        for tile in self._tiles.read(dtype):
            scores = scratch.scores_of(tile.X, W)
            clock.product()
            if gammas[0] > 0:
                smoothed.find(scratch.copy_of(scores), tile.y, tile.weights, smoothed_sums)
                jit.lift_scores(scores, A[tile.rows], tile.y, *gammas)
            if np.isnan(self._norms[tile.start]):
                self._norms[tile.rows] = _squared_norms(tile.X)
            self._sets.choose(
                tile.rows, scores, scratch.copy_of(scores), self._bends(tile.rows, request),
                (gammas[0] / request.length, gammas[1] / request.length),
                A[tile.rows], change[tile.rows], sums, pairwise=request.pairwise,
            )  # fmt: skip
            clock.kernel()
            rows = change[tile.rows], tile.weights, product
            if is_sparse(tile.X):
                column_atom_jit.add_rows_csr(tile.X.data, tile.X.indices, tile.X.indptr, *rows)
            else:
                column_atom_jit.add_rows(tile.X, *rows)
            clock.product()
        self._pending = request.round
        linear, cross, square, alpha_sq, changed = change_sums(
            column_kind(form), self._y, self._weights, A, change, margins_or_empty(form),
            self.problem.own_share,
        )  # fmt: skip
        clock.kernel()
        return BlockStats(
            rows=len(A),
            product=np.ascontiguousarray(product.T),
            conjugate_u=linear,
            alpha_u=cross,
            u_sq=square,
            alpha_sq=alpha_sq,
            loss=float((smoothed_sums if gammas[0] > 0 else sums)[ranking.LOSS]),
            shifted_loss=float(sums[ranking.LOSS]),
            active=changed,
            seconds_products=clock.products,
            seconds_kernels=clock.kernels,
        )

    def _bends(self, rows: slice, request: ColumnRequest) -> Float64Array:
        """Give the curvature of the dual along the scores of some rows, each alone, over the length."""
        scale = self.problem.scale / request.length
        return np.asarray(scale * self._weights[rows] * self._norms[rows])

    def _apply_step(self, pending_step: PendingStep | None) -> None:
        """Take the step of an earlier round in the sets, once."""
        if pending_step is None or pending_step.round == self._applied:
            return
        if self._pending != pending_step.round:
            raise StateLostError(
                f"the active sets of a block do not hold the directions of round {pending_step.round}; load"
                " the duals of a checkpoint and go on from its state"
            )
        self._sets.take(pending_step.step)
        self._applied = pending_step.round


def _squared_norms(X: Rows) -> Float64Array:
    """Give |x_i|^2 of each row."""
    if is_sparse(X):
        return np.asarray(X.multiply(X).sum(axis=1), dtype=np.float64).ravel()
    return np.asarray(np.einsum("ij,ij->i", X, X, dtype=np.float64))
