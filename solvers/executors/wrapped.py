"""What executors have in common that answer with the blocks of another one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from topline.solvers.core.heads import HeadsProblem
from topline.solvers.core.problem import Problem
from topline.solvers.core.requests import PendingStep
from topline.solvers.core.rows import RowSource
from topline.solvers.core.traffic import Traffic
from topline.solvers.executors.base import DualRows, Executor, T
from topline.solvers.typing import Float64Array, IntArray


class WrappedExecutor:
    """Everything but `run`, as the other executor does it."""

    def __init__(self, executor: Executor) -> None:
        self._executor = executor

    @property
    def in_process(self) -> bool:
        """As the executor says."""
        return self._executor.in_process

    @property
    def dual_bytes(self) -> int | None:
        """As the executor says."""
        return self._executor.dual_bytes

    @property
    def workers(self) -> int:
        """As the executor says."""
        return self._executor.workers

    @property
    def blocks(self) -> int:
        """As the executor says."""
        return self._executor.blocks

    def bind(
        self,
        problem: Problem | HeadsProblem,
        X: RowSource,
        y: IntArray,
        *,
        keep_duals: bool,
        weights: Float64Array | None = None,
    ) -> None:
        """Bind the executor."""
        self._executor.bind(problem, X, y, keep_duals=keep_duals, weights=weights)

    def duals(self, pending_step: PendingStep | None = None) -> Iterator[DualRows]:
        """As the executor."""
        return self._executor.duals(pending_step)

    def map_duals(
        self, visit: Callable[[Iterator[DualRows]], Sequence[T]], pending_step: PendingStep | None = None
    ) -> list[T]:
        """As the executor."""
        return self._executor.map_duals(visit, pending_step)

    def load_duals(self, duals: Iterable[DualRows]) -> None:
        """As the executor."""
        self._executor.load_duals(duals)

    def traffic(self) -> Traffic:
        """As the executor says."""
        return self._executor.traffic()

    def close(self) -> None:
        """Close the executor."""
        self._executor.close()
