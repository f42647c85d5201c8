"""Which worker holds which blocks of a run, and how blocks move without losing their dual variables.

A move begins an epoch.  Every worker gets its blocks and keeps the dual variables that it has of them; those
of moved blocks are fetched from their last owners, lost ones are read from the last checkpoint.  Each row is
then feasible, though perhaps of another round: W, b and |A|^2 must be rebuilt if any were lost and are
unchanged otherwise.  A move interrupted by another loss starts again and does only what remains.
"""

from __future__ import annotations

import logging
import threading
import uuid
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from topline.pipeline.cluster import worker_blocks
from topline.pipeline.cluster.assignment import Assignment
from topline.pipeline.cluster.calls import Call, WorkerCalls
from topline.pipeline.cluster.messages import Placement, ShippedRows, Span
from topline.pipeline.rows import TrainingRows
from topline.solvers.core.dual_points import PendingStep
from topline.solvers.core.dual_rows import row_runs
from topline.solvers.executors import StoredDuals
from topline.solvers.operations import RunSpec

logger = logging.getLogger(__name__)

#: Returns the round of the last checkpoint and its dual variables, or None.
Saved = Callable[[], tuple[int, StoredDuals] | None]


@dataclass(frozen=True, eq=False)
class Bound:
    """Everything a worker needs to take part in a run, including workers that join later.

    The budgets of the spec and `cache_bytes` are for all workers together.
    """

    spec: RunSpec
    spans: tuple[Span, ...]
    cache_bytes: int
    lease: float


@dataclass(frozen=True)
class Moved:
    """Numbers of blocks that moved, and of those whose rows were lost.

    `saved_round` is the round of the checkpoint that replaces these; None if they restart at A = 0.
    """

    moved: tuple[int, ...]
    lost: tuple[int, ...]
    saved_round: int | None = None


