"""What a Dask worker holds of a run: its blocks, in a registry of our own.

Dask neither sees nor moves these blocks.  Every call names the run, its epoch and what to do, so that a call
that arrives late, twice, or at a worker that was restarted is refused instead of answered with stale numbers:
the coordinator then starts a new epoch and places the blocks again, of which a worker keeps what it has.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from distributed import get_worker
from numpy.typing import NDArray

from topline.pipeline.cluster.messages import Answer, Placement
from topline.pipeline.rows.partition import CachedRows, TrainingRows
from topline.solvers.blas_threads import one_blas_thread
from topline.solvers.blocks.block import Block
from topline.solvers.core.block_stats import BlockStats, TreeMerger, leaf
from topline.solvers.core.requests import PendingStep, Request
from topline.solvers.core.rows import RowRange, RowSource
from topline.solvers.core.traffic import resident_bytes
from topline.solvers.errors import StateLostError
from topline.solvers.executors import StoredDuals

logger = logging.getLogger(__name__)


@dataclass(eq=False)
class _Held:
    placement: Placement
    blocks: dict[int, Block]
    rows: RowSource
    # Of all epochs of the run: a request of the last one may still be at work when the next one begins.
    lock: threading.Lock = field(default_factory=threading.Lock)
    touched: float = field(default_factory=time.monotonic)
    calls: int = 0


# Workers of an in-process cluster share this module, hence the worker's address in the key.
_registry: dict[tuple[str, str], _Held] = {}
_registry_lock = threading.Lock()
_watcher: threading.Timer | None = None


def place(placement: Placement) -> list[int]:
    """Make the blocks of `placement` and give the numbers of those whose dual variables were kept.

    Those of blocks that go elsewhere are kept as well, until `seal`.  Features in memory stay there.
    """
    key = (_here(), placement.run)
    with _registry_lock:
        before = _current(key, placement)
    with nullcontext() if before is None else before.lock:
        rows = _cached(placement, before)
        blocks = _made(placement, rows)
        held = {} if before is None else before.blocks
        kept = {index: block for index, block in held.items() if index in placement.keeps}
        for index, block in kept.items():
            block.finish_step(placement.pending_step)
            if index in blocks:
                blocks[index].take_duals(block)
            else:
                blocks[index] = block
        with _registry_lock:
            _current(key, placement)
            lock = threading.Lock() if before is None else before.lock
            _registry[key] = _Held(placement, blocks, rows, lock)
    _sweep()
    return sorted(kept)


def _made(placement: Placement, rows: RowSource) -> dict[int, Block]:
    """Give the blocks of a placement, with A = 0."""
    spans, weights, dual_bytes = placement.spans, placement.weights, placement.dual_bytes
    first = spans[0].start if spans else 0
    total = spans[-1].stop - first if spans else 0
    return {
        span.index: Block(
            span.index,
            span.start,
            span.stop,
            RowRange(rows, span.start, span.stop),
            placement.labels[span.start - first : span.stop - first],
            placement.problem,
            placement.keep_duals,
            None if weights is None else weights[span.start - first : span.stop - first],
            None if dual_bytes is None else dual_bytes * (span.stop - span.start) // total,
        )
        for span in spans
    }


def seal(run: str, epoch: int, pending_step: PendingStep | None) -> None:
    """Let go of blocks that are elsewhere by now; the others count as having `pending_step`."""
    with using(run, epoch) as held:
        own = {span.index for span in held.placement.spans}
        for index in held.blocks.keys() - own:
            del held.blocks[index]
        for block in held.blocks.values():
            block.finish_step(pending_step)


def _current(key: tuple[str, str], placement: Placement) -> _Held | None:
    """Give what is held, which must not be of a later epoch: a late call may not undo it."""
    held = _registry.get(key)
    if held is not None and held.placement.epoch > placement.epoch:
        raise StateLostError(f"epoch {placement.epoch} of run {placement.run} is over on {key[0]}")
    return held


def run_request(run: str, epoch: int, request: Request) -> Answer:
    """Run `request` on the blocks of this worker and give their sums."""
    with using(run, epoch) as held, one_blas_thread():
        began = time.perf_counter()
        merger = TreeMerger(held.placement.blocks)
        blocks = [held.blocks[span.index] for span in held.placement.spans]
        for block, stats in zip(blocks, _on_threads(blocks, request), strict=True):
            merger.add(leaf(block.index), stats)
        seconds = time.perf_counter() - began
        read = int(getattr(held.rows, "bytes_read", 0))
        # A worker within the coordinator's process has no memory of its own.
        memory = 0 if _here().startswith("inproc://") else resident_bytes()
        return Answer(merger.parts(), seconds, memory, read)


def read_duals(
    run: str, epoch: int, block: int, start: int, stop: int, pending_step: PendingStep | None
) -> NDArray[Any]:
    """Rows start..stop-1 of A, all within one block, after the pending step where that is not applied yet."""
    with using(run, epoch) as held:
        return np.asarray(held.blocks[block].duals(pending_step, start, stop))


def write_duals(run: str, epoch: int, block: int, start: int, rows: NDArray[Any]) -> None:
    """Replace rows start.. of A, all within one block."""
    with using(run, epoch) as held:
        held.blocks[block].load_duals(start, rows)


def restore_duals(run: str, epoch: int, blocks: Sequence[int], stored: StoredDuals) -> None:
    """Replace A of some blocks by what is stored, which this worker reads itself."""
    with using(run, epoch) as held:
        for block in (held.blocks[index] for index in blocks):
            for start, _, rows in stored.between(block.start, block.stop):
                block.load_duals(start, rows)


def renew(run: str) -> None:
    """Renew the lease of a run."""
    with _registry_lock:
        held = _registry.get((_here(), run))
        if held is not None:
            held.touched = time.monotonic()


def release(run: str) -> None:
    """Forget everything of a run."""
    with _registry_lock:
        _registry.pop((_here(), run), None)


def forget(run: str, dask_worker: Any) -> None:
    """Do as `release` does, beside the tasks of a worker that takes none."""
    with _registry_lock:
        _registry.pop((str(dask_worker.address), run), None)


def _on_threads(blocks: list[Block], request: Request) -> Iterator[BlockStats]:
    """Results in block order; a worker of several threads works on that many blocks at the same time."""
    threads = min(int(get_worker().state.nthreads), len(blocks))
    if threads == 1:
        yield from (block.run(request) for block in blocks)
        return
    with ThreadPoolExecutor(threads, thread_name_prefix="topline-block") as pool:
        yield from pool.map(lambda block: block.run(request), blocks)


@contextmanager
def using(run: str, epoch: int) -> Iterator[_Held]:
    """Give what is held of a run, to one call at a time, and no lease ends meanwhile.

    `StateLostError` for another epoch.
    """
    with _registry_lock:
        held = _of_epoch(run, epoch)
        held.calls += 1
    try:
        with held.lock:
            with _registry_lock:
                _of_epoch(run, epoch)
            yield held
    finally:
        with _registry_lock:
            held.calls -= 1
            held.touched = time.monotonic()


def _of_epoch(run: str, epoch: int) -> _Held:
    held = _registry.get((_here(), run))
    if held is None or held.placement.epoch != epoch:
        found = "nothing" if held is None else f"epoch {held.placement.epoch}"
        raise StateLostError(f"worker {_here()} holds {found} of run {run}, not epoch {epoch}")
    return held


def _cached(placement: Placement, before: _Held | None) -> RowSource:
    if not isinstance(placement.rows, TrainingRows):
        return placement.rows
    spans = placement.spans
    start, stop = (spans[0].start, spans[-1].stop) if spans else (0, 0)
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
