"""Work on one block of examples: a request in, a small sum out."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from topline.solvers.blocks.ascent.rounds import BlockAscent
from topline.solvers.blocks.ascent.rows import RowNorms
from topline.solvers.blocks.ascent.thread_choice import Helpers
from topline.solvers.blocks.column_atoms import BlockColumnAtoms
from topline.solvers.blocks.duals import BlockDuals
from topline.solvers.blocks.kernel.block import BlockKernel
from topline.solvers.blocks.second_order import BlockNewton
from topline.solvers.core.answers import BlockStats
from topline.solvers.core.dual_points import PendingStep
from topline.solvers.core.dual_rows import ByteBudget, row_runs
from topline.solvers.core.kernel_rows import Mark
from topline.solvers.core.problem import Problem
from topline.solvers.core.read_ahead import stored_slabs
from topline.solvers.core.requests import AscentRequest, ColumnRequest, ProximalRequest, Request
from topline.solvers.core.risks import SelectedRows
from topline.solvers.core.rows import Rows, RowSource, compute_dtype, slab_bounds
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
        self.y = np.ascontiguousarray(y, dtype=np.int32)
        self._weights = (
            np.ones(stop - start) if weights is None else np.ascontiguousarray(weights, np.float64)
        )
        self.dtype = compute_dtype(X.dtype)
        self.tiles = TileReader(X, self.y, self._weights, start, problem.m)
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
            cuts = [0, *(stop for _, _, stop in self.tiles.bounds())]
            self._duals = BlockDuals(problem, self.y, self._weights, self.dtype, cuts, dual_bytes)

    def run(self, request: Request, threads: int = 1) -> BlockStats:
        """Carry out a request that is no `Operation` yet."""
        match request:
            case AscentRequest() | ColumnRequest():
                return self._find_change(request, threads)
            case ProximalRequest():
                return self._find_curvature(request, self.crew(threads))
            case _:
                return self._kernelised().run(request)

    def read_selected(self, selected: SelectedRows) -> Iterator[tuple[SelectedRows, Rows]]:
        """Yield some selected rows of the block after others, at most a tile of them, with their features."""
        most = self.tiles.rows
        slabs = [
            (start, stop) for start, stop in slab_bounds(self._X, most) if len(selected.between(start, stop))
        ]
        for start, stop, slab in stored_slabs(self._X, slabs):
            here = selected.between(start, stop)
            for first in range(0, len(here), most):
                places = slice(first, first + most)
                part = SelectedRows(here.rows[places] + start, here.weights[places])
                yield part, slab[here.rows[places]]

    @property
    def duals(self) -> BlockDuals:
        """The dual variables; StateLostError where none are kept."""
        if self._duals is None:
            raise StateLostError("this block keeps no dual variables; bind it with keep_duals=True")
        return self._duals

    def duals_if_kept(self) -> BlockDuals | None:
        """Return the dual variables, None where none are kept."""
        return self._duals

    def lifting_duals(self) -> BlockDuals | None:
        """Return the same; smoothing cannot do without."""
        return self.duals if self.problem.smoothing > 0 else self._duals

    def duals_after(self, pending_step: PendingStep | None) -> BlockDuals:
        """Return the dual variables with `pending_step` applied to every row."""
        self.duals.apply_step(pending_step)
        return self.duals

    def crew(self, threads: int) -> Crew:
        """Return so many threads that work on a tile together."""
        return Crew(threads, self._helpers.pool) if threads > 1 else ALONE

    def dual_rows(
        self, pending_step: PendingStep | None = None, start: int | None = None, stop: int | None = None
    ) -> FloatArray:
        """Return the rows [start, stop) of A, by their numbers in the problem, after the pending step.

        All rows by default; `topline.solvers.core.dual_rows.row_runs` says how many at a time are no burden.
        """
        first = 0 if start is None else start - self.start
        last = (self.stop if stop is None else stop) - self.start
        return self.duals_after(pending_step).counted(first, last)

    def load_duals(self, start: int, rows: FloatArray) -> None:
        """Replace A from row `start` of the problem on by `rows` (r, m)."""
        self.duals.load_counted(start - self.start, rows)
        self._column_atoms = self._newton = None
        self._kernel, self._loaded = None, True

    def finish_step(self, pending_step: PendingStep | None) -> None:
        """Take A for what it is after a step: applied where its change waits, however far requests had come.

        Every row is feasible before, after and between rounds, so that A is a state to continue from.
        """
        self.duals.finish_step(pending_step)
        self._column_atoms = self._newton = None

    def take_duals(self, other: Block) -> None:
        """Take the dual variables of a block of the same rows, which is used no more."""
        self._duals, self._loaded = other.duals, other._loaded
        self._column_atoms = self._newton = self._kernel = None
        if other._kernel is not None:
            self._kernelised().take_scores(other._kernel)

    def open_duals(self) -> None:
        """Keep A as an array from now on, whatever its budget."""
        self.duals.open()

    def pack_duals(self) -> None:
        """Keep A packed from now on, under its budget."""
        self.duals.pack()

    def array_bytes(self, *, wide: bool = False) -> int:
        """Return what A and its change take as arrays, `wide` if they are float64 soon."""
        return self.duals.array_bytes(wide=wide)

    def copy_duals(self, source: Block, share: float, pending_step: PendingStep | None) -> None:
        """Take `share` times the dual variables of a block of the same rows and weights, after its step."""
        theirs, mine = source.duals_after(pending_step).A, self.duals
        for start, stop in row_runs(0, *theirs.shape):
            rows = theirs.read(start, stop)
            mine.load(start, rows if share == 1.0 else rows * rows.dtype.type(share))
        self._column_atoms = self._newton = self._kernel = None
        self._loaded = True

    def clear_duals(self) -> None:
        """Give back what A takes of its budget; the block is used no more."""
        self.duals.clear()

    def _find_change(self, request: AscentRequest | ColumnRequest, threads: int) -> BlockStats:
        """Find a change of A row by row; it waits for its step."""
        duals = self.duals_after(request.pending_step)
        if request.exact or isinstance(request, ColumnRequest):
            duals.widen()
        rows = self.problem, self._X, self.y, self._weights, self.index, self.dtype
        match request:
            case AscentRequest():
                self._ascent = self._ascent or BlockAscent(*rows, self._helpers, self._norms)
                stats = self._ascent.run(request, duals.A, duals.change(), threads)
            case ColumnRequest():
                A, change = duals.whole("Frank-Wolfe over the columns")
                self._column_atoms = self._column_atoms or BlockColumnAtoms(
                    self.problem, self.tiles, self.y, self._weights, A, self.dtype, request.pending_step
                )
                stats = self._column_atoms.run(request, A, change)
        duals.changed(request.round)
        return stats

    def _find_curvature(self, request: ProximalRequest, crew: Crew) -> BlockStats:
        """Answer a request of second order, after applying the pending step to every row."""
        if request.sigma > 0:
            duals = self.duals_after(request.pending_step)
            if request.exact:
                duals.widen()
        rows = self.stop - self.start
        self._newton = self._newton or BlockNewton(
            self.problem, self.tiles, rows, self._duals, self.dtype, self._kept_bytes
        )
        return self._newton.run(request, crew)

    def _kernelised(self) -> BlockKernel:
        """Return the scores of this block, which begin at 0 with A."""
        if self._kernel is None:
            mark = None if self._loaded else Mark()
            place = self.index, self.start, self.stop
            self._kernel = BlockKernel(
                self.problem, self.tiles, self.duals, *place, self.dtype, mark, self._kept_bytes
            )
        return self._kernel
