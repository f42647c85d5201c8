"""One cell on one fold, taken to a smaller gap: alike wherever its rows and its dual variables lie.

A cell begins with the dual variables of the next smaller C, which are feasible whatever C is
(`topline.solvers.run.task`).  Later it continues from where it was left, or again from the smaller C,
which is more exact by now: that is the better start where the duals hardly depend on C, though their gap may
be a little larger, because what a coarse solution lacks comes slowest.

No pass is spent on what is known.  W(A), b and |A|^2 of a multiple of A follow from those of A; a cell that
goes on was measured when it was left, P(0) and D(0) = 0 are known; and a gap above the tolerance and `COARSE`
is not measured again in float64.  The rounding of float32 products, `ROUNDED` of P at most, counts as a part
of it.

Where C is small P hardly falls below P(0), and a small share of it is no small gap: W = 0 has it, which knows
no class.  So above the tolerance a cell goes on until its gap is `FALLEN` times P(0) - D at most, the most
that P can fall by.
"""

from __future__ import annotations

import math
import time
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from topline.pipeline.options import TrainConfig
from topline.solvers.core.answers import LossAnswer
from topline.solvers.core.dual_points import best_share
from topline.solvers.core.held_out import HitCount, ball_radius
from topline.solvers.core.objective import Objective
from topline.solvers.core.problem import Problem, squared_norm
from topline.solvers.core.state import IterationRecord, SolverState
from topline.solvers.core.stopping import Status, StoppingCriteria
from topline.solvers.executors import Executor
from topline.solvers.methods import Measurement, method_named
from topline.solvers.run import Callback, Run, iterate
from topline.solvers.run.shared import HeadExecutor

#: The hits of a cell are counted where its gap was last so many times the one that it reaches, too.
EARLIER = 2.0
#: The smaller C is the start where it is at most so many times as far below the primal value.
NEAR = 2.0
#: A relative gap of at least so much, above the tolerance, is taken as the rounds measure it,
COARSE = 5e-4
#: with this share of P for what float32 products have rounded: ten times what P and D were seen to be off.
ROUNDED = 1e-6
#: Entropies close in by a large factor a sweep, and are not measured where they start from a C so many
#: times smaller.
PASSED = 1.25
#: The gap is at most this share of P(0) - D.
FALLEN = 0.5


