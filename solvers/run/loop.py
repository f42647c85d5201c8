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
from typing import TypeAlias

import numpy as np

from topline.solvers.core.answers import A
from topline.solvers.core.problem import Problem
from topline.solvers.core.state import (
    FINEST_TOL,
    Best,
    FinalValues,
    IterationRecord,
    Objective,
    SolverState,
    Status,
    StoppingCriteria,
    ThinnedHistory,
    Traffic,
)
from topline.solvers.errors import DualsReplacedError
from topline.solvers.methods import Advance, Measurement, Method
from topline.solvers.methods.base import no_step
from topline.solvers.methods.certificate import as_measured
from topline.solvers.operations import Operation, OperationRunner

logger = logging.getLogger(__name__)

#: Called after every round with its record and the state to continue from; False ends the run as INTERRUPTED.
Callback: TypeAlias = Callable[[IterationRecord, SolverState], bool | None]

#: Rounds between two rebuilds of W from A.  A rebuild multiplies in float64 and costs about four rounds, so
#: one in a hundred takes less than a twentieth of the time; on one block a float32 A has then drifted by at
#: most a hundred roundings of 6e-8, far below any gap that float32 products can reach.  On several blocks the
#: rounding of every row's step is in W as well: 3e-6 of it after 32 passes over 20,000 rows of 40 classes.
REBUILD_EVERY = 100

#: Rounds to wait for a point that proves itself where P and D are good enough without their rounding, or are
#: those of two points: a certificate takes as long as one round to four.
_UNPROVEN = 2
#: The share of the tolerance that the bound of rounding may have for that.
_MOST_ROUNDING = 0.5

#: Relative error by which a P from float32 products may be too low.
_FLOAT32 = 1e-6

#: Ends that hold at the measured point, before the round's step; all others come after it.
_ENDS_AT_POINT = frozenset({Status.SOLVED, Status.NO_PROGRESS, Status.NONFINITE})


