"""The one loop: every method, step rule, loss and executor runs through it.

A round measures the point, lets the method advance from it, and records both.  The loop alone keeps the best
point, switches products to float64, lets a float64 certificate confirm an end, and decides why a run ends; a
method is a pair of functions over its own memory.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple, TypeAlias

import numpy as np

from topline.solvers.core.answers import A
from topline.solvers.core.problem import Problem
from topline.solvers.core.state import (
    FINEST_TOL,
    Best,
    IterationRecord,
    Objective,
    SolverState,
    Status,
    StoppingCriteria,
    ThinnedHistory,
)
from topline.solvers.errors import DualsReplacedError
from topline.solvers.methods import Advance, FinalValues, Measurement, Method
from topline.solvers.methods.base import no_step
from topline.solvers.methods.certificate import as_measured
from topline.solvers.operations import Operation, OperationRunner

logger = logging.getLogger(__name__)

#: Called after every round with its record and the state to continue from; False ends the run as INTERRUPTED.
Callback: TypeAlias = Callable[[IterationRecord, SolverState], bool | None]

#: Rounds between two rebuilds of W from A.  A rebuild multiplies in float64 and costs about four rounds, so
#: one in a hundred takes less than a twentieth of the time; a float32 A has then drifted by at most a hundred
#: roundings of 6e-8, far below any gap that float32 products can reach.
REBUILD_EVERY = 100

#: Ends that hold at the measured point, before the round's step; all others come after it.
_ENDS_AT_POINT = frozenset({Status.SOLVED, Status.NO_PROGRESS, Status.NONFINITE})


@dataclass(frozen=True, eq=False)
class Run:
    """How a run ended: its last state, the value of that state, and the kept records.

    `certified` is whether the final values were measured again.  `measured` is the measurement
    that a further run can start from; None where a step has been taken since.
    """

    state: SolverState
    status: Status
    final: FinalValues
    history: tuple[IterationRecord, ...]
    certified: bool
    measured: Measurement | None


class Ends(NamedTuple):
    """What the end of a run is measured by.

    duals_kept : whether the blocks keep A.
    of_duals : whether only W(A) of their last A counts.
    certified : whether the final values are certified.  Otherwise a solved run reports those of its last
        round, float64 sums of float32 products: enough for a gap well above their rounding.
    """

    duals_kept: bool
    of_duals: bool = False
    certified: bool = True


class Start(NamedTuple):
    """Where a run begins: the state of an earlier one, and that run's measurement of it, if any."""

    state: SolverState
    measured: Measurement | None = None


def iterate(
    problem: Problem,
    executor: OperationRunner,
    method: Method,
    criteria: StoppingCriteria,
    ends: Ends,
    start: Start | None = None,
    callbacks: Sequence[Callback] = (),
    clock: Callable[[], float] = time.perf_counter,
) -> Run:
    """Run rounds until one of them ends the run, then certify the best and the last point.

    The executor is bound to the problem, `clock` gives seconds; without a `start` A is 0.  If the executor
    had to replace lost dual variables, the run continues from the replacements.
    """
    state, known = start or Start(SolverState.start(problem))
    state = state.with_point(exact=state.point.exact or method.needs_float64(problem))
    pace = Pace(executor, criteria, clock, state.seconds)
    loop = _Loop(problem, executor, method, criteria, criteria, ends, callbacks, pace, state, known)
    while True:
        try:
            run = loop.take_round()
        except DualsReplacedError as error:
            loop.go_on_after(error)
            continue
        if run is not None:
            return run


