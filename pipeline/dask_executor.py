"""Blocks on Dask workers, by plain pinned tasks over a registry of our own (`pipeline.worker_blocks`).

A round is one task for each worker.  It is pinned to the worker that owns the blocks, runs them all and sends
back their sums, merged along the solvers' tree, so the total is bitwise the same for any number of workers.
Dask is asked for nothing else: lost tasks are not run elsewhere, nothing is scattered to stay.  The
coordinator watches its futures and the scheduler's list of workers; when an owner is gone or silent, a new
epoch begins, the blocks are placed on who is there, and the round is repeated.  Without dual variables that
loses nothing.  With them the rows of A are gone: the executor is then ready for `load_duals` and says so
with `StateLostError`.
"""

from __future__ import annotations

import itertools
import logging
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from distributed import Client

from pipeline import worker_blocks, worker_checkpoints
from pipeline.dask_calls import Call, WorkerCalls, WorkersLost
from pipeline.errors import ClusterError
from pipeline.partition import TrainingRows
from pipeline.worker_blocks import Placement, ShippedRows, Span
from solvers.block_stats import BlockStats, tree_total
from solvers.dual_visits import StoredDuals, T
from solvers.errors import StateLostError
from solvers.executor import DualRows, block_bounds
from solvers.orders import Commit, Order
from solvers.problem import Problem
from solvers.rows import RowSource
from solvers.traffic import Traffic, resident_bytes
from solvers.typing import Float64Array, IntArray

logger = logging.getLogger(__name__)

RELEASE_SECONDS = 5.0
# So many losses without one finished call between them are no accident.
LOSSES_IN_A_ROW = 5
LEASE_SECONDS = 900.0


@dataclass(frozen=True, eq=False)
class _Bound:
    """What `bind` was given; workers that come later are placed from it."""

    problem: Problem
    X: RowSource
    y: IntArray
    weights: Float64Array | None
    keep_duals: bool