@dataclass(frozen=True, eq=False)
class Run:
    """How a run ended: its last state, the value of that state, and the kept records.

    `certified` is whether the final values are in float64 or hold with a bound of their rounding.
    `measured` is the measurement that a further run can start from; None where a step has been taken since.
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
    start: SolverState | Measurement | None = None,
    callbacks: Sequence[Callback] = (),
    clock: Callable[[], float] = time.perf_counter,
) -> Run:
    """Run rounds until one of them ends the run, then certify the best and the last point.

    The executor is bound to the problem, `clock` gives seconds.  A run starts at a state, or at a measurement
    of it; by default A is 0.  If the executor had to replace lost dual variables, the run
    continues from the replacements.
    """
    known = start if isinstance(start, Measurement) else None
    state = start.before if isinstance(start, Measurement) else start or SolverState.start(problem)
    state = state.with_point(exact=state.point.exact or method.needs_float64(problem))
    loop = _Loop(
        problem, executor, method, criteria, callbacks, clock, state, known,
        target=criteria, earlier=state.seconds, began=clock(), traffic=executor.traffic(),
    )  # fmt: skip
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
    unproven : rounds whose bounds were good enough, but not with the rounding of a single point.
    earlier, began : seconds of earlier runs, and the clock at the start of this one.
    traffic : totals of the executor at the last record.
    passes : passes of the run up to the present point of the round.
    products, per_row, waiting : seconds of the round in products, in work per row, and outside both.
    """

    problem: Problem
    executor: OperationRunner
    method: Method
    criteria: StoppingCriteria
    callbacks: Sequence[Callback]
    clock: Callable[[], float]
    state: SolverState
    known: Measurement | None
    target: StoppingCriteria
    earlier: float
    began: float
    traffic: Traffic
    refuted: bool = False
    start_primal: float = math.inf
    unproven: int = 0
    history: ThinnedHistory[IterationRecord] = field(default_factory=ThinnedHistory)
    passes: int = 0
    products: float = 0.0
    per_row: float = 0.0
    waiting: float = 0.0

    def take_round(self) -> Run | None:
        """Take one round; return the run if it was the last."""
        self.passes, self.products, self.per_row, self.waiting = 0, 0.0, 0.0, 0.0
        measured = self._measured()
        objective, seconds, tol = self._bounds(measured), self._seconds_left(), self.criteria.tol
        if measured.before.left_behind:
            self.start_primal = objective.primal
        good = objective.reaches(self.target.tol) and objective.primal < self.start_primal
        exhausted = measured.passes_left < 1 or seconds <= 0.0
        solved = good and not self.refuted and (exhausted or not self._awaits_proof(measured))
        if solved or (self.method.advances_by_passes and exhausted):
            advance = no_step(measured)
        else:
            advance = self.method.advance(self.problem, self.run, measured)
        claim = self._certified_claim(measured, advance) if advance.claims else None
        record = self._record(measured, self._bounds(measured, claim), advance)
        self.history.add(record)
        proven = claim is not None and claim.primal < self.start_primal and claim.objective.reaches(tol)
        status = Status.SOLVED if proven else self._ending(record, advance, solved=solved)
        self.state = self._next_state(measured, advance, claim, record, status)
        # Every callback is called, even after one returned False.
        answers = [callback(record, self.state) for callback in self.callbacks]
        if claim is not None and proven:
            return Run(self.state, Status.SOLVED, claim, self.history.records(), True, None)
        stopped = any(isinstance(answer, bool | np.bool_) and not answer for answer in answers)
        status = status or (Status.INTERRUPTED if stopped else None)
        if status is None:
            self.refuted = False
            return None
        if status is Status.SOLVED:
            self.known = replace(measured, before=self.state, passes=0)
        return self._ended(status, self._ending(record, replace(advance, spent=False), solved=False))

    def run(self, operation: Operation[A]) -> A:
        """Run an operation within the budget; worker time outside products and per-row work is waiting."""
        began, limit = time.perf_counter(), self.criteria.time_limit
        seconds = None if limit is None else self._seconds_left()
        stats = self.executor.run(operation.within(self.criteria.max_passes - self.passes, seconds))
        busy = (stats.seconds_products + stats.seconds_kernels) / self.executor.workers
        self.products += stats.seconds_products
        self.per_row += stats.seconds_kernels
        self.waiting += max(time.perf_counter() - began - busy, 0.0)
        return stats

    def _seconds(self) -> float:
        """Return the seconds of solving so far, over all resumptions."""
        return self.earlier + self.clock() - self.began

    def _seconds_left(self) -> float:
        """Return the seconds left to this run, inf without a limit."""
        limit = self.criteria.time_limit
        return math.inf if limit is None else limit - (self.clock() - self.began)

    def _measured(self) -> Measurement:
        """Measure the state, and add the measurement to the best so far."""
        began = self._seconds()
        found = self.known or self.method.measure(self.problem, self.run, self.state)
        self.known = None
        state, best = found.before, self.state.best
        if math.isfinite(found.primal) and not self.criteria.of_duals:
            best = best.with_primal(found.primal, state.W if found.W is None else found.W)
        if math.isfinite(found.dual):
            best = best.with_dual(found.dual, found.dual_point)
        self.passes, seconds = state.passes + found.passes, self._seconds()
        return replace(
            found, before=replace(state, best=best), passes_left=self.criteria.max_passes - self.passes,
            tol=self.target.tol, seconds=seconds, took=seconds - began,
            apart=self.executor.workers if self.executor.sends else 0,
        )  # fmt: skip

    def _bounds(self, measured: Measurement, claim: FinalValues | None = None) -> Objective:
        """Return the smallest P and the largest D so far whose points the run can still return.

        Where blocks keep A, only the present A counts.  An excess of D over P is rounding of the products.
        """
        found, best = measured.objective, measured.before.best
        if found.stationarity is not None or not math.isfinite(found.primal):
            return found
        primal = found.primal if self.criteria.of_duals else best.primal
        follows = self.executor.keeps_duals and self.method.follows(measured.before)
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
        final = self.method.final(self.problem, self.executor, state, self.criteria.tol)
        return final if final.objective.finite else None

    def _record(self, measured: Measurement, objective: Objective, advance: Advance) -> IterationRecord:
        """Return the record of the round with the bounds P and D of `objective`."""
        now = self.executor.traffic()
        moved, self.traffic = now.since(self.traffic), now
        return IterationRecord(
            round=measured.before.round,
            passes=self.passes + advance.passes,
            seconds=self._seconds(),
            objective=objective,
            step=advance.step,
            active=advance.active / self.problem.n,
            seconds_products=self.products,
            seconds_kernels=self.per_row,
            seconds_waiting=self.waiting,
            bytes_sent=moved.bytes_sent,
            bytes_received=moved.bytes_received,
            bytes_read=moved.bytes_read,
            memory_bytes=moved.memory_bytes,
            workers=self.executor.workers,
            activity=moved.workers,
        )

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
        state = _stepped(before, advance)
        if claim is None:
            if status in _ENDS_AT_POINT:
                return before
            # The drift of a float32 A would otherwise be mistaken for the optimum.
            due = state.round % REBUILD_EVERY == 0 or state.exact != before.exact
            return self._rebuilt(state) if due else state
        best = state.best
        if advance.dual_point is not None:
            best = best.with_dual(claim.dual, advance.dual_point)
        if not self.criteria.of_duals:
            best = best.with_primal(claim.primal, claim.W)
        # A claim that fails has cost a pass.
        cost = 0 if status is Status.SOLVED else 1
        return replace(state, best=best, passes=min(state.passes + cost, self.criteria.max_passes))

    def _ending(self, record: IterationRecord, advance: Advance, *, solved: bool) -> Status | None:
        """Return why the run ends after this round, None to continue; interruptions are decided elsewhere."""
        # One pass left could only measure, which the end does anyway.
        fewest = 2 if self.method.advances_by_passes else 1
        if not (record.objective.finite and math.isfinite(record.step)):
            return Status.NONFINITE
        if solved:
            return Status.SOLVED
        if advance.spent and advance.point.exact:
            return Status.NO_PROGRESS
        if advance.short or self.criteria.max_passes - record.passes < fewest:
            return Status.MAX_PASSES
        return Status.TIME_LIMIT if self._seconds_left() <= 0.0 else None

    def _ended(self, status: Status, budget: Status | None) -> Run | None:
        """Return the run that ends with this status; None where its point does not hold in float64.

        `budget` is the status to end with if the claim fails and the budget is exhausted.
        """
        certified = self.criteria.certified or self.known is None
        if self.known is not None and not certified:
            final = as_measured(self.state, self._bounds(self.known))
        else:
            proof = self._values_of(self.known)
            if proof is not None and self._suffice(proof):
                final = proof
            else:
                final = self.method.final(self.problem, self.executor, self.state, self.criteria.tol)
        if status is not Status.INTERRUPTED:
            if not final.objective.finite:
                status = Status.NONFINITE
            elif final.objective.reaches(self.criteria.tol):
                status = Status.SOLVED
            elif status is Status.SOLVED:
                if budget is None:
                    self._refute(final)
                    return None
                status = budget
        elif self.unproven and final.objective.reaches(self.criteria.tol):
            # A callback has seen bounds that are good enough, while the run waited for their proof.
            status = Status.SOLVED
        state = replace(self.state, seconds=self._seconds())
        return Run(state, status, final, self.history.records(), certified, self.known)

    def _awaits_proof(self, measured: Measurement) -> bool:
        """Return whether to wait for a point that proves itself, which costs less than a certificate."""
        values = self._values_of(measured)
        if values is None or self._suffice(values):
            return False
        if values.objective.rounding > _MOST_ROUNDING * self.criteria.tol * abs(values.primal):
            return False
        self.unproven += 1
        return self.unproven <= _UNPROVEN

    def _suffice(self, values: FinalValues) -> bool:
        """Return whether proven values end the run: within the tolerance, at a W as good as the best."""
        best = min(self.start_primal, (1.0 + _FLOAT32) * self.state.best.primal)
        return values.objective.reaches(self.criteria.tol) and values.primal <= best

    def _values_of(self, measured: Measurement | None) -> FinalValues | None:
        """Return what a measurement says with a bound of rounding, unless the end has to set a kept A."""
        sets_duals = self.executor.keeps_duals and self.method.leaves_duals
        if measured is None or measured.proof is None or sets_duals or not self.criteria.certified:
            return None
        return measured.proof()

    def _refute(self, final: FinalValues) -> None:
        """Tighten the target after rounding made the rounds look too good, and continue in float64."""
        self.known, self.refuted = None, True
        self.target = replace(self.target, tol=max(0.5 * self.target.tol, FINEST_TOL))
        # The float64 measurement replaces the values that looked better.
        best = self.state.best
        best = Best(dual=min(best.dual, final.dual), dual_point=best.dual_point)
        best = best if self.criteria.of_duals else best.with_primal(final.primal, final.W)
        self.state = self._rebuilt(replace(self.state, best=best).with_point(exact=True))

    def _rebuilt(self, state: SolverState) -> SolverState:
        """Return the state with W, b and |A|^2 recomputed from A, if they follow it."""
        while self.executor.keeps_duals and self.method.follows(state):
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
    # A P that is too low would pass for a closed gap in float64, at the cost of a pass to disprove it.
    best = replace(before.best, primal=before.best.primal * (1.0 + _FLOAT32)) if begins else before.best
    return replace(before, point=point, memory=advance.memory, best=best, left_behind=False)
