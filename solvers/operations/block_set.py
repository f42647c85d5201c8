"""The blocks of one process, whoever asks them: an executor of this process, or a worker of a cluster."""

from __future__ import annotations

import time
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, TypeAlias, TypeVar

from topline.solvers.blocks.block import Block
from topline.solvers.core.answers import A, TreeMerger, leaf
from topline.solvers.core.dual_points import PendingStep
from topline.solvers.core.dual_rows import row_runs
from topline.solvers.core.problem import Problem
from topline.solvers.core.rows import RowRange, RowSource
from topline.solvers.crew import one_blas_thread
from topline.solvers.errors import StateLostError
from topline.solvers.operations.base import Operation
from topline.solvers.operations.heads import HeadBlocks
from topline.solvers.typing import Float64Array, FloatArray, IntArray

T = TypeVar("T")

#: Dual variables of the rows [start, stop): (start, stop, A of shape (stop - start, m)).
DualRows: TypeAlias = tuple[int, int, FloatArray]


@dataclass(frozen=True, eq=False)
class RunSpec:
    """What blocks are made of: a problem, and some of its rows.

    Attributes
    ----------
    problem : what is solved, or any of the problems of heads.
    X : features, by the numbers of the rows in the problem.
    y, weights : labels of the rows that are here, and how often each counts (rows,), or for heads (rows,
        columns); None for once.
    keep_duals : whether A is kept, with A = 0 at first.
    dual_bytes, kept_bytes : memory for A, and for what operations keep, of all rows that are here; None for
        what they take.
    first : number of the first row that is here.
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
        """Return the rows [start, stop) alone, with the budgets of so many rows, by default of these."""
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

    def block(self, index: int, start: int, stop: int) -> Any:
        """Return block `index` of the run, the rows [start, stop)."""
        own = self.part(start, stop)
        rows = RowRange(self.X, start, stop)
        if own.weights is not None and own.weights.ndim == 2:
            return HeadBlocks(index, start, stop, rows, own.y, self.problem, own.weights, own.dual_bytes)
        return Block(
            index, start, stop, rows, own.y, self.problem, self.keep_duals, own.weights, own.dual_bytes,
            own.kept_bytes,
        )  # fmt: skip


class BlockSet:
    """Some of the `total` blocks of a run, in their order, `at_once` of them on `threads` each.

    `pool` has a thread for each of them; None where one comes after the other.
    """

    def __init__(
        self,
        blocks: Sequence[Any] = (),
        total: int = 0,
        *,
        threads: int = 1,
        pool: ThreadPoolExecutor | None = None,
    ) -> None:
        self.blocks = list(blocks)
        self._total, self._pool = total, pool
        self.threads = threads

    def run(
        self, operation: Operation[A], worked: Callable[[int, float], None] = lambda _rows, _began: None
    ) -> TreeMerger[A]:
        """Return the answers of the blocks, merged as far as they reach.

        `worked` hears of rows that were begun at a time of `time.perf_counter` and are done.  BLAS keeps to
        one thread, so that sums do not depend on the machine and workers do not fight.
        """

        def run_one(block: Any) -> A:
            began = time.perf_counter()
            answer: A = block.run(operation, self.threads)
            worked(block.stop - block.start, began)
            return answer

        merger: TreeMerger[A] = TreeMerger(self._total)
        with one_blas_thread():
            for block, answer in zip(self.blocks, self._each(run_one), strict=True):
                merger.add(leaf(block.index), answer)
        return merger

    def duals(self, pending_step: PendingStep | None = None) -> Iterator[DualRows]:
        """Yield A block by block, a run of rows after the other, after applying `pending_step` once."""
        return _dual_rows(self.blocks, pending_step)

    def load_duals(self, duals: Iterable[DualRows]) -> None:
        """Replace A by parts that are in row order and cover every row."""
        spans = [(block.start, block.stop) for block in self.blocks]
        for place, start, rows in parts_of(duals, spans):
            self.blocks[place].load_duals(start, rows)

    def map_duals(
        self,
        visit: Callable[[Iterator[DualRows]], Sequence[T]],
        pending_step: PendingStep | None,
        pool: ThreadPoolExecutor,
        threads: int,
    ) -> list[T]:
        """Give the dual rows to `visit`, a run of blocks to each thread, and join the answers."""
        threads = max(1, min(threads, len(self.blocks)))
        cuts = [len(self.blocks) * i // threads for i in range(threads + 1)]
        parts = [self.blocks[a:b] for a, b in pairwise(cuts)]
        futures = [pool.submit(visit, _dual_rows(part, pending_step)) for part in parts]
        return [item for answer in _results_of(futures) for item in answer]

    def _each(self, run_one: Callable[[Any], T]) -> Iterator[T]:
        if self._pool is None:
            return map(run_one, self.blocks)
        return _results_of([self._pool.submit(run_one, block) for block in self.blocks])


def parts_of(
    duals: Iterable[DualRows], spans: Sequence[tuple[int, int]]
) -> Iterator[tuple[int, int, FloatArray]]:
    """Yield which of some spans of rows, in their order, has which part: its place, first row and rows of A.

    Raises StateLostError where they are not in row order or do not cover every row.
    """
    reached, stops = 0, [stop for _, stop in spans]
    for start, stop, rows in duals:
        if start != reached or rows.shape[0] != stop - start:
            raise StateLostError(f"the stored duals jump from row {reached} to rows {start}:{stop}")
        for place in range(bisect_right(stops, start), min(bisect_left(stops, stop) + 1, len(stops))):
            low, high = max(start, spans[place][0]), min(stop, stops[place])
            yield place, low, rows[low - start : high - start]
        reached = stop
    if stops and reached != stops[-1]:
        raise StateLostError(f"the stored duals end at row {reached} of {stops[-1]}")


def _dual_rows(blocks: Iterable[Any], pending_step: PendingStep | None) -> Iterator[DualRows]:
    for block in blocks:
        for start, stop in row_runs(block.start, block.stop, block.problem.m):
            yield start, stop, block.dual_rows(pending_step, start, stop)


def _results_of(futures: Sequence[Future[T]]) -> Iterator[T]:
    """Yield the results in order; after an error or Ctrl-C nothing continues behind the caller's back."""
    try:
        for future in futures:
            yield future.result()
    finally:
        for future in futures:
            future.cancel()
        wait(futures)
