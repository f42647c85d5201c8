"""What an executor is: it holds the examples in blocks, wherever they are, and answers requests.

`MappedBlocks` and `TopLossBlocks` ask the blocks of one at weights of a feature map, and for another risk
than the mean of the losses.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Protocol, TypeVar, runtime_checkable

from topline.solvers.core.answers import A
from topline.solvers.core.dual_points import PendingStep
from topline.solvers.core.feature_maps import FeatureMap
from topline.solvers.core.problem import Problem
from topline.solvers.core.risks import AverageTopK
from topline.solvers.core.rows import RowSource
from topline.solvers.core.traffic import Traffic
from topline.solvers.operations import DualRows, MapView, Operation, OperationRunner
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


class _Wrapped:
    """Everything but `run`, as the other blocks do it."""

    def __init__(self, blocks: OperationRunner) -> None:
        self._blocks = blocks

    @property
    def workers(self) -> int:
        """How many blocks run at the same time."""
        return self._blocks.workers

    def traffic(self) -> Traffic:
        """Return what was moved and who worked since the blocks were bound."""
        return self._blocks.traffic()


class MappedBlocks(_Wrapped):
    """Blocks that answer at weights V of a feature map for rows of d features."""

    def __init__(self, blocks: OperationRunner, feature_map: FeatureMap, d: int) -> None:
        super().__init__(blocks)
        self._view = MapView(feature_map, d)

    def run(self, operation: Operation[A]) -> A:
        """Answer at V what the blocks answer at the weights of the classes."""
        return operation.through(self._blocks.run, self._view)


class TopLossBlocks(_Wrapped):
    """Blocks of n rows that answer for the mean of the k largest losses."""

    def __init__(self, blocks: OperationRunner, n: int, risk: AverageTopK) -> None:
        super().__init__(blocks)
        self._n, self._risk = n, risk

    def run(self, operation: Operation[A]) -> A:
        """Answer for the risk what the blocks answer for the mean of all losses."""
        return operation.on_largest(self._blocks.run, self._risk, self._n)
