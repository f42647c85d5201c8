"""The protocol of operations, and the blocks of one process that answer them.

An operation is a request of the coordinator to every block, whose answers add up.  It is a value: it can be
sent to another machine, sent again, and compared.  One file holds its parameters, what a block computes, the
answer, whose fields say how they merge, and how to run it at weights of a feature map or for a risk other
than the mean of the losses.

With many problems over the same rows, every head has a `Block` of its own, which answers as it would alone.
Tile operations share one reading and one product; sweeps of dual ascent run side by side, each on the weights
of its own head, and share the reading of rows outside memory.  If the rows lie in memory, all requests run at
the same time on the available threads.

If a budget cannot hold the dual variables of all heads, the swept heads keep theirs as arrays, as many as fit
and until others need the room (`OpenDuals`).  Packed ones are unpacked slab by slab, and the rows of a slab
are swept before those of the next, which takes several times the passes.
"""

from __future__ import annotations

import threading
import time
from abc import ABC, abstractmethod
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from typing import Any, ClassVar, Generic, Protocol, Self, TypeAlias, TypeVar

import numpy as np

from topline.solvers.blocks.ascent.extrapolation import extrapolation_bytes
from topline.solvers.blocks.ascent.rows import unknown_norms
from topline.solvers.blocks.block import Block, BlockDuals, RunSpec, array_bytes
from topline.solvers.core.answers import (
    A,
    Answer,
    Clock,
    TileReader,
    TileSums,
    TileWork,
    TreeMerger,
    merged_by,
    work_through,
)
from topline.solvers.core.dual_points import PendingStep
from topline.solvers.core.dual_rows import ByteBudget, row_runs
from topline.solvers.core.feature_maps import MapView
from topline.solvers.core.held_out import HitCount, count_hits
from topline.solvers.core.problem import AverageTopK, Problem
from topline.solvers.core.rows import SharedScan, rows_are
from topline.solvers.core.state import Traffic
from topline.solvers.crew import ALONE, Crew, helpers, one_blas_thread
from topline.solvers.errors import StateLostError
from topline.solvers.typing import Float64Array, FloatArray

A_co = TypeVar("A_co", bound=Answer, covariant=True)


class Operation(ABC, Generic[A_co]):
    """A request to every block; a base class for frozen dataclasses.

    A block answers a repeated operation with the same sums and changes nothing further.  A `widening`
    operation leaves the dual variables in float64; if it has a field `exact`, only when that is true.
    """

    widening: ClassVar[bool] = False

    @property
    def pending_step(self) -> PendingStep | None:
        """The step that a block first applies to A, unless already applied; a field of most operations."""
        return None

    @property
    def widens(self) -> bool:
        """Whether the dual variables are in float64 afterwards."""
        return self.widening and bool(getattr(self, "exact", True))

    @abstractmethod
    def answer(self, block: Block, crew: Crew) -> A_co:
        """Return the answer of one block, using the threads of a crew, whose number does not change it.

        Raises NonFiniteError naming the rows with NaN or infinite features, StateLostError if a step refers
        to a round that this block has not seen.
        """

    def within(self, passes: int, seconds: float | None) -> Self:
        """Return the operation limited to the run's remaining passes and seconds; None for no limit."""
        return self

    def through(self, run: Runner, view: MapView) -> A_co:
        """Return the answer at weights V of a feature map, from blocks that know only W = L V.

        The weight fields W and V are mapped on the way to the blocks, and a product is mapped back to V.
        """
        here: Any = self
        weights = {name: getattr(self, name) for name in ("W", "V") if hasattr(self, name)}
        if weights:
            here = replace(here, **{name: view.class_weights(V) for name, V in weights.items()})
        answer: Any = run(here)
        if hasattr(answer, "product"):
            answer = replace(answer, product=view.summed(answer.product))
        found: A_co = answer
        return found

    def on_largest(self, run: Runner, risk: AverageTopK, n: int) -> A_co:
        """Return the answer for the mean of the k largest of n losses, from the blocks' answers."""
        del risk, n
        return run(self)


