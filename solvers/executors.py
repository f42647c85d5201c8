"""Where blocks of examples are computed: an executor holds them and answers the requests of a method.

One of the two here runs the blocks in turn, the other several on threads.
`topline.pipeline.cluster` has the executor for other machines.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import Any, Protocol, Self, TypeVar, runtime_checkable

import numpy as np
import psutil

from topline.solvers.core.answers import A
from topline.solvers.core.dual_points import PendingStep
from topline.solvers.core.problem import Problem
from topline.solvers.core.rows import RowRange, RowSource, is_sparse
from topline.solvers.core.state import Traffic, WorkerActivity
from topline.solvers.crew import threads_here
from topline.solvers.errors import InvalidProblemError
from topline.solvers.operations import (
    BlockSet,
    DualRows,
    Operation,
    OperationRunner,
    RowBlock,
    Runner,
    RunSpec,
)
from topline.solvers.typing import Float64Array, IntArray

T = TypeVar("T")

#: Least seconds between two readings of a process's memory.
_LOOKS_EVERY = 0.01


@runtime_checkable
class StoredDuals(Protocol):
    """Dual rows in storage that every worker can read: a picklable value."""

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
        """Whether a result may hold the whole A: it lives in this process, without a memory budget."""
        ...

    @property
    def dual_bytes(self) -> int | None:
        """Memory for dual variables over all workers; None for unlimited arrays."""
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
        """Take the examples of a problem, with A = 0 if `keep_duals`; any earlier problem is dropped.

        `weights` (n,) says how often each example counts, None once; (n, columns) is for heads, each with a
        problem and a column of its own, which `AskHeads` names.
        """
        ...

    def duals(self, pending_step: PendingStep | None = None) -> Iterator[DualRows]:
        """Yield A in row order, run by run, after applying `pending_step` once."""
        ...

    def map_duals(
        self, visit: Callable[[Iterator[DualRows]], Sequence[T]], pending_step: PendingStep | None = None
    ) -> list[T]:
        """Call `visit` in parallel on A where it is held, and join the answers.

        Each call gets some rows, ascending, and all calls together get every row once.  `visit` pickles.
        """
        ...

    def load_duals(self, duals: Iterable[DualRows]) -> None:
        """Replace A by ordered parts that cover every row; of `StoredDuals` workers read their own rows."""
        ...

    def close(self) -> None:
        """Release threads, processes and examples."""
        ...


class AnsweredBlocks:
    """Blocks that answer by a function of an operation and of their own `run`.

    So they answer at weights of a feature map (`Operation.through`) or for another risk (`on_largest`).
    """

    def __init__(self, blocks: OperationRunner, answer: Callable[[Operation[Any], Runner], Any]) -> None:
        self._blocks, self._answer = blocks, answer
        self.sends, self.keeps_duals, self.traffic = blocks.sends, blocks.keeps_duals, blocks.traffic

    @property
    def workers(self) -> int:
        """How many blocks run at the same time, which may change."""
        return self._blocks.workers

    def run(self, operation: Operation[A]) -> A:
        """Return the answer from the answers of the blocks."""
        answer: A = self._answer(operation, self._blocks.run)
        return answer


class CountedRows(RowRange):
    """All rows of a source, counting in `bytes_read` the bytes taken from it."""

    def __init__(self, source: RowSource) -> None:
        super().__init__(source, 0, int(source.shape[0]))
        self._lock = threading.Lock()
        self.bytes_read = 0

    def __getitem__(self, rows: slice) -> Any:
        values = super().__getitem__(rows)
        stored = values.data if is_sparse(values) else values
        with self._lock:
            self.bytes_read += int(stored.nbytes)
        return values


def resident_bytes() -> int:
    """Return the resident memory of this process."""
    return int(psutil.Process().memory_info().rss)


class SerialExecutor(BlockSet):
    """Runs one block after the other.

    `bounds` are the row numbers 0 = r_0 < r_1 < ... = n at which rows are cut into blocks; `blocks` requests
    that many of nearly equal size, by default one.  `dual_bytes` is memory for dual variables, which are
    packed if they exceed it and continue in a temporary file (`topline.solvers.core.dual_rows`); with a
    budget no result holds them.  `kept_bytes` is memory for values that Newton's method would otherwise
    recompute in a round, by default up to a fixed limit per block.  `threads` share the work on large blocks,
    by default as many as BLAS may use; no number depends on how many.

    Raises InvalidProblemError on binding if the rows cannot be cut like that.

    Examples
    --------
    >>> import numpy as np
    >>> from topline import MaxHinge, SerialExecutor, solve
    >>> X, y = np.eye(3).repeat(4, axis=0), np.arange(3).repeat(4)
    >>> with SerialExecutor(blocks=2) as executor:
    ...     solve(X, y, MaxHinge(), lam=0.1, executor=executor).status
    <Status.SOLVED: 'solved'>
    """

    #: Requests stay in this process.
    sends = False
    _default_blocks = 1

    def __init__(
        self,
        *,
        blocks: int | None = None,
        bounds: Sequence[int] | None = None,
        dual_bytes: int | None = None,
        kept_bytes: int | None = None,
        threads: int | None = None,
    ) -> None:
        super().__init__()
        if threads is not None and threads < 1:
            raise InvalidProblemError(f"threads is {threads}; give a whole number of at least 1")
        self._asked_threads = threads
        self._asked_blocks = blocks
        self._asked_bounds = bounds
        self.dual_bytes = dual_bytes
        self.in_process = dual_bytes is None
        self._kept_bytes = kept_bytes
        #: Whether the blocks of the bound problem keep A.
        self.keeps_duals = False
        self._source: RowSource | None = None
        self._read_before = 0
        self._memory, self._looked = 0, -math.inf

    def bind(
        self,
        problem: Problem,
        X: RowSource,
        y: IntArray,
        *,
        keep_duals: bool,
        weights: Float64Array | None = None,
    ) -> None:
        """Cut the examples into blocks, with A = 0 if `keep_duals`."""
        stored = isinstance(X, np.memmap) or any(getattr(X, name, None) for name in ("chunks", "cuts"))
        if stored and not (hasattr(X, "bytes_read") or getattr(X, "in_memory", False)):
            X = CountedRows(X)
        self._source, self._read_before, self.keeps_duals = X, int(getattr(X, "bytes_read", 0)), keep_duals
        blocks = min(self._default_blocks, problem.n) if self._asked_blocks is None else self._asked_blocks
        bounds = block_bounds(problem.n, blocks, self._asked_bounds)
        spec = RunSpec(problem, X, y, weights, keep_duals, self.dual_bytes, self._kept_bytes)
        made = [RowBlock(spec, i, start, stop) for i, (start, stop) in enumerate(pairwise(bounds))]
        threads = threads_here() if self._asked_threads is None else self._asked_threads
        each = max(1, threads // min(self.workers, len(made)))
        super().__init__(made, len(made), workers=self.workers, threads=each, pool=self._pool)

    def traffic(self) -> Traffic:
        """Return bytes read, the memory of this process and the work of its threads; nothing is sent."""
        now, read = time.perf_counter(), int(getattr(self._source, "bytes_read", 0)) - self._read_before
        # Rounds may be shorter than the reading.
        if now - self._looked >= _LOOKS_EVERY:
            self._looked, self._memory = now, resident_bytes()
        with self._lock:
            workers = tuple(
                WorkerActivity(name, self._rows.get(name, 0), seconds)
                for name, seconds in sorted(self._busy.items())
            )
        return Traffic(bytes_read=read, memory_bytes=self._memory, workers=workers)

    def close(self) -> None:
        """Stop the threads, if any, and release the examples."""
        self._held, self.blocks, self._source, self._read_before = [], 0, None, 0
        if self._pool is not None:
            self._pool.shutdown()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


class ThreadExecutor(SerialExecutor):
    """Runs blocks on threads; BLAS and compiled functions release the interpreter lock.

    `workers` is the number of blocks that run in parallel; they share the `threads`.  `threads`, `bounds`,
    `blocks`, `dual_bytes` and `kept_bytes` are as for SerialExecutor, with 16 blocks (or n) by default,
    whatever the number of workers.

    Raises InvalidProblemError if `workers` is below 1.

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
    """Return the row numbers that cut n rows: `bounds`, or `blocks` runs of nearly equal size."""
    if bounds is not None:
        cuts = tuple(int(row) for row in bounds)
        if len(cuts) < 2 or cuts[0] != 0 or cuts[-1] != n or np.any(np.diff(cuts) < 1):
            shown = f"{list(cuts[:6])}{' ...' if len(cuts) > 6 else ''}"
            raise InvalidProblemError(f"block bounds must rise from 0 to {n}; they are {shown}")
        return cuts
    if not 1 <= blocks <= n:
        raise InvalidProblemError(f"{n} rows cannot be cut into {blocks} blocks; give 1 to {n}")
    return tuple(n * i // blocks for i in range(blocks + 1))
