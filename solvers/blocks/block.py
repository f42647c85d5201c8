"""Work on one block of examples: an order in, a small sum out."""

from __future__ import annotations

import numpy as np

from topline.solvers.blocks.ascent import BlockAscent
from topline.solvers.blocks.column_atoms import BlockColumnAtoms
from topline.solvers.blocks.duals import BlockDuals, is_uniform
from topline.solvers.blocks.duals_from_primal import adopted
from topline.solvers.blocks.largest_losses import BlockSelection
from topline.solvers.blocks.sdca_pass import BlockSdca
from topline.solvers.blocks.vertices import accumulate_rows, vertices_of
from topline.solvers.core.block_stats import BlockStats
from topline.solvers.core.clock import Clock
from topline.solvers.core.problem import Problem
from topline.solvers.core.requests import (
    AscentRequest,
    ColumnRequest,
    DualsFromPrimalRequest,
    EvaluateRequest,
    LossesRequest,
    OracleRequest,
    PendingStep,
    RebuildRequest,
    Request,
    SdcaRequest,
    SelectedRowsRequest,
)
from topline.solvers.core.rows import RowSource, compute_dtype, is_sparse
from topline.solvers.core.tiles import Scratch, TileReader
from topline.solvers.errors import StateLostError
from topline.solvers.losses import ranking
from topline.solvers.typing import Float64Array, FloatArray, IntArray

_FLOAT64 = np.dtype(np.float64)


