"""What the rounds of a run take: the time of their requests, traffic, and what the budgets leave."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import NamedTuple

from topline.solvers.core.answers import A
from topline.solvers.core.traffic import Traffic
from topline.solvers.operations import Operation, OperationRunner


class Budget(NamedTuple):
    """Passes and seconds that a run may still take."""

    passes: int
    seconds: float | None

    @property
    def exhausted(self) -> bool:
        """Whether there are not enough for one pass."""
        return self.passes < 1 or (self.seconds is not None and self.seconds <= 0.0)


class RoundTimer:
    """Runs the requests of one round within the budget, and counts the time that they took.

    `passes` is where the run stands.
    """

    def __init__(self, executor: OperationRunner, budget: Callable[[int], Budget]) -> None:
        self._executor, self._budget = executor, budget
        self.passes = 0
        self.products = self.per_row = self.waiting = 0.0

    @property
    def workers(self) -> int:
        """How many blocks run at the same time."""
        return self._executor.workers

    def run(self, operation: Operation[A]) -> A:
        """Run an operation; what is not products or per-row work of a busy worker is waiting."""
        began = time.perf_counter()
        left = self._budget(self.passes)
        stats = self._executor.run(operation.within(left.passes, left.seconds))
        busy = (stats.seconds_products + stats.seconds_kernels) / self._executor.workers
        self.products += stats.seconds_products
        self.per_row += stats.seconds_kernels
        self.waiting += max(time.perf_counter() - began - busy, 0.0)
        return stats


class TrafficTimer:
    """Reads what the executor counted from one record to the next."""

    def __init__(self, executor: OperationRunner) -> None:
        self._executor = executor
        self._before = executor.traffic()

    def read(self) -> Traffic:
        """Return what was added since the last reading."""
        now = self._executor.traffic()
        moved, self._before = now.since(self._before), now
        return moved
