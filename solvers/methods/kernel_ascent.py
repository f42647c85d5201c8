"""Dual ascent on a kernel matrix that nobody holds: exact updates within rows picked at random.

The blocks keep the scores S = K A / (lam n) of their rows, so that every row knows its share of the gap.  A
round picks some rows, with probabilities that grow as the roots of their shares; one block makes exact column
updates within them, with K of these rows alone, until a sweep brings little; and all blocks add what that
changes to their scores.  The dual rises by each round, whatever the blocks, since the rows are updated one
after the other: blocks that each update rows of their own at the same time would undo each other's work, in
tens of times as many rounds.

Rows are picked at random because neighbours have to move together: the rows with the largest shares alone are
those that the round before has missed, and chase each other for tens of passes.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from topline.solvers.core.block_stats import BlockStats
from topline.solvers.core.kernel_rows import (
    Change,
    CollectRequest,
    CrossRequest,
    Mark,
    PairValues,
    PickedRows,
    PickRequest,
    SpreadRequest,
    TileRequest,
)
from topline.solvers.core.problem import Problem, refuse_reversed
from topline.solvers.core.requests import InsideRequest
from topline.solvers.core.state import SolverState
from topline.solvers.errors import StateLostError
from topline.solvers.executors import RequestRunner
from topline.solvers.methods.base import Advance, Measurement, Method, Runner
from topline.solvers.methods.certificate import FinalValues
from topline.solvers.typing import Float64Array

#: Names in `SolverState.memory`: how often the scores were rebuilt, the sum of the roots of the rows' shares
#: of the gap and the gap itself when they were last measured, and columns of K that were computed.
_BUILT, _ROOTS, _COLUMNS = "kernel.built", "kernel.roots", "kernel.columns"
#: Rows with less than this share of the mean share of the gap are not picked.
_LEAST = 0.01
#: Rows of an update in the mean, and copies of them that exist at the same time.
_TILE, _COPIES = 2048, 6
#: Rows that one request gives of A.
_COLLECTED = 4096
#: A rise of the dual below this share of the gap says that float32 has nothing more to give, and a relative
#: gap from which on the scores are kept in float64.
_STALLED, _SINGLE = 1e-3, 1e-4
#: A round counts as columns of at least this share of n, so that a budget of passes ends every run.
_LEAST_COLUMNS = 0.001
#: A gap below minus this share of P and b is a mistake, not rounding; and no rise is less than this of them.
_ROUNDING, _NO_RISE = 1e-6, 1e-15


@dataclass(frozen=True)
class KernelAscent(Method):
    """Dual ascent with the kernel `kernel` on `blocks` blocks.

    `tile` is how many rows are picked in the mean; K of these rows is in memory once.  `seed` fixes which.
    """

    kernel: PairValues
    blocks: int = 1
    seed: int = 0
    tile: int = _TILE
    advances_by_passes: ClassVar[bool] = True

    def measure(self, problem: Problem, run: Runner, state: SolverState) -> Measurement:
        """Sum the rows' shares of P and D, and pick the rows of the next update."""
        stats = run(self._pick(problem, state))
        if stats.stale:
            state = self._rebuilt(problem, run, state)
            stats = run(self._pick(problem, state))
        _refuse_stale(stats)
        primal, dual, conjugate_mean, mean_sq_dual = _values(problem, stats)
        roots = np.array([stats.roots, max(primal - dual, 0.0)])
        before = replace(
            state,
            conjugate_mean=conjugate_mean,
            mean_sq_dual=mean_sq_dual,
            memory={**state.memory, _ROOTS: roots},
        )
        return Measurement(primal, dual, "true", before, stats, passes=0)

    def advance(self, problem: Problem, run: Runner, measured: Measurement) -> Advance:
        """Update the picked rows, and spread the change."""
        before, rows = measured.before, measured.stats.picked
        change, rise = None, 0.0
        if rows is not None:
            stats = run(
                TileRequest(
                    kernel=self.kernel,
                    mark=self._mark(before),
                    exact=before.exact,
                    rows=rows,
                    by=before.round % self.blocks,
                    seed=self.seed,
                    values=self._values_within(run, before, rows),
                )
            )
            change, rise = stats.change, stats.rise / problem.n
        after = replace(before, round=before.round + 1)
        stats = run(
            SpreadRequest(
                kernel=self.kernel,
                mark=self._mark(before),
                exact=before.exact,
                change=change,
                after=self._mark(after),
            )
        )
        _refuse_stale(stats)
        gap = measured.primal - measured.dual
        terms = abs(measured.primal) + abs(before.conjugate_mean)
        idle = rise <= _NO_RISE * terms
        # What float32 has to give is had, or little more is needed than that.
        spent = rows is not None and rise < _STALLED * gap
        columns = max(0 if change is None else len(change.numbers), _LEAST_COLUMNS * problem.n)
        done = float(before.memory.get(_COLUMNS, np.zeros(1))[0])
        after = replace(
            after,
            exact=before.exact or spent or gap < _SINGLE * abs(measured.primal),
            memory={**before.memory, _COLUMNS: np.array([done + columns])},
        )
        return Advance(
            step=1.0,
            moved=not (before.exact and idle and rows is not None),
            after=after,
            active=measured.stats.active,
            passes=int((done + columns) // problem.n) - int(done // problem.n),
        )

    def rebuilt(self, problem: Problem, executor: RequestRunner, state: SolverState) -> SolverState:
        """Compute the scores of every row anew from A."""
        return self._rebuilt(problem, executor.run, state)

    def final(
        self, problem: Problem, executor: RequestRunner, state: SolverState, *, duals_kept: bool
    ) -> FinalValues:
        """Return P and D of A in float64, from scores computed anew."""
        if not duals_kept:
            raise StateLostError("a model with a kernel is its dual variables; bind with keep_duals=True")
        executor.run(InsideRequest(state.pending_step))
        state = self._rebuilt(problem, executor.run, replace(state, exact=True))
        stats = executor.run(replace(self._pick(problem, state), rate=0.0))
        _refuse_stale(stats)
        primal, dual, conjugate_mean, mean_sq_dual = _values(problem, stats)
        if math.isfinite(primal):
            refuse_reversed(primal, dual, abs(primal) + abs(conjugate_mean), _ROUNDING)
        return FinalValues(
            W=state.W,
            conjugate_mean=conjugate_mean,
            primal=primal,
            dual=min(dual, primal),
            smoothed_gap=primal - min(dual, primal),
            mean_sq_dual=mean_sq_dual,
        )

    def _mark(self, state: SolverState) -> Mark:
        return Mark(int(state.memory.get(_BUILT, np.zeros(1))[0]), state.round)

    def _pick(self, problem: Problem, state: SolverState) -> PickRequest:
        """Ask for `tile` rows, as far as the last roots tell; at first every row has the same share."""
        roots, gap = (float(v) for v in state.memory.get(_ROOTS, np.array([problem.n, 0.0])))
        return PickRequest(
            kernel=self.kernel,
            mark=self._mark(state),
            exact=state.exact,
            rate=self.tile / roots if roots > 0.0 else math.inf,
            least=_LEAST * gap,
            seed=self.seed,
        )

    def _values_within(self, run: Runner, state: SolverState, rows: PickedRows) -> Float64Array | None:
        """Return K of the picked rows where these do not tell it."""
        if self.kernel.name != "precomputed":
            return None
        stats = run(
            CrossRequest(kernel=self.kernel, mark=self._mark(state), exact=state.exact, numbers=rows.numbers)
        )
        if stats.values is None or len(stats.values) != len(rows.numbers):
            raise StateLostError("the blocks do not hold the rows that were picked; run the round again")
        return np.asarray(stats.values)

    def _rebuilt(self, problem: Problem, run: Runner, state: SolverState) -> SolverState:
        """Compute all scores anew: a few rows of A at a time are collected, and spread."""
        built = self._mark(state).built + 1
        state = replace(
            state,
            memory={**state.memory, _BUILT: np.array([float(built)])},
            pending_step=None,
        )
        columns = 0
        mark = None
        for part, change in enumerate(_rows_of_duals(problem, run, self.kernel, state.exact), start=1):
            after = Mark(built, state.round, part)
            run(
                SpreadRequest(
                    kernel=self.kernel, mark=mark or after, exact=state.exact, change=change, after=after,
                    moves=False, anew=mark is None,
                )
            )  # fmt: skip
            mark = after
            columns += len(change.numbers)
        stats = run(
            SpreadRequest(
                kernel=self.kernel, mark=mark or Mark(), exact=state.exact, after=self._mark(state),
                moves=False, anew=mark is None,
            )
        )  # fmt: skip
        _refuse_stale(stats)
        done = float(state.memory.get(_COLUMNS, np.zeros(1))[0]) + columns
        passes = state.passes + int(done // problem.n) - int((done - columns) // problem.n)
        return replace(state, passes=passes, memory={**state.memory, _COLUMNS: np.array([done])})


def picked_bytes(d: int, m: int) -> int:
    """Return what the rows of an update, d features and m classes, take in a coordinator."""
    return 8 * _COPIES * _TILE * (d + 2 * m)


def _rows_of_duals(problem: Problem, run: Runner, kernel: PairValues, exact: bool) -> Iterator[Change]:
    """Yield the rows of A that are not zero, a few at a time."""
    for start in range(0, problem.n, _COLLECTED):
        stop = min(problem.n, start + _COLLECTED)
        change = run(CollectRequest(kernel=kernel, mark=Mark(), exact=exact, start=start, stop=stop)).change
        if change is not None and len(change.numbers):
            yield change


def _values(problem: Problem, stats: BlockStats) -> tuple[float, float, float, float]:
    """Return P, D, b and |A|^2 / n; lam |W(A)|^2 is the mean of <alpha_i, s_i>."""
    n = problem.n
    norm, conjugate_mean, mean_sq_dual = stats.alpha_u / n, stats.conjugate_alpha / n, stats.alpha_sq / n
    dual = conjugate_mean - 0.5 * norm - 0.5 * problem.smoothing * mean_sq_dual
    return 0.5 * norm + stats.loss / n, dual, conjugate_mean, mean_sq_dual


def _refuse_stale(stats: BlockStats) -> None:
    if stats.stale:
        raise StateLostError(f"the scores of {stats.stale} rows belong to other dual variables; run it again")
