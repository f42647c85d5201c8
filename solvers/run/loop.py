"""The one loop: every method, step rule, loss and executor runs through it."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np

from topline.solvers.core.best import with_best_of, with_dual, with_primal
from topline.solvers.core.history_thinning import ThinnedHistory
from topline.solvers.core.problem import Problem, relative_gap
from topline.solvers.core.state import IterationRecord, SolverState
from topline.solvers.core.stopping import ENDS_AT_ITERATE, FINEST_TOL, Status, StoppingCriteria, is_solved
from topline.solvers.core.traffic import Traffic
from topline.solvers.errors import DualsReplacedError
from topline.solvers.methods import Advance, FinalValues, Measurement, Method
from topline.solvers.methods.base import stay
from topline.solvers.methods.certificate import as_measured
from topline.solvers.operations import OperationRunner
from topline.solvers.run.endings import confirmed_status, ending
from topline.solvers.run.timers import Left, RoundTimer, TrafficTimer

logger = logging.getLogger(__name__)

#: Called after every round with its record and the state to continue from; False ends the run as INTERRUPTED.
Callback: TypeAlias = Callable[[IterationRecord, SolverState], bool | None]

#: Rounds between two rebuilds of W from A.  A rebuild multiplies in float64 and costs about four rounds, so
#: one in a hundred stays below a twentieth of the time; a float32 A has then drifted by at most a hundred
#: roundings of 6e-8, far below any gap that float32 products can reach.
REBUILD_EVERY = 100


#: Name in `SolverState.memory` of a start that is not to be the answer, however near to the optimum it is.
_LEFT_BEHIND = "start.left_behind"


def left_behind(state: SolverState) -> SolverState:
    """Return a state to start from that a run leaves for a better one, such as weights of other rows."""
    return replace(state, memory={**state.memory, _LEFT_BEHIND: np.ones(1)})


def is_left_behind(state: SolverState) -> bool:
    """Return whether a run that starts from a state leaves it for a better one."""
    return _LEFT_BEHIND in state.memory


@dataclass(frozen=True, eq=False)
class Run:
    """How a run ended: its last state, what that state is worth, and the records that are kept.

    `certified` is whether the final values were measured anew in float64.  `measured` is the measurement that
    a further run begins with in the place of one of its own; None where a step has been taken since.
    """

    state: SolverState
    status: Status
    final: FinalValues
    history: tuple[IterationRecord, ...]
    certified: bool
    measured: Measurement | None


def iterate(
    problem: Problem,
    executor: OperationRunner,
    method: Method,
    criteria: StoppingCriteria,
    state: SolverState | None = None,
    callbacks: Sequence[Callback] = (),
    *,
    duals_kept: bool,
    of_duals: bool = False,
    measured: Measurement | None = None,
    certified: bool = True,
    clock: Callable[[], float] = time.perf_counter,
) -> Run:
    """Run rounds until `ending` or a callback ends them, then measure the best and last in float64.

    Where `of_duals`, that is W(A) of the last A that the blocks keep, and no other W counts.  Where not
    `certified`, a run that is solved takes the values of its last round for final ones, which are sums in
    float64 of products in float32: enough for a gap that is large beside their rounding.

    The executor is bound to the problem; `clock` gives seconds.  `state` continues an earlier run (default:
    A = 0), which measured it already where it left `measured`.  Where the executor says that it had to put
    other dual variables in the place of lost ones, the run continues from those.
    """
    state = SolverState.start(problem) if state is None else state
    rounds = _Rounds(problem, executor, method, criteria, state, callbacks, duals_kept, of_duals, clock)
    rounds.known, rounds.certified = measured, certified
    while True:
        try:
            ended = rounds.take_one()
        except DualsReplacedError as error:
            rounds.go_on_after(error)
            continue
        if ended is not None:
            return ended


class _Rounds:
    """A run between two of its rounds."""

    def __init__(
        self,
        problem: Problem,
        executor: OperationRunner,
        method: Method,
        criteria: StoppingCriteria,
        state: SolverState,
        callbacks: Sequence[Callback],
        duals_kept: bool,
        of_duals: bool,
        clock: Callable[[], float],
    ) -> None:
        self._problem, self._executor, self._method = problem, executor, method
        self._criteria, self._callbacks, self._duals_kept = criteria, callbacks, duals_kept
        self._state, self._of_duals = state, of_duals
        self._clock, self._began, self._seconds_before = clock, clock(), state.seconds
        self._target, self._refuted = criteria, False
        self._left_behind = math.inf  # P of a start that is not to be the answer
        self._follows_duals = duals_kept and method.follows_duals
        self.known: Measurement | None = None
        self.certified = True
        self._history: ThinnedHistory[IterationRecord] = ThinnedHistory()
        self._traffic_timer = TrafficTimer(executor)

    def go_on_after(self, error: DualsReplacedError) -> None:
        """Take up A as it is now, which has every step applied; the round under way is started again."""
        logger.warning("%s", error)
        self.known = None
        self._state = replace(self._state, pending_step=None)
        self._rebuild()

    def take_one(self) -> Run | None:
        """Take one round; returns the run where it was the last."""
        problem, timer = self._problem, RoundTimer(self._executor, self._left)
        measured = self._with_best(self.known or self._method.measure(problem, timer.run, self._state))
        self.known = None
        primal, dual = self._bounds(measured)
        # From an iterate that was found to be worse than it looked the run continues, however it looks now.
        if self._state.round == 0 and is_left_behind(self._state):
            self._left_behind = primal
        solved = (
            not self._refuted
            and primal < self._left_behind
            and is_solved(primal, dual, self._target, measured.stationarity)
        )
        timer.passes = measured.before.passes + measured.passes
        measured = replace(measured, passes_left=self._left(timer.passes).passes, tol=self._target.tol)
        ends = solved or (self._method.advances_by_passes and self._left(timer.passes).nothing)
        advance = stay(measured) if ends else self._method.advance(problem, timer.run, measured)
        final = self._values_of_claim(measured, advance) if advance.claims else None
        if final is not None:
            primal, dual = min(final.primal, primal), max(final.dual, dual)
        here = self._clock() - self._began
        record = _record(
            problem, measured, (primal, dual), advance, timer, self._traffic_timer.read(),
            self._seconds_before + here,
        )  # fmt: skip
        self._history.add(record)
        if final is not None:
            return self._after_claim(measured, advance, record, final, here)
        status = self._ending(record, advance, seconds=here, moved=advance.moved, solved=solved)
        # An iterate that ends the run by its own merit is kept as it was measured; else the step counts.
        after = measured.before if status in ENDS_AT_ITERATE else with_best_of(advance.after, measured.before)
        self._state = replace(after, passes=record.passes, seconds=record.seconds)
        if status not in ENDS_AT_ITERATE and _due_for_rebuild(measured.before, self._state):
            self._rebuild()
        if not _go_on(self._callbacks, record, self._state) and status is None:
            status = Status.INTERRUPTED
        if status is Status.SOLVED:
            self.known = replace(measured, before=self._state, passes=0)
        if status is None:
            self._refuted = False
            return None
        return self._ended(status, self._ending(record, advance, seconds=here, moved=True, solved=False))

    def _values_of_claim(self, measured: Measurement, advance: Advance) -> FinalValues | None:
        """Return what the next state is worth, in float64; None where that is no number."""
        state = with_best_of(advance.after, measured.before)
        if advance.point is not None:
            # No other point is looked at, whatever D is there.
            state = with_dual(replace(advance.after, best_dual=-math.inf), 0.0, advance.point)
        final = self._method.final(self._problem, self._executor, state, duals_kept=self._duals_kept)
        return final if final.finite else None

    def _after_claim(
        self,
        measured: Measurement,
        advance: Advance,
        record: IterationRecord,
        final: FinalValues,
        seconds: float,
    ) -> Run | None:
        """End with the next state if it is good enough, or go on from there, a pass later."""
        solved = final.primal < self._left_behind and is_solved(final.primal, final.dual, self._criteria)
        state = with_best_of(advance.after, measured.before)
        if advance.point is not None:
            state = with_dual(state, final.dual, advance.point)
        if not self._of_duals:
            state = with_primal(state, final.W, final.primal)
        passes = record.passes if solved else min(record.passes + 1, self._criteria.max_passes)
        self._state = replace(state, passes=passes, seconds=record.seconds)
        goes_on = _go_on(self._callbacks, record, self._state)
        if solved:
            return Run(self._state, Status.SOLVED, final, self._history.records(), True, None)
        status = self._ending(record, advance, seconds=seconds, moved=True, solved=False)
        status = status or (None if goes_on else Status.INTERRUPTED)
        return None if status is None else self._ended(status, status)

    def _ending(
        self, record: IterationRecord, advance: Advance, *, seconds: float, moved: bool, solved: bool
    ) -> Status | None:
        # A pass that measures and none that advances would bring nothing: the end measures anyway.
        least = 2 if self._method.advances_by_passes else 1
        if advance.short:
            least = self._criteria.max_passes
        return ending(record, self._target, seconds=seconds, moved=moved, solved=solved, least=least)

    def _left(self, passes: int) -> Left:
        """Return what the budgets leave after so many passes."""
        limit = self._criteria.time_limit
        seconds = None if limit is None else limit - (self._clock() - self._began)
        return Left(self._criteria.max_passes - passes, seconds)

    def _ended(self, status: Status, spent: Status | None) -> Run | None:
        """Return the run that ends with this status; None where it does not hold in float64.

        `spent` is how the run ends where it does not hold and the budget leaves nothing.
        """
        certified = self.certified or self.known is None
        if self.known is not None and not certified:
            final = as_measured(self._state, *self._bounds(self.known))
        else:
            final = self._method.final(
                self._problem, self._executor, self._state, duals_kept=self._duals_kept
            )
        confirmed = confirmed_status(status, final, self._criteria) or spent
        if confirmed is not None:
            seconds = self._seconds_before + self._clock() - self._began
            state = replace(self._state, seconds=seconds)
            return Run(state, confirmed, final, self._history.records(), certified, self.known)
        # The rounds' own numbers were too good by rounding: ask more of them and continue.
        self.known = None
        tol = max(0.5 * self._target.tol, FINEST_TOL)
        self._target, self._refuted = replace(self._target, tol=tol), True
        # What was measured now takes the place of what looked better.
        state = replace(
            self._state, exact=True, best_primal=math.inf, best_dual=min(self._state.best_dual, final.dual)
        )
        self._state = state if self._of_duals else with_primal(state, final.W, final.primal)
        self._rebuild()
        return None

    def _with_best(self, measured: Measurement) -> Measurement:
        """Let the state that was measured remember the best W and dual point so far, this one included."""
        before = with_best_of(measured.before, self._state)
        if math.isfinite(measured.primal) and not self._of_duals:
            before = with_primal(before, before.W if measured.W is None else measured.W, measured.primal)
        if math.isfinite(measured.dual):
            before = with_dual(before, measured.dual, measured.point)
        return replace(measured, before=before)

    def _bounds(self, measured: Measurement) -> tuple[float, float]:
        """Return the smallest P and the largest D so far, of which the run can give both points.

        A that blocks keep is as it is now.  What little D exceeds P by is rounding of the rounds' products.
        """
        if measured.stationarity is not None or not math.isfinite(measured.primal):
            return measured.primal, measured.dual
        primal = measured.primal if self._of_duals else measured.before.best_primal
        dual = measured.dual if self._follows_duals else measured.before.best_dual
        return primal, min(dual, primal) if math.isfinite(measured.dual) else measured.dual

    def _rebuild(self) -> None:
        """Recompute W, b and |A|^2 from A, where they follow it."""
        if not self._follows_duals:
            return
        try:
            self._state = self._method.rebuilt(self._problem, self._executor, self._state)
        except DualsReplacedError as error:
            self.go_on_after(error)


def _due_for_rebuild(before: SolverState, after: SolverState) -> bool:
    """Return whether W is to be rebuilt from A: from time to time, and as float64 begins.

    What has drifted while A was float32 would otherwise be taken for the optimum.
    """
    return after.round % REBUILD_EVERY == 0 or after.exact != before.exact


def _go_on(callbacks: Sequence[Callback], record: IterationRecord, state: SolverState) -> bool:
    """Call every callback, also after one that said False."""
    answers = [callback(record, state) for callback in callbacks]
    return not any(isinstance(answer, bool | np.bool_) and not answer for answer in answers)


def _record(
    problem: Problem,
    measured: Measurement,
    bounds: tuple[float, float],
    advance: Advance,
    timer: RoundTimer,
    moved: Traffic,
    seconds: float,
) -> IterationRecord:
    primal, dual = bounds
    gap = primal - dual
    return IterationRecord(
        round=measured.before.round,
        passes=measured.before.passes + measured.passes + advance.passes,
        seconds=seconds,
        primal=primal,
        dual=dual,
        gap=gap,
        relative_gap=relative_gap(gap, primal),
        gap_kind=measured.gap_kind,
        step=advance.step,
        active=advance.active / problem.n,
        seconds_products=timer.products,
        seconds_kernels=timer.per_row,
        seconds_waiting=timer.waiting,
        bytes_sent=moved.bytes_sent,
        bytes_received=moved.bytes_received,
        bytes_read=moved.bytes_read,
        memory_bytes=moved.memory_bytes,
        workers=timer.workers,
        activity=moved.workers,
        stationarity=measured.stationarity,
    )