class BlockPlacement:
    """The blocks of one run on the workers that `calls` reach."""

    def __init__(self, calls: WorkerCalls, bound: Bound) -> None:
        self._calls = calls
        self._bound = bound
        self.m = bound.spec.problem.m
        self.run = uuid.uuid4().hex
        self.epoch = 0
        self.owned: Assignment = {}
        #: Worker that has the dual variables of each block, by block number; empty at first.
        self._holders: dict[int, str] = {}
        #: Most rows of a worker at the start: budgets never grow beyond it, whoever is lost.
        self._most_rows = bound.spec.problem.n
        #: Rows of the mean worker at the start: no worker keeps features in more memory than its share.
        self._mean_rows = bound.spec.problem.n
        #: Blocks that an interrupted move has already replaced, and from which checkpoint.
        self._replaced: set[int] = set()
        self._saved_round: int | None = None

    def begin(self, owned: Assignment) -> None:
        """Place every block with A = 0."""
        self._holders = {}
        self._most_rows = max(spans[-1].stop - spans[0].start for spans in owned.values())
        self._mean_rows = -(-self._bound.spec.problem.n // len(owned))
        self._place(owned, owned, None)
        if self._bound.spec.keep_duals:
            self._holders = {span.index: worker for worker, spans in owned.items() for span in spans}

    def move(
        self, owned: Assignment, alive: Iterable[str], pending_step: PendingStep | None, saved: Saved
    ) -> Moved:
        """Move the blocks to `owned`, each with its dual variables after the pending step, or the saved ones.

        `alive` are the reachable workers.  Raises `WorkersLost`, after which it can be called again.
        """
        before = {*self.owned, *self._holders.values()}
        old = {worker: () for worker in alive if worker in before and worker not in owned}
        had = {span.index: worker for worker, spans in self.owned.items() for span in spans}
        kept = self._place(owned, {**owned, **old}, pending_step)
        wanted = [(span, worker) for worker, spans in owned.items() for span in spans]
        moved = tuple(span.index for span, worker in wanted if had.get(span.index) != worker)
        if self._bound.spec.keep_duals:
            self._holders = {i: worker for i, worker in self._holders.items() if i in kept.get(worker, ())}
            lost = {span.index for span, _ in wanted if span.index not in self._holders}
            self._replaced |= lost
            for span, worker in wanted:
                if self._holders.get(span.index, worker) != worker:
                    self._fetch(span, worker)
            if lost:
                self._restore(lost, owned, saved)
            self._ask(owned, worker_blocks.seal, lambda _: (pending_step,))
        self._calls.run([Call(worker, worker_blocks.release, (self.run, self.epoch)) for worker in old])
        replaced, self._replaced = self._replaced, set()
        return Moved(moved, tuple(sorted(replaced)), self._saved_round)

    def _place(
        self, owned: Assignment, asked: Mapping[str, tuple[Span, ...]], pending_step: PendingStep | None
    ) -> dict[str, set[int]]:
        """Begin an epoch on all of `asked`; return the blocks whose dual variables each worker has."""
        self.epoch += 1
        calls = [
            Call(worker, worker_blocks.place, (self._placement(worker, spans, pending_step),))
            for worker, spans in asked.items()
        ]
        kept = self._calls.run(calls)
        self.owned = owned
        return {worker: set(indices) for worker, indices in kept.items()}

    def _placement(self, worker: str, spans: tuple[Span, ...], pending_step: PendingStep | None) -> Placement:
        bound = self._bound
        start, stop = (spans[0].start, spans[-1].stop) if spans else (0, 0)
        X, n = bound.spec.X, bound.spec.problem.n
        budgeted = min(stop - start, self._most_rows)
        rows = X if isinstance(X, TrainingRows) else ShippedRows(X[start:stop], start, n)
        return Placement(
            run=self.run,
            epoch=self.epoch,
            spans=spans,
            blocks=len(bound.spans),
            spec=replace(bound.spec.part(start, stop, budgeted), X=rows),
            cache_bytes=bound.cache_bytes * min(budgeted, self._mean_rows) // n,
            lease=bound.lease,
            keeps=frozenset(index for index, holder in self._holders.items() if holder == worker),
            pending_step=pending_step,
        )

    def _fetch(self, span: Span, worker: str) -> None:
        """Send a block's dual variables directly to its new worker, in runs of rows."""
        holder = self._holders[span.index]
        for start, stop in row_runs(span.start, span.stop, self.m):
            read = (self.run, self.epoch, span.index, start, stop, None)
            there = Call(holder, worker_blocks.read_duals, read)
            write = (self.run, self.epoch, span.index, start)
            self._calls.run([Call(worker, worker_blocks.write_duals, write, source=there)])
        self._holders[span.index] = worker

    def _restore(self, lost: set[int], owned: Assignment, saved: Saved) -> None:
        """Let workers read lost blocks from the last checkpoint, or leave them at A = 0."""
        found = saved()
        theirs = {
            worker: indices
            for worker, spans in owned.items()
            if (indices := [span.index for span in spans if span.index in lost])
        }
        if found is not None:
            self._ask(theirs, worker_blocks.restore_duals, lambda worker: (theirs[worker], found[1]))
        self._saved_round = None if found is None else found[0]
        self._holders |= {index: worker for worker, indices in theirs.items() for index in indices}

    def _ask(
        self, workers: Iterable[str], function: Callable[..., None], rest: Callable[[str], Sequence[object]]
    ) -> None:
        self._calls.run([Call(w, function, (self.run, self.epoch, *rest(w))) for w in workers])


class LeaseRenewal:
    """Renews a run's leases on all workers with blocks, several times per lease.

    It runs until `stop`, or until the placement is dropped.  It waits for no worker: the next request
    detects lost ones.
    """

    def __init__(self, calls: WorkerCalls, places: BlockPlacement, lease: float) -> None:
        self._over = threading.Event()
        arguments = (self._over, calls, weakref.ref(places), lease / 4)
        threading.Thread(target=_renew, args=arguments, name="topline-leases", daemon=True).start()

    def stop(self) -> None:
        """Let the leases expire."""
        self._over.set()


def _renew(
    over: threading.Event, calls: WorkerCalls, places: weakref.ref[BlockPlacement], seconds: float
) -> None:
    while not over.wait(seconds):
        found = places()
        if found is None:
            return
        try:
            for worker in found.owned:
                calls.begin(Call(worker, worker_blocks.renew, (found.run,)))
        except Exception as error:  # noqa: BLE001 - the connection is gone, which the next request says
            logger.info("leases are not renewed: %s", error)
            return
        del found
