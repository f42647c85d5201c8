"""The blocks of one process, whoever asks them: an executor of this process, or a worker of a cluster."""

from __future__ import annotations

import time
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
from topline.solvers.operations.base import Operation
from topline.solvers.operations.heads import HeadBlocks, HeadsProblem
from topline.solvers.typing import Float64Array, FloatArray, IntArray

T = TypeVar("T")

#: Dual variables of the rows [start, stop): (start, stop, A of shape (stop - start, m)).
DualRows: TypeAlias = tuple[int, int, FloatArray]


@dataclass(frozen=True, eq=False)
class RunSpec:
    """What blocks are made of: a problem, and some of its rows.

    Attributes
    ----------
    problem : what is solved, or what the heads of many problems have in common.
    X : features, by the numbers of the rows in the problem.
    y, weights : labels of the rows that are here, and how often each counts (rows,), or for heads (rows,
        columns); None for once.
    keep_duals : whether A is kept, with A = 0 at first.
    dual_bytes, kept_bytes : memory for A, and for what operations keep, of all rows that are here; None for
        what they take.
    first : number of the first row that is here.
    """

    problem: Problem | HeadsProblem
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
        if isinstance(self.problem, HeadsProblem):
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
