"""Away and pairwise steps inside the domain of every example, on one block.

A is kept as convex combinations: every example has its own active set of vertices, as ranked lists of
classes, and its own direction inside it.  All examples then take one step, along the sum of their directions.

A direction that always led to the border of its polytope would make that one step tiny: the best step of the
sum is that of the most of its members.  So an example goes as far as its own closed form says for a dual that
is curved 1/length times as much as its own row alone makes it, and the order's `length` stands for what the
other examples add.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from solvers import active_sets, column_atom_kernels, kernels, ranking
from solvers.ascent_kernels import change_sums
from solvers.block_stats import BlockStats
from solvers.clock import Clock
from solvers.errors import StateLostError
from solvers.losses.base import Family
from solvers.orders import ColumnOrder, Commit
from solvers.problem import Problem
from solvers.projections.columns import column_kind, margins_or_empty
from solvers.rows import Rows, is_sparse
from solvers.tiles import Scratch, TileReader
from solvers.typing import Float64Array, FloatArray, IntArray

#: Vertices in the set of one example; fewer where ranks are many, so that sets take at most some four times
#: the memory of A.
_PLACES = 16
_NEVER = -1


class BlockColumnAtoms:
    """The active sets of one block.

    Parameters
    ----------
    problem : what is solved; its loss has sparse vertices.
    tiles, y, weights : the rows of the block, (rows,) labels, and how often each row counts.
    A : (rows, m) float64, the dual rows to start from: where they are not 0, each is one dense point of its
        set.
    dtype : precision of products, where an order does not ask for float64.
    """

    def __init__(
        self,
        problem: Problem,
        tiles: TileReader,
        y: IntArray,
        weights: Float64Array,
        A: FloatArray,
        dtype: np.dtype[Any],
    ) -> None:
        self.problem = problem
        self._tiles, self._y, self._weights, self._dtype = tiles, y, weights, dtype
        form = problem.form
        self._rho, self._margins = form.rho, margins_or_empty(form)
        rows, ranks = len(y), len(form.rho)
        places = int(np.clip(32 * problem.m // (4 * ranks + 12), 2, _PLACES))
        self._lists = np.zeros((rows, places, ranks), dtype=np.int32)
        self._lengths = np.zeros((rows, places), dtype=np.int32)
        self._shares = np.zeros((rows, places))
        # A set that starts at 0 has the vertex 0, an empty list.
        at_zero = not A.any()
        self._shares[:, 0] = 1.0 if at_zero else 0.0
        self._used = np.full(rows, 1 if at_zero else 0, dtype=np.int32)
        self._base = np.zeros((0, problem.m)) if at_zero else A.copy()
        self._base_share = np.zeros(rows) if at_zero else np.ones(rows)
        self._ranked = np.zeros((rows, ranks), dtype=np.int32)
        self._counts = np.zeros(rows, dtype=np.int32)
        self._moves = np.zeros(rows, dtype=np.int8)
        self._leaving = np.zeros(rows, dtype=np.int32)
        self._reach = np.zeros(rows)
        # |x_i|^2, NaN until it is known.
        self._norms = np.full(rows, np.nan)
        self._pending = self._committed = _NEVER

    def run(self, order: ColumnOrder, A: FloatArray, change: FloatArray) -> BlockStats:
        """Write to `change` (rows, m) the directions of the rows of A (rows, m), and sum them.

        A has been given the commit of the order; the sets are given it here, once.
        """
        self._commit(order.commit)
        clock = Clock()
        dtype = np.dtype(np.float64) if order.exact else self._dtype
        W = np.ascontiguousarray(order.W, dtype=dtype)
        scratch = Scratch(self._tiles.rows, self.problem.m, dtype)
        product = np.zeros((self.problem.m, self.problem.d))
        sums = np.zeros(ranking.N_SUMS)
        gammas = self.problem.smoothing, self.problem.smoothing_own
        for tile in self._tiles.read(dtype):
            scores = scratch.scores_of(tile.X, W)
            clock.product()
            if gammas[0] > 0:
                kernels.lift_scores(scores, A[tile.rows], tile.y, *gammas)
            if np.isnan(self._norms[tile.start]):
                self._norms[tile.rows] = _squared_norms(tile.X)
            self._choose(tile.rows, scratch.copy_of(scores), scores, order, A, change, sums)
            clock.kernel()
            rows = change[tile.rows], tile.weights, product
            if is_sparse(tile.X):
                column_atom_kernels.add_rows_csr(tile.X.data, tile.X.indices, tile.X.indptr, *rows)
            else:
                column_atom_kernels.add_rows(tile.X, *rows)
            clock.product()
        self._pending = order.round
        linear, cross, square, alpha_sq, changed = change_sums(
            column_kind(self.problem.form), self._y, self._weights, A, change, self._margins,
            self.problem.own_share,
        )  # fmt: skip
        clock.kernel()
        return BlockStats(
            rows=len(A),
            product=np.ascontiguousarray(product.T),
            b_u=linear,
            alpha_u=cross,
            u_sq=square,
            alpha_sq=alpha_sq,
            loss=float(sums[ranking.LOSS]),
            lifted_loss=float(sums[ranking.LOSS]),
            active=changed,
            seconds_products=clock.products,
            seconds_kernels=clock.kernels,
        )

    def _choose(
        self,
        rows: slice,
        scores: Any,
        overwritten: Any,
        order: ColumnOrder,
        A: FloatArray,
        change: FloatArray,
        sums: Float64Array,
    ) -> None:
        """Find the vertices and directions of the rows of a tile, given its scores twice."""
        family = self.problem.form.family
        # Curvature of the dual in one row alone, |alpha_i|^2 times this and gamma.
        bends = self.problem.scale / order.length * self._weights[rows] * self._norms[rows]
        gammas = self.problem.smoothing / order.length, self.problem.smoothing_own / order.length
        ranked, counts = self._ranked[rows], self._counts[rows]
        ranking.rank_rows(
            overwritten, self._y[rows], self._weights[rows], self._rho, family is Family.HINGE_THEN_SUM,
            family is not Family.OTHERS_SUM_THEN_HINGE, self.problem.own_share, self._margins, ranked, counts,
            sums,
        )  # fmt: skip
        column_atom_kernels.choose_directions(
            scores, self._y[rows], self._weights[rows], bends, *gammas, self._rho, self._margins,
            order.pairwise, ranked, counts, self._lists[rows], self._lengths[rows], self._shares[rows],
            self._used[rows], self._base[rows], self._base_share[rows], A[rows], change[rows],
            self._moves[rows], self._leaving[rows], self._reach[rows],
        )  # fmt: skip

    def _commit(self, commit: Commit | None) -> None:
        """Take the step of an earlier round in the sets, once."""
        if commit is None or commit.round == self._committed:
            return
        if self._pending != commit.round:
            raise StateLostError(
                f"the active sets of a block do not hold the directions of round {commit.round}; load the "
                "duals of a checkpoint and go on from its state"
            )
        if not len(self._base) and self._used.max() == self._shares.shape[1]:
            self._base = np.zeros((len(self._y), self.problem.m))
        active_sets.take_step(
            commit.step, self._y, self._rho, self._ranked, self._counts, self._moves, self._leaving,
            self._reach, self._lists, self._lengths, self._shares, self._used, self._base, self._base_share,
        )  # fmt: skip
        self._committed = commit.round


def _squared_norms(X: Rows) -> Float64Array:
    """Give |x_i|^2 of each row."""
    if is_sparse(X):
        return np.asarray(X.multiply(X).sum(axis=1), dtype=np.float64).ravel()
    return np.asarray(np.einsum("ij,ij->i", X, X, dtype=np.float64))