@dataclass(eq=False)
class _Loop:
    """A run between two rounds; the first fields are the arguments of `iterate`.

    Attributes
    ----------
    state : the current state.
    known : its measurement, if already taken.
    target : the criteria of the rounds: a smaller gap than requested after a certificate has refuted one.
    refuted : whether the state has just been refuted: a step follows, however good it looks.
    start_primal : P of a start that must not be the answer.
    """

    problem: Problem
    executor: OperationRunner
    method: Method
    criteria: StoppingCriteria
    target: StoppingCriteria
    ends: Ends
    callbacks: Sequence[Callback]
    pace: Pace
    state: SolverState
    known: Measurement | None
    refuted: bool = False
    start_primal: float = math.inf
    history: ThinnedHistory[IterationRecord] = field(default_factory=ThinnedHistory)

    def take_round(self) -> Run | None:
        """Take one round; return the run if it was the last."""
        self.pace.begin_round()
        measured = self._measured()
        objective, left = self._bounds(measured), self.pace.left(self.pace.passes)
        if measured.before.left_behind:
            self.start_primal = objective.primal
        good = objective.reaches(self.target.tol) and objective.primal < self.start_primal
        solved = good and not self.refuted
        exhausted = left.passes < 1 or (left.seconds is not None and left.seconds <= 0.0)
        if solved or (self.method.advances_by_passes and exhausted):
            advance = no_step(measured)
        else:
            advance = self.method.advance(self.problem, self.pace.run, measured)
        claim = self._certified_claim(measured, advance) if advance.claims else None
        record = self.pace.record(self.problem, measured, self._bounds(measured, claim), advance)
        self.history.add(record)
        proven = claim is not None and self._meets_criteria(claim)
        status = Status.SOLVED if proven else self._ending(record, advance, solved=solved)
        self.state = self._next_state(measured, advance, claim, record, status)
        goes_on = _go_on(self.callbacks, record, self.state)
        if claim is not None and proven:
            return Run(self.state, Status.SOLVED, claim, self.history.records(), True, None)
        status = status or (None if goes_on else Status.INTERRUPTED)
        if status is None:
            self.refuted = False
            return None
        if status is Status.SOLVED:
            self.known = replace(measured, before=self.state, passes=0)
        return self._ended(status, self._ending(record, replace(advance, spent=False), solved=False))

    def _measured(self) -> Measurement:
        """Measure the state, and add the measurement to the best so far."""
        began = self.pace.seconds()
        found = self.known or self.method.measure(self.problem, self.pace.run, self.state)
        self.known = None
        state, best = found.before, self.state.best
        if math.isfinite(found.primal) and not self.ends.of_duals:
            best = best.with_primal(found.primal, state.W if found.W is None else found.W)
        if math.isfinite(found.dual):
            best = best.with_dual(found.dual, found.dual_point)
        self.pace.passes = state.passes + found.passes
        left = self.pace.left(self.pace.passes).passes
        before = replace(state, best=best)
        seconds = self.pace.seconds()
        return replace(
            found, before=before, passes_left=left, tol=self.target.tol, seconds=seconds,
            took=seconds - began, apart=self.executor.workers if self.executor.sends else 0,
        )  # fmt: skip

    def _bounds(self, measured: Measurement, claim: FinalValues | None = None) -> Objective:
        """Return the smallest P and the largest D so far whose points the run can still return.

        Where blocks keep A, only the present A counts.  An excess of D over P is rounding of the products.
        """
        found, best = measured.objective, measured.before.best
        if found.stationarity is not None or not math.isfinite(found.primal):
            return found
        primal = found.primal if self.ends.of_duals else best.primal
        follows = self.ends.duals_kept and self.method.follows(measured.before)
        dual = found.dual if follows else best.dual
        dual = min(dual, primal) if math.isfinite(found.dual) else found.dual
        if claim is not None:
            primal, dual = min(claim.primal, primal), max(claim.dual, dual)
        return replace(found, primal=primal, dual=dual)

    def _certified_claim(self, measured: Measurement, advance: Advance) -> FinalValues | None:
        """Return the float64 value of the next point; None where it is not finite."""
        state = _stepped(measured.before, advance)
        if advance.dual_point is not None:
            # No other point is measured here, whatever its D.
            state = replace(state, best=Best(dual=0.0, dual_point=advance.dual_point))
        final = self._final(state)
        return final if final.objective.finite else None

    def _meets_criteria(self, claim: FinalValues) -> bool:
        return claim.primal < self.start_primal and claim.objective.reaches(self.criteria.tol)

    def _next_state(
        self,
        measured: Measurement,
        advance: Advance,
        claim: FinalValues | None,
        record: IterationRecord,
        status: Status | None,
    ) -> SolverState:
        """Return the state to continue from or end with; W is rebuilt from A every `REBUILD_EVERY` rounds."""
        before = replace(measured.before, passes=record.passes, seconds=record.seconds)
        if claim is not None:
            return self._with_claim(_stepped(before, advance), advance, claim, status)
        if status in _ENDS_AT_POINT:
            return before
        state = _stepped(before, advance)
        # The drift of a float32 A would otherwise be mistaken for the optimum.
        due = state.round % REBUILD_EVERY == 0 or state.exact != before.exact
        return self._rebuilt(state) if due else state

    def _with_claim(
        self, state: SolverState, advance: Advance, claim: FinalValues, status: Status | None
    ) -> SolverState:
        """Return the state with the claim among the best; a claim that fails has cost a pass."""
        best = state.best
        if advance.dual_point is not None:
            best = best.with_dual(claim.dual, advance.dual_point)
        if not self.ends.of_duals:
            best = best.with_primal(claim.primal, claim.W)
        cost = 0 if status is Status.SOLVED else 1
        return replace(state, best=best, passes=min(state.passes + cost, self.criteria.max_passes))

    def _ending(self, record: IterationRecord, advance: Advance, *, solved: bool) -> Status | None:
        """Return why the run ends after this round, None to continue; interruptions are decided elsewhere."""
        budget = self.pace.left(record.passes)
        # One pass left could only measure, which the end does anyway.
        fewest = 2 if self.method.advances_by_passes else 1
        if not (record.objective.finite and math.isfinite(record.step)):
            return Status.NONFINITE
        if solved:
            return Status.SOLVED
        if advance.spent and advance.point.exact:
            return Status.NO_PROGRESS
        if advance.short or budget.passes < fewest:
            return Status.MAX_PASSES
        if budget.seconds is not None and budget.seconds <= 0.0:
            return Status.TIME_LIMIT
        return None

    def _ended(self, status: Status, budget: Status | None) -> Run | None:
        """Return the run that ends with this status; None where its point does not hold in float64.

        `budget` is the status to end with if the claim fails and the budget is exhausted.
        """
        certified = self.ends.certified or self.known is None
        if self.known is not None and not certified:
            final = as_measured(self.state, self._bounds(self.known))
        else:
            final = self._final(self.state)
        confirmed = _confirmed(status, final, self.criteria) or budget
        if confirmed is None:
            self._refute(final)
            return None
        state = replace(self.state, seconds=self.pace.seconds())
        return Run(state, confirmed, final, self.history.records(), certified, self.known)

    def _refute(self, final: FinalValues) -> None:
        """Tighten the target after rounding made the rounds look too good, and continue in float64."""
        self.known, self.refuted = None, True
        self.target = replace(self.target, tol=max(0.5 * self.target.tol, FINEST_TOL))
        # The float64 measurement replaces the values that looked better.
        best = self.state.best
        best = Best(dual=min(best.dual, final.dual), dual_point=best.dual_point)
        best = best if self.ends.of_duals else best.with_primal(final.primal, final.W)
        self.state = self._rebuilt(replace(self.state, best=best).with_point(exact=True))

    def _final(self, state: SolverState) -> FinalValues:
        tol = self.criteria.tol
        return self.method.final(self.problem, self.executor, state, duals_kept=self.ends.duals_kept, tol=tol)

    def _rebuilt(self, state: SolverState) -> SolverState:
        """Return the state with W, b and |A|^2 recomputed from A, if they follow it."""
        while self.ends.duals_kept and self.method.follows(state):
            try:
                return self.method.rebuilt(self.problem, self.executor, state)
            except DualsReplacedError as error:
                logger.warning("%s", error)
                state = state.with_point(pending_step=None)
        return state

    def go_on_after(self, error: DualsReplacedError) -> None:
        """Adopt the present A, which has every step applied, and restart the current round."""
        logger.warning("%s", error)
        self.known = None
        self.state = self._rebuilt(self.state.with_point(pending_step=None))


