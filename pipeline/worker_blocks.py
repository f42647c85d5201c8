"""What a Dask worker holds of a run: its blocks, in a registry of our own.

Dask neither sees nor moves these blocks.  Every call names the run, its epoch and what to do, so that a call
that arrives late, twice, or at a worker that was restarted is refused instead of answered with stale numbers:
the coordinator then starts a new epoch and places the blocks again.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from distributed import get_worker
from numpy.typing import NDArray
from threadpoolctl import ThreadpoolController

from pipeline.partition import CachedRows, TrainingRows
from solvers.block_stats import BlockStats, Node, TreeMerger, leaf
from solvers.blocks import Block
from solvers.errors import StateLostError
from solvers.orders import Commit, Order
from solvers.problem import Problem
from solvers.rows import RowRange, RowSource

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Span:
    """One block: its number and its training rows start..stop-1."""

    index: int
    start: int
    stop: int


@dataclass(frozen=True, eq=False)
class Placement:
    """What one worker holds from this epoch on.

    `labels` and `weights` (None: every example counts once) are those of rows spans[0].start ..
    spans[-1].stop-1.  A run that no call has touched for `lease` seconds is dropped, since its coordinator
    must have died.
    """

    run: str
    epoch: int
    spans: tuple[Span, ...]
    blocks: int
    problem: Problem
    rows: RowSource
    labels: NDArray[np.integer[Any]]
    keep_duals: bool
    cache_bytes: int
    lease: float
    weights: NDArray[np.float64] | None = None


@dataclass(eq=False)
class _Held:
    placement: Placement
    blocks: dict[int, Block]
    rows: RowSource
    touched: float = field(default_factory=time.monotonic)
    calls: int = 0


# Workers of an in-process cluster share this module, hence the worker's address in the key.
_registry: dict[tuple[str, str], _Held] = {}
_registry_lock = threading.Lock()
_watcher: threading.Timer | None = None


class ShippedRows:
    """Rows start.. of an array in memory, under the row numbers of the whole array."""

    def __init__(self, values: Any, start: int, n: int) -> None:
        self._values = values
        self._start = start
        self.shape = (n, int(values.shape[1]))
        self.dtype = values.dtype

    def __getitem__(self, rows: slice) -> Any:
        start, stop, _ = rows.indices(self.shape[0])
        return self._values[start - self._start : stop - self._start]


def place(placement: Placement) -> None:
    """Make the blocks of `placement`, with A = 0; features that are cached from before are kept."""
    key = (_here(), placement.run)
    with _registry_lock:
        held = _current(key, placement)
    rows = _cached(placement, held)
    first, weights = placement.spans[0].start, placement.weights
    blocks = {
        span.index: Block(
            span.index,
            span.start,
            span.stop,
            RowRange(rows, span.start, span.stop),
            placement.labels[span.start - first : span.stop - first],
            placement.problem,
            placement.keep_duals,
            None if weights is None else weights[span.start - first : span.stop - first],
        )
        for span in placement.spans
    }
    with _registry_lock:
        _current(key, placement)
        _registry[key] = _Held(placement, blocks, rows)
    _sweep()


def _current(key: tuple[str, str], placement: Placement) -> _Held | None:
    """Give what is held, which must not be of a later epoch: a late call may not undo it."""
    held = _registry.get(key)
    if held is not None and held.placement.epoch > placement.epoch:
        raise StateLostError(f"epoch {placement.epoch} of run {placement.run} is over on {key[0]}")
    return held


def run_order(run: str, epoch: int, order: Order) -> list[tuple[Node, BlockStats]]:
    """Run `order` on the blocks of this worker and give their sums, merged as far as they reach."""
    with using(run, epoch) as held, _blas_threads.one():
        merger = TreeMerger(held.placement.blocks)
        blocks = [held.blocks[span.index] for span in held.placement.spans]
        for block, stats in zip(blocks, _on_threads(blocks, order), strict=True):
            merger.add(leaf(block.index), stats)
        return merger.parts()


def read_duals(run: str, epoch: int, block: int, commit: Commit | None) -> NDArray[Any]:
    """Rows of A of one block, after applying `commit` where that has not been done."""
    with using(run, epoch) as held:
        return np.asarray(held.blocks[block].duals(commit))


def write_duals(run: str, epoch: int, block: int, start: int, rows: NDArray[Any]) -> None:
    """Replace rows start.. of A, all within one block."""
    with using(run, epoch) as held:
        held.blocks[block].load_duals(start, rows)


def release(run: str) -> None:
    """Forget everything of a run."""
    with _registry_lock:
        _registry.pop((_here(), run), None)


def _on_threads(blocks: list[Block], order: Order) -> Iterator[BlockStats]:
    """Results in block order; a worker of several threads works on that many blocks at the same time."""
    threads = min(int(get_worker().state.nthreads), len(blocks))
    if threads == 1:
        yield from (block.run(order) for block in blocks)
        return
    with ThreadPoolExecutor(threads, thread_name_prefix="topline-block") as pool:
        yield from pool.map(lambda block: block.run(order), blocks)


@contextmanager
def using(run: str, epoch: int) -> Iterator[_Held]:
    """Give what is held of a run, which no lease ends meanwhile; `StateLostError` for another epoch."""
    with _registry_lock:
        held = _registry.get((_here(), run))
        if held is None or held.placement.epoch != epoch:
            found = "nothing" if held is None else f"epoch {held.placement.epoch}"
            raise StateLostError(f"worker {_here()} holds {found} of run {run}, not epoch {epoch}")
        held.calls += 1
    try:
        yield held
    finally:
        with _registry_lock:
            held.calls -= 1
            held.touched = time.monotonic()


def _cached(placement: Placement, before: _Held | None) -> RowSource:
    if not isinstance(placement.rows, TrainingRows):
        return placement.rows
    start, stop = placement.spans[0].start, placement.spans[-1].stop
    rows = CachedRows(placement.rows, placement.cache_bytes, start, stop)
    if before is not None and isinstance(before.rows, CachedRows):
        rows.adopt(before.rows)
    return rows


def _here() -> str:
    return str(get_worker().address)


def _ends(held: _Held, now: float) -> float:
    """When the lease of a run is over at the earliest."""
    return (now if held.calls else held.touched) + held.placement.lease


def _sweep() -> None:
    """Drop the runs of this process whose lease is over, and look again when the next one's is."""
    global _watcher
    now = time.monotonic()
    with _registry_lock:
        for key, held in list(_registry.items()):
            if held.calls == 0 and now - held.touched > held.placement.lease:
                logger.warning(
                    "nobody asked for run %s for %.0f s: it is dropped", key[1], now - held.touched
                )
                del _registry[key]
        if _watcher is not None:
            _watcher.cancel()
            _watcher = None
        if _registry:
            wait = max(0.1, min(_ends(held, now) for held in _registry.values()) - now)
            _watcher = threading.Timer(wait, _sweep)
            _watcher.daemon = True
            _watcher.start()


class _BlasThreads:
    """Keeps BLAS to one thread while any worker of this process computes, then restores it.

    One thread makes a product independent of the machine, and workers do not fight.  The count is for
    in-process clusters, where a restore by the first to finish would unleash BLAS on the others.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._users = 0
        self._controller: ThreadpoolController | None = None
        self._limit: Any = None

    @contextmanager
    def one(self) -> Iterator[None]:
        with self._lock:
            self._users += 1
            if self._users == 1:
                self._controller = self._controller or ThreadpoolController()  # looking for BLAS takes 2 ms
                self._limit = self._controller.limit(limits=1, user_api="blas")
        try:
            yield
        finally:
            with self._lock:
                self._users -= 1
                if self._users == 0:
                    self._limit.restore_original_limits()


_blas_threads = _BlasThreads()
