"""Work on one block of examples: a request in, a small sum out."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Protocol, TypeVar

import numpy as np

from topline.solvers.blocks.ascent.rows import RowNorms
from topline.solvers.blocks.duals import BlockDuals
from topline.solvers.core.answers import Answer
from topline.solvers.core.dual_points import PendingStep
from topline.solvers.core.dual_rows import ByteBudget, row_runs
from topline.solvers.core.problem import Problem
from topline.solvers.core.read_ahead import stored_slabs
from topline.solvers.core.risks import SelectedRows
from topline.solvers.core.rows import Rows, RowSource, compute_dtype, slab_bounds
from topline.solvers.core.tiles import TileReader
from topline.solvers.crew import ALONE, Crew, Helpers
from topline.solvers.errors import StateLostError
from topline.solvers.typing import Float64Array, FloatArray, IntArray

A_co = TypeVar("A_co", bound=Answer, covariant=True)


class Kept(Protocol):
    """Values that operations keep with a block from one answer to the next; they only save work.

    They are valid for a "round" of the operation's own, while nothing else moves A; as long as the "duals"
    are the same, or moved by steps; or as long as the "rows" are.
    """

    lasting: ClassVar[str]


class Asked(Protocol[A_co]):
    """A request to a block: `topline.solvers.operations`."""

    def answer(self, block: Block, crew: Crew, /) -> A_co:
        """Return the answer of the block."""
        ...


K = TypeVar("K", bound=Kept)


@dataclass(frozen=True, eq=False)
class RunSpec:
    """The specification of blocks: a problem, and some of its rows.

    Attributes
    ----------
    problem : the problem, or any of the problems of heads.
    X : features, by the numbers of the rows in the problem.
    y, weights : labels of the local rows, and how often each counts (rows,), or for heads (rows, columns);
        None for once.
    keep_duals : whether A is kept, initially 0.
    dual_bytes, kept_bytes : memory for A, and for values kept by operations, of all local rows; None for the
        default.
    first : number of the first local row.
    """

    problem: Problem
    X: RowSource
    y: IntArray
    weights: Float64Array | None = None
    keep_duals: bool = False
    dual_bytes: int | None = None
    kept_bytes: int | None = None
    first: int = 0

    def part(self, start: int, stop: int, budgeted: int | None = None) -> RunSpec:
        """Return the rows [start, stop) alone, with the budgets of `budgeted` rows, by default their own."""
        rows, all_rows = slice(start - self.first, stop - self.first), max(len(self.y), 1)
        share = stop - start if budgeted is None else budgeted
        return replace(
            self,
            y=self.y[rows],
            weights=None if self.weights is None else self.weights[rows],
            dual_bytes=None if self.dual_bytes is None else self.dual_bytes * share // all_rows,
            kept_bytes=None if self.kept_bytes is None else self.kept_bytes * share // all_rows,
            first=start,
        )


class Block:
    """A contiguous run of examples, with the dual variables of one head if they are kept.

    Parameters
    ----------
    spec : its problem and its rows, the first of which has the number `first`.
    index : place of the block among all blocks, from 0.
    X : its features, a RowSource of as many rows; by default those of the specification.
    budget : shared memory for A; None for the block's own.  Beyond the budget, A and the change that waits
        for its step are packed, and beyond that in a temporary file; the numbers are the same.
    helpers, norms : threads and row norms shared by several blocks of the same rows; None for the block's
        own.
    """

    def __init__(
        self,
        spec: RunSpec,
        index: int = 0,
        X: RowSource | None = None,
        budget: ByteBudget | None = None,
        helpers: Helpers | None = None,
        norms: RowNorms | None = None,
    ) -> None:
        X = spec.X if X is None else X
        self.index, self.start, self.stop = index, spec.first, spec.first + len(spec.y)
        self.problem, self.X, rows = spec.problem, X, len(spec.y)
        self.y = np.ascontiguousarray(spec.y, dtype=np.int32)
        self.weights = (
            np.ones(rows) if spec.weights is None else np.ascontiguousarray(spec.weights, np.float64)
        )
        self.dtype = compute_dtype(X.dtype)
        self.tiles = TileReader(X, self.y, self.weights, self.start, self.problem.m)
        self.helpers, self.norms = helpers or Helpers(), norms
        self._kept: dict[type[Kept], Any] = {}
        self.kept_bytes = spec.kept_bytes
        #: Whether A has been replaced since its start at 0.
        self.loaded = False
        self._duals: BlockDuals | None = None
        if spec.keep_duals:
            cuts, room = [0, *(stop for _, _, stop in self.tiles.bounds())], budget or spec.dual_bytes
            self._duals = BlockDuals(self.problem, self.y, self.weights, self.dtype, cuts, room)

    def run(self, operation: Asked[A_co], threads: int = 1) -> A_co:
        """Answer an operation on `threads` threads; repeating one changes nothing further."""
        # Overflow shows in the sums, which the coordinator checks.
        with np.errstate(over="ignore", invalid="ignore"):
            return operation.answer(self, self.crew(threads))

    def recall(self, kind: type[K], make: Callable[[], K]) -> K:
        """Return the values that operations of a kind keep with the block; `make` creates missing ones."""
        if kind not in self._kept:
            self._kept[kind] = make()
        kept: K = self._kept[kind]
        return kept

    def read_selected(self, selected: SelectedRows) -> Iterator[tuple[SelectedRows, Rows]]:
        """Yield selected rows of the block in batches of at most a tile, with their features."""
        most = self.tiles.rows
        slabs = [
            (start, stop) for start, stop in slab_bounds(self.X, most) if len(selected.between(start, stop))
        ]
        for start, stop, slab in stored_slabs(self.X, slabs):
            here = selected.between(start, stop)
            for first in range(0, len(here), most):
                places = slice(first, first + most)
                part = SelectedRows(here.rows[places] + start, here.weights[places])
                yield part, slab[here.rows[places]]

    @property
    def duals(self) -> BlockDuals:
        """The dual variables; raises StateLostError if none are kept."""
        if self._duals is None:
            raise StateLostError("this block keeps no dual variables; bind it with keep_duals=True")
        return self._duals

    def duals_if_kept(self) -> BlockDuals | None:
        """Return the dual variables, None if none are kept."""
        return self._duals

    def lifting_duals(self) -> BlockDuals | None:
        """Return the dual variables or None; with smoothing they are required."""
        return self.duals if self.problem.smoothing > 0 else self._duals

    def duals_after(self, pending_step: PendingStep | None) -> BlockDuals:
        """Return the dual variables with `pending_step` applied to every row."""
        self.duals.apply_step(pending_step)
        return self.duals

    def crew(self, threads: int) -> Crew:
        """Return a crew of `threads` threads that share the work on a tile."""
        return Crew(threads, self.helpers.pool) if threads > 1 else ALONE

    def dual_rows(
        self, pending_step: PendingStep | None = None, start: int | None = None, stop: int | None = None
    ) -> FloatArray:
        """Return the rows [start, stop) of A, by their numbers in the problem, after the pending step.

        All rows by default; `topline.solvers.core.dual_rows.row_runs` gives runs of moderate size.
        """
        first = 0 if start is None else start - self.start
        last = (self.stop if stop is None else stop) - self.start
        return self.duals_after(pending_step).counted(first, last)

    def load_duals(self, start: int, rows: FloatArray) -> None:
        """Replace A from row `start` of the problem on by `rows` (r, m)."""
        self.duals.load_counted(start - self.start, rows)
        self._forget({"rows"})
        self.loaded = True

    def finish_step(self, pending_step: PendingStep | None) -> None:
        """Adopt A after a step, applied where its change waits, however far requests had come.

        Every row is feasible before, after and between rounds, so a run can continue from this A.
        """
        self.duals.finish_step(pending_step)
        self._forget({"rows", "duals"})

    def take_duals(self, other: Block) -> None:
        """Adopt the dual variables of a block of the same rows, which must not be used again."""
        self._duals, self.loaded = other.duals, other.loaded
        self._forget({"rows"})
        self._kept |= {kind: kept for kind, kept in other._kept.items() if kept.lasting == "duals"}

    def copy_duals(self, source: Block, share: float, pending_step: PendingStep | None) -> None:
        """Copy `share` times the dual variables of a block of the same rows and weights, after its step."""
        theirs, mine = source.duals_after(pending_step).A, self.duals
        for start, stop in row_runs(0, *theirs.shape):
            rows = theirs.read(start, stop)
            mine.load(start, rows if share == 1.0 else rows * rows.dtype.type(share))
        self._forget({"rows"})
        self.loaded = True

    def _forget(self, lasting: Collection[str]) -> None:
        """Drop kept values except those with the given lifetimes."""
        self._kept = {kind: kept for kind, kept in self._kept.items() if kept.lasting in lasting}
