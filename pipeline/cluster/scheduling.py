"""Which worker gets which blocks: at the start, after losses, and as workers join, leave and slow down."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from topline.pipeline.cluster import worker_blocks
from topline.pipeline.cluster.assignment import Assignment, assign, better_assignment, reassign_after_loss
from topline.pipeline.cluster.calls import Call, WorkerCalls, WorkersLost
from topline.pipeline.cluster.messages import Span, WorkerCost
from topline.pipeline.cluster.placement import BlockPlacement, Bound, Moved
from topline.pipeline.errors import ClusterError
from topline.solvers.core.dual_points import PendingStep
from topline.solvers.core.state import WorkerActivity
from topline.solvers.errors import DualsReplacedError
from topline.solvers.executors import StoredDuals

logger = logging.getLogger(__name__)

# This many losses without one finished call between them are not accidental.
LOSSES_IN_A_ROW = 5
# Seconds of work below which a worker's speed is unknown.
_MEASURED_SECONDS = 2.0


class CheckpointSource(Protocol):
    """Source of a run's last checkpoint, and writer of its history."""

    def saved_duals(self) -> tuple[int, StoredDuals] | None:
        """Return the round of the last checkpoint and its dual variables, or None."""
        ...

    def note(self, record: Mapping[str, Any], /) -> None:
        """Add a record to the history."""
        ...


class WorkerLog:
    """Counts per worker since the run's start; for `shares`, since the last assignment."""

    def __init__(self) -> None:
        self._busy: dict[str, float] = {}
        self._memory: dict[str, int] = {}
        self._read: dict[str, int] = {}
        self._row_seconds: dict[str, list[float]] = {}
        #: Bytes of features read because they were not in memory.
        self.bytes_read = 0

    def begin_assignment(self) -> None:
        """Discard the speeds measured with the previous blocks."""
        self._row_seconds, self._read = {}, {}

    def add(self, worker: str, rows: int, cost: WorkerCost) -> None:
        """Add a request that a worker has run on its rows."""
        self._busy[worker] = self._busy.get(worker, 0.0) + cost.seconds
        self._memory[worker] = cost.memory_bytes
        self.bytes_read += cost.bytes_read - self._read.get(worker, 0)
        self._read[worker] = cost.bytes_read
        sums = self._row_seconds.setdefault(worker, [0.0, 0.0])
        sums[0] += rows
        sums[1] += cost.seconds

    def shares(self, threads: Mapping[str, int]) -> dict[str, float]:
        """Return rows per second of each worker; new ones get the usual speed for their threads."""
        pace = {
            worker: rows / seconds
            for worker, (rows, seconds) in self._row_seconds.items()
            if seconds > _MEASURED_SECONDS
        }
        known = [worker for worker in threads if worker in pace]
        usual = (
            sum(pace[worker] for worker in known) / sum(threads[worker] for worker in known) if known else 1.0
        )
        return {worker: pace.get(worker, usual * count) for worker, count in threads.items()}

    def activities(self, owned: Assignment) -> tuple[WorkerActivity, ...]:
        """Return the activity of the workers with blocks, in block order."""
        return tuple(
            WorkerActivity(
                worker,
                blocks[-1].stop - blocks[0].start,
                self._busy.get(worker, 0.0),
                self._memory.get(worker, 0),
            )
            for worker, blocks in owned.items()
        )


