"""One cell on one fold, solved to a smaller gap, wherever its rows and dual variables are.

A cell starts from the dual variables of the next smaller C, which are feasible for every C
(`topline.solvers.run.task`).  Later it continues from its last state, or again from the smaller C, which is
more exact by then: the better start if the duals hardly depend on C, even at a slightly larger gap, because
the last digits of a coarse solution come slowest.

No pass computes what is known.  W(A), b and |A|^2 of a multiple of A follow from those of A; a continued cell
was measured when it stopped; P(0) and D(0) = 0 are known; and a gap above the tolerance and `COARSE` is not
measured again in float64, but includes the rounding of float32 products, at most `ROUNDED` of P.

For small C, P hardly falls below P(0), and a small relative gap means little: even W = 0 has it, which knows
no class.  Above the tolerance a cell therefore continues until its gap is at most `FALLEN` times P(0) - D,
the most by which P can fall.
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
from topline.solvers.core.problem import Problem, squared_norm
from topline.solvers.core.state import IterationRecord, Objective, SolverState, Status, StoppingCriteria
from topline.solvers.executors import Executor
from topline.solvers.methods import Measurement, method_named
from topline.solvers.run import Callback, Run, iterate
from topline.solvers.run.shared import HeadExecutor

#: Hits are also counted when the gap was last this many times the final one.
EARLIER = 2.0
#: The smaller C is the start if its distance from the primal value is at most this many times the cell's own.
NEAR = 2.0
#: Above the tolerance, relative gaps from this size on are used as the rounds measure them,
COARSE = 5e-4
#: plus this share of P for rounding of float32 products, ten times the error seen in P and D.
ROUNDED = 1e-6
#: Entropies converge by a large factor per sweep, and are not measured at the start from a C smaller by this.
PASSED = 1.25
#: The gap is at most this share of P(0) - D.
FALLEN = 0.5


@dataclass(frozen=True)
class Outcome:
    """A cell on one fold after a round: its cost, its accuracy of solution, and its held-out hits.

    `passes` (including a last one in float64) and `seconds` are those of this round.  The exact solution has
    between `low` and `high` hits.  `earlier`, in a first round, are the hits when the gap was last at least
    `EARLIER` times `relative_gap`, None if it never was except at zero.  `by_group` are hits per group of
    rows (`topline.solvers.core.held_out.row_groups`), empty in answers of older versions.
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
        """Read the result of `to_dict`; JSON has null for overflowed numbers."""
        unknown = {name: math.nan for name in ("primal", "gap", "relative_gap") if values[name] is None}
        return cls(**{**values, **unknown, "by_group": tuple(values.get("by_group", ()))})


@dataclass(frozen=True, eq=False)
class Reached:
    """State of a cell (W, b and other sums); `duals` says where its A is, `measured` what is known of it."""

    C: float
    state: SolverState
    primal: float
    dual: float
    duals: Any
    measured: Measurement | None = None

    def best_multiple(self, problem: Problem) -> tuple[float, SolverState]:
        """Return the multiple of A with the largest dual value for `problem`, and its state."""
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
    """The states that the cells of a path have reached on one fold, by C."""

    cells: dict[float, Reached] = field(default_factory=dict)

    def smaller(self, C: float) -> Reached | None:
        """Return the state of the next smaller C."""
        return self.cells[max(below)] if (below := [one for one in self.cells if one < C]) else None

    def forget(self, waiting: Iterable[float]) -> list[Reached]:
        """Drop and return the cells that neither continue nor start one of those `waiting`."""
        needed = still_needed(self.cells, waiting)
        return [self.cells.pop(C) for C in [*self.cells] if C not in needed]


class CellRows(Protocol):
    """The rows of a fold with one cell's dual variables, accessed through `executor`."""

    #: Answers for the training rows.
    executor: Any

    def start_from(self, before: Reached, problem: Problem) -> SolverState:
        """Start from the best multiple of another cell's dual variables."""
        ...

    def go_on(self, known: Reached, problem: Problem) -> tuple[SolverState, Measurement | None]:
        """Return the cell's last state and its measurement."""
        ...

    def count(self, W: NDArray[np.float64], radius: float) -> HitCount:
        """Count the hits among the held-out rows."""
        ...

    def duals(self, state: SolverState) -> Any:
        """Return where A is, after the state's pending step, until the cell continues."""
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
    """Solve a cell of a path to a gap: `aim` is its C, the gap and its fold, `zero` is P(0)."""
    (C, goal, fold), began = aim, time.perf_counter()
    known = path.cells.get(C)
    start = _start(rows, problem, known, path.smaller(C), zero)
    state = start.before if isinstance(start, Measurement) else start
    glance = Glance(state.W if state.W.any() else None)
    run, extra = _run_to(goal, rows.executor, problem, config, start, zero, (glance, *callbacks))
    final = run.final
    W = final.W
    if final.W_dual is not None and final.relative_gap > config.tol and not W.any():
        W = final.W_dual
    rounded = 0.0 if run.certified else ROUNDED
    gap = final.gap + rounded * abs(final.primal)
    count = rows.count(W, ball_radius(gap, final.primal, problem.lam, of_duals=final.W_dual is None))
    # Later rounds are compared with the one before.
    seen = None if known is not None else glance.before(final.relative_gap)
    earlier = None if seen is None else rows.count(seen, 0.0).hits
    path.cells[C] = _reached(C, run, rows.duals(run.state))
    return Outcome(
        C=C, fold=fold, rows=count.rows, hits=count.hits, low=count.low, high=count.high,
        primal=final.primal, gap=gap, relative_gap=final.relative_gap + rounded,
        passes=run.state.passes - state.passes + extra, seconds=time.perf_counter() - began,
        status=run.status.value, earlier=earlier, by_group=count.by_group,
    )  # fmt: skip


