"""Work on one block of examples: an order in, a small sum out."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from solvers import kernels, projections, ranking
from solvers.ascent import BlockAscent
from solvers.block_stats import BlockStats
from solvers.clock import Clock
from solvers.duals import BlockDuals
from solvers.errors import NonFiniteError, StateLostError
from solvers.losses.base import Family
from solvers.orders import AscentOrder, Commit, EvaluateOrder, OracleOrder, Order, RebuildOrder
from solvers.problem import Problem, squared_norm
from solvers.rows import (
    Rows,
    RowSource,
    as_rows,
    compute_dtype,
    count_tiles,
    is_sparse,
    iterate_tiles,
    nonfinite_rows,
    tile_rows,
)
from solvers.typing import Float64Array, FloatArray, IntArray

_FLOAT64 = np.dtype(np.float64)


@dataclass(frozen=True)
class _Tile:
    """Rows [start, stop) of the block, ready to compute with."""

    number: int
    start: int
    stop: int
    X: Rows
    y: IntArray

    @property
    def rows(self) -> slice:
        return slice(self.start, self.stop)


class Block:
    """A contiguous run of examples, with their dual variables where they are kept.

    Parameters
    ----------
    index : place of the block among all blocks, from 0.
    start, stop : its rows in the whole problem.
    X : its features, a RowSource of stop - start rows.
    y : its labels, (stop - start,) integers.
    problem : what is solved.
    keep_duals : whether A is kept; smoothing > 0 keeps it in any case.
    """

    def __init__(
        self, index: int, start: int, stop: int, X: RowSource, y: IntArray, problem: Problem, keep_duals: bool
    ) -> None:
        self.index, self.start, self.stop = index, start, stop
        self.problem = problem
        self._X = X
        self._y = np.ascontiguousarray(y, dtype=np.int32)
        self._dtype = compute_dtype(X.dtype)
        self._tile_rows = tile_rows(problem.d, problem.m, self._dtype.itemsize)
        self._unchecked = set(range(count_tiles(stop - start, start, self._tile_rows)))
        form = problem.form
        self._rho = form.rho
        self._hinge_first = form.family is Family.HINGE_THEN_SUM
        self._margins = np.empty((0, 0)) if form.margins is None else form.margins
        self._ascent: BlockAscent | None = None
        self._duals: BlockDuals | None = None
        if keep_duals or problem.smoothing > 0:
            self._duals = BlockDuals(problem, self._y, self._dtype, len(self._unchecked))

    def run(self, order: Order) -> BlockStats:
        """Carry out an order; the same order again gives the same sums and changes nothing more.

        Raises NonFiniteError naming the rows where features are NaN or infinite, StateLostError where a
        commit refers to a round that this block has not seen.
        """
        # Overflow shows in the sums, which the coordinator checks.
        with np.errstate(over="ignore", invalid="ignore"):
            match order:
                case OracleOrder():
                    return self._find_vertex(order)
                case AscentOrder():
                    return self._ascend(order)
                case EvaluateOrder():
                    return self._evaluate(order)
                case RebuildOrder():
                    return self._rebuild(order)

    def duals(self, commit: Commit | None = None) -> FloatArray:
        """Give A (rows, m), after applying `commit` where that has not been done."""
        duals = self._kept_duals()
        for number, start, stop in self._tile_bounds():
            duals.commit(number, start, stop, commit)
        return duals.A

    def load_duals(self, start: int, rows: FloatArray) -> None:
        """Replace A from row `start` of the problem on by `rows` (r, m)."""
        self._kept_duals().load(start - self.start, rows)

    def _find_vertex(self, order: OracleOrder) -> BlockStats:
        """Sum the vertex u_i at s_i + gamma alpha_i (Tajima et al., eq. 2.25 with the sign of C.24)."""
        clock = Clock()
        W = np.ascontiguousarray(order.W, dtype=self._dtype)
        scratch = _Scratch(self._tile_rows, self.problem.m, len(self._rho), self._dtype)
        product = np.zeros((self.problem.m, self.problem.d))
        sums = np.zeros(ranking.N_SUMS)
        alpha_sq = 0.0
        for tile in self._tiles(self._dtype):
            scores = scratch.scores_of(tile.X, W)
            clock.product()
            ranked, counts = scratch.vertex(tile.stop - tile.start)
            if self._duals is not None:
                self._duals.commit(tile.number, tile.start, tile.stop, order.commit)
                A = self._duals.A[tile.rows]
                ranked, counts = self._duals.ranked[tile.rows], self._duals.counts[tile.rows]
                if self.problem.smoothing > 0:
                    kernels.lift_scores(scores, A, self.problem.smoothing)
            ranking.rank_rows(
                scores, tile.y, self._rho, self._hinge_first, self._margins, ranked, counts, sums
            )
            if self._duals is not None:
                self._duals.found(tile.number, order.round)
                sums[ranking.ALPHA_U] += kernels.alpha_dot_u(A, tile.y, self._rho, ranked, counts)
                alpha_sq += kernels.sum_of_squares(A)
            clock.kernel()
            self._accumulate(tile, ranked, counts, product)
            clock.product()
        return BlockStats(
            rows=self.stop - self.start,
            product=np.ascontiguousarray(product.T),
            b_u=float(sums[ranking.B_U]),
            alpha_u=float(sums[ranking.ALPHA_U]),
            u_sq=float(sums[ranking.U_SQ]),
            alpha_sq=alpha_sq,
            loss=float(sums[ranking.LOSS]),
            lifted_loss=float(sums[ranking.LOSS]),
            active=int(sums[ranking.ACTIVE]),
            seconds_products=clock.products,
            seconds_kernels=clock.kernels,
        )

    def _ascend(self, order: AscentOrder) -> BlockStats:
        """Find a change of A by exact column updates; it waits for its commit."""
        duals = self._kept_duals()
        self.duals(order.commit)
        if order.exact:
            duals.widen()
        if self._ascent is None:
            self._ascent = BlockAscent(self.problem, self._X, self._y, self.index, self._dtype)
        stats = self._ascent.run(order, duals.A, duals.change())
        duals.changed(order.round)
        return stats

    def _evaluate(self, order: EvaluateOrder) -> BlockStats:
        clock = Clock()
        dtype = _FLOAT64 if order.exact else self._dtype
        W = np.ascontiguousarray(order.W, dtype=dtype)
        scratch = _Scratch(self._tile_rows, self.problem.m, len(self._rho), dtype)
        smoothing = self.problem.smoothing
        lifted = np.zeros(ranking.N_SUMS)
        envelope = alpha_sq = 0.0
        for tile in self._tiles(dtype):
            scores = scratch.scores_of(tile.X, W)
            clock.product()
            ranked, counts = scratch.vertex(tile.stop - tile.start)
            if smoothing > 0:
                envelope += float(
                    np.sum(projections.envelope_losses(self.problem.form, scores, tile.y, smoothing))
                )
            if self._duals is not None:
                self._duals.commit(tile.number, tile.start, tile.stop, order.commit)
                A = self._duals.A[tile.rows]
                alpha_sq += kernels.sum_of_squares(A)
                if smoothing > 0:
                    kernels.lift_scores(scores, A, smoothing)
            ranking.rank_rows(
                scores, tile.y, self._rho, self._hinge_first, self._margins, ranked, counts, lifted
            )
            clock.kernel()
        loss = float(lifted[ranking.LOSS])
        return BlockStats(
            rows=self.stop - self.start,
            alpha_sq=alpha_sq,
            loss=envelope if smoothing > 0 else loss,
            lifted_loss=loss,
            active=int(lifted[ranking.ACTIVE]),
            seconds_products=clock.products,
            seconds_kernels=clock.kernels,
        )

    def _rebuild(self, order: RebuildOrder) -> BlockStats:
        """Sum what W, b and aa of eq. 2 and 3 are made of."""
        clock = Clock()
        duals = self._kept_duals()
        if order.exact:
            self.duals(order.commit)
            duals.widen()
        product = np.zeros((self.problem.d, self.problem.m))
        b = alpha_sq = 0.0
        for tile in self._tiles(_FLOAT64):
            duals.commit(tile.number, tile.start, tile.stop, order.commit)
            A = duals.A[tile.rows].astype(np.float64)
            b -= float(np.vdot(self.problem.form.margin_rows(tile.y), A))
            alpha_sq += squared_norm(A)
            clock.kernel()
            product += tile.X.T @ A
            clock.product()
        return BlockStats(
            rows=self.stop - self.start,
            product=product,
            b_u=b,
            alpha_sq=alpha_sq,
            seconds_products=clock.products,
            seconds_kernels=clock.kernels,
        )

    def _tiles(self, dtype: np.dtype[Any]) -> Iterator[_Tile]:
        """Yield the tiles with features of the given precision, checking each one the first time."""
        for number, (start, stop, X) in enumerate(iterate_tiles(self._X, self.start, self._tile_rows)):
            if number in self._unchecked:
                self._check_finite(X, start)
                self._unchecked.discard(number)
            yield _Tile(number, start, stop, as_rows(X, dtype), self._y[start:stop])

    def _tile_bounds(self) -> Iterator[tuple[int, int, int]]:
        for number, low in enumerate(
            range(self.start - self.start % self._tile_rows, self.stop, self._tile_rows)
        ):
            yield number, max(low - self.start, 0), min(low + self._tile_rows, self.stop) - self.start

    def _check_finite(self, X: Rows, start: int) -> None:
        bad = nonfinite_rows(X)
        if bad.size:
            rows = ", ".join(str(self.start + start + int(row)) for row in bad[:5])
            more = f" and {bad.size - 5} more near them" if bad.size > 5 else ""
            raise NonFiniteError(
                f"the features of rows {rows}{more} hold NaN or infinity; mend or drop these rows"
            )

    def _accumulate(self, tile: _Tile, ranked: IntArray, counts: IntArray, product: Float64Array) -> None:
        if is_sparse(tile.X):
            csr = (tile.X.data, tile.X.indices, tile.X.indptr)
            kernels.accumulate_csr(*csr, tile.y, self._rho, ranked, counts, product)
        else:
            kernels.accumulate_dense(tile.X, tile.y, self._rho, ranked, counts, product)

    def _kept_duals(self) -> BlockDuals:
        if self._duals is None:
            raise StateLostError("this block keeps no dual variables; bind it with keep_duals=True")
        return self._duals


class _Scratch:
    """Buffers that the tiles of one order share."""

    def __init__(self, rows: int, m: int, ranks: int, dtype: np.dtype[Any]) -> None:
        self._scores = np.empty((rows, m), dtype=dtype)
        self._ranked = np.empty((rows, ranks), dtype=np.int32)
        self._counts = np.empty(rows, dtype=np.int32)

    def scores_of(self, X: Rows, W: FloatArray) -> FloatArray:
        """Give X W for a tile, in the shared buffer."""
        if is_sparse(X):
            return np.ascontiguousarray(X @ W)
        return np.dot(X, W, out=self._scores[: X.shape[0]])

    def vertex(self, rows: int) -> tuple[IntArray, IntArray]:
        """Give room for `ranked` and `counts` of a tile."""
        return self._ranked[:rows], self._counts[:rows]
