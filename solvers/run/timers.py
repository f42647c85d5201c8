"""What the rounds of a run take: the time of their operations, traffic, and what the budgets leave."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import NamedTuple

from topline.solvers.core.answers import A
from topline.solvers.core.objective import Objective
from topline.solvers.core.problem import Problem
from topline.solvers.core.state import IterationRecord
from topline.solvers.core.stopping import StoppingCriteria
from topline.solvers.core.traffic import Traffic
from topline.solvers.methods import Advance, Measurement
from topline.solvers.operations import Operation, OperationRunner


class Budget(NamedTuple):
    """Passes and seconds that a run may still take."""

    passes: int
    seconds: float | None

    @property
    def exhausted(self) -> bool:
        """Whether there are not enough for one pass."""
        return self.passes < 1 or (self.seconds is not None and self.seconds <= 0.0)


class Pace:
    """What a run has taken so far, and may still take: seconds by a clock, passes, and what moved."""

    def __init__(
        self,
        executor: OperationRunner,
        criteria: StoppingCriteria,
        clock: Callable[[], float],
        seconds: float,
    ) -> None:
        self._executor, self._criteria, self._clock = executor, criteria, clock
        self._began, self._earlier, self._read = clock(), seconds, executor.traffic()

    def seconds(self) -> float:
        """Return the seconds of solving so far, over all resumptions."""
        return self._earlier + self._clock() - self._began

    def left(self, passes: int) -> Budget:
        """Return what is left after so many passes."""
        limit = self._criteria.time_limit
        seconds = None if limit is None else limit - (self._clock() - self._began)
        return Budget(self._criteria.max_passes - passes, seconds)

    def moved(self) -> Traffic:
        """Return what the executor has counted since the last reading."""
        now = self._executor.traffic()
        moved, self._read = now.since(self._read), now
        return moved


class RoundTimer:
    """Runs the operations of one round within the budget, and counts the time that they take.

    `passes` is where the run stands.
    """

    def __init__(self, executor: OperationRunner, pace: Pace) -> None:
        self._executor, self._pace = executor, pace
        self.passes = 0
        self._products = self._per_row = self._waiting = 0.0

    def run(self, operation: Operation[A]) -> A:
        """Run an operation; what is not products or per-row work of a busy worker is waiting."""
        began = time.perf_counter()
        left = self._pace.left(self.passes)
        stats = self._executor.run(operation.within(left.passes, left.seconds))
        busy = (stats.seconds_products + stats.seconds_kernels) / self._executor.workers
        self._products += stats.seconds_products
        self._per_row += stats.seconds_kernels
        self._waiting += max(time.perf_counter() - began - busy, 0.0)
        return stats

    def record(
        self, problem: Problem, measured: Measurement, objective: Objective, advance: Advance
    ) -> IterationRecord:
        """Return the record of the round, which has these bounds P and D."""
        moved = self._pace.moved()
        return IterationRecord(
            round=measured.before.round,
            passes=measured.before.passes + measured.passes + advance.passes,
            seconds=self._pace.seconds(),
            objective=objective,
            step=advance.step,
            active=advance.active / problem.n,
            seconds_products=self._products,
            seconds_kernels=self._per_row,
            seconds_waiting=self._waiting,
            bytes_sent=moved.bytes_sent,
            bytes_received=moved.bytes_received,
            bytes_read=moved.bytes_read,
            memory_bytes=moved.memory_bytes,
            workers=self._executor.workers,
            activity=moved.workers,
        )