class DaskExecutor:
    """`solvers.Executor` on the workers of `client`.

    `bounds` or `blocks` cut the rows as in `SerialExecutor`; without `bounds`, `TrainingRows` say where.
    `cache_bytes` of features stay in memory, over all workers; the rest is read again in each pass.
    `worker_wait` is how long to wait while no worker is there at all, `silence` how long a worker may send no
    heartbeat, both in seconds.
    """

    in_process = False

    def __init__(
        self,
        client: Client,
        *,
        blocks: int = 1,
        bounds: Sequence[int] | None = None,
        cache_bytes: int = 1 << 30,
        worker_wait: float = 60.0,
        silence: float = 60.0,
        lease: float = LEASE_SECONDS,
    ) -> None:
        self._calls = WorkerCalls(client, silence=silence)
        self._asked_blocks = blocks
        self._asked_bounds = bounds
        self._cache_bytes = cache_bytes
        self._worker_wait = worker_wait
        self._lease = lease
        self._run = ""
        self._epoch = 0
        self._losses = 0
        self._bound: _Bound | None = None
        self._spans: tuple[Span, ...] = ()
        self._owned: dict[str, tuple[Span, ...]] = {}

    @property
    def workers(self) -> int:
        """How many workers hold blocks."""
        return max(1, len(self._owned))

    @property
    def blocks(self) -> int:
        """Number of blocks of the bound problem."""
        return len(self._spans)

    @property
    def epoch(self) -> int:
        """How often blocks were placed; more than 1 after a loss."""
        return self._epoch

    @property
    def owners(self) -> dict[str, tuple[Span, ...]]:
        """Blocks of each worker, by its address."""
        return dict(self._owned)

    def bind(
        self,
        problem: Problem,
        X: RowSource,
        y: IntArray,
        *,
        keep_duals: bool,
        weights: Float64Array | None = None,
    ) -> None:
        """Place the examples on the workers, with A = 0 where `keep_duals`, each with its `weights`."""
        self._release()
        bounds = self._asked_bounds
        if bounds is None and isinstance(X, TrainingRows):
            bounds = X.block_bounds()
        cuts = block_bounds(problem.n, self._asked_blocks, bounds)
        self._spans = tuple(Span(i, start, stop) for i, (start, stop) in enumerate(itertools.pairwise(cuts)))
        self._bound = _Bound(problem, X, np.asarray(y), weights, keep_duals)
        self._run, self._epoch, self._losses = uuid.uuid4().hex, 0, 0
        self._place()

    def run(self, order: Order) -> BlockStats:
        """Run an order on every block and give the sum.

        Raises `StateLostError` where dual variables went with a worker, `ClusterError` where there are no
        workers or they keep dying.
        """
        while True:
            arguments = (self._run, self._epoch, order)
            try:
                answers = self._calls.run(
                    [Call(owner, worker_blocks.run_order, arguments) for owner in self._owned]
                )
            except WorkersLost as lost:
                self._recover(lost)
                continue
            self._losses = 0
            return tree_total([part for parts in answers.values() for part in parts], len(self._spans))

    def duals(self, commit: Commit | None = None) -> Iterator[DualRows]:
        """Yield A block by block, after applying `commit` where that has not been done."""
        for owner, spans in sorted(self._owned.items(), key=lambda item: item[1][0].index):
            for span in spans:
                call = Call(owner, worker_blocks.read_duals, (self._run, self._epoch, span.index, commit))
                yield span.start, span.stop, self._once([call])[owner]

    def map_duals(
        self, visit: Callable[[Iterator[DualRows]], Sequence[T]], commit: Commit | None = None
    ) -> list[T]:
        """Give A to calls of `visit` on the workers, at the same time, and join their answers."""
        asked = (self._run, self._epoch, visit, commit)
        answers = self._once([Call(owner, worker_checkpoints.visit_duals, asked) for owner in self._owned])
        return [item for items in answers.values() for item in items]

    def load_duals(self, duals: Iterable[DualRows]) -> None:
        """Replace A; the parts are in row order and cover every row."""
        if isinstance(duals, StoredDuals):
            own = (self._run, self._epoch, duals)
            self._once([Call(owner, worker_checkpoints.load_own_duals, own) for owner in self._owned])
            return
        reached = 0
        for start, stop, rows in duals:
            if start != reached or rows.shape[0] != stop - start:
                raise StateLostError(f"the stored duals jump from row {reached} to rows {start}:{stop}")
            for owner, spans in self._owned.items():
                for span in spans:
                    low, high = max(start, span.start), min(stop, span.stop)
                    if low < high:
                        part = np.asarray(rows[low - start : high - start])
                        arguments = (self._run, self._epoch, span.index, low, part)
                        self._once([Call(owner, worker_blocks.write_duals, arguments)])
            reached = stop
        if self._spans and reached != self._spans[-1].stop:
            raise StateLostError(f"the stored duals end at row {reached} of {self._spans[-1].stop}")

    def traffic(self) -> Traffic:
        """Give what was moved and who worked since `bind`."""
        return Traffic(memory_bytes=resident_bytes())

    def close(self) -> None:
        """Let go of the examples on all workers; the cluster stays."""
        self._release()
        self._bound = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _once(self, calls: Sequence[Call]) -> dict[str, Any]:
        """Run calls that only make sense with the state that workers hold."""
        try:
            return self._calls.run(calls)
        except WorkersLost as lost:
            self._recover(lost)
            raise self._state_lost(lost) from lost

    def _recover(self, lost: WorkersLost) -> None:
        logger.warning("%s: its blocks are placed again (epoch %d)", lost, self._epoch + 1)
        self._count(lost)
        self._place(hoped_for=len(self._owned))
        if self._bound is not None and self._bound.keep_duals:
            raise self._state_lost(lost) from lost

    def _count(self, lost: WorkersLost) -> None:
        self._losses += 1
        if self._losses >= LOSSES_IN_A_ROW:
            raise ClusterError(
                f"workers were lost {self._losses} times in a row, at last because {lost}: if they run out"
                " of memory, raise --memory-limit or take fewer workers; the run can be resumed"
            ) from lost

    def _state_lost(self, lost: WorkersLost) -> StateLostError:
        return StateLostError(f"{lost}, and the dual variables with it: go on from the last checkpoint")

    def _place(self, hoped_for: int = 1) -> None:
        """Begin an epoch: deal the blocks out to the workers that are there, until all have taken theirs."""
        if self._bound is None:
            raise StateLostError("nothing is bound to the executor")
        while True:
            self._epoch += 1
            self._owned = deal(self._spans, self._calls.wait_for_workers(hoped_for, self._worker_wait))
            calls = [
                Call(worker, worker_blocks.place, (self._placement(spans),))
                for worker, spans in self._owned.items()
            ]
            try:
                self._calls.run(calls)
            except WorkersLost as lost:
                self._count(lost)
                continue
            return

    def _placement(self, spans: tuple[Span, ...]) -> Placement:
        if self._bound is None:
            raise StateLostError("nothing is bound to the executor")
        bound = self._bound
        start, stop, n = spans[0].start, spans[-1].stop, bound.problem.n
        X = bound.X
        rows = X if isinstance(X, TrainingRows) else ShippedRows(X[start:stop], start, n)
        return Placement(
            run=self._run,
            epoch=self._epoch,
            spans=spans,
            blocks=len(self._spans),
            problem=bound.problem,
            rows=rows,
            labels=bound.y[start:stop],
            weights=None if bound.weights is None else bound.weights[start:stop],
            keep_duals=bound.keep_duals,
            cache_bytes=self._cache_bytes * (stop - start) // n,
            lease=self._lease,
        )

    def _release(self) -> None:
        """Tell the owners to forget the run; one that cannot be reached forgets it when the lease is over."""
        calls = [Call(owner, worker_blocks.release, (self._run,)) for owner in self._owned]
        self._owned = {}
        try:
            self._calls.run(calls, limit=RELEASE_SECONDS)
        except (WorkersLost, ClusterError) as error:
            logger.info("the blocks of a finished run stay until their lease is over: %s", error)


def deal(spans: Sequence[Span], threads: dict[str, int]) -> dict[str, tuple[Span, ...]]:
    """Deal consecutive blocks to workers, each about its share of the rows by its number of threads.

    A worker without a block is left out.
    """
    total, n = sum(threads.values()), spans[-1].stop
    ends = np.asarray([span.stop for span in spans])
    owned, first, cores = {}, 0, 0
    for worker, count in threads.items():
        cores += count
        last = int(np.abs(ends - n * cores / total).argmin()) + 1
        if last > first:
            owned[worker] = tuple(spans[first:last])
            first = last
    return owned
