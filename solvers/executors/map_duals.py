"""Work on dual rows where they are held: nobody needs all of them in one place."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from itertools import pairwise
from typing import TYPE_CHECKING, Protocol, TypeVar, runtime_checkable

from topline.solvers.blocks.block import Block
from topline.solvers.core.dual_rows import row_runs
from topline.solvers.core.requests import PendingStep

if TYPE_CHECKING:
    from topline.solvers.executors.local import DualRows

T = TypeVar("T")


@runtime_checkable
class StoredDuals(Protocol):
    """Dual rows that lie where every worker can read its own: a value that pickles."""

    def __iter__(self) -> Iterator[DualRows]:
        """Yield all rows, in their order."""
        ...

    def between(self, start: int, stop: int) -> Iterator[DualRows]:
        """Yield the rows [start, stop), in their order."""
        ...


def dual_rows(blocks: Iterable[Block], pending_step: PendingStep | None) -> Iterator[DualRows]:
    """Yield A of some blocks, after applying `pending_step` where that has not been done."""
    for block in blocks:
        for start, stop in row_runs(block.start, block.stop, block.problem.m):
            yield start, stop, block.duals(pending_step, start, stop)


def visit_on_threads(
    pool: ThreadPoolExecutor,
    threads: int,
    blocks: Sequence[Block],
    visit: Callable[[Iterator[DualRows]], Sequence[T]],
    pending_step: PendingStep | None,
) -> list[T]:
    """Give the dual rows of the blocks to `visit`, a run of blocks to each thread, and join the answers."""
    threads = max(1, min(threads, len(blocks)))
    cuts = [len(blocks) * i // threads for i in range(threads + 1)]
    futures = [pool.submit(visit, dual_rows(blocks[a:b], pending_step)) for a, b in pairwise(cuts)]
    try:
        return [item for future in futures for item in future.result()]
    finally:
        # After an error or Ctrl-C nothing may go on behind the caller's back.
        for future in futures:
            future.cancel()
        wait(futures)