def _run_to(
    gap: float, executor: Executor | HeadExecutor, problem: Problem, config: TrainConfig,
    start: SolverState | Measurement, zero: float, callbacks: Sequence[Callback],
) -> tuple[Run, int]:  # fmt: skip
    """Solve to a gap, and on to `FALLEN` times P(0) - D; also return the passes for final values."""
    method = method_named(config.method).method_for(problem, executor.blocks, config.seed)
    extra = 0
    while True:
        criteria = StoppingCriteria(gap, config.max_passes, certified=gap <= max(config.tol, COARSE))
        run = iterate(problem, executor, method, criteria, start, callbacks)
        final, extra = run.final, extra + run.certified
        enough = FALLEN * (zero - final.dual)
        if run.status is not Status.SOLVED or final.gap <= enough or final.relative_gap <= config.tol:
            return run, extra
        gap = max(min(enough / abs(final.primal), 0.5 * gap), config.tol)
        start = run.measured or run.state


def _start(
    rows: CellRows, problem: Problem, known: Reached | None, before: Reached | None, zero: float
) -> SolverState | Measurement:
    """Return the start of a cell, its last state, the smaller C or zero, measured if that is known."""
    if known is not None and (before is None or not is_better(before, known, problem)):
        state, measured = rows.go_on(known, problem)
        state = replace(state, primal_at_zero=zero)
        return state if measured is None else replace(measured, before=state)
    if before is not None:
        state = replace(rows.start_from(before, problem), primal_at_zero=zero)
        # The first sweep improves on it far too much to measure it: P(0) bounds the optimum.
        times = 1.0 / (problem.lam * problem.n) / before.C
        passed = times >= PASSED and not problem.form.linear_conjugate
    else:
        state, passed = replace(SolverState.start(problem), primal_at_zero=zero), True
    # Several blocks need the measurement to find their common direction.
    if not passed or rows.executor.blocks > 1:
        return state
    point, W = state.point, np.zeros_like(state.W)
    dual = problem.dual(point.W, point.conjugate_mean, point.mean_sq_dual)
    return Measurement(Objective(zero, dual), state, LossAnswer(rows=problem.n), 0, W=W)


def _reached(C: float, run: Run, duals: Any) -> Reached:
    """Return the state that a run has reached, with its A at `duals`."""
    state, measured = run.state, run.measured
    if run.certified:
        final = run.final
        W = final.W if final.W_dual is None else final.W_dual
        state = state.with_point(W=W, conjugate_mean=final.conjugate_mean, mean_sq_dual=final.mean_sq_dual)
        # The weights differ by the drift of the rounds' sums.
        measured = None if measured is None else replace(measured, before=state)
    return Reached(C, state, run.final.primal, run.final.dual, duals, measured)


def still_needed(known: Iterable[float], waiting: Iterable[float]) -> set[float]:
    """Return the C of a path that continue, or from which one of those `waiting` would start."""
    known = sorted(known)
    places = [(C, bisect_left(known, C)) for C in waiting]
    below = {known[place - 1] for _, place in places if place > 0}
    return below | {C for C, place in places if known[place : place + 1] == [C]}


def is_better(before: Reached, known: Reached, problem: Problem) -> bool:
    """Return whether a cell should start from the smaller C rather than continue."""
    behind = known.primal - before.dual_for(problem)
    return behind <= NEAR * (known.primal - known.dual)


class Glance:
    """Keeps the iterates among which the last with `EARLIER` times the final gap will be found."""

    def __init__(self, start: NDArray[np.float64] | None) -> None:
        self._last = start
        self._seen: list[tuple[float, NDArray[np.float64]]] = []

    def __call__(self, record: IterationRecord, state: SolverState) -> None:
        """Keep the iterate that the record describes, with which the round before ended."""
        if self._last is not None:
            self._seen.append((record.relative_gap, self._last))
        enough = [place for place, (gap, _) in enumerate(self._seen) if gap >= EARLIER * record.relative_gap]
        del self._seen[: max(enough, default=0)]
        self._last = state.W

    def before(self, gap: float) -> NDArray[np.float64] | None:
        """Return the last iterate whose gap was at least `EARLIER` times `gap`, or None."""
        return next((W for seen, W in reversed(self._seen) if seen >= EARLIER * gap), None)
