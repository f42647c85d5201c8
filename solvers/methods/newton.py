"""Newton's method with conjugate gradients; for a hinge, around a proximal step on the dual.

A smooth loss is minimised as it is.  For a hinge, D is maximised by proximal steps (R. T. Rockafellar, Math.
Oper. Res. 1, 1976): from A_t the next A is the maximiser of D(A) - sigma/(2n) |A - A_t|^2, whose own dual is
the smooth problem

    F(W) = lam/2 |W|^2 + (1/n) sum_i Phi_c(q_i; y_i),   q_i = W^T x_i - sigma alpha_i,  c = gamma + sigma,

up to a constant, with grad F(W) = lam (W - W(U)) at u_i = -grad Phi_c(q_i).  F is piecewise quadratic, so
that a semismooth Newton method minimises it (X. Li, D. Sun, K.-C. Toh, SIAM J. Optim. 28, 2018): blocks
multiply with its Hessian lam I + (1/n) sum_i x_i x_i^T (x) J_i, and leave out all rows with J_i = 0.  U is
dual feasible, and with E the sum of what Fenchel and Young's inequality leaves,

    P(W) - D(U) = |grad F(W)|^2 / (2 lam) + E,

so the minimisation stops where its own share is the smaller one.  Then A takes the exact step towards U,
which keeps D from falling, and where that closed too little of the gap sigma shrinks.  Nothing of it depends
on how the rows are cut into blocks.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import ClassVar

from topline.solvers.core.codec import stored
from topline.solvers.core.objective import Objective
from topline.solvers.core.problem import Problem, squared_norm
from topline.solvers.core.state import Point, SolverState
from topline.solvers.methods.base import (
    Advance,
    Measurement,
    Method,
    may_be_separated,
    measured_at,
    no_step,
    product_of,
    rises,
    stepped,
    with_stretched,
)
from topline.solvers.methods.certificate import rebuild
from topline.solvers.methods.newton_steps import (
    FEWEST_PASSES,
    NO_PRECONDITIONER,
    SHORT,
    CountedRun,
    Preconditioner,
    newton_step,
)
from topline.solvers.methods.quasi_newton import at_gradient, gradient_of
from topline.solvers.methods.step_rules import Direction, ExactStep
from topline.solvers.operations import FindEnvelopes, OperationRunner, Runner
from topline.solvers.typing import Float64Array

#: sigma at first, where dual variables are of size 1 and margins too.
_SIGMA = 10.0
#: The same where A comes from another method.
_SIGMA_WARM = 1.0
#: Its factor where a proximal step leaves more than this share of the gap.
_SHRINK = 0.5
_POOR = 0.5
#: F is minimised until its share of the gap is below this one of E and so many times what U raises D by,
_INNER, _OF_RISE = 0.3, 10.0
#: or U closes all but this share of the gap,
_CLOSES = 0.1
#: and down to this share where proximal steps bring nothing.
_LEAST = 1e-6
#: Newton steps after which products are in float64 where none has lowered |grad F|.
_STALLED_STEPS = 4
#: Rounds after which scores are products again, and not those of the round before and a step.
_FRESH = 10
#: So many short Newton steps let sigma grow by this factor, at a relative gap above this one.
_MANY_SHORT, _GROW, _FAR = 2, 10.0, 0.5
#: P and D below this share of P(0) are small.
_SMALL = 0.1


@stored
@dataclass(frozen=True, eq=False)
class NewtonMemory:
    """What Newton's method remembers.

    Attributes
    ----------
    sigma : weight of the proximal term, 0 for a smooth loss.
    W_dual : W(A) (d, m) of a hinge, None before the first round and of a smooth loss.
    gap : the gap after the last proximal step, infinity before one.
    inner_share : share of E below which F is minimised well enough.
    last_step : the last Newton step, NaN where there was none.
    short : short Newton steps since sigma or A changed.
    least, ago : the least |grad F|^2 / (2 lam) since the last proximal step, and the steps since.
    preconditioner : what the Hessian looked like.
    """

    sigma: float = 0.0
    W_dual: Float64Array | None = None
    gap: float = math.inf
    inner_share: float = _INNER
    last_step: float = math.nan
    short: int = 0
    least: float = math.inf
    ago: int = 0
    preconditioner: Preconditioner = NO_PRECONDITIONER

    def request(self, point: Point) -> FindEnvelopes:
        """Return the point of F; scores are made anew from time to time, lest they drift."""
        last_step = math.nan if point.round % _FRESH == 0 else self.last_step
        return FindEnvelopes(
            point.round, point.W, point.pending_step, sigma=self.sigma, exact=point.exact, last_step=last_step
        )

    def stalls(self, steepness: float) -> bool:
        """Return whether the gradient has not shrunk for some steps: it may be rounding of float32."""
        return steepness >= self.least and self.ago + 1 >= _STALLED_STEPS

    def counted(self, step: float, steepness: float) -> NewtonMemory:
        """Return the memory after a Newton step from a point with this |grad F|^2 / (2 lam)."""
        least, ago = (steepness, 0) if steepness < self.least else (self.least, self.ago + 1)
        return replace(self, short=self.short + (0.0 < step < SHORT), least=least, ago=ago)


@dataclass(frozen=True)
class ProximalNewton(Method):
    """Semismooth Newton steps for the hinges, around proximal steps on the dual.

    In the state W is where F is minimised, and not W(A); b and |A|^2 are those of A.
    """

    advances_by_passes: ClassVar[bool] = True

    def measure(self, problem: Problem, run: Runner, state: SolverState) -> Measurement:
        """Evaluate P at W; D is that of A."""
        memory, point = state.recalled(NewtonMemory), state.point
        W_dual = memory.W_dual
        if W_dual is None:
            W_dual = point.W
            memory = NewtonMemory(_SIGMA, W_dual)
        stretched = may_be_separated(problem, state)
        stats = run(replace(memory.request(point), stretched=stretched))
        value = problem.primal(point.W, stats.loss / problem.n)
        dual = problem.dual(W_dual, point.conjugate_mean, point.mean_sq_dual)
        measured = measured_at(problem, replace(state, memory=memory), stats, Objective(value, dual))
        measured = replace(measured, passes=math.ceil(stats.visited / problem.n))
        return with_stretched(problem, measured) if stretched else measured

    def advance(self, problem: Problem, run: Runner, measured: Measurement) -> Advance:
        """Take a Newton step, or the proximal step where F is minimised well enough."""
        before, stats, memory = measured.before, measured.stats, measured.before.recalled(NewtonMemory)
        W_u = problem.scale * product_of(stats)
        gradient = problem.lam * (before.W - W_u)
        steepness = squared_norm(gradient) / (2.0 * problem.lam)
        value = problem.primal(before.W, stats.loss / problem.n)
        dual_u = problem.dual(W_u, stats.conjugate_u / problem.n, stats.u_sq / problem.n)
        closes = before.best.primal - dual_u <= _CLOSES * (before.best.primal - measured.dual)
        minimised = steepness <= min(
            memory.inner_share * (value - dual_u - steepness), _OF_RISE * (dual_u - measured.dual)
        )
        if minimised or closes:
            return _proximal_step(problem, measured, memory, W_u)
        near = measured.with_primal(before.best.primal, None).below_float32()
        if not before.point.exact and (near or memory.stalls(steepness)):
            return no_step(measured, spent=True)
        return _with_sigma(before, _newton_round(problem, run, measured, gradient))

    def rebuilt(self, problem: Problem, executor: OperationRunner, state: SolverState) -> SolverState:
        """Return the state with W(A), b and |A|^2 rebuilt from A."""
        W_dual, conjugate_mean, mean_sq_dual = rebuild(problem, executor, state.point)
        memory = replace(state.recalled(NewtonMemory), W_dual=W_dual)
        state = replace(state, memory=memory)
        return state.with_point(conjugate_mean=conjugate_mean, mean_sq_dual=mean_sq_dual)


def _proximal_step(
    problem: Problem, measured: Measurement, memory: NewtonMemory, W_u: Float64Array
) -> Advance:
    """Take the exact step from A to U, and choose the next sigma."""
    before, point, stats = measured.before, measured.before.point, measured.stats
    W_dual = before.W if memory.W_dual is None else memory.W_dual
    direction = Direction.of(
        problem,
        W_dual,
        weights=W_u - W_dual,
        linear=stats.conjugate_u / problem.n - point.conjugate_mean,
        cross=stats.alpha_u / problem.n - point.mean_sq_dual,
        square=stats.u_sq / problem.n - 2.0 * stats.alpha_u / problem.n + point.mean_sq_dual,
    )
    step = ExactStep().step(before.round, direction)
    gap = before.best.primal - measured.dual - direction.rise(step)
    shrinks = gap > _POOR * memory.gap or math.isinf(memory.gap)
    # Where D does not rise F was not minimised well enough, or there is no more to be had.
    stuck = not rises(direction)
    inner_share = 0.1 * memory.inner_share if stuck else _INNER
    memory = NewtonMemory(
        sigma=_SHRINK * memory.sigma if shrinks else memory.sigma,
        W_dual=W_dual + step * direction.weights,
        gap=gap,
        inner_share=inner_share,
        last_step=0.0,
        preconditioner=memory.preconditioner,
    )
    return Advance(
        step,
        replace(stepped(point, direction, step), W=point.W),
        memory,
        active=stats.active,
        passes=0,
        spent=stuck and (not point.exact or inner_share < _LEAST),
    )


def _smallness(state: SolverState) -> float:
    """Return how many times as large P(0) is as a P that is small, and 1 beside one that is not."""
    at_zero = state.primal_at_zero
    return 1.0 if at_zero is None or state.best.primal > _SMALL * at_zero else at_zero / state.best.primal


def _with_sigma(before: SolverState, advance: Advance) -> Advance:
    """Let sigma grow where F has too many kinks for Newton's method, far from the optimum.

    Where P is small so are the dual variables, and with them sigma alpha: sigma may be as much larger.
    """
    memory, best = advance.memory, before.best
    far = best.primal - best.dual > _FAR * best.primal
    if memory.short < _MANY_SHORT or not far or _smallness(before) == 1.0:
        return advance
    sigma = max(memory.sigma, min(_GROW * memory.sigma, _SIGMA * _smallness(before)))
    return replace(advance, memory=replace(memory, sigma=sigma, short=0))


@dataclass(frozen=True)
class Newton(Method):
    """Newton steps for a loss that has a gradient everywhere, which also makes the dual points."""

    #: W is no W(A): a dual point is made of minus the gradients at W.
    follows_duals: ClassVar[bool] = False
    advances_by_passes: ClassVar[bool] = True

    def measure(self, problem: Problem, run: Runner, state: SolverState) -> Measurement:
        """Evaluate P, its gradient and with it a dual point at W."""
        memory = state.recalled(NewtonMemory)
        stats = run(memory.request(state.point))
        measured = at_gradient(problem, replace(state, memory=memory), stats)
        return replace(measured, passes=math.ceil(stats.visited / problem.n))

    def advance(self, problem: Problem, run: Runner, measured: Measurement) -> Advance:
        """Take a Newton step."""
        before = measured.before
        gradient = gradient_of(problem, before.W, measured.stats)
        steepness = squared_norm(gradient) / (2.0 * problem.lam)
        if not before.point.exact and before.recalled(NewtonMemory).stalls(steepness):
            return no_step(measured, spent=True)
        return _newton_round(problem, run, measured, gradient)


def _newton_round(problem: Problem, run: Runner, measured: Measurement, gradient: Float64Array) -> Advance:
    """Take a Newton step, unless it brings nothing, or there are too few passes left for it."""
    before, memory = measured.before, measured.before.recalled(NewtonMemory)
    if measured.passes_left < FEWEST_PASSES:
        return no_step(measured, short=True)
    counted = CountedRun(problem, run, memory.request(before.point), measured.passes_left)
    step, W, known = newton_step(counted, gradient, memory.preconditioner)
    memory = memory.counted(step, squared_norm(gradient) / (2.0 * problem.lam))
    if step == 0.0:
        return replace(no_step(measured, spent=True), memory=memory, passes=counted.passes())
    point = replace(before.point, round=before.round + 1, W=W)
    memory = replace(memory, preconditioner=known, last_step=step)
    return Advance(step, point, memory, active=measured.stats.active, passes=counted.passes())


def warm_start(state: SolverState, dual: float, *, near: bool) -> NewtonMemory:
    """Return the memory with which proximal steps go on from a state of A, whose W is W(A) and D is `dual`.

    Where that is not `near` the optimum sigma is that of a new run, and larger where P and D are far below
    P(0): so small are dual variables there.
    """
    sigma = _SIGMA_WARM if near else _SIGMA
    if state.primal_at_zero is not None and dual > 0.0:
        sigma *= max(1.0, min(_SMALL * state.primal_at_zero / dual, _smallness(state)))
    return NewtonMemory(sigma, state.W)
