"""What a Dask worker holds of a run: its blocks, in a registry of our own, and the calls that use them.

Dask neither sees nor moves these blocks.  Every call names its run and epoch, so that one that is late,
repeated, or sent to a restarted worker is refused instead of answered with stale numbers; the coordinator
then begins a new epoch and places the blocks again, and workers keep those that they have.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any

from numpy.typing import NDArray

from topline.pipeline.cluster.calls import WorkersLost, this_worker
from topline.pipeline.cluster.messages import Placement, Sums, WorkerCost
from topline.pipeline.cluster.sent_weights import SentOperation, WeightsReceiver
from topline.pipeline.cluster.shared_arrays import ArrayFile, SharedArray, taken
from topline.pipeline.rows import CachedRows, TrainingRows
from topline.solvers.core.dual_points import PendingStep
from topline.solvers.core.rows import RowSource
from topline.solvers.errors import StateLostError
from topline.solvers.executors import DualRows, StoredDuals, T, resident_bytes
from topline.solvers.operations import BlockSet, RowBlock
from topline.solvers.typing import FloatArray

logger = logging.getLogger(__name__)


@dataclass(eq=False)
class Held:
    """The blocks of one run on one worker; `touched` is when a call last ended, by the registry's clock."""

    placement: Placement
    blocks: dict[int, RowBlock]
    rows: RowSource
    # Shared by all epochs of the run: a request of the last one may still run when the next one begins.
    lock: threading.Lock
    touched: float
    calls: int = 0
    weights: WeightsReceiver = field(default_factory=WeightsReceiver)
    # Where the coordinator and workers that merge sums read large answers.
    memory: ArrayFile = field(default_factory=ArrayFile)


class BlockRegistry:
    """What the workers of this process hold, by worker address and run.

    A run without a call for the length of its lease, in seconds of `clock`, is dropped.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        # Workers of an in-process cluster share this registry, hence the address in the key.
        self._held: dict[tuple[str, str], Held] = {}
        self._lock = threading.Lock()
        self._timer: threading.Timer | None = None

    def held(self, worker: str) -> dict[str, Held]:
        """Return what a worker holds, by run."""
        with self._lock:
            return {run: held for (address, run), held in self._held.items() if address == worker}

    def before(self, worker: str, placement: Placement) -> Held | None:
        """Return what is held of a run; raise `StateLostError` if a later epoch has started."""
        with self._lock:
            return self._before(worker, placement)

    def put(self, worker: str, placement: Placement, blocks: dict[int, RowBlock], rows: RowSource) -> None:
        """Hold the blocks of a placement; raise `StateLostError` if a later epoch has started."""
        with self._lock:
            before = self._before(worker, placement)
            lock = threading.Lock() if before is None else before.lock
            self._held[worker, placement.run] = Held(placement, blocks, rows, lock, self._clock())
        self.sweep()

    def _before(self, worker: str, placement: Placement) -> Held | None:
        held = self._held.get((worker, placement.run))
        if held is not None and held.placement.epoch > placement.epoch:
            raise StateLostError(f"epoch {placement.epoch} of run {placement.run} is over on {worker}")
        return held

    @contextmanager
    def using(self, worker: str, run: str, epoch: int) -> Iterator[Held]:
        """Yield what is held of a run, to one call at a time, without expiry of the lease.

        Raises `StateLostError` for another epoch.
        """
        with self._lock:
            held = self._of_epoch(worker, run, epoch)
            held.calls += 1
        try:
            with held.lock:
                with self._lock:
                    self._of_epoch(worker, run, epoch)
                yield held
        finally:
            with self._lock:
                held.calls -= 1
                held.touched = self._clock()

    def _of_epoch(self, worker: str, run: str, epoch: int) -> Held:
        held = self._held.get((worker, run))
        if held is None or held.placement.epoch != epoch:
            found = "nothing" if held is None else f"epoch {held.placement.epoch}"
            raise StateLostError(f"worker {worker} holds {found} of run {run}, not epoch {epoch}")
        return held

    def renew(self, worker: str, run: str) -> None:
        """Renew the lease of a run."""
        with self._lock:
            held = self._held.get((worker, run))
            if held is not None:
                held.touched = self._clock()

    def forget(self, worker: str, run: str, epoch: int) -> None:
        """Drop a run, unless a later epoch has begun."""
        with self._lock:
            held = self._held.get((worker, run))
            if held is not None and held.placement.epoch <= epoch:
                del self._held[worker, run]

    def sweep(self) -> None:
        """Drop the runs whose lease has expired, and schedule the next check."""
        now = self._clock()
        with self._lock:
            for key, held in list(self._held.items()):
                unused = now - held.touched
                if held.calls == 0 and unused > held.placement.lease:
                    logger.warning("nobody asked for run %s for %.0f s: it is dropped", key[1], unused)
                    del self._held[key]
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None
            if self._held:
                ends = [
                    (now if held.calls else held.touched) + held.placement.lease
                    for held in self._held.values()
                ]
                self._timer = threading.Timer(max(0.1, min(ends) - now), self.sweep)
                self._timer.daemon = True
                self._timer.start()


registry = BlockRegistry()


def place(placement: Placement) -> list[int]:
    """Make the blocks of `placement` and return the numbers of those whose dual variables were kept.

    Those of blocks that move away are kept too, until `seal`; features in memory stay.
    """
    before = registry.before(_here(), placement)
    with nullcontext() if before is None else before.lock:
        rows = _cached(placement, before)
        spec = replace(placement.spec, X=rows)
        blocks = {span.index: RowBlock(spec, span.index, span.start, span.stop) for span in placement.spans}
        held = {} if before is None else before.blocks
        kept = {index: block for index, block in held.items() if index in placement.keeps}
        for index, block in kept.items():
            block.finish_step(placement.pending_step)
            if index in blocks:
                blocks[index].take_duals(block)
            else:
                blocks[index] = block
        registry.put(_here(), placement, blocks, rows)
    return sorted(kept)


def seal(run: str, epoch: int, pending_step: PendingStep | None) -> None:
    """Release blocks that have moved away; the others count as having `pending_step` applied."""
    with using(run, epoch) as held:
        own = {span.index for span in held.placement.spans}
        for index in held.blocks.keys() - own:
            del held.blocks[index]
        for block in held.blocks.values():
            block.finish_step(pending_step)


def run_request(run: str, epoch: int, message: SentOperation) -> Sums:
    """Run a request on the blocks of this worker and return their sums."""
    with using(run, epoch) as held, _block_set(held) as blocks:
        began = time.perf_counter()
        merger = blocks.merged(held.weights.received(message))
        seconds = time.perf_counter() - began
        read = int(getattr(held.rows, "bytes_read", 0))
        # A worker inside the coordinator's process has no memory of its own.
        memory = 0 if _here().startswith("inproc://") else resident_bytes()
        cost = WorkerCost(seconds, memory, read)
        sums = Sums(held.placement.blocks, merger.parts(), {_here(): cost})
        # While no other call uses the blocks: the next one writes to the same memory.
        return sums.shared(held.memory) if message.shares else sums


def joined(first: Sums, *others: Sums) -> Sums:
    """Return the merged sums of some workers; raise WorkersLost for one whose products cannot be read."""
    total = Sums(first.blocks, [], {})
    for sums in (first, *others):
        try:
            total = total.joined(sums)
        except StateLostError as error:
            # Only sums that are not merged yet lie in memory: there is one owner.
            raise WorkersLost([*sums.costs], f"lost its sums ({error})") from error
    return total


def probe_memory(run: str, epoch: int, array: FloatArray | SharedArray) -> FloatArray | SharedArray:
    """Return a copy of an array as large products come back; raise StateLostError if it cannot be read."""
    with using(run, epoch) as held:
        return held.memory.shared({"probe": taken(array)})["probe"]


def read_duals(
    run: str, epoch: int, block: int, start: int, stop: int, pending_step: PendingStep | None
) -> NDArray[Any]:
    """Return rows start..stop-1 of A, all within one block, with the pending step applied."""
    with using(run, epoch) as held:
        rows: NDArray[Any] = held.blocks[block].dual_rows(pending_step, start, stop)
        return rows


def write_duals(run: str, epoch: int, block: int, start: int, rows: NDArray[Any]) -> None:
    """Replace rows start.. of A, all within one block."""
    with using(run, epoch) as held:
        held.blocks[block].load_duals(start, rows)


def restore_duals(run: str, epoch: int, blocks: Sequence[int], stored: StoredDuals) -> None:
    """Replace A of some blocks by stored rows, which this worker reads itself."""
    with using(run, epoch) as held:
        for block in (held.blocks[index] for index in blocks):
            for start, _, rows in stored.between(block.start, block.stop):
                block.load_duals(start, rows)


def map_duals(
    run: str, epoch: int, visit: Callable[[Iterator[DualRows]], Sequence[T]], pending_step: PendingStep | None
) -> list[T]:
    """Pass this worker's dual rows to `visit`, a share on each thread, and return the answers."""
    with using(run, epoch) as held, _block_set(held) as blocks:
        return blocks.map_duals(visit, pending_step)


