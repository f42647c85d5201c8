"""Dual ascent on a kernel matrix that nobody holds: exact updates within rows picked at random.

The blocks keep the scores S = K A / (lam n) of their rows, so that every row knows its share of the gap.  A
round picks some rows, with probabilities that grow as the roots of their shares; one block makes exact
column updates within them, with K of these rows alone, and extrapolates now and then, until a sweep brings
little; and all blocks add what that changes to their scores.  The dual rises by each round, whatever the
blocks, since the rows are updated one after the other: blocks that each update rows of their own at the same
time would undo each other's work, in tens of times as many rounds.

Rows are picked at random because neighbours have to move together: the rows with the largest shares alone are
those that the round before has missed, and chase each other for tens of passes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from topline.solvers.blocks.kernel.tile_update import extrapolation_bytes
from topline.solvers.core.kernel_rows import PickedRows
from topline.solvers.core.objective import Objective
from topline.solvers.core.problem import Problem
from topline.solvers.core.state import SolverState
from topline.solvers.errors import StateLostError
from topline.solvers.methods.base import Advance, Measurement
from topline.solvers.methods.kernel_scores import (
    KernelMemory,
    KernelMethod,
    mark_of,
    refuse_stale,
    values_of_rows,
)
from topline.solvers.operations import Runner
from topline.solvers.operations.kernel import FindCrossValues, PickRows, SpreadChange, UpdateRows
from topline.solvers.typing import Float64Array

#: Rows with less than this share of the mean share of the gap are not picked.
_LEAST = 0.01
#: Rows of an update in the mean: fewer take less memory, and more passes and rounds.
PICKED_ROWS = 2048
#: Copies of the features of picked rows that exist at the same time.
_COPIES = 6
#: A rise of the dual below this share of the gap says that float32 has nothing more to give, and a relative
#: gap from which on the scores are kept in float64.
_STALLED, _SINGLE = 1e-3, 1e-4
#: No rise of the dual is less than this share of P and b.
_NO_RISE = 1e-15


@dataclass(frozen=True)
class KernelAscent(KernelMethod):
    """Dual ascent with the kernel `kernel` on `blocks` blocks.

    `tile` is how many rows are picked in the mean; K of these rows is in memory once.  `seed` fixes which.
    """

    blocks: int = 1
    seed: int = 0
    tile: int = PICKED_ROWS

    def measure(self, problem: Problem, run: Runner, state: SolverState) -> Measurement:
        """Sum the rows' shares of P and D, and pick the rows of the next update."""
        stats = run(self._pick(problem, state))
        if stats.stale:
            state = self.with_scores(problem, run, state)
            stats = run(self._pick(problem, state))
        refuse_stale(stats)
        primal, dual, conjugate_mean, mean_sq_dual = values_of_rows(problem, stats)
        memory = replace(state.recalled(KernelMemory), roots=stats.roots, gap=max(primal - dual, 0.0))
        before = replace(state, memory=memory)
        before = before.with_point(conjugate_mean=conjugate_mean, mean_sq_dual=mean_sq_dual)
        return Measurement(Objective(primal, dual), before, stats, passes=0)

    def advance(self, problem: Problem, run: Runner, measured: Measurement) -> Advance:
        """Update the picked rows, and spread the change."""
        before, rows = measured.before, measured.stats.picked
        point, mark = before.point, mark_of(before)
        change, rise = None, 0.0
        if rows is not None:
            stats = run(
                UpdateRows(
                    kernel=self.kernel,
                    mark=mark,
                    exact=point.exact,
                    rows=rows,
                    by=before.round % self.blocks,
                    seed=self.seed,
                    values=self._values_within(run, before, rows),
                )
            )
            change, rise = stats.change, stats.rise / problem.n
        after = replace(mark, round=mark.round + 1)
        spread = run(
            SpreadChange(kernel=self.kernel, mark=mark, exact=point.exact, change=change, after=after)
        )
        refuse_stale(spread)
        if point.exact:
            terms = abs(measured.primal) + abs(point.conjugate_mean)
            spent = rows is not None and rise <= _NO_RISE * terms
        else:
            slow = rows is not None and rise < _STALLED * (measured.primal - measured.dual)
            spent = slow or measured.below_float32(_SINGLE)
        columns = 0 if change is None else len(change.numbers)
        memory, passes = before.recalled(KernelMemory).after_round(problem.n, columns)
        return Advance(
            step=1.0,
            point=replace(point, round=point.round + 1),
            memory=memory,
            active=measured.stats.active,
            passes=passes,
            spent=spent,
        )

    def _pick(self, problem: Problem, state: SolverState) -> PickRows:
        """Ask for `tile` rows, as far as the last roots tell; at first every row has the same share."""
        memory = state.recalled(KernelMemory)
        roots = float(problem.n) if memory.roots is None else memory.roots
        return PickRows(
            kernel=self.kernel,
            mark=mark_of(state),
            exact=state.point.exact,
            rate=self.tile / roots if roots > 0.0 else math.inf,
            least=_LEAST * memory.gap,
            seed=self.seed,
        )

    def _values_within(self, run: Runner, state: SolverState, rows: PickedRows) -> Float64Array | None:
        """Return K of the picked rows where these do not tell it."""
        if self.kernel.name != "precomputed":
            return None
        stats = run(
            FindCrossValues(
                kernel=self.kernel, mark=mark_of(state), exact=state.point.exact, numbers=rows.numbers
            )
        )
        if stats.values is None or len(stats.values) != len(rows.numbers):
            raise StateLostError("the blocks do not hold the rows that were picked; run the round again")
        return np.asarray(stats.values)


def picked_bytes(d: int, m: int, rows: int) -> int:
    """Return what so many rows of an update, d features and m classes, and their K take in a coordinator."""
    return 8 * rows * (_COPIES * (d + 2 * m) + rows) + extrapolation_bytes(rows, m)