@dataclass(frozen=True)
class Outcome:
    """A cell on one fold after a round: what it costs, how exact it is, and how it does on the held-out rows.

    `passes` and `seconds` are those of this round; passes count a last one in float64 too.  The exact
    solution has between `low` and `high` hits.  `earlier` are, of a first round, the hits when the gap was
    last `EARLIER` times `relative_gap`, or more; None where it never was, but at zero.  `by_group` are the
    hits in groups of rows (`topline.solvers.core.held_out.row_groups`), none in answers of older versions.
    """

    C: float
    fold: int
    rows: float
    hits: float
    low: float
    high: float
    primal: float
    gap: float
    relative_gap: float
    passes: int
    seconds: float
    status: str
    earlier: float | None = None
    by_group: tuple[float, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return dict(self.__dict__)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Outcome:
        """Read what `to_dict` gave; JSON has null for what overflowed."""
        unknown = {name: math.nan for name in ("primal", "gap", "relative_gap") if values[name] is None}
        return cls(**{**values, **unknown, "by_group": tuple(values.get("by_group", ()))})


@dataclass(frozen=True, eq=False)
class Reached:
    """What a cell has come to: W, b and the other sums in its state, and `duals`, where its A is.

    `measured` is what is known of the state.
    """

    C: float
    state: SolverState
    primal: float
    dual: float
    duals: Any
    measured: Measurement | None = None

    def best_multiple(self, problem: Problem) -> tuple[float, SolverState]:
        """Return which multiple of A has the largest dual value for the C of `problem`, and its state.

        W(A) is as many times larger as C is.
        """
        W = (1.0 / (problem.lam * problem.n) / self.C) * self.state.W
        b, square = self.state.point.conjugate_mean, self.state.point.mean_sq_dual
        share = best_share(b, problem.lam * squared_norm(W) + problem.smoothing * square)
        return share, SolverState.at(share * W, share * b, share * share * square)

    def dual_for(self, problem: Problem) -> float:
        """Return the dual value of the best multiple of A for the C of `problem`."""
        point = self.best_multiple(problem)[1].point
        return problem.dual(point.W, point.conjugate_mean, point.mean_sq_dual)


@dataclass(eq=False)
class Path:
    """What the cells of a path on one fold have come to, by their C."""

    cells: dict[float, Reached] = field(default_factory=dict)

    def smaller(self, C: float) -> Reached | None:
        """Return what the next smaller C has come to."""
        return self.cells[max(below)] if (below := [one for one in self.cells if one < C]) else None

    def forget(self, waiting: Iterable[float]) -> list[Reached]:
        """Let go of the cells that neither go on nor are what one of those `waiting` starts from."""
        needed = still_needed(self.cells, waiting)
        return [self.cells.pop(C) for C in [*self.cells] if C not in needed]


class CellRows(Protocol):
    """The rows of a fold with the dual variables of one cell, to be asked through `executor`."""

    #: What answers for the rows that are trained on.
    executor: Any

    def start_from(self, before: Reached, problem: Problem) -> SolverState:
        """Take the best multiple of the dual variables of another cell for one's own."""
        ...

    def go_on(self, known: Reached, problem: Problem) -> tuple[SolverState, Measurement | None]:
        """Return where the cell was left, and what is known about it."""
        ...

    def count(self, W: NDArray[np.float64], radius: float) -> HitCount:
        """Count the hits among the rows that are held out."""
        ...

    def duals(self, state: SolverState) -> Any:
        """Return where A is, after the step that the state waits for, until the cell is taken up again."""
        ...


def advance_cell(
    rows: CellRows,
    path: Path,
    problem: Problem,
    config: TrainConfig,
    aim: tuple[float, float, int],
    zero: float,
    callbacks: Sequence[Callback] = (),
) -> Outcome:
    """Take a cell of a path to a gap: `aim` is its C, the gap and its fold, and `zero` is P(0)."""
    (C, goal, fold), began = aim, time.perf_counter()
    known = path.cells.get(C)
    start = _start(rows, problem, known, path.smaller(C), zero)
    glance = Glance(start[0].W if start[0].W.any() else None)
    run, extra = _run_to(goal, rows.executor, problem, config, start, zero, (glance, *callbacks))
    final = run.final
    W = final.W
    if final.W_dual is not None and final.relative_gap > config.tol and not W.any():
        W = final.W_dual
    rounded = 0.0 if run.certified else ROUNDED
    gap = final.gap + rounded * abs(final.primal)
    count = rows.count(W, ball_radius(gap, final.primal, problem.lam, of_duals=final.W_dual is None))
    # Later rounds have the one before to be compared with.
    seen = None if known is not None else glance.before(final.relative_gap)
    earlier = None if seen is None else rows.count(seen, 0.0).hits
    path.cells[C] = _reached(C, run, rows.duals(run.state))
    return Outcome(
        C=C, fold=fold, rows=count.rows, hits=count.hits, low=count.low, high=count.high,
        primal=final.primal, gap=gap, relative_gap=final.relative_gap + rounded,
        passes=run.state.passes - start[0].passes + extra, seconds=time.perf_counter() - began,
        status=run.status.value, earlier=earlier, by_group=count.by_group,
    )  # fmt: skip


def _run_to(
    gap: float, executor: Executor | HeadExecutor, problem: Problem, config: TrainConfig,
    start: tuple[SolverState, Measurement | None], zero: float, callbacks: Sequence[Callback],
) -> tuple[Run, int]:  # fmt: skip
    """Take a cell from a state to a gap, and on until that is `FALLEN` times P(0) - D at most.

    Returns also how many passes final values took, which states do not count.
    """
    method = method_named(config.method).method_for(problem, executor.blocks, config.seed)
    extra = 0
    while True:
        state, measured = start
        run = iterate(
            problem, executor, method, StoppingCriteria(tol=gap, max_passes=config.max_passes), state,
            callbacks, duals_kept=True, measured=measured, certified=gap <= max(config.tol, COARSE),
        )  # fmt: skip
        final, extra = run.final, extra + run.certified
        enough = FALLEN * (zero - final.dual)
        if run.status is not Status.SOLVED or final.gap <= enough or final.relative_gap <= config.tol:
            return run, extra
        gap = max(min(enough / abs(final.primal), 0.5 * gap), config.tol)
        start = run.state, run.measured


def _start(
    rows: CellRows, problem: Problem, known: Reached | None, before: Reached | None, zero: float
) -> tuple[SolverState, Measurement | None]:
    """Return where a cell begins, where it was left, at the smaller C or at zero, and what is known of it."""
    if known is not None and (before is None or not is_better(before, known, problem)):
        state, measured = rows.go_on(known, problem)
        return replace(state, primal_at_zero=zero), measured
    if before is not None:
        state = replace(rows.start_from(before, problem), primal_at_zero=zero)
        # What the first sweep over all rows leaves far behind need not be measured: P(0) bounds the optimum.
        times = 1.0 / (problem.lam * problem.n) / before.C
        passed = times >= PASSED and not problem.form.linear_conjugate
    else:
        state, passed = replace(SolverState.start(problem), primal_at_zero=zero), True
    # Several blocks look for the direction that they have in common as they are measured first.
    if not passed or rows.executor.blocks > 1:
        return state, None
    point, W = state.point, np.zeros_like(state.W)
    dual = problem.dual(point.W, point.conjugate_mean, point.mean_sq_dual)
    return state, Measurement(Objective(zero, dual), state, LossAnswer(rows=problem.n), 0, W=W)


def _reached(C: float, run: Run, duals: Any) -> Reached:
    """Return what a run has come to, with its A at `duals`."""
    state, measured = run.state, run.measured
    if run.certified:
        final = run.final
        W = final.W if final.W_dual is None else final.W_dual
        state = state.with_point(W=W, conjugate_mean=final.conjugate_mean, mean_sq_dual=final.mean_sq_dual)
        # The weights differ by what the rounds' sums have drifted.
        measured = None if measured is None else replace(measured, before=state)
    return Reached(C, state, run.final.primal, run.final.dual, duals, measured)


def still_needed(known: Iterable[float], waiting: Iterable[float]) -> set[float]:
    """Return those C of a path that go on or that one which is `waiting` would start from."""
    known = sorted(known)
    places = [(C, bisect_left(known, C)) for C in waiting]
    below = {known[place - 1] for _, place in places if place > 0}
    return below | {C for C, place in places if known[place : place + 1] == [C]}


def is_better(before: Reached, known: Reached, problem: Problem) -> bool:
    """Return whether a cell does better to start from the smaller C than to go on from where it was."""
    behind = known.primal - before.dual_for(problem)
    return behind <= NEAR * (known.primal - known.dual)


class Glance:
    """Keeps iterates on the way to a gap, those of which the last may turn out to be `EARLIER` enough.

    `start` is where the way begins, None at zero; a factor does not matter, for it moves no hit.
    """

    def __init__(self, start: NDArray[np.float64] | None) -> None:
        self._last = start
        self._seen: list[tuple[float, NDArray[np.float64]]] = []

    def __call__(self, record: IterationRecord, state: SolverState) -> None:
        """Look at the iterate that the record is about: the one that the round before ended with."""
        if self._last is not None:
            self._seen.append((record.relative_gap, self._last))
        enough = [place for place, (gap, _) in enumerate(self._seen) if gap >= EARLIER * record.relative_gap]
        del self._seen[: max(enough, default=0)]
        self._last = state.W

    def before(self, gap: float) -> NDArray[np.float64] | None:
        """Return the last iterate whose gap was `EARLIER` times `gap` at least, None where none was."""
        return next((W for seen, W in reversed(self._seen) if seen >= EARLIER * gap), None)