class TileOperation(Operation[A]):
    """An operation that processes tiles one by one: several of these share one reading of the rows."""

    @abstractmethod
    def sums(self, block: Block, crew: Crew) -> TileSums[A]:
        """Return the generator that processes the tiles, with the help of a crew."""

    def answer(self, block: Block, crew: Crew) -> A:
        """Return the answer of one block."""
        work = TileWork.begin(self.sums(block, crew), block.tiles)
        (answer,) = work_through(block.tiles, [work], crew)
        found: A = answer
        return found


class Runner(Protocol):
    """Runs an operation on every block and returns the sum of the answers."""

    def __call__(self, operation: Operation[A], /) -> A:
        """Return the answer of all blocks."""
        ...


class OperationRunner(Protocol):
    """Runs operations on all examples of a bound problem: all that a run needs after its start."""

    @property
    def workers(self) -> int:
        """How many blocks run at the same time."""
        ...

    @property
    def sends(self) -> bool:
        """Whether requests go to other processes, so that each one costs time."""
        ...

    @property
    def keeps_duals(self) -> bool:
        """Whether the blocks keep A."""
        ...

    def run(self, operation: Operation[A], /) -> A:
        """Run an operation on every block and return the sum."""
        ...

    def traffic(self) -> Traffic:
        """Return data moved and work done since `bind`, at almost no cost and without a request."""
        ...


@dataclass(frozen=True, eq=False)
class Head:
    """One of many problems over the same rows: its number, and the index of its column of weights."""

    number: int
    problem: Problem
    column: int = 0


@dataclass(frozen=True)
class CopyDuals(Operation[Answer]):
    """Start from `share` times the dual variables of another head, after its `pending_step`.

    Rows may then lie outside the head's domains; its held-out rows become 0.
    """

    source: int
    share: float = 1.0
    pending_step: PendingStep | None = None

    def answer(self, block: Block, crew: Crew) -> Answer:
        """Refuse: a block of one head has no other."""
        raise StateLostError(f"the dual variables of head {self.source} are not here; ask all heads together")


@dataclass(frozen=True, eq=False, kw_only=True)
class Hits(Answer):
    """Counts of hits among held-out rows."""

    count: HitCount


@dataclass(frozen=True, eq=False)
class CountHits(TileOperation[Hits]):
    """Count the rows of weight 0 that have their class among the first k under W (d, m), with bounds.

    `radius` bounds the distance of the exact solution from W; a row of class c counts `class_weights[c]`
    times.
    """

    W: Float64Array
    k: int
    radius: float
    class_weights: tuple[float, ...] | None = None

    def sums(self, block: Block, crew: Crew) -> TileSums[Hits]:
        """Count the hits tile by tile."""
        clock, count = Clock(), HitCount(0, 0, 0, 0)
        taken = yield clock, block.dtype, None
        while taken is not None:
            tile, _ = taken
            out = np.flatnonzero(tile.weights == 0.0)
            if len(out):
                numbers = out + (block.start + tile.rows.start)
                X, y = tile.X[out], tile.y[out]
                count += count_hits(X, y, self.W, self.k, self.radius, self.class_weights, numbers)
            clock.row_work()
            taken = yield None
        return Hits(count=count, **clock.seconds())


@dataclass(frozen=True, eq=False, kw_only=True)
class HeadAnswers(Answer):
    """The answers of the heads, by number."""

    parts: Mapping[int, Answer] = merged_by(
        lambda above, below: {head: answer.merge(below[head]) for head, answer in above.items()}
    )


@dataclass(frozen=True, eq=False)
class AskHeads(Operation[HeadAnswers]):
    """The operations of several heads, to be answered in one reading, and the numbers of finished heads."""

    asked: tuple[tuple[Head, Operation[Answer]], ...]
    ended: tuple[int, ...] = ()

    @property
    def pending_step(self) -> Any:
        """The pending steps of the heads, by number."""
        steps = {head.number: operation.pending_step for head, operation in self.asked}
        return {number: step for number, step in steps.items() if step is not None}

    def answer(self, block: Any, crew: Crew) -> HeadAnswers:
        """Return the answers of the heads of a block."""
        answers: HeadAnswers = block.ask(self, crew.threads)
        return answers