class BlockScheduler:
    """Assigns the blocks of one run to the workers that `calls` reach.

    In seconds, `worker_wait` is how long to wait while there is no worker, `poll_interval` the time between
    two polls for blocks that should move.
    """

    def __init__(
        self,
        calls: WorkerCalls,
        bound: Bound,
        checkpoint_source: CheckpointSource | None,
        worker_wait: float,
        poll_interval: float,
    ) -> None:
        self._calls = calls
        self._bound = bound
        self._checkpoint_source = checkpoint_source
        self._worker_wait = worker_wait
        self._poll_interval = poll_interval
        self._polled = time.monotonic()
        self._present: frozenset[str] = frozenset()
        self._losses = 0
        self.placement = BlockPlacement(calls, bound)
        self.log = WorkerLog()

    def begin(self) -> None:
        """Assign the blocks to the present workers, again until all are placed."""
        while True:
            found = self._calls.wait_for_workers(1, self._worker_wait)
            try:
                self.placement.begin(assign(self._bound.spans, self.log.shares(found)))
            except WorkersLost as lost:
                self._count(lost)
                continue
            return

    def done(self, costs: Mapping[str, WorkerCost]) -> None:
        """Record a finished request."""
        self._losses = 0
        for worker, cost in costs.items():
            self.log.add(worker, rows_of(self.placement.owned[worker]), cost)

    def recover(self, lost: WorkersLost, pending_step: PendingStep | None) -> None:
        """Move the blocks of lost workers; raise `DualsReplacedError` if dual variables are kept.

        A on all other workers gets `pending_step`, the last step taken.
        """
        first, hoped_for = lost, len(self.placement.owned)
        while True:
            logger.warning("%s: its blocks are placed again (epoch %d)", lost, self.placement.epoch + 1)
            self._count(lost)
            # A worker that hangs in a call should still free its memory.
            for worker in lost.workers:
                self._calls.begin(
                    Call(worker, worker_blocks.release, (self.placement.run, self.placement.epoch))
                )
            found = self._calls.wait_for_workers(hoped_for, self._worker_wait)
            owned = reassign_after_loss(self._bound.spans, self.placement.owned, self.log.shares(found))
            try:
                moved = self.placement.move(owned, found, pending_step, self._saved_duals)
            except WorkersLost as again:
                lost = again
                continue
            break
        self._tell("loss", moved, workers=list(first.workers), reason=str(first))
        if self._bound.spec.keep_duals:
            # Also if no block was lost: a worker may have reported that its A was not the expected one.
            raise replaced(first) from first

    def rebalance(self, pending_step: PendingStep | None) -> None:
        """Occasionally move blocks to new workers and from slow to fast ones, between rounds.

        `pending_step`, which blocks have not yet applied to A, says what A is; without it nothing moves.
        """
        now = time.monotonic()
        if now - self._polled <= self._poll_interval or (
            pending_step is None and self._bound.spec.keep_duals
        ):
            return
        found = self._calls.trusted_workers()
        # A worker that was already there at the last poll is there to stay.
        stayed = {worker: threads for worker, threads in found.items() if worker in self._present}
        self._present, self._polled = frozenset(found), now
        if not self.placement.owned.keys() <= stayed.keys():
            return
        owned = better_assignment(self._bound.spans, self.placement.owned, self.log.shares(stayed))
        if owned is None:
            return
        try:
            moved = self.placement.move(owned, found, pending_step, self._saved_duals)
        except WorkersLost as lost:
            self.recover(lost, pending_step)
            return
        self._tell("rebalance", moved)

    def _tell(self, event: str, moved: Moved, **more: Any) -> None:
        """Record a move in the history and restart the measurement of speeds."""
        self.log.begin_assignment()
        if self._checkpoint_source is not None:
            rows = {worker: rows_of(spans) for worker, spans in self.placement.owned.items()}
            facts = {"moved_blocks": list(moved.moved), "lost_blocks": list(moved.lost), "rows": rows}
            saved = {"saved_round": moved.saved_round} if moved.lost else {}
            self._checkpoint_source.note({"event": event, **more, **facts, **saved})

    def _saved_duals(self) -> tuple[int, StoredDuals] | None:
        return None if self._checkpoint_source is None else self._checkpoint_source.saved_duals()

    def _count(self, lost: WorkersLost) -> None:
        self._losses += 1
        if self._losses >= LOSSES_IN_A_ROW:
            raise too_many_losses(self._losses, lost, "run") from lost


def too_many_losses(losses: int, lost: WorkersLost, job: str) -> ClusterError:
    """Return the error that ends a job whose workers keep dying."""
    return ClusterError(
        f"workers were lost {losses} times in a row, at last because {lost}: if they run out of memory, raise"
        f" --memory-limit or use fewer workers; the {job} can be resumed"
    )


def replaced(lost: WorkersLost) -> DualsReplacedError:
    """Return the error that says what happened to the dual variables of lost workers."""
    return DualsReplacedError(
        f"{lost}, and its dual variables were replaced: continue from those that are there"
    )


def rows_of(spans: Sequence[Span]) -> int:
    """Return the number of rows of consecutive blocks."""
    return spans[-1].stop - spans[0].start
