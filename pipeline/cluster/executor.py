"""Blocks on Dask workers, run by calls to their owners over a registry of our own (`worker_blocks`).

A request is one call per worker, which runs it on all its blocks and returns their sums merged along the
solvers' tree, so that the total is bitwise the same for any number of workers; many workers forward the
weights and merge sums among each other.  Dask itself reruns and scatters nothing.  The coordinator watches
calls and workers (`topline.pipeline.cluster.watchdog`); when an owner is gone, silent or hangs, a new epoch
begins and its blocks move (`topline.pipeline.cluster.placement`).  Without dual variables the round is
repeated and nothing is lost.  With them, only the lost worker's rows come from the last checkpoint, or are 0,
and `DualsReplacedError` says that W must be rebuilt.  Between rounds, blocks occasionally also move to new
workers and from slow to fast ones, without loss.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Self

import numpy as np
from distributed import Client

from topline.pipeline.cluster import worker_blocks
from topline.pipeline.cluster.assignment import Assignment
from topline.pipeline.cluster.calls import Call, WorkerCalls, WorkersLost, by_tree
from topline.pipeline.cluster.memory_plan import MemoryPlan
from topline.pipeline.cluster.messages import Span, Sums
from topline.pipeline.cluster.placement import Bound, LeaseRenewal
from topline.pipeline.cluster.scheduling import BlockScheduler, CheckpointSource, replaced
from topline.pipeline.cluster.sent_weights import SentOperation, WeightsSender
from topline.pipeline.cluster.shared_arrays import SHARED_BYTES, ArrayFile, on_this_machine, taken
from topline.pipeline.errors import ClusterError
from topline.pipeline.rows import TrainingRows
from topline.solvers.core.answers import A, tree_total
from topline.solvers.core.dual_points import PendingStep
from topline.solvers.core.dual_rows import row_runs
from topline.solvers.core.problem import Problem
from topline.solvers.core.rows import RowSource, compute_dtype
from topline.solvers.core.state import Traffic
from topline.solvers.errors import StateLostError
from topline.solvers.executors import DualRows, StoredDuals, T, block_bounds, resident_bytes
from topline.solvers.operations import Operation, RunSpec, parts_of
from topline.solvers.typing import Float64Array, IntArray

logger = logging.getLogger(__name__)

RELEASE_SECONDS = 5.0
LEASE_SECONDS = 900.0
# Interval at which workers are polled for blocks that could move.
REBALANCE_SECONDS = 5.0
_MEMORY = MemoryPlan(worker_bytes=None, cache_bytes=1 << 30, dual_bytes=None)


class DaskExecutor:
    """`solvers.Executor` on the workers of `client`.

    `bounds` or `blocks` cut the rows as in `SerialExecutor`; without `bounds`, `TrainingRows` decide.
    `memory` are budgets over all workers: features beyond its `cache_bytes` are read again each pass.  In
    seconds: `worker_wait` is how long to wait while there is no worker, `heartbeat_timeout` how long a worker
    may send no heartbeat or its call make no progress, `poll_interval` the time between polls for moves.
    """

    in_process = False
    #: Whether the blocks keep A.
    keeps_duals = False

    def __init__(
        self,
        client: Client,
        *,
        blocks: int = 1,
        bounds: Sequence[int] | None = None,
        memory: MemoryPlan = _MEMORY,
        worker_wait: float = 60.0,
        heartbeat_timeout: float = 60.0,
        poll_interval: float = REBALANCE_SECONDS,
    ) -> None:
        self._calls = WorkerCalls(client, heartbeat_timeout=heartbeat_timeout)
        self._one_machine = on_this_machine(client)
        self._asked_blocks = blocks
        self._asked_bounds = bounds
        self._memory = memory
        self._worker_wait = worker_wait
        self._poll_interval = poll_interval
        self._bound: Bound | None = None
        self._scheduler: BlockScheduler | None = None
        self._weights, self._sender_epoch = WeightsSender(np.dtype(np.float64)), 0
        self._renewal: LeaseRenewal | None = None
        self._checkpoint_source: CheckpointSource | None = None

    @property
    def dual_bytes(self) -> int | None:
        """Memory for dual variables over all workers; None for as much as needed."""
        return self._memory.dual_bytes

    @property
    def workers(self) -> int:
        """Number of workers that hold blocks."""
        return max(1, len(self.owners))

    @property
    def sends(self) -> bool:
        """Whether any owner is another process."""
        return not all(owner.startswith("inproc://") for owner in self.owners)

    @property
    def blocks(self) -> int:
        """Number of blocks of the bound problem."""
        return 0 if self._bound is None else len(self._bound.spans)

    @property
    def epoch(self) -> int:
        """Number of placements of blocks; more than 1 after a loss or a move."""
        return 0 if self._scheduler is None else self._scheduler.placement.epoch

    @property
    def owners(self) -> Assignment:
        """Blocks of each worker, by its address."""
        return {} if self._scheduler is None else dict(self._scheduler.placement.owned)

    def recover_from(self, checkpoint_source: CheckpointSource) -> None:
        """Restore lost dual variables from `checkpoint_source`, and record losses and moves there."""
        self._checkpoint_source = checkpoint_source

    def bind(
        self,
        problem: Problem,
        X: RowSource,
        y: IntArray,
        *,
        keep_duals: bool,
        weights: Float64Array | None = None,
    ) -> None:
        """Place the examples, with their `weights`, on the workers; A = 0 if `keep_duals`."""
        self._release()
        self.keeps_duals, bounds = keep_duals, self._asked_bounds
        if bounds is None and isinstance(X, TrainingRows):
            bounds = X.block_bounds()
        cuts = block_bounds(problem.n, self._asked_blocks, bounds)
        self._bound = Bound(
            RunSpec(problem, X, np.asarray(y), weights, keep_duals, self.dual_bytes, self._memory.kept_bytes),
            tuple(Span(i, start, stop) for i, (start, stop) in enumerate(itertools.pairwise(cuts))),
            self._memory.cache_bytes,
            LEASE_SECONDS,
        )
        self._calls.begin_count()
        self._scheduler = BlockScheduler(
            self._calls, self._bound, self._checkpoint_source, self._worker_wait, self._poll_interval
        )
        self._scheduler.begin()
        self._renewal = LeaseRenewal(self._calls, self._scheduler.placement, LEASE_SECONDS)

    def run(self, operation: Operation[A]) -> A:
        """Return the sum of an operation over all blocks.

        Raises `DualsReplacedError` if lost dual variables were replaced, `ClusterError` if there are no
        workers or they keep dying.
        """
        scheduler, pending_step = self._here(), operation.pending_step
        scheduler.rebalance(pending_step)
        while True:
            epoch = self.epoch
            message = self._sender(epoch).message(operation, epoch)
            try:
                sums = self._sums(message)
            except WorkersLost as lost:
                scheduler.recover(lost, pending_step)
                continue
            self._weights.answered(operation, epoch)
            scheduler.done(sums.costs)
            total: Any = tree_total(sums.parts, self.blocks)
            return total  # type: ignore[no-any-return]

    def duals(self, pending_step: PendingStep | None = None) -> Iterator[DualRows]:
        """Yield A block by block in runs of rows, after applying `pending_step` once."""
        places = self._here().placement
        epoch = places.epoch
        for owner, spans in sorted(self.owners.items(), key=lambda item: item[1][0].index):
            for span in spans:
                for start, stop in row_runs(span.start, span.stop, places.m):
                    arguments = (places.run, epoch, span.index, start, stop, pending_step)
                    call = Call(owner, worker_blocks.read_duals, arguments)
                    yield start, stop, self._once([call], pending_step)[owner]

    def map_duals(
        self, visit: Callable[[Iterator[DualRows]], Sequence[T]], pending_step: PendingStep | None = None
    ) -> list[T]:
        """Call `visit` on A on all workers at the same time, and join the answers."""
        answers = self._once(self._to_owners(worker_blocks.map_duals, visit, pending_step), pending_step)
        return [item for items in answers.values() for item in items]

    def load_duals(self, duals: Iterable[DualRows]) -> None:
        """Replace A; the parts are in row order and cover every row."""
        if isinstance(duals, StoredDuals):
            self._once(self._to_owners(worker_blocks.load_own_duals, duals), None)
            return
        places = self._here().placement
        owners = {span.index: owner for owner, spans in self.owners.items() for span in spans}
        spans = [] if self._bound is None else [(span.start, span.stop) for span in self._bound.spans]
        for block, start, rows in parts_of(duals, spans):
            arguments = (places.run, places.epoch, block, start, np.asarray(rows))
            owner = owners[block]
            self._once([Call(owner, worker_blocks.write_duals, arguments)], None)

    def traffic(self) -> Traffic:
        """Return what was sent, and who worked, since `bind`."""
        log = self._here().log
        workers = log.activities(self.owners)
        return Traffic(
            bytes_sent=self._calls.sent,
            bytes_received=self._calls.received,
            bytes_read=log.bytes_read,
            memory_bytes=resident_bytes() + sum(worker.memory_bytes for worker in workers),
            workers=workers,
        )

    def close(self) -> None:
        """Release the examples on all workers; the cluster stays."""
        self._release()
        self._bound = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _sender(self, epoch: int) -> WeightsSender:
        """Return the sender of an epoch, whose owners may include a worker that cannot share memory."""
        if self._sender_epoch != epoch and self._bound is not None:
            self._weights = WeightsSender(compute_dtype(self._bound.spec.X.dtype), self._shared_memory())
            self._sender_epoch = epoch
        return self._weights

    def _here(self) -> BlockScheduler:
        if self._scheduler is None:
            raise StateLostError("nothing is bound to the executor")
        return self._scheduler

    def _to_owners(self, function: Callable[..., Any], *arguments: Any) -> list[Call]:
        places = self._here().placement
        return [Call(owner, function, (places.run, places.epoch, *arguments)) for owner in places.owned]

    def _sums(self, message: SentOperation) -> Sums:
        """Return the sums over all blocks; many workers forward weights and merge sums among each other."""
        places = self._here().placement
        arguments = places.run, places.epoch, message
        calls = by_tree([*places.owned], worker_blocks.run_request, arguments, worker_blocks.joined)
        return worker_blocks.joined(*self._calls.run(calls).values())

    def _shared_memory(self) -> ArrayFile | None:
        """Return memory in which all workers can read; None if they or their memory are out of reach."""
        if not self._one_machine:
            return None
        memory = ArrayFile()
        probe = memory.shared({"probe": np.zeros(SHARED_BYTES, dtype=np.int8)})["probe"]
        try:
            answers = self._calls.run(self._to_owners(worker_blocks.probe_memory, probe))
            for answer in answers.values():
                taken(answer)
        except (WorkersLost, StateLostError) as error:
            logger.info("large arrays travel in messages, as workers do not share memory: %s", error)
            return None
        return memory

    def _once(self, calls: Sequence[Call], pending_step: PendingStep | None) -> dict[str, Any]:
        """Run calls that must not be repeated with other rows of A."""
        try:
            return self._calls.run(calls)
        except WorkersLost as lost:
            self._here().recover(lost, pending_step)
            raise replaced(lost) from lost

    def _release(self) -> None:
        """Release the run on its owners; an unreachable one drops it when its lease ends."""
        if self._scheduler is None:
            return
        if self._renewal is not None:
            self._renewal.stop()
        calls = self._to_owners(worker_blocks.release)
        self._scheduler = self._renewal = None
        # It keeps arrays of the size of W.
        self._weights, self._sender_epoch = WeightsSender(np.dtype(np.float64)), 0
        try:
            self._calls.run(calls, limit=RELEASE_SECONDS)
        except (WorkersLost, ClusterError) as error:
            logger.info("the blocks of a finished run stay until their lease is over: %s", error)
        self._calls.let_go()