#: The share of a budget for packed dual variables.
_PACKED = 0.125
#: Item size of dual variables until a run needs a gap that float32 does not resolve.
_FLOAT32 = np.dtype(np.float32).itemsize


def most_open(dual_bytes: int, rows: int, d: int, m: int, threads: int = 1) -> int:
    """Return how many heads' dual variables (rows, m) fit as float32 arrays beside one sweep per thread."""
    room, each = _room(dual_bytes), array_bytes(rows, m, _FLOAT32)
    more = extrapolation_bytes((rows + d) * m)
    alone = room // (each + more)
    return alone if alone < threads else (room - threads * more) // each


class OpenDuals:
    """The heads of one block whose dual variables are arrays; `packed` is the budget of the others."""

    def __init__(self, dual_bytes: int, rows: int, d: int, m: int) -> None:
        self._room, self._more = _room(dual_bytes), extrapolation_bytes((rows + d) * m)
        any_open = most_open(dual_bytes, rows, d, m) > 0
        self.packed = ByteBudget(dual_bytes - self._room if any_open else dual_bytes)
        #: In order of their last sweep.
        self._open: dict[int, BlockDuals] = {}

    def groups(
        self, swept: Mapping[int, BlockDuals], wide: Collection[int], threads: int
    ) -> Iterator[list[int]]:
        """Yield the swept heads in groups, after their dual variables have become arrays.

        Those of the heads in `wide` are or become float64.  A head that does not fit even alone forms a group
        of its own, packed.
        """
        left = sorted(swept, key=lambda head: head not in self._open)
        while left:
            group: list[int] = []
            need = 0
            for head in left:
                more = swept[head].array_bytes(wide=head in wide)
                if not group or need + more + min(len(group) + 1, threads) * self._more <= self._room:
                    group.append(head)
                    need += more
            fits = self._make_room(group, need + min(len(group), threads) * self._more)
            for head in group:
                opened = self._open.pop(head, None)
                if fits and opened is None:
                    swept[head].open()
                elif opened is not None and not fits:
                    swept[head].pack()
                if fits:
                    self._open[head] = swept[head]
            yield group
            left = [head for head in left if head not in group]

    def widen(self, head: int) -> None:
        """Make room for a head whose dual variables become float64, or pack them."""
        duals = self._open.get(head)
        if duals is not None and not self._make_room([head], duals.array_bytes(wide=True)):
            self._open.pop(head).pack()

    def forget(self, head: int, duals: BlockDuals) -> None:
        """Drop a head and free the room of its dual variables."""
        self._open.pop(head, None)
        duals.clear()

    def take(self, other: OpenDuals) -> None:
        """Adopt the dual variables of another instance."""
        self.packed, self._open = other.packed, other._open

    def _make_room(self, kept: Collection[int], need: int) -> bool:
        """Pack heads not in `kept`, least recently swept first, until there is room; return if there is."""
        if need > self._room:
            return False
        idle = [head for head in self._open if head not in kept]
        taken = sum(self._open[head].array_bytes() for head in idle)
        while taken + need > self._room:
            duals = self._open.pop(idle.pop(0))
            taken -= duals.array_bytes()
            duals.pack()
        return True


def _room(dual_bytes: int) -> int:
    return dual_bytes - int(_PACKED * dual_bytes)


#: The pending step of a sole head, or of each head by number.
Steps: TypeAlias = Any


