"""What an executor is: it holds the examples in blocks, wherever they are, and answers requests."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Protocol, TypeVar, runtime_checkable

from topline.solvers.core.dual_points import PendingStep
from topline.solvers.core.problem import Problem
from topline.solvers.core.rows import RowSource
from topline.solvers.operations import DualRows, OperationRunner
from topline.solvers.typing import Float64Array, IntArray

T = TypeVar("T")


@runtime_checkable
class StoredDuals(Protocol):
    """Dual rows that lie where every worker can read its own: a value that pickles."""

    def __iter__(self) -> Iterator[DualRows]:
        """Yield all rows, in their order."""
        ...

    def between(self, start: int, stop: int) -> Iterator[DualRows]:
        """Yield the rows [start, stop), in their order."""
        ...


@runtime_checkable
class Executor(OperationRunner, Protocol):
    """Holds the examples in blocks and runs a request on all of them.

    Whatever the workers, `run` adds the blocks along the tree of `topline.solvers.core.answers`, so two
    executors with the same bounds agree bitwise.
    """

    @property
    def in_process(self) -> bool:
        """Whether a result may hold A whole: it lives in this process, which keeps no budget for it."""
        ...

    @property
    def dual_bytes(self) -> int | None:
        """Memory for dual variables over all workers; None for whatever they take as arrays."""
        ...

    @property
    def blocks(self) -> int:
        """Number of blocks of the bound problem."""
        ...

    def bind(
        self,
        problem: Problem,
        X: RowSource,
        y: IntArray,
        *,
        keep_duals: bool,
        weights: Float64Array | None = None,
    ) -> None:
        """Take the examples of a problem, with A = 0 where `keep_duals`; what was bound before is dropped.

        `weights` (n,) says how often each example counts, None once; (n, columns) is for heads, each with a
        problem and a column of its own, which `AskHeads` names.
        """
        ...

    def duals(self, pending_step: PendingStep | None = None) -> Iterator[DualRows]:
        """Yield A in row order, a run of rows after the other, after applying `pending_step` once."""
        ...

    def map_duals(
        self, visit: Callable[[Iterator[DualRows]], Sequence[T]], pending_step: PendingStep | None = None
    ) -> list[T]:
        """Give A to calls of `visit` where it is held, at the same time, and join their answers.

        Each call gets some rows, ascending, and all calls together get every row once.  `visit` pickles.
        """
        ...

    def load_duals(self, duals: Iterable[DualRows]) -> None:
        """Replace A; the parts are in row order and cover every row.

        Of `StoredDuals`, workers read their own rows.
        """
        ...

    def close(self) -> None:
        """Give up threads, processes and examples."""
        ...