def _stepped(before: SolverState, advance: Advance) -> SolverState:
    """Return the state after a step, in float64 once float32 cannot improve further."""
    begins = advance.spent and not before.exact
    point = replace(advance.point, exact=True) if begins else advance.point
    best = before.best.at_most() if begins else before.best
    return replace(before, point=point, memory=advance.memory, best=best, left_behind=False)


def _confirmed(status: Status, final: FinalValues, criteria: StoppingCriteria) -> Status | None:
    """Let the final values decide whether a run is solved; None where it claimed so and is not."""
    if status is Status.INTERRUPTED:
        return status
    if not final.objective.finite:
        return Status.NONFINITE
    if final.objective.reaches(criteria.tol):
        return Status.SOLVED
    return None if status is Status.SOLVED else status


def _go_on(callbacks: Sequence[Callback], record: IterationRecord, state: SolverState) -> bool:
    """Call every callback, even after one returned False; return whether to continue."""
    answers = [callback(record, state) for callback in callbacks]
    return not any(isinstance(answer, bool | np.bool_) and not answer for answer in answers)


class Budget(NamedTuple):
    """Passes and seconds that a run may still take."""

    passes: int
    seconds: float | None


class Pace:
    """Runs the operations of a run within its budget, and counts what each round takes.

    `passes` counts the run's passes up to the present point of the round.
    """

    def __init__(
        self,
        executor: OperationRunner,
        criteria: StoppingCriteria,
        clock: Callable[[], float],
        seconds: float,
    ) -> None:
        self._executor, self._criteria, self._clock = executor, criteria, clock
        self._began, self._earlier, self._read = clock(), seconds, executor.traffic()
        self.begin_round()

    def begin_round(self) -> None:
        """Reset the counters of the round."""
        self.passes = 0
        self._products = self._per_row = self._waiting = 0.0

    def seconds(self) -> float:
        """Return the seconds of solving so far, over all resumptions."""
        return self._earlier + self._clock() - self._began

    def left(self, passes: int) -> Budget:
        """Return the budget left after `passes` passes."""
        limit = self._criteria.time_limit
        seconds = None if limit is None else limit - (self._clock() - self._began)
        return Budget(self._criteria.max_passes - passes, seconds)

    def run(self, operation: Operation[A]) -> A:
        """Run an operation; worker time outside products and per-row work counts as waiting."""
        began = time.perf_counter()
        left = self.left(self.passes)
        stats = self._executor.run(operation.within(left.passes, left.seconds))
        busy = (stats.seconds_products + stats.seconds_kernels) / self._executor.workers
        self._products += stats.seconds_products
        self._per_row += stats.seconds_kernels
        self._waiting += max(time.perf_counter() - began - busy, 0.0)
        return stats

    def record(
        self, problem: Problem, measured: Measurement, objective: Objective, advance: Advance
    ) -> IterationRecord:
        """Return the record of the round with the bounds P and D of `objective`."""
        now = self._executor.traffic()
        moved, self._read = now.since(self._read), now
        return IterationRecord(
            round=measured.before.round,
            passes=measured.before.passes + measured.passes + advance.passes,
            seconds=self.seconds(),
            objective=objective,
            step=advance.step,
            active=advance.active / problem.n,
            seconds_products=self._products,
            seconds_kernels=self._per_row,
            seconds_waiting=self._waiting,
            bytes_sent=moved.bytes_sent,
            bytes_received=moved.bytes_received,
            bytes_read=moved.bytes_read,
            memory_bytes=moved.memory_bytes,
            workers=self._executor.workers,
            activity=moved.workers,
        )
