"""The protocol of methods: measure an iterate, and advance from it.

The two are separate so that a run can end at an iterate that is good enough without computing the next step.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Protocol

import numpy as np

from topline.solvers.blocks.vertices import can_vanish
from topline.solvers.core.answers import LossAnswer, VectorSums
from topline.solvers.core.dual_points import DualPoint, PendingStep
from topline.solvers.core.problem import Problem
from topline.solvers.core.state import FinalValues, HasObjective, Objective, Point, SolverState
from topline.solvers.methods.certificate import final_values, rebuild
from topline.solvers.methods.step_rules import Direction
from topline.solvers.operations import OperationRunner, Runner
from topline.solvers.typing import Float64Array

#: Relative gap below which most methods change to float64 products: A in float32 is feasible to a few times
#: 6e-8, and sums of its products are as exact.
_SINGLE = 1e-5
#: A P below this share of P(0) suggests separable classes.
_SEPARATED = 0.1
#: Relative rounding of a sum of many terms.
_ROUNDING = 16.0 * float(np.finfo(np.float64).eps)


@dataclass(frozen=True, eq=False)
class Measurement(HasObjective):
    """The value of an iterate.

    Attributes
    ----------
    objective : P and D, and which gap their difference is.
    W : (d, m) weights whose P is at most that; None for those of the state.
    dual_point : the dual point with value D; None for the state's own, which is A where blocks keep it and
        the method follows it, else W and b.
    before : the measured state, with the values learned on the way.
    stats : the blocks' answer, of the kind that the method requests.
    passes : passes over the examples that this took.
    proof : gives P and D with a bound of their rounding, or None, where the answer knows it.
    passes_left, tol, seconds, took : remaining passes of the run, the relative gap that ends it, the seconds
        of solving at the measurement, and those that it took; all added by the loop.
    apart : number of workers in other processes, 0 for none; also added by the loop.
    """

    objective: Objective
    before: SolverState
    stats: Any
    passes: int
    W: Float64Array | None = None
    dual_point: DualPoint | None = None
    proof: Callable[[], FinalValues | None] | None = None
    passes_left: float = math.inf
    tol: float = 0.0
    seconds: float = 0.0
    took: float = 0.0
    apart: int = 0

    def below_float32(self, share: float = _SINGLE) -> bool:
        """Return whether the gap is below this share of |P|, where rounding to float32 shows."""
        return self.gap < share * abs(self.primal)

    def with_primal(self, primal: float, W: Float64Array | None) -> Measurement:
        """Return the measurement with other weights and their P."""
        return replace(self, objective=replace(self.objective, primal=primal), W=W)


@dataclass(frozen=True, eq=False)
class Advance:
    """The next point of a method after a measured iterate.

    Attributes
    ----------
    step : step taken along the direction that the blocks found.
    point : the point of the next round.
    memory : the method's memory there.
    active : examples that take part in the direction.
    passes : passes over the examples that this took.
    spent : whether this precision allows no further progress: the loop changes to float64, or ends a run that
        is already there.
    short : whether the remaining passes are too few to go on.
    claims : whether the next point is likely to be good enough: it is certified without being measured, with
        the `dual_point` that belongs to it, None for the point's own.
    """

    step: float
    point: Point
    memory: Any
    active: int
    passes: int
    spent: bool = False
    short: bool = False
    claims: bool = False
    dual_point: DualPoint | None = None


class Method(Protocol):
    """A method as a value, a base class; its memory between rounds is part of the state.

    A method reports the best that it knows in its measurements, each with P and D and the points they belong
    to: `Measurement.W` the weights, `Measurement.dual_point` the dual point.  The loop keeps the smallest P
    with its W and the largest D with its point in `SolverState.best`, reports and stops by these, and
    `final_values` measures them again:

    * a method whose A lies in the blocks (`follows_duals`) gives no point: D is that of A, which it must
      not let fall;
    * one whose dual point is minus the gradients at weights V gives `FoundAt(V, share)`: they become A
      where the blocks keep it, and a certificate finds them again from V;
    * one that knows only W(A) and b gives `Summed(W(A), b)`, or nothing where they are the state's.

    `best_multiple` gives the best share of a dual point, so that no D is below that of A = 0.
    """

    #: Whether W is the W(A) of kept dual variables; otherwise the method moves W itself.
    follows_duals: ClassVar[bool] = True
    #: Whether advancing takes passes of its own: the loop omits it without budget or time.
    advances_by_passes: ClassVar[bool] = False

    @property
    def leaves_duals(self) -> bool:
        """Whether an end sets the A that blocks keep to the dual point: not if nobody asked for A."""
        return True

    def needs_float64(self, problem: Problem, /) -> bool:  # noqa: ARG002 - most methods do not
        """Return whether products are in float64 from the start."""
        return False

    def follows(self, state: SolverState, /) -> bool:  # noqa: ARG002 - most methods always do, or never
        """Return whether W is the W(A) of kept dual variables at a state."""
        return self.follows_duals

    def measure(self, problem: Problem, run: Runner, state: SolverState, /) -> Measurement:
        """Return the objective values of a state."""
        ...

    def advance(self, problem: Problem, run: Runner, measured: Measurement, /) -> Advance:
        """Take the step of this round."""
        ...

    def rebuilt(self, problem: Problem, executor: OperationRunner, state: SolverState, /) -> SolverState:
        """Return a state with W(A), b and |A|^2 / n recomputed from A."""
        W, conjugate_mean, mean_sq_dual = rebuild(problem, executor, state.point)
        return state.with_point(W=W, conjugate_mean=conjugate_mean, mean_sq_dual=mean_sq_dual)

    def final(
        self, problem: Problem, executor: OperationRunner, state: SolverState, /, tol: float = 0.0
    ) -> FinalValues:
        """Return the best W and dual point with their values, as `final_values` measures them.

        State and A stay as they are, so that a run may continue from them.
        """
        return final_values(problem, executor, state, tol, duals_kept=executor.keeps_duals)


def measured_at(
    problem: Problem,
    state: SolverState,
    stats: LossAnswer,
    objective: Objective,
    *,
    dual_point: DualPoint | None = None,
    **learned: Any,
) -> Measurement:
    """Return the measurement of a state after one pass; `learned` are new fields of its point."""
    before = with_loss_at_zero(problem, state, stats).with_point(**learned)
    return Measurement(objective, before, stats, passes=1, dual_point=dual_point)


def with_loss_at_zero(problem: Problem, state: SolverState, stats: LossAnswer) -> SolverState:
    """Return the state with the mean loss of an answer at W = 0, if the state is there and lacks it."""
    if state.loss_at_zero is not None or state.round > 0 or state.W.any():
        return state
    return replace(state, loss_at_zero=stats.loss / problem.n)


def product_of(stats: VectorSums) -> Float64Array:
    """Return the (d, m) product of an answer, in float64."""
    return np.asarray(stats.product, dtype=np.float64)


def change_of(problem: Problem, W: Float64Array, stats: VectorSums) -> Direction:
    """Return the direction dA whose sums the blocks returned, at weights W (d, m)."""
    return Direction.of(
        problem,
        W,
        weights=np.multiply(problem.scale, stats.product, dtype=np.float64),
        linear=stats.conjugate_u / problem.n,
        cross=stats.alpha_u / problem.n,
        square=stats.u_sq / problem.n,
    )


def stepped(point: Point, direction: Direction, step: float, part: int = 0) -> Point:
    """Return the point of the next round, after a step along a direction that blocks have yet to apply.

    `part` is the part of the round in which they found the direction.
    """
    # In the layout of the change, which many small steps share.
    W = step * direction.weights
    W += point.W
    return replace(
        point,
        round=point.round + 1,
        W=W,
        conjugate_mean=point.conjugate_mean + step * direction.linear,
        mean_sq_dual=point.mean_sq_dual + step * (2.0 * direction.cross + step * direction.square),
        pending_step=PendingStep(round=point.round, step=step, part=part),
    )


def rises(direction: Direction) -> bool:
    """Return whether the dual rises along a direction, beyond the rounding of its slope.

    The slope is tested instead of the rise: for a large C the primal still falls far after D has converged to
    all its digits.
    """
    return direction.slope > _ROUNDING * direction.terms


def no_step(measured: Measurement, *, spent: bool = False, short: bool = False) -> Advance:
    """Stay at a point that is good enough, or from which no step leads.  A `spent` one counts as a round."""
    before = measured.before
    point = replace(before.point, round=before.round + 1) if spent else before.point
    return Advance(0.0, point, before.memory, measured.stats.active, passes=0, spent=spent, short=short)


def may_be_separated(problem: Problem, state: SolverState) -> bool:
    """Return whether the loss may vanish at a multiple of W that is the answer."""
    if state.primal_at_zero is None or not can_vanish(problem.form):
        return False
    return state.best.primal < _SEPARATED * state.primal_at_zero


def with_stretched(problem: Problem, measured: Measurement) -> Measurement:
    """Replace W of a measurement by the multiple at which no row has a loss, if P is smaller there.

    For a large C and separable classes P is nearly all loss, of rows that miss their margin by a little: at c
    W the loss is zero, and P = c^2 lam/2 |W|^2.
    """
    c = measured.stats.stretch
    if not 0.0 < c < math.inf:
        return measured
    W = c * (measured.before.W if measured.W is None else measured.W)
    primal = problem.primal(W, 0.0)
    return measured.with_primal(primal, W) if primal < measured.primal else measured