class RowBlock:
    """The rows [start, stop) of a run as its block `index`, with the dual variables of every head.

    Without weights or with one column there is a `sole` head, which answers operations that name none.
    """

    def __init__(self, spec: RunSpec, index: int, start: int, stop: int) -> None:
        self._spec, self.problem = spec.part(start, stop), spec.problem
        self.index, self.start, self.stop = index, start, stop
        weights = self._spec.weights
        many = weights is not None and weights.ndim == 2
        columns = np.ones((1, stop - start)) if weights is None else np.atleast_2d(weights.T)
        self.sole = None if many else Head(0, spec.problem)
        self._X = SharedScan(spec.X, start, stop)
        self._y = np.ascontiguousarray(self._spec.y, dtype=np.int32)
        self._weights = [np.ascontiguousarray(column, dtype=np.float64) for column in columns]
        self._open: OpenDuals | None = None
        if many and self._spec.dual_bytes is not None:
            self._open = OpenDuals(self._spec.dual_bytes, stop - start, self.problem.d, self.problem.m)
        self._tiles = TileReader(self._X, self._y, np.ones(stop - start), start, self.problem.m)
        self._heads: dict[int, Head] = {}
        self._blocks: dict[int, Block] = {}
        self._norms = unknown_norms(stop - start)
        self._helpers = helpers()

    def run(self, operation: Operation[A], threads: int = 1) -> A:
        """Answer an operation on `threads` threads; new heads start with A = 0."""
        asked: Any = self if self.sole is None else self._of(self.sole)
        # Overflow shows in the sums, which the coordinator checks.
        with np.errstate(over="ignore", invalid="ignore"):
            return operation.answer(asked, Crew(threads, self._helpers))

    def ask(self, request: AskHeads, threads: int) -> HeadAnswers:
        """Answer the operations of all heads."""
        for number in request.ended:
            self._forget(number)
        answers: dict[int, Answer] = {}
        works: dict[int, TileWork] = {}
        sweeps: dict[int, Operation[Answer]] = {}
        # Copies come first, before their sources change.
        for head, asked in request.asked:
            if isinstance(asked, CopyDuals):
                answers[head.number] = self._copy_duals(head, asked)
            elif self._open is not None and asked.widens:
                self._open.widen(head.number)
        crew = self._crew(threads)
        with np.errstate(over="ignore", invalid="ignore"):
            for head, asked in request.asked:
                if isinstance(asked, TileOperation):
                    block = self._of(head)
                    works[head.number] = TileWork.begin(asked.sums(block, crew), block.tiles)
                elif not isinstance(asked, CopyDuals):
                    self._of(head)
                    sweeps[head.number] = asked
            answers |= self._answered(sweeps, works, threads)
        return HeadAnswers(
            parts=answers,
            seconds_products=sum(one.seconds_products for one in answers.values()),
            seconds_kernels=sum(one.seconds_kernels for one in answers.values()),
        )

    def finish_step(self, pending: Steps) -> None:
        """Adopt A of every head after its step (`Block.finish_step`)."""
        if self.sole is not None:
            self._of(self.sole).finish_step(pending)
            return
        for number, step in (pending or {}).items():
            if number in self._blocks:
                self._blocks[number].finish_step(step)

    def take_duals(self, other: RowBlock) -> None:
        """Adopt the dual variables of a block of the same rows, which must not be used again."""
        for number, block in other._blocks.items():
            self._new(other._heads[number]).take_duals(block)
        if self._open is not None and other._open is not None:
            self._open.take(other._open)

    def dual_rows(self, pending: Steps = None, start: int | None = None, stop: int | None = None) -> Any:
        """Return the rows [start, stop) of A, numbered as in the problem; a mapping for several heads."""
        if self.sole is not None:
            return self._of(self.sole).dual_rows(pending, start, stop)
        steps = pending or {}
        return {
            number: (self._heads[number], block.dual_rows(steps.get(number), start, stop))
            for number, block in self._blocks.items()
        }

    def load_duals(self, start: int, rows: Any) -> None:
        """Replace A from row `start` of the problem on by the output of `dual_rows`."""
        for head, part in rows.values() if self.sole is None else [(self.sole, rows)]:
            self._of(head).load_duals(start, part)

    def _kept(self) -> bool:
        return rows_are("kept", self._X, 0, self.stop - self.start)

    def _crew(self, threads: int) -> Crew:
        """Return the crew for a tile: all threads, or one if each thread has tiles of its own."""
        return ALONE if threads == 1 or self._kept() else Crew(threads, self._helpers)

    def _of(self, head: Head) -> Block:
        return self._blocks.get(head.number) or self._new(head)

    def _new(self, head: Head) -> Block:
        """Return a block with A = 0 for a head."""
        if head.number in self._blocks:
            self._forget(head.number)
        spec = replace(
            self._spec, problem=head.problem, y=self._y, weights=self._weights[head.column],
            keep_duals=self.sole is None or self._spec.keep_duals,
        )  # fmt: skip
        budget = None if self._open is None else self._open.packed
        block = Block(spec, self.index, self._X, budget, self._norms)
        self._heads[head.number], self._blocks[head.number] = head, block
        return block

    def _forget(self, number: int) -> None:
        block, _ = self._blocks.pop(number, None), self._heads.pop(number, None)
        if block is not None and self._open is not None:
            self._open.forget(number, block.duals)

    def _copy_duals(self, head: Head, request: CopyDuals) -> Answer:
        """Give a head the dual variables of another one, or none if they were lost with it."""
        block, source = self._new(head), self._blocks.get(request.source)
        if source is None:
            return Answer()
        for start, stop in row_runs(self.start, self.stop, self.problem.m):
            rows = source.dual_rows(request.pending_step, start, stop)
            block.load_duals(start, np.asarray(rows * rows.dtype.type(request.share)))
        return Answer()

    def _answered(
        self, sweeps: Mapping[int, Operation[Answer]], works: Mapping[int, TileWork], threads: int
    ) -> dict[int, Answer]:
        """Answer sweeps row by row, and the other requests tile by tile.

        If the rows lie in memory everything runs at the same time, divided over `threads`.
        """
        kept, crew, answers = self._kept(), self._crew(threads), dict[int, Answer]()

        def work(numbers: Sequence[int]) -> None:
            found = work_through(self._tiles, [works[number] for number in numbers], crew)
            answers.update(zip(numbers, found, strict=True))

        parts = min(threads if kept else 1, len(works))
        beside: list[Callable[[], Any]] = [partial(work, [*works][part::parts]) for part in range(parts)]
        if not kept or not sweeps:
            _on_threads(beside, threads if kept else 1)
            beside = []
        duals = {number: self._blocks[number].duals for number in sweeps}
        wide = [number for number, request in sweeps.items() if request.widens]
        groups = [list(duals)] if self._open is None else self._open.groups(duals, wide, threads)
        for group in groups if sweeps else ():
            swept = {number: sweeps[number] for number in sweeps if number in group}
            answers |= self._swept(swept, beside, threads, kept=kept)
            beside = []
        return answers

    def _swept(
        self,
        sweeps: Mapping[int, Operation[Answer]],
        beside: Sequence[Callable[[], Any]],
        threads: int,
        *,
        kept: bool,
    ) -> dict[int, Answer]:
        """Sweep several heads at the same time, together with the jobs in `beside`."""
        together = len(sweeps) > 1 and not kept
        at_once = len(sweeps) if together else min(threads, len(sweeps) + len(beside))
        each = max(threads // (len(sweeps) + len(beside)), 1)
        if together:
            self._X.begin(len(sweeps))

        def answer(number: int) -> Any:
            try:
                return sweeps[number].answer(self._blocks[number], Crew(each, self._helpers))
            finally:
                if together:
                    self._X.leave()

        # Sweeps take the longest and start first.
        found = _on_threads([*(partial(answer, number) for number in sweeps), *beside], at_once)
        return dict(zip(sweeps, found, strict=False))


def _on_threads(jobs: Sequence[Callable[[], Any]], threads: int) -> list[Any]:

    def done(job: Callable[[], Any]) -> Any:
        # NumPy's error settings are per thread.
        with np.errstate(over="ignore", invalid="ignore"):
            return job()

    if min(threads, len(jobs)) <= 1:
        return [done(job) for job in jobs]
    with ThreadPoolExecutor(min(threads, len(jobs)), thread_name_prefix="topline-head") as pool:
        return [future.result() for future in [pool.submit(done, job) for job in jobs]]


T = TypeVar("T")

#: Dual variables of the rows [start, stop): (start, stop, A of shape (stop - start, m)).
DualRows: TypeAlias = tuple[int, int, FloatArray]


class BlockSet:
    """Some of the `blocks` of a run, in order, `workers` of them in parallel on `threads` each.

    `pool` has a thread for each of the workers; None runs the blocks one by one.
    """

    def __init__(
        self,
        held: Sequence[RowBlock] = (),
        blocks: int = 0,
        *,
        workers: int = 1,
        threads: int = 1,
        pool: ThreadPoolExecutor | None = None,
    ) -> None:
        self._held, self.blocks, self.workers = list(held), blocks, workers
        self.threads, self._pool = threads, pool
        #: Seconds of every thread that has worked, and the rows of each in the present request.
        self._busy: dict[str, float] = {}
        self._rows: dict[str, int] = {}
        self._lock = threading.Lock()

    def run(self, operation: Operation[A]) -> A:
        """Run an operation on every block and return the sum."""
        return self.merged(operation).total()

    def merged(self, operation: Operation[A]) -> TreeMerger[A]:
        """Return the answers of the blocks, merged as far as they are contiguous in the tree.

        BLAS keeps to one thread, so that sums do not depend on the machine and workers do not compete.
        """
        self._rows = {}

        def answered(block: RowBlock) -> A:
            name, began = threading.current_thread().name, time.perf_counter()
            answer = block.run(operation, self.threads)
            seconds, rows = time.perf_counter() - began, block.stop - block.start
            with self._lock:
                self._busy[name] = self._busy.get(name, 0.0) + seconds
                self._rows[name] = self._rows.get(name, 0) + rows
            return answer

        merger: TreeMerger[A] = TreeMerger(self.blocks)
        with one_blas_thread():
            if self._pool is None:
                answers: Iterator[A] = map(answered, self._held)
            else:
                answers = _results_of([self._pool.submit(answered, block) for block in self._held])
            for block, answer in zip(self._held, answers, strict=True):
                merger.add((0, block.index), answer)
        return merger

    def duals(self, pending_step: PendingStep | None = None) -> Iterator[DualRows]:
        """Yield A in row order, run by run, after applying `pending_step` once."""
        return _dual_rows(self._held, pending_step)

    def load_duals(self, duals: Iterable[DualRows]) -> None:
        """Replace A by parts that are in row order and cover every row."""
        spans = [(block.start, block.stop) for block in self._held]
        for place, start, rows in parts_of(duals, spans):
            self._held[place].load_duals(start, rows)

    def map_duals(
        self, visit: Callable[[Iterator[DualRows]], Sequence[T]], pending_step: PendingStep | None = None
    ) -> list[T]:
        """Give the dual rows to `visit`, a run of blocks per worker, and join the answers."""
        if self._pool is None:
            return list(visit(self.duals(pending_step)))
        parts = max(1, min(self.workers, len(self._held)))
        cuts = [len(self._held) * i // parts for i in range(parts + 1)]
        visited = [_dual_rows(self._held[low:high], pending_step) for low, high in pairwise(cuts)]
        answers = _results_of([self._pool.submit(visit, part) for part in visited])
        return [item for answer in answers for item in answer]


def parts_of(
    duals: Iterable[DualRows], spans: Sequence[tuple[int, int]]
) -> Iterator[tuple[int, int, FloatArray]]:
    """Yield the part of A for each span of rows, in order: span index, first row and rows of A.

    Raises StateLostError unless the parts are in row order and cover every row.
    """
    reached, stops = 0, [stop for _, stop in spans]
    for start, stop, rows in duals:
        if start != reached or rows.shape[0] != stop - start:
            raise StateLostError(f"the stored duals jump from row {reached} to rows {start}:{stop}")
        for place in range(bisect_right(stops, start), min(bisect_left(stops, stop) + 1, len(stops))):
            low, high = max(start, spans[place][0]), min(stop, stops[place])
            yield place, low, rows[low - start : high - start]
        reached = stop
    if stops and reached != stops[-1]:
        raise StateLostError(f"the stored duals end at row {reached} of {stops[-1]}")


def _dual_rows(blocks: Iterable[RowBlock], pending_step: PendingStep | None) -> Iterator[DualRows]:
    for block in blocks:
        for start, stop in row_runs(block.start, block.stop, block.problem.m):
            yield start, stop, block.dual_rows(pending_step, start, stop)


def _results_of(futures: Sequence[Future[T]]) -> Iterator[T]:
    """Yield the results in order; after an error or Ctrl-C no job keeps running."""
    try:
        for future in futures:
            yield future.result()
    finally:
        for future in futures:
            future.cancel()
        wait(futures)
