"""What an executor is, what blocks are wrapped in, and the two executors of this process.

One runs a block after the other, the other several on threads.  `MappedBlocks` and `TopLossBlocks` ask blocks
at weights of a feature map, and for another risk than the mean of the losses.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import Protocol, Self, TypeVar, runtime_checkable

import numpy as np

from topline.solvers.core.answers import A
from topline.solvers.core.dual_points import PendingStep
from topline.solvers.core.feature_maps import FeatureMap
from topline.solvers.core.problem import Problem
from topline.solvers.core.risks import AverageTopK
from topline.solvers.core.rows import RowSource
from topline.solvers.core.traffic import MemoryGauge, ThreadActivity, Traffic, counted
from topline.solvers.crew import threads_here
from topline.solvers.errors import InvalidProblemError
from topline.solvers.operations import (
    BlockSet,
    DualRows,
    MapView,
    Operation,
    OperationRunner,
    RowBlock,
    RunSpec,
)
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

    @property
    def sends(self) -> bool:
        """Whether requests go to other processes."""
        return self._blocks.sends

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


class SerialExecutor:
    """Runs one block after the other.

    `bounds` are the row numbers 0 = r_0 < r_1 < ... = n at which rows are cut into blocks, or `blocks` asks
    for that many of nearly one size; one block by default.  `dual_bytes` is memory for dual variables, which
    are packed where that is too little for them, and go to a temporary file beyond it:
    `topline.solvers.core.dual_rows`. With a budget no result holds them.  `kept_bytes` is memory for what
    Newton's method would else compute again in a round, by default what it takes.  `threads` work together on
    a block that is large enough for them, by default as many as BLAS may take; no number depends on how many.

    Raises InvalidProblemError, when it is bound, where rows cannot be cut like that.

    Examples
    --------
    >>> import numpy as np
    >>> from topline import MaxHinge, SerialExecutor, solve
    >>> X, y = np.eye(3).repeat(4, axis=0), np.arange(3).repeat(4)
    >>> with SerialExecutor(blocks=2) as executor:
    ...     solve(X, y, MaxHinge(), lam=0.1, executor=executor).status
    <Status.SOLVED: 'solved'>
    """

    #: How many blocks run at the same time.
    workers = 1
    #: Requests stay in this process.
    sends = False
    _default_blocks = 1
    _pool: ThreadPoolExecutor | None = None

    def __init__(
        self,
        *,
        blocks: int | None = None,
        bounds: Sequence[int] | None = None,
        dual_bytes: int | None = None,
        kept_bytes: int | None = None,
        threads: int | None = None,
    ) -> None:
        if threads is not None and threads < 1:
            raise InvalidProblemError(f"threads is {threads}; give a whole number of at least 1")
        self._asked_threads = threads
        self._asked_blocks = blocks
        self._asked_bounds = bounds
        self.dual_bytes = dual_bytes
        self.in_process = dual_bytes is None
        self._kept_bytes = kept_bytes
        self._set = BlockSet()
        self._activity = ThreadActivity()
        self._memory = MemoryGauge()
        self._source: RowSource | None = None
        self._read_before = 0

    @property
    def blocks(self) -> int:
        """Number of blocks of the bound problem."""
        return len(self._blocks)

    @property
    def _blocks(self) -> list[RowBlock]:
        return self._set.blocks

    def bind(
        self,
        problem: Problem,
        X: RowSource,
        y: IntArray,
        *,
        keep_duals: bool,
        weights: Float64Array | None = None,
    ) -> None:
        """Cut the examples into blocks, with A = 0 where `keep_duals`."""
        self._activity, X = ThreadActivity(), counted(X)
        self._source, self._read_before = X, int(getattr(X, "bytes_read", 0))
        blocks = min(self._default_blocks, problem.n) if self._asked_blocks is None else self._asked_blocks
        bounds = block_bounds(problem.n, blocks, self._asked_bounds)
        spec = RunSpec(problem, X, y, weights, keep_duals, self.dual_bytes, self._kept_bytes)
        made = [RowBlock(spec, i, start, stop) for i, (start, stop) in enumerate(pairwise(bounds))]
        threads = threads_here() if self._asked_threads is None else self._asked_threads
        each = max(1, threads // min(self.workers, len(made)))
        self._set = BlockSet(made, len(made), threads=each, pool=self._pool)

    def run(self, operation: Operation[A]) -> A:
        """Run an operation on every block and return the sum."""
        self._activity.begin_request()
        return self._set.run(operation, self._activity.worked).total()

    def duals(self, pending_step: PendingStep | None = None) -> Iterator[DualRows]:
        """Yield A block by block, a run of rows after the other, after applying `pending_step` once."""
        return self._set.duals(pending_step)

    def map_duals(
        self, visit: Callable[[Iterator[DualRows]], Sequence[T]], pending_step: PendingStep | None = None
    ) -> list[T]:
        """Give A to calls of `visit`, on every thread the rows of consecutive blocks."""
        if self._pool is None:
            return list(visit(self.duals(pending_step)))
        return self._set.map_duals(visit, pending_step, self._pool, self.workers)

    def load_duals(self, duals: Iterable[DualRows]) -> None:
        """Replace A; the parts are in row order and cover every row."""
        self._set.load_duals(duals)

    def traffic(self) -> Traffic:
        """Return what was read, the memory of this process and what its threads did; nothing is sent."""
        read = int(getattr(self._source, "bytes_read", 0)) - self._read_before
        return Traffic(bytes_read=read, memory_bytes=self._memory.read(), workers=self._activity.workers())

    def close(self) -> None:
        """Stop the threads, if there are any, and let go of the examples."""
        self._set, self._source, self._read_before = BlockSet(), None, 0
        if self._pool is not None:
            self._pool.shutdown()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


class ThreadExecutor(SerialExecutor):
    """Runs blocks on threads; BLAS and compiled functions release the interpreter lock.

    `workers` is the number of blocks that run at the same time; they share the `threads`.  These, `bounds`,
    `blocks`, `dual_bytes` and `kept_bytes` are as for SerialExecutor, by default 16 blocks (or n), whatever
    the workers.

    Raises InvalidProblemError where `workers` is below 1.

    Examples
    --------
    >>> import numpy as np
    >>> from topline import MaxHinge, ThreadExecutor, solve
    >>> X, y = np.eye(3).repeat(4, axis=0), np.arange(3).repeat(4)
    >>> with ThreadExecutor(2, blocks=2) as executor:
    ...     solve(X, y, MaxHinge(), lam=0.1, executor=executor).status
    <Status.SOLVED: 'solved'>
    """

    _default_blocks = 16

    def __init__(
        self,
        workers: int,
        *,
        blocks: int | None = None,
        bounds: Sequence[int] | None = None,
        dual_bytes: int | None = None,
        kept_bytes: int | None = None,
        threads: int | None = None,
    ) -> None:
        if workers < 1:
            raise InvalidProblemError(f"workers is {workers}; give a whole number of at least 1")
        super().__init__(
            blocks=blocks, bounds=bounds, dual_bytes=dual_bytes, kept_bytes=kept_bytes, threads=threads
        )
        self._pool, self.workers = ThreadPoolExecutor(workers, thread_name_prefix="topline-block"), workers


def block_bounds(n: int, blocks: int = 1, bounds: Sequence[int] | None = None) -> tuple[int, ...]:
    """Return the row numbers that cut n rows: those asked for, or `blocks` runs of nearly one size."""
    if bounds is not None:
        cuts = tuple(int(row) for row in bounds)
        if len(cuts) < 2 or cuts[0] != 0 or cuts[-1] != n or np.any(np.diff(cuts) < 1):
            shown = f"{list(cuts[:6])}{' ...' if len(cuts) > 6 else ''}"
            raise InvalidProblemError(f"block bounds must rise from 0 to {n}; they are {shown}")
        return cuts
    if not 1 <= blocks <= n:
        raise InvalidProblemError(f"{n} rows cannot be cut into {blocks} blocks; give 1 to {n}")
    return tuple(n * i // blocks for i in range(blocks + 1))
