"""Dual rows between the blocks of a worker and the store; they never pass the coordinator."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

from distributed import get_worker

from topline.pipeline.cluster.worker_blocks import using
from topline.solvers.core.requests import PendingStep
from topline.solvers.executors import DualRows, StoredDuals, T, map_duals_on_threads


def map_duals(
    run: str, epoch: int, visit: Callable[[Iterator[DualRows]], Sequence[T]], pending_step: PendingStep | None
) -> list[T]:
    """Give the dual rows of this worker to `visit`, on each of its threads a share."""
    with using(run, epoch) as held:
        blocks = [held.blocks[span.index] for span in held.placement.spans]
        threads = int(get_worker().state.nthreads)
        with ThreadPoolExecutor(threads, thread_name_prefix="topline-duals") as pool:
            return map_duals_on_threads(pool, threads, blocks, visit, pending_step)


def load_own_duals(run: str, epoch: int, stored: StoredDuals) -> None:
    """Replace A of every block of this worker by what is stored."""
    with using(run, epoch) as held:
        for block in held.blocks.values():
            for start, _, rows in stored.between(block.start, block.stop):
                block.load_duals(start, rows)
