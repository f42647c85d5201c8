"""One block of examples under many problems: requests of many heads in, their sums out, in one reading.

Every head has a `Block` of its own, which answers as it does alone.  Pieces of work on tiles go through one
reading and one product; sweeps of dual ascent run side by side, each on the weights of its own head, and
share the reading of rows that do not lie in memory.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeAlias

import numpy as np

from topline.solvers.blocks.ascent_rows import RowNorms
from topline.solvers.blocks.block import Block
from topline.solvers.blocks.shared.open_duals import OpenDuals
from topline.solvers.blocks.shared.tile_work import TileWork, work_through
from topline.solvers.blocks.thread_choice import Helpers
from topline.solvers.core.block_stats import BlockStats
from topline.solvers.core.dual_rows import row_runs
from topline.solvers.core.heads import (
    CopyDualsRequest,
    CountHitsRequest,
    HeadCall,
    HeadRequests,
    HeadsProblem,
    HeadStats,
    PendingHeadSteps,
    Sums,
)
from topline.solvers.core.held_out import HitCount, count_hits
from topline.solvers.core.problem import Problem
from topline.solvers.core.requests import EvaluateRequest, OracleRequest, RebuildRequest, Request
from topline.solvers.core.rows import RowSource, compute_dtype, kept_in_memory
from topline.solvers.core.shared_scan import SharedScan
from topline.solvers.core.tiles import Tile, TileReader
from topline.solvers.typing import Float64Array, FloatArray, IntArray

#: Rows of A of every head, with the head's problem and its column of the weights.
HeadRows: TypeAlias = Mapping[int, tuple[Problem, int, FloatArray]]


class HeadBlocks:
    """A contiguous run of examples, with the dual variables of every head.

    The parameters are those of `Block`, but that `weights` (stop - start, columns) has a column for each
    group of heads, and `dual_bytes` is for all of them (`topline.solvers.blocks.shared.open_duals`).
    """

    def __init__(
        self,
        index: int,
        start: int,
        stop: int,
        X: RowSource,
        y: IntArray,
        problem: HeadsProblem,
        weights: Float64Array | None = None,
        dual_bytes: int | None = None,
    ) -> None:
        self.index, self.start, self.stop, self.problem = index, start, stop, problem
        self._X = SharedScan(X)
        self._y = np.ascontiguousarray(y, dtype=np.int32)
        columns = np.ones((stop - start, 1)) if weights is None else weights
        self._weights = [np.ascontiguousarray(column, dtype=np.float64) for column in columns.T]
        self._open: OpenDuals | None = None
        if dual_bytes is not None:
            self._open = OpenDuals(dual_bytes, stop - start, problem.d, problem.m)
        self._tiles = TileReader(self._X, self._y, np.ones(stop - start), start, problem.m)
        self._dtype = compute_dtype(X.dtype)
        self._heads: dict[int, Block] = {}
        self._known: dict[int, tuple[Problem, int]] = {}
        self._helpers, self._norms = Helpers(), RowNorms(stop - start)

    def run(self, request: HeadRequests, threads: int = 1) -> HeadStats:
        """Answer the calls of all heads; a head that is not known starts with A = 0.

        Raises what `Block.run` does.
        """
        for head in request.ended:
            self._forget(head)
        answers: dict[int, Sums] = {}
        works: dict[int, TileWork] = {}
        sweeps: list[HeadCall] = []
        hits: dict[int, _Hits] = {}
        # Copies come first: what they are taken from does not move meanwhile.
        for call in request.calls:
            if isinstance(call.request, CopyDualsRequest):
                answers[call.head] = self._copy_duals(call, call.request)
        with np.errstate(over="ignore", invalid="ignore"):
            for call in request.calls:
                match call.request:
                    case OracleRequest() | EvaluateRequest() | RebuildRequest():
                        works[call.head] = self._of(call.head, call.problem, call.column).work_of(
                            call.request
                        )
                    case CountHitsRequest():
                        hits[call.head] = _Hits(self._weights[call.column], call.request, self.start)
                    case CopyDualsRequest():
                        pass
                    case _:
                        sweeps.append(call)
            if works:
                work_through(self._tiles, list(works.values()))
            if hits:
                self._count(list(hits.values()))
            answers |= self._swept(sweeps, threads)
        answers |= {head: work.stats() for head, work in works.items()}
        answers |= {head: one.count for head, one in hits.items()}
        sums = [one for one in answers.values() if isinstance(one, BlockStats)]
        return HeadStats(
            answers, sum(one.seconds_products for one in sums), sum(one.seconds_kernels for one in sums)
        )

    def finish_step(self, pending: PendingHeadSteps | None) -> None:
        """Take A of every head for what it is after its step (`Block.finish_step`)."""
        steps = {} if pending is None else pending.steps
        for head, block in self._heads.items():
            if head in steps:
                block.finish_step(steps[head])

    def take_duals(self, other: HeadBlocks) -> None:
        """Take the dual variables of a block of the same rows, which is used no more."""
        for head, block in other._heads.items():
            self._new(head, *other._known[head]).take_duals(block)
        if self._open is not None and other._open is not None:
            self._open.take(other._open, self._heads)

    def duals(
        self, pending: PendingHeadSteps | None = None, start: int | None = None, stop: int | None = None
    ) -> HeadRows:
        """Return the rows [start, stop) of A of every head, by their numbers in the problem."""
        steps = {} if pending is None else pending.steps
        return {
            head: (*self._known[head], block.duals(steps.get(head), start, stop))
            for head, block in self._heads.items()
        }

    def load_duals(self, start: int, rows: HeadRows) -> None:
        """Replace A of every head from row `start` of the problem on."""
        for head, (problem, column, part) in rows.items():
            self._of(head, problem, column).load_duals(start, part)

    def _of(self, head: int, problem: Problem, column: int) -> Block:
        """Return the block of a head."""
        return self._heads[head] if head in self._heads else self._new(head, problem, column)

    def _new(self, head: int, problem: Problem, column: int) -> Block:
        """Return a block with A = 0 for a head."""
        self._forget(head)
        self._known[head] = problem, column
        budget = None if self._open is None else self._open.packed
        self._heads[head] = Block(
            self.index, self.start, self.stop, self._X, self._y, problem, keep_duals=True,
            weights=self._weights[column], dual_bytes=budget, helpers=self._helpers,
            norms=self._norms,
        )  # fmt: skip
        return self._heads[head]

    def _forget(self, head: int) -> None:
        """Let go of a head, and of the room that its dual variables take."""
        block = self._heads.pop(head, None)
        self._known.pop(head, None)
        if block is not None and self._open is not None:
            self._open.forget(head, block)

    def _copy_duals(self, call: HeadCall, request: CopyDualsRequest) -> BlockStats:
        """Give a head the dual variables of another one; of rows that were lost with it, none."""
        block, source = self._new(call.head, call.problem, call.column), self._heads.get(request.source)
        if source is not None:
            for start, stop in row_runs(self.start, self.stop, self.problem.m):
                rows = source.duals(request.pending_step, start, stop)
                block.load_duals(start, np.asarray(rows * rows.dtype.type(request.share)))
        return BlockStats(rows=self.stop - self.start)

    def _count(self, hits: Sequence[_Hits]) -> None:
        for tile in self._tiles.read(self._dtype):
            for one in hits:
                one.take(tile)

    def _swept(self, calls: Sequence[HeadCall], threads: int) -> dict[int, Sums]:
        """Answer requests that visit rows one by one, several heads at the same time."""
        blocks = [(self._of(call.head, call.problem, call.column), call) for call in calls]
        if self._open is not None:
            self._open.open({call.head: block for block, call in blocks})
        together = len(calls) > 1 and not kept_in_memory(self._X, 0, self.stop - self.start)
        at_once = len(calls) if together else min(threads, len(calls))
        each = max(threads // max(len(calls), 1), 1)
        if each > 1:
            # As many as all heads ask for together: none of them begins more while others are at work.
            self._helpers.pool(threads)
        if together:
            self._X.begin(len(calls))

        def answer(block: Block, request: Request) -> BlockStats:
            try:
                # NumPy's settings are those of a thread.
                with np.errstate(over="ignore", invalid="ignore"):
                    return block.run(request, each)
            finally:
                if together:
                    self._X.leave()

        if at_once <= 1:
            return {call.head: answer(block, _plain(call)) for block, call in blocks}
        with ThreadPoolExecutor(at_once, thread_name_prefix="topline-head") as pool:
            futures = {call.head: pool.submit(answer, block, _plain(call)) for block, call in blocks}
            return {head: future.result() for head, future in futures.items()}


class _Hits:
    """Hits of one head among the rows that it holds out."""

    def __init__(self, weights: Float64Array, request: CountHitsRequest, first_row: int) -> None:
        self._weights, self._request, self._first_row = weights, request, first_row
        self.count = HitCount(0, 0, 0, 0)

    def take(self, tile: Tile) -> None:
        """Count those of one tile."""
        out = np.flatnonzero(self._weights[tile.rows] == 0.0)
        if len(out):
            request = self._request
            self.count += count_hits(
                tile.X[out], tile.y[out], request.W, request.k, request.radius, request.class_weights,
                out + (self._first_row + tile.start),
            )  # fmt: skip


def _plain(call: HeadCall) -> Request:
    if isinstance(call.request, CopyDualsRequest | CountHitsRequest):
        raise TypeError(f"{type(call.request).__name__} is no request of a block alone")
    return call.request


def make_block(
    index: int,
    start: int,
    stop: int,
    X: RowSource,
    y: IntArray,
    problem: Problem | HeadsProblem,
    keep_duals: bool,
    weights: Float64Array | None = None,
    dual_bytes: int | None = None,
    kept_bytes: int | None = None,
) -> Any:
    """Return the block of one problem, or of the heads of many."""
    if isinstance(problem, HeadsProblem):
        return HeadBlocks(index, start, stop, X, y, problem, weights, dual_bytes)
    return Block(index, start, stop, X, y, problem, keep_duals, weights, dual_bytes, kept_bytes)
