"""One block of examples under many problems: requests of many heads in, their sums out, in one reading.

Every head has a `Block` of its own, which answers as it does alone.  Pieces of work on tiles go through one
reading and one product; sweeps of dual ascent run side by side, each on the weights of its own head, and
share the reading of rows that do not lie in memory.  Where they do, whatever was asked goes on at the same
time, on as many threads as there are.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

import numpy as np

from topline.solvers.blocks.ascent.rows import RowNorms
from topline.solvers.blocks.block import Block
from topline.solvers.blocks.open_duals import OpenDuals
from topline.solvers.core.answers import Answer, Clock, merged_by
from topline.solvers.core.dual_points import PendingStep
from topline.solvers.core.dual_rows import row_runs
from topline.solvers.core.held_out import HitCount, count_hits
from topline.solvers.core.problem import Problem
from topline.solvers.core.rows import RowSource, kept_in_memory
from topline.solvers.core.shared_scan import SharedScan
from topline.solvers.core.tiles import Tile, TileReader, TileWork, work_through
from topline.solvers.crew import ALONE, Crew, Helpers
from topline.solvers.errors import StateLostError
from topline.solvers.operations.base import Operation, TileOperation
from topline.solvers.typing import Float64Array, FloatArray, IntArray


@dataclass(frozen=True, eq=False)
class Head:
    """One of many problems over the same rows: its number, and which column of the weights is its own."""

    number: int
    problem: Problem
    column: int = 0


@dataclass(frozen=True)
class CopyDuals(Operation[Answer]):
    """Start from `share` times the dual variables of another head, after its `pending_step`.

    Rows may then lie outside the head's domains; those that it holds out are 0.
    """

    source: int
    share: float = 1.0
    pending_step: PendingStep | None = None

    def answer(self, block: Block, crew: Crew) -> Answer:
        """Refuse: a block of one head has no other."""
        raise StateLostError(f"the dual variables of head {self.source} are not here; ask all heads together")


@dataclass(frozen=True, eq=False, kw_only=True)
class Hits(Answer):
    """Hits among rows that are held out."""

    count: HitCount


@dataclass(frozen=True, eq=False)
class CountHits(TileOperation[Hits]):
    """Count the rows of weight 0 that have their class among the first k under W (d, m), with bounds.

    `radius` is how far the exact solution may lie from W; a row of class c counts `class_weights[c]` times.
    """

    W: Float64Array
    k: int
    radius: float
    class_weights: tuple[float, ...] | None = None

    def work(self, block: Block, crew: Crew) -> TileWork[Hits]:
        """Return what is done with each tile."""
        return _CountHits(self, block)


class _CountHits:
    """Hits among the rows of tile after tile that are held out."""

    W: FloatArray | None = None

    def __init__(self, operation: CountHits, block: Block) -> None:
        self.clock, self.dtype = Clock(), block.dtype
        self._operation, self._weights, self._first_row = operation, block.weights, block.start
        self._count = HitCount(0, 0, 0, 0)

    def take(self, tile: Tile, scores: FloatArray) -> None:
        """Count those of one tile."""
        out = np.flatnonzero(self._weights[tile.rows] == 0.0)
        if len(out):
            asked = self._operation
            self._count += count_hits(
                tile.X[out], tile.y[out], asked.W, asked.k, asked.radius, asked.class_weights,
                out + (self._first_row + tile.start),
            )  # fmt: skip
        self.clock.row_work()

    def answer(self) -> Hits:
        """Return the hits in all tiles that were taken."""
        return Hits(count=self._count, **self.clock.seconds())


def _head_by_head(above: Mapping[int, Answer], below: Mapping[int, Answer]) -> dict[int, Answer]:
    """Return the sums of both, which have answered the same heads."""
    return {head: answer.merge(below[head]) for head, answer in above.items()}


@dataclass(frozen=True, eq=False, kw_only=True)
class HeadAnswers(Answer):
    """The answer to each head, by its number."""

    parts: Mapping[int, Answer] = merged_by(_head_by_head)


@dataclass(frozen=True, eq=False)
class AskHeads(Operation[HeadAnswers]):
    """What heads ask, to be answered in one reading, and the numbers of those that are done."""

    asked: tuple[tuple[Head, Operation[Answer]], ...]
    ended: tuple[int, ...] = ()

    @property
    def pending_step(self) -> Any:
        """The steps that heads have not yet applied, by their numbers."""
        steps = {head.number: operation.pending_step for head, operation in self.asked}
        return {number: step for number, step in steps.items() if step is not None}

    def answer(self, block: Any, crew: Crew) -> HeadAnswers:
        """Return the answers of the heads of a block."""
        answers: HeadAnswers = block.run(self, crew.threads)
        return answers


#: The step of each head that waits for one, by its number.
HeadSteps: TypeAlias = Mapping[int, PendingStep]
#: Rows of A of every head, by its number.
HeadRows: TypeAlias = Mapping[int, tuple[Head, FloatArray]]


class HeadBlocks:
    """A contiguous run of examples, with the dual variables of every head.

    The parameters are those of `Block`, but that `problem` is any of theirs, `weights` (stop - start,
    columns) has a column for each group of heads, and `dual_bytes` is for all of them
    (`topline.solvers.blocks.open_duals`).
    """

    def __init__(
        self,
        index: int,
        start: int,
        stop: int,
        X: RowSource,
        y: IntArray,
        problem: Problem,
        weights: Float64Array,
        dual_bytes: int | None = None,
    ) -> None:
        self.index, self.start, self.stop, self.problem = index, start, stop, problem
        self._X = SharedScan(X)
        self._y = np.ascontiguousarray(y, dtype=np.int32)
        self._weights = [np.ascontiguousarray(column, dtype=np.float64) for column in weights.T]
        self._open: OpenDuals | None = None
        if dual_bytes is not None:
            self._open = OpenDuals(dual_bytes, stop - start, problem.d, problem.m)
        self._tiles = TileReader(self._X, self._y, np.ones(stop - start), start, problem.m)
        self._heads: dict[int, Head] = {}
        self._blocks: dict[int, Block] = {}
        self._helpers, self._norms = Helpers(), RowNorms(stop - start)

    def run(self, request: AskHeads, threads: int = 1) -> HeadAnswers:
        """Answer what all heads ask; a head that is not known starts with A = 0.

        Raises what `Block.run` does.
        """
        for number in request.ended:
            self._forget(number)
        answers: dict[int, Answer] = {}
        works: dict[int, TileWork[Answer]] = {}
        sweeps: dict[int, Operation[Answer]] = {}
        # Copies come first: what they are taken from does not move meanwhile.
        for head, asked in request.asked:
            if isinstance(asked, CopyDuals):
                answers[head.number] = self._copy_duals(head, asked)
            elif self._open is not None and asked.widens:
                self._open.widen(head.number)
        crew = self._crew(threads)
        with np.errstate(over="ignore", invalid="ignore"):
            for head, asked in request.asked:
                if isinstance(asked, TileOperation):
                    works[head.number] = asked.work(self._of(head), crew)
                elif not isinstance(asked, CopyDuals):
                    self._of(head)
                    sweeps[head.number] = asked
            answers |= self._answered(sweeps, list(works.values()), threads)
        answers |= {number: work.answer() for number, work in works.items()}
        return HeadAnswers(
            parts=answers,
            seconds_products=sum(one.seconds_products for one in answers.values()),
            seconds_kernels=sum(one.seconds_kernels for one in answers.values()),
        )

    def finish_step(self, pending: HeadSteps | None) -> None:
        """Take A of every head for what it is after its step (`Block.finish_step`)."""
        for number, step in (pending or {}).items():
            if number in self._blocks:
                self._blocks[number].finish_step(step)

    def take_duals(self, other: HeadBlocks) -> None:
        """Take the dual variables of a block of the same rows, which is used no more."""
        for number, block in other._blocks.items():
            self._new(other._heads[number]).take_duals(block)
        if self._open is not None and other._open is not None:
            self._open.take(other._open)

    def dual_rows(
        self, pending: HeadSteps | None = None, start: int | None = None, stop: int | None = None
    ) -> HeadRows:
        """Return the rows [start, stop) of A of every head, by their numbers in the problem."""
        steps = pending or {}
        return {
            number: (self._heads[number], block.dual_rows(steps.get(number), start, stop))
            for number, block in self._blocks.items()
        }

    def load_duals(self, start: int, rows: HeadRows) -> None:
        """Replace A of every head from row `start` of the problem on."""
        for head, part in rows.values():
            self._of(head).load_duals(start, part)

    def _kept(self) -> bool:
        """Return whether the rows lie in memory."""
        return kept_in_memory(self._X, 0, self.stop - self.start)

    def _crew(self, threads: int) -> Crew:
        """Return who works on a tile: all threads, or one where each has tiles of its own."""
        return ALONE if threads == 1 or self._kept() else Crew(threads, self._helpers.pool)

    def _of(self, head: Head) -> Block:
        """Return the block of a head."""
        return self._blocks[head.number] if head.number in self._blocks else self._new(head)

    def _new(self, head: Head) -> Block:
        """Return a block with A = 0 for a head."""
        self._forget(head.number)
        budget = None if self._open is None else self._open.packed
        block = Block(
            self.index, self.start, self.stop, self._X, self._y, head.problem, keep_duals=True,
            weights=self._weights[head.column], dual_bytes=budget, helpers=self._helpers,
            norms=self._norms,
        )  # fmt: skip
        self._heads[head.number], self._blocks[head.number] = head, block
        return block

    def _forget(self, number: int) -> None:
        """Let go of a head, and of the room that its dual variables take."""
        block, _ = self._blocks.pop(number, None), self._heads.pop(number, None)
        if block is not None and self._open is not None:
            self._open.forget(number, block.duals)

    def _copy_duals(self, head: Head, request: CopyDuals) -> Answer:
        """Give a head the dual variables of another one; of rows that were lost with it, none."""
        block, source = self._new(head), self._blocks.get(request.source)
        if source is None:
            return Answer()
        if self._heads[request.source].column != head.column:
            for start, stop in row_runs(self.start, self.stop, self.problem.m):
                rows = source.dual_rows(request.pending_step, start, stop)
                block.load_duals(start, np.asarray(rows * rows.dtype.type(request.share)))
            return Answer()
        if self._open is not None:
            wide = [head.number] if source.duals.A.dtype == np.float64 else []
            for _ in self._open.groups({head.number: block.duals}, wide, 1):
                pass
        block.copy_duals(source, request.share, request.pending_step)
        return Answer()

    def _answered(
        self, sweeps: Mapping[int, Operation[Answer]], works: Sequence[TileWork[Answer]], threads: int
    ) -> dict[int, Answer]:
        """Answer requests that visit rows one by one, and do what goes through the tiles.

        Where rows lie in memory all of it goes on at the same time, on `threads`, in parts of their number.
        """
        kept, crew = self._kept(), self._crew(threads)
        parts = min(threads if kept else 1, len(works))
        beside: list[Callable[[], Any]] = [
            partial(work_through, self._tiles, works[part::parts], crew) for part in range(parts)
        ]
        if not kept or not sweeps:
            _on_threads(beside, threads if kept else 1)
            beside = []
        duals = {number: self._blocks[number].duals for number in sweeps}
        wide = [number for number, request in sweeps.items() if request.widens]
        groups = [list(duals)] if self._open is None else self._open.groups(duals, wide, threads)
        answers: dict[int, Answer] = {}
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
        """Sweep several heads at the same time, and do what is there to do `beside` them."""
        together = len(sweeps) > 1 and not kept
        at_once = len(sweeps) if together else min(threads, len(sweeps) + len(beside))
        each = max(threads // (len(sweeps) + len(beside)), 1)
        if each > 1:
            # As many as all heads ask for together: none of them begins more while others are at work.
            self._helpers.pool(threads)
        if together:
            self._X.begin(len(sweeps))

        def answer(number: int) -> Any:
            try:
                return self._blocks[number].run(sweeps[number], each)
            finally:
                if together:
                    self._X.leave()

        # Sweeps take the longest and begin first.
        found = _on_threads([*(partial(answer, number) for number in sweeps), *beside], at_once)
        return dict(zip(sweeps, found, strict=False))


def _on_threads(jobs: Sequence[Callable[[], Any]], threads: int) -> list[Any]:
    """Do pieces of work, so many at a time; return what each of them gave."""

    def done(job: Callable[[], Any]) -> Any:
        # NumPy's settings are those of a thread.
        with np.errstate(over="ignore", invalid="ignore"):
            return job()

    if min(threads, len(jobs)) <= 1:
        return [done(job) for job in jobs]
    with ThreadPoolExecutor(min(threads, len(jobs)), thread_name_prefix="topline-head") as pool:
        return [future.result() for future in [pool.submit(done, job) for job in jobs]]