def load_own_duals(run: str, epoch: int, stored: StoredDuals) -> None:
    """Replace A of every block of this worker by stored rows."""
    with using(run, epoch) as held:
        own = list(held.blocks)
    restore_duals(run, epoch, own, stored)


def renew(run: str) -> None:
    """Renew the lease of a run."""
    registry.renew(_here(), run)


def release(run: str, epoch: int) -> None:
    """Drop a run, unless a later epoch has begun."""
    registry.forget(_here(), run, epoch)


def using(run: str, epoch: int) -> AbstractContextManager[Held]:
    """Return a context in which a run's blocks are used; `StateLostError` for another epoch."""
    return registry.using(_here(), run, epoch)


@contextmanager
def _block_set(held: Held) -> Iterator[BlockSet]:
    """Yield the worker's blocks as a set; its threads share out the blocks, or work together on each."""
    blocks = [held.blocks[span.index] for span in held.placement.spans]
    threads, total = int(this_worker().state.nthreads), held.placement.blocks
    at_once = max(min(threads, len(blocks)), 1)
    if at_once == 1:
        yield BlockSet(blocks, total, threads=threads)
        return
    with ThreadPoolExecutor(at_once, thread_name_prefix="topline-block") as pool:
        yield BlockSet(blocks, total, workers=at_once, threads=threads // at_once, pool=pool)


def _cached(placement: Placement, before: Held | None) -> RowSource:
    if not isinstance(placement.spec.X, TrainingRows):
        return placement.spec.X
    spans = placement.spans
    start, stop = (spans[0].start, spans[-1].stop) if spans else (0, 0)
    rows = CachedRows(placement.spec.X, placement.cache_bytes, start, stop)
    if before is not None and isinstance(before.rows, CachedRows):
        rows.adopt(before.rows)
    return rows


def _here() -> str:
    return str(this_worker().address)
