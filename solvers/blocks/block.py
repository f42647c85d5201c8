"""Work on one block of examples: a request in, a small sum out."""

from __future__ import annotations

import numpy as np

from topline.solvers.blocks.ascent.rounds import BlockAscent
from topline.solvers.blocks.ascent.rows import RowNorms
from topline.solvers.blocks.ascent.thread_choice import Helpers
from topline.solvers.blocks.column_atoms import BlockColumnAtoms
from topline.solvers.blocks.duals import BlockDuals
from topline.solvers.blocks.kernel.block import BlockKernel
from topline.solvers.blocks.oracles import LargestLossesOracle, duals_from_primal
from topline.solvers.blocks.second_order import BlockNewton, second_moments
from topline.solvers.blocks.shared.tile_work import Evaluate, FindVertex, Rebuild, TileWork, work_through
from topline.solvers.core.block_stats import BlockStats
from topline.solvers.core.dual_rows import ByteBudget, row_runs
from topline.solvers.core.kernel_rows import Mark
from topline.solvers.core.problem import Problem
from topline.solvers.core.requests import (
    AscentRequest,
    ColumnRequest,
    DualsFromPrimalRequest,
    EvaluateRequest,
    InsideRequest,
    LossesRequest,
    MomentsRequest,
    OracleRequest,
    PendingStep,
    ProximalRequest,
    RebuildRequest,
    Request,
    SelectedRowsRequest,
)
from topline.solvers.core.rows import RowSource, compute_dtype
from topline.solvers.core.tiles import TileReader
from topline.solvers.crew import ALONE, Crew
from topline.solvers.errors import StateLostError
from topline.solvers.typing import Float64Array, FloatArray, IntArray


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
    kept_bytes : memory for what Newton's method would else compute again in a round, and for columns of a
        kernel matrix; None for what they take.
    helpers, norms : threads of several blocks that they share, and what they find out about the rows, which
        are the same; None for those of its own.
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
        dual_bytes: int | ByteBudget | None = None,
        kept_bytes: int | None = None,
        helpers: Helpers | None = None,
        norms: RowNorms | None = None,
    ) -> None:
        self.index, self.start, self.stop = index, start, stop
        self.problem = problem
        self._X = X
        self._y = np.ascontiguousarray(y, dtype=np.int32)
        self._weights = (
            np.ones(stop - start) if weights is None else np.ascontiguousarray(weights, np.float64)
        )
        self._dtype = compute_dtype(X.dtype)
        self._tiles = TileReader(X, self._y, self._weights, start, problem.m)
        self._largest_losses = LargestLossesOracle(problem, X, self._y, self._tiles, start, self._dtype)
        self._ascent: BlockAscent | None = None
        self._helpers, self._norms = helpers or Helpers(), norms
        self._column_atoms: BlockColumnAtoms | None = None
        self._newton: BlockNewton | None = None
        self._kernel: BlockKernel | None = None
        self._kept_bytes = kept_bytes
        #: Whether A is another one than 0, at the start.
        self._loaded = False
        self._duals: BlockDuals | None = None
        if keep_duals:
            cuts = [0, *(stop for _, _, stop in self._tiles.bounds())]
            self._duals = BlockDuals(problem, self._y, self._weights, self._dtype, cuts, dual_bytes)

    def run(self, request: Request, threads: int = 1) -> BlockStats:
        """Carry out a request; the same request again gives the same sums and changes nothing more.

        So many threads work on it where it is large enough; the sums do not depend on how many.

        Raises NonFiniteError naming the rows where features are NaN or infinite, StateLostError where a
        step refers to a round that this block has not seen.
        """
        # Overflow shows in the sums, which the coordinator checks.
        with np.errstate(over="ignore", invalid="ignore"):
            match request:
                case OracleRequest() | EvaluateRequest() | RebuildRequest():
                    crew = self._crew(threads)
                    work = self.work_of(request, crew)
                    work_through(self._tiles, [work], crew)
                    return work.stats()
                case AscentRequest() | ColumnRequest():
                    return self._find_change(request, threads)
                case ProximalRequest():
                    return self._find_curvature(request, self._crew(threads))
                case InsideRequest():
                    duals = self._duals_after(request.pending_step)
                    duals.widen()
                    if request.anyway:
                        duals.put_inside()
                    return BlockStats(rows=self.stop - self.start)
                case DualsFromPrimalRequest():
                    duals = self._kept_duals()
                    return duals_from_primal(self.problem, self._tiles, duals, request, self._crew(threads))
                case MomentsRequest():
                    return second_moments(self._tiles, self.start, request.stride, self._dtype)
                case LossesRequest():
                    return self._largest_losses.largest(request)
                case SelectedRowsRequest():
                    return self._largest_losses.vertices(request)
                case _:
                    return self._kernelised().run(request)

    def work_of(self, request: OracleRequest | EvaluateRequest | RebuildRequest, crew: Crew) -> TileWork:
        """Return what a request does with the tiles, for `work_through`; a crew works on each tile."""
        problem, tiles = self.problem, self._tiles
        match request:
            case OracleRequest():
                duals = None if request.envelope else self._lifting_duals()
                if duals is not None and request.exact:
                    self._duals_after(request.pending_step).widen()
                return FindVertex(problem, tiles, duals, request, self._dtype, crew)
            case EvaluateRequest():
                return Evaluate(problem, tiles, self._duals, request, self._dtype, crew)
            case RebuildRequest():
                if request.exact:
                    self._duals_after(request.pending_step).widen()
                if request.inside:
                    self._duals_after(request.pending_step).put_inside()
                return Rebuild(problem, tiles, self._kept_duals(), request, crew)

    def duals(
        self, pending_step: PendingStep | None = None, start: int | None = None, stop: int | None = None
    ) -> FloatArray:
        """Return the rows [start, stop) of A, by their numbers in the problem, after the pending step.

        All rows by default; `topline.solvers.core.dual_rows.row_runs` says how many at a time are no burden.
        """
        first = 0 if start is None else start - self.start
        last = (self.stop if stop is None else stop) - self.start
        return self._duals_after(pending_step).counted(first, last)

    def load_duals(self, start: int, rows: FloatArray) -> None:
        """Replace A from row `start` of the problem on by `rows` (r, m)."""
        self._kept_duals().load_counted(start - self.start, rows)
        self._column_atoms = self._newton = None
        self._kernel, self._loaded = None, True

    def finish_step(self, pending_step: PendingStep | None) -> None:
        """Take A for what it is after a step: applied where its change waits, however far requests had come.

        Every row is feasible before, after and between rounds, so that A is a state to continue from.
        """
        self._kept_duals().finish_step(pending_step)
        self._column_atoms = self._newton = None

    def take_duals(self, other: Block) -> None:
        """Take the dual variables of a block of the same rows, which is used no more."""
        self._duals, self._loaded = other._kept_duals(), other._loaded
        self._column_atoms = self._newton = self._kernel = None
        if other._kernel is not None:
            self._kernelised().take_scores(other._kernel)

    def open_duals(self) -> None:
        """Keep A as an array from now on, whatever its budget."""
        self._kept_duals().open()

    def pack_duals(self) -> None:
        """Keep A packed from now on, under its budget."""
        self._kept_duals().pack()

    def array_bytes(self, *, wide: bool = False) -> int:
        """Return what A and its change take as arrays, `wide` if they are float64 soon."""
        return self._kept_duals().array_bytes(wide=wide)

    def copy_duals(self, source: Block, share: float, pending_step: PendingStep | None) -> None:
        """Take `share` times the dual variables of a block of the same rows and weights, after its step."""
        theirs, mine = source._duals_after(pending_step).A, self._kept_duals()
        for start, stop in row_runs(0, *theirs.shape):
            rows = theirs.read(start, stop)
            mine.load(start, rows if share == 1.0 else rows * rows.dtype.type(share))
        self._column_atoms = self._newton = self._kernel = None
        self._loaded = True

    def clear_duals(self) -> None:
        """Give back what A takes of its budget; the block is used no more."""
        self._kept_duals().clear()

    def _find_change(self, request: AscentRequest | ColumnRequest, threads: int) -> BlockStats:
        """Find a change of A row by row; it waits for its step."""
        duals = self._duals_after(request.pending_step)
        if request.exact or isinstance(request, ColumnRequest):
            duals.widen()
        rows = self.problem, self._X, self._y, self._weights, self.index, self._dtype
        match request:
            case AscentRequest():
                self._ascent = self._ascent or BlockAscent(*rows, self._helpers, self._norms)
                stats = self._ascent.run(request, duals.A, duals.change(), threads)
            case ColumnRequest():
                A, change = duals.whole("Frank-Wolfe over the columns")
                self._column_atoms = self._column_atoms or BlockColumnAtoms(
                    self.problem, self._tiles, self._y, self._weights, A, self._dtype, request.pending_step
                )
                stats = self._column_atoms.run(request, A, change)
        duals.changed(request.round)
        return stats

    def _find_curvature(self, request: ProximalRequest, crew: Crew) -> BlockStats:
        """Answer a request of second order, after applying the pending step to every row."""
        if request.sigma > 0:
            duals = self._duals_after(request.pending_step)
            if request.exact:
                duals.widen()
        rows = self.stop - self.start
        self._newton = self._newton or BlockNewton(
            self.problem, self._tiles, rows, self._duals, self._dtype, self._kept_bytes
        )
        return self._newton.run(request, crew)

    def _crew(self, threads: int) -> Crew:
        """Return so many threads that work on a tile together."""
        return Crew(threads, self._helpers.pool) if threads > 1 else ALONE

    def _kernelised(self) -> BlockKernel:
        """Return the scores of this block, which begin at 0 with A."""
        if self._kernel is None:
            mark = None if self._loaded else Mark()
            place = self.index, self.start, self.stop
            self._kernel = BlockKernel(
                self.problem, self._tiles, self._kept_duals(), *place, self._dtype, mark, self._kept_bytes
            )
        return self._kernel

    def _duals_after(self, pending_step: PendingStep | None) -> BlockDuals:
        """Return the duals with `pending_step` applied to every row."""
        duals = self._kept_duals()
        duals.apply_step(pending_step)
        return duals

    def _lifting_duals(self) -> BlockDuals | None:
        """Return the duals, None where none are kept; smoothing cannot do without."""
        return self._kept_duals() if self.problem.smoothing > 0 else self._duals

    def _kept_duals(self) -> BlockDuals:
        if self._duals is None:
            raise StateLostError("this block keeps no dual variables; bind it with keep_duals=True")
        return self._duals