class Block:
    """A contiguous run of examples, with their dual variables where they are kept.

    Parameters
    ----------
    index : place of the block among all blocks, from 0.
    start, stop : its rows in the whole problem.
    X : its features, a RowSource of stop - start rows.
    y : its labels, (stop - start,) integers.
    problem : what is solved.
    keep_duals : whether A is kept.
    weights : how often each example counts, (stop - start,) float64; None for once.
    dual_bytes : memory for A and what waits to be mixed into it; beyond it they are packed, and beyond that
        in a temporary file.  None for arrays.  Whichever it is, the numbers are the same.
    """

    def __init__(
        self,
        index: int,
        start: int,
        stop: int,
        X: RowSource,
        y: IntArray,
        problem: Problem,
        keep_duals: bool,
        weights: Float64Array | None = None,
        dual_bytes: int | None = None,
    ) -> None:
        self.index, self.start, self.stop = index, start, stop
        self.problem = problem
        self._X = X
        self._y = np.ascontiguousarray(y, dtype=np.int32)
        self._weights = (
            np.ones(stop - start) if weights is None else np.ascontiguousarray(weights, np.float64)
        )
        self._weighted = not is_uniform(self._weights)
        self._dtype = compute_dtype(X.dtype)
        self._tiles = TileReader(X, self._y, self._weights, start, problem.m)
        self._selection = BlockSelection(problem, X, self._y, self._tiles, start, self._dtype)
        self._ascent: BlockAscent | None = None
        self._sdca: BlockSdca | None = None
        self._column_atoms: BlockColumnAtoms | None = None
        self._duals: BlockDuals | None = None
        if keep_duals:
            cuts = [0, *(stop for _, _, stop in self._tiles.bounds())]
            self._duals = BlockDuals(problem, self._y, self._weights, self._dtype, cuts, dual_bytes)

    def run(self, order: Request) -> BlockStats:
        """Carry out an order; the same order again gives the same sums and changes nothing more.

        Raises NonFiniteError naming the rows where features are NaN or infinite, StateLostError where a
        commit refers to a round that this block has not seen.
        """
        # Overflow shows in the sums, which the coordinator checks.
        with np.errstate(over="ignore", invalid="ignore"):
            match order:
                case OracleRequest():
                    return self._find_vertex(order)
                case AscentRequest() | SdcaRequest() | ColumnRequest():
                    return self._find_change(order)
                case EvaluateRequest():
                    return self._evaluate(order)
                case RebuildRequest():
                    return self._rebuild(order)
                case DualsFromPrimalRequest():
                    return adopted(self.problem, self._tiles, self._kept_duals(), order)
                case LossesRequest():
                    return self._selection.largest(order)
                case SelectedRowsRequest():
                    return self._selection.vertices(order)

    def duals(
        self, commit: PendingStep | None = None, start: int | None = None, stop: int | None = None
    ) -> FloatArray:
        """Give the rows [start, stop) of A, by their numbers in the problem, after applying `commit` once.

        All rows by default; `topline.solvers.core.dual_rows.row_runs` says how many at a time are no burden.
        """
        first = 0 if start is None else start - self.start
        last = (self.stop if stop is None else stop) - self.start
        return self._committed(commit).counted(first, last)

    def load_duals(self, start: int, rows: FloatArray) -> None:
        """Replace A from row `start` of the problem on by `rows` (r, m)."""
        self._kept_duals().load_counted(start - self.start, rows)
        self._column_atoms = None

    def settle(self, commit: PendingStep | None) -> None:
        """Take A for what it is after `commit`: applied where its change waits, however far orders had come.

        Every row is feasible before, after and between rounds, so that A is a state to go on from.
        """
        self._kept_duals().settle(commit)
        self._column_atoms = None

    def take_duals(self, other: Block) -> None:
        """Take the dual variables of a block of the same rows, which is used no more."""
        self._duals = other._kept_duals()
        self._column_atoms = None

    def _find_vertex(self, order: OracleRequest) -> BlockStats:
        """Sum the vertex u_i at s_i + gamma alpha_i (Tajima et al., eq. 2.25 with the sign of C.24)."""
        clock = Clock()
        dtype = _FLOAT64 if order.exact else self._dtype
        W = np.ascontiguousarray(order.W, dtype=dtype)
        duals = None if order.envelope else self._lifting_duals()
        scratch = Scratch(self._tiles.rows, self.problem.m, dtype)
        vertices = vertices_of(self.problem, self._tiles.rows, smoothed=order.envelope)
        product = np.zeros((self.problem.m, self.problem.d))
        sums = np.zeros(ranking.N_SUMS)
        alpha_u = alpha_sq = 0.0
        for tile in self._tiles.read(dtype):
            scores = scratch.scores_of(tile.X, W)
            clock.product()
            if duals is not None:
                A = duals.committed(tile.number, tile.start, tile.stop, order.commit)
                alpha_sq += duals.squares(A, tile.rows)
                duals.lift(scores, A, tile.rows)
            vertices.find(scores, tile.y, tile.weights, sums)
            if duals is not None:
                alpha_u += vertices.mix_later(duals, A, tile.number, tile.rows, order.round)
            clock.kernel()
            vertices.accumulate(tile.X, product)
            clock.product()
        return BlockStats(
            rows=self.stop - self.start,
            product=np.ascontiguousarray(product.T),
            b_u=float(sums[ranking.B_U]),
            alpha_u=alpha_u,
            u_sq=float(sums[ranking.U_SQ]),
            alpha_sq=alpha_sq,
            loss=float(sums[ranking.LOSS]),
            lifted_loss=float(sums[ranking.LOSS]),
            active=int(sums[ranking.ACTIVE]),
            seconds_products=clock.products,
            seconds_kernels=clock.kernels,
        )

    def _find_change(self, order: AscentRequest | SdcaRequest | ColumnRequest) -> BlockStats:
        """Find a change of A row by row; it waits for its commit."""
        duals = self._committed(order.commit)
        if order.exact or isinstance(order, ColumnRequest):
            duals.widen()
        rows = self.problem, self._X, self._y, self._weights, self.index, self._dtype
        match order:
            case AscentRequest():
                self._ascent = self._ascent or BlockAscent(*rows)
                stats = self._ascent.run(order, duals.A, duals.change())
            case SdcaRequest():
                self._sdca = self._sdca or BlockSdca(*rows)
                stats = self._sdca.run(order, *duals.whole("sdca"))
            case ColumnRequest():
                A, change = duals.whole("Frank-Wolfe over the columns")
                self._column_atoms = self._column_atoms or BlockColumnAtoms(
                    self.problem, self._tiles, self._y, self._weights, A, self._dtype, order.commit
                )
                stats = self._column_atoms.run(order, A, change)
        duals.changed(order.round)
        return stats

    def _evaluate(self, order: EvaluateRequest) -> BlockStats:
        clock = Clock()
        dtype = _FLOAT64 if order.exact else self._dtype
        W = np.ascontiguousarray(order.W, dtype=dtype)
        scratch = Scratch(self._tiles.rows, self.problem.m, dtype)
        smoothed = self.problem.smoothing > 0
        plain = vertices_of(self.problem, self._tiles.rows, smoothed=True)
        lifted = vertices_of(self.problem, self._tiles.rows, smoothed=False) if smoothed else plain
        sums, lifted_sums = np.zeros(ranking.N_SUMS), np.zeros(ranking.N_SUMS)
        alpha_sq = b_alpha = x_sq = 0.0
        total: Float64Array | None = None
        for tile in self._tiles.read(dtype):
            scores = scratch.scores_of(tile.X, W)
            if order.total and not is_sparse(tile.X):
                total, x_sq = tile.added_to(total, x_sq)
            clock.product()
            if self._duals is not None:
                A = self._duals.committed(tile.number, tile.start, tile.stop, order.commit)
                alpha_sq += self._duals.squares(A, tile.rows)
                if not self.problem.form.linear_conjugate:
                    b_alpha += self._duals.conjugates(A, tile.rows)
                if smoothed:
                    raised = scratch.copy_of(scores)
                    self._duals.lift(raised, A, tile.rows)
                    lifted.find(raised, tile.y, tile.weights, lifted_sums)
            plain.find(scores, tile.y, tile.weights, sums)
            clock.kernel()
        loss = float(sums[ranking.LOSS])
        return BlockStats(
            rows=self.stop - self.start,
            product=total,
            u_sq=x_sq,
            alpha_sq=alpha_sq,
            b_alpha=b_alpha,
            loss=loss,
            lifted_loss=float(lifted_sums[ranking.LOSS]) if smoothed else loss,
            active=int(sums[ranking.ACTIVE]),
            seconds_products=clock.products,
            seconds_kernels=clock.kernels,
        )

    def _rebuild(self, order: RebuildRequest) -> BlockStats:
        """Sum what W, b and aa of eq. 2 and 3 are made of."""
        clock = Clock()
        duals = self._kept_duals()
        if order.exact:
            self._committed(order.commit).widen()
        if order.inside:
            self._committed(order.commit).put_inside()
        product = np.zeros((self.problem.m, self.problem.d))
        b = alpha_sq = 0.0
        for tile in self._tiles.read(_FLOAT64):
            A = duals.committed(tile.number, tile.start, tile.stop, order.commit).astype(np.float64)
            b += duals.conjugates(A, tile.rows)
            alpha_sq += duals.squares(A, tile.rows)
            clock.kernel()
            accumulate_rows(tile.X, A, tile.weights, product)
            clock.product()
        return BlockStats(
            rows=self.stop - self.start,
            product=np.ascontiguousarray(product.T),
            b_u=b,
            alpha_sq=alpha_sq,
            seconds_products=clock.products,
            seconds_kernels=clock.kernels,
        )

    def _committed(self, commit: PendingStep | None) -> BlockDuals:
        """Give the duals with `commit` applied to every row."""
        duals = self._kept_duals()
        duals.commit(commit)
        return duals

    def _lifting_duals(self) -> BlockDuals | None:
        """Give the duals, None where none are kept; smoothing cannot do without."""
        return self._kept_duals() if self.problem.smoothing > 0 else self._duals

    def _kept_duals(self) -> BlockDuals:
        if self._duals is None:
            raise StateLostError("this block keeps no dual variables; bind it with keep_duals=True")
        return self._duals
