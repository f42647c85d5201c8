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

import numpy as np

from topline.solvers.core.dual_points import PendingStep
from topline.solvers.core.problem import Problem, squared_norm
from topline.solvers.core.state import SolverState
from topline.solvers.methods.base import (
    Advance,
    Measurement,
    Method,
    may_be_separated,
    measured_at,
    product_of,
    rises,
    with_stretched,
)
from topline.solvers.methods.newton_steps import (
    CONTROL,
    FEWEST_PASSES,
    SHORT,
    CountedRun,
    newton_step,
    point_of,
)
from topline.solvers.methods.quasi_newton import at_gradient, gradient_of
from topline.solvers.methods.step_rules import Direction, ExactStep
from topline.solvers.operations import Runner
from topline.solvers.typing import Float64Array

#: Name of W(A) in `SolverState.memory`.
_W_DUAL = "newton.W_dual"
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
#: A relative gap from which on products are in float64, and Newton steps after which they are where none has
#: lowered |grad F|.
_SINGLE, _STALLED_STEPS = 1e-5, 4
#: Name in `SolverState.memory` of the outcome of the Newton steps since the last proximal one.
_SO_FAR = "newton.so_far"
_NONE_SO_FAR = np.array([0.0, math.inf, 0.0])
#: So many short Newton steps let sigma grow by this factor, at a relative gap above this one.
_MANY_SHORT, _GROW, _FAR = 2, 10.0, 0.5
#: P and D below this share of P(0) are small.
_SMALL = 0.1


@dataclass(frozen=True)
class ProximalNewton(Method):
    """Semismooth Newton steps for the hinges, around proximal steps on the dual.

    In the state W is where F is minimised, and not W(A); b and |A|^2 are those of A.  The memory holds W(A),
    sigma, the gap after the last proximal step, the last step and the preconditioner.
    """

    advances_by_passes: ClassVar[bool] = True

    def measure(self, problem: Problem, run: Runner, state: SolverState) -> Measurement:
        """Evaluate P at W; D is that of A."""
        memory = dict(state.memory)
        if _W_DUAL not in memory:
            memory |= {_W_DUAL: state.W, CONTROL: np.array([_SIGMA, math.inf, _INNER, math.nan])}
        stretched = may_be_separated(problem, state)
        stats = run(replace(point_of(state, memory[CONTROL]), stretched=stretched))
        value = problem.primal(state.W, stats.loss / problem.n)
        dual = problem.dual(memory[_W_DUAL], state.conjugate_mean, state.mean_sq_dual)
        measured = measured_at(problem, state, stats, value, dual, memory=memory)
        measured = replace(measured, passes=math.ceil(stats.visited / problem.n))
        return with_stretched(problem, measured) if stretched else measured

    def advance(self, problem: Problem, run: Runner, measured: Measurement) -> Advance:
        """Take a Newton step, or the proximal step where F is minimised well enough."""
        before, stats = measured.before, measured.stats
        W_u = problem.scale * product_of(stats)
        gradient = problem.lam * (before.W - W_u)
        steepness = squared_norm(gradient) / (2.0 * problem.lam)
        value = problem.primal(before.W, stats.loss / problem.n)
        dual_u = problem.dual(W_u, stats.conjugate_u / problem.n, stats.u_sq / problem.n)
        inner_share = float(before.memory[CONTROL][2])
        closes = before.best_primal - dual_u <= _CLOSES * (before.best_primal - measured.dual)
        minimised = steepness <= min(
            inner_share * (value - dual_u - steepness), _OF_RISE * (dual_u - measured.dual)
        )
        if minimised or closes:
            return self._proximal_step(problem, measured, W_u)
        near = before.best_primal - measured.dual < _SINGLE * abs(before.best_primal)
        if not before.exact and (near or _stalled(before, steepness)):
            return _with_exact_products(measured)
        return _with_sigma(_counted(_newton_round(problem, run, measured, gradient), steepness))

    def taken_up(
        self, state: SolverState, W: Float64Array, conjugate_mean: float, mean_sq_dual: float
    ) -> SolverState:
        """Return the state with W(A), b and |A|^2 rebuilt from A."""
        memory = {**state.memory, _W_DUAL: W}
        return replace(state, conjugate_mean=conjugate_mean, mean_sq_dual=mean_sq_dual, memory=memory)

    def _proximal_step(self, problem: Problem, measured: Measurement, W_u: Float64Array) -> Advance:
        """Take the exact step from A to U, and choose the next sigma."""
        before, stats = measured.before, measured.stats
        W_dual = before.memory[_W_DUAL]
        direction = Direction.of(
            problem,
            W_dual,
            weights=W_u - W_dual,
            linear=stats.conjugate_u / problem.n - before.conjugate_mean,
            cross=stats.alpha_u / problem.n - before.mean_sq_dual,
            square=stats.u_sq / problem.n - 2.0 * stats.alpha_u / problem.n + before.mean_sq_dual,
        )
        step = ExactStep().step(before.round, direction)
        sigma, earlier, inner_share, _ = (float(v) for v in before.memory[CONTROL])
        gap = before.best_primal - measured.dual - direction.rise(step)
        if gap > _POOR * earlier or math.isinf(earlier):
            sigma *= _SHRINK
        # Where D does not rise F was not minimised well enough, or there is no more to be had.
        stuck = not rises(direction)
        inner_share = 0.1 * inner_share if stuck else _INNER
        after = replace(
            before,
            round=before.round + 1,
            conjugate_mean=before.conjugate_mean + step * direction.linear,
            mean_sq_dual=before.mean_sq_dual + step * (2.0 * direction.cross + step * direction.square),
            pending_step=PendingStep(round=before.round, step=step),
            exact=before.exact or stuck,
            memory={
                **before.memory,
                _W_DUAL: W_dual + step * direction.weights,
                _SO_FAR: _NONE_SO_FAR,
                CONTROL: np.array([sigma, gap, inner_share, 0.0]),
            },
        )
        moved = not (stuck and before.exact and inner_share < _LEAST)
        return Advance(step, moved=moved, after=after, active=stats.active, passes=0)


def _so_far(state: SolverState) -> tuple[float, float, float]:
    """Return short Newton steps since sigma or A changed, the least |grad F|^2 / (2 lam), and steps since."""
    short, least, ago = (float(v) for v in state.memory.get(_SO_FAR, _NONE_SO_FAR))
    return short, least, ago


def _stalled(state: SolverState, steepness: float) -> bool:
    """Return whether the gradient has not become smaller for some steps: it may be rounding of float32."""
    _, least, ago = _so_far(state)
    return steepness >= least and ago + 1.0 >= _STALLED_STEPS


def _counted(advance: Advance, steepness: float) -> Advance:
    """Note a Newton step from a point with this |grad F|^2 / (2 lam)."""
    after = advance.after
    short, least, ago = _so_far(after)
    least, ago = (steepness, 0.0) if steepness < least else (least, ago + 1.0)
    short += 0.0 < advance.step < SHORT
    memory = {**after.memory, _SO_FAR: np.array([short, least, ago])}
    return replace(advance, after=replace(after, memory=memory))


def _smallness(state: SolverState) -> float:
    """Return how many times as large P(0) is as a P that is small, and 1 beside one that is not."""
    at_zero = state.primal_at_zero
    return 1.0 if at_zero is None or state.best_primal > _SMALL * at_zero else at_zero / state.best_primal


def _with_sigma(advance: Advance) -> Advance:
    """Let sigma grow where F has too many kinks for Newton's method, far from the optimum.

    Where P is small so are the dual variables, and with them sigma alpha: sigma may be as much larger.
    """
    after = advance.after
    short, least, ago = _so_far(after)
    far = after.best_primal - after.best_dual > _FAR * after.best_primal
    if short < _MANY_SHORT or not far or _smallness(after) == 1.0:
        return advance
    control = after.memory[CONTROL].copy()
    control[0] = max(control[0], min(_GROW * control[0], _SIGMA * _smallness(after)))
    memory = {**after.memory, CONTROL: control, _SO_FAR: np.array([0.0, least, ago])}
    return replace(advance, after=replace(after, memory=memory))


@dataclass(frozen=True)
class Newton(Method):
    """Newton steps for a loss that has a gradient everywhere, which also makes the dual points."""

    #: W is no W(A): a dual point is made of minus the gradients at W.
    follows_duals: ClassVar[bool] = False
    advances_by_passes: ClassVar[bool] = True

    def measure(self, problem: Problem, run: Runner, state: SolverState) -> Measurement:
        """Evaluate P, its gradient and with it a dual point at W."""
        control = state.memory.get(CONTROL, np.array([0.0, math.inf, _INNER, math.nan]))
        state = replace(state, memory={**state.memory, CONTROL: control})
        stats = run(point_of(state, control))
        measured = at_gradient(problem, state, stats)
        return replace(measured, passes=math.ceil(stats.visited / problem.n))

    def advance(self, problem: Problem, run: Runner, measured: Measurement) -> Advance:
        """Take a Newton step."""
        before = measured.before
        gradient = gradient_of(problem, before.W, measured.stats)
        steepness = squared_norm(gradient) / (2.0 * problem.lam)
        if not before.exact and _stalled(before, steepness):
            return _with_exact_products(measured)
        return _counted(_newton_round(problem, run, measured, gradient), steepness)


def _newton_round(problem: Problem, run: Runner, measured: Measurement, gradient: Float64Array) -> Advance:
    """Take a Newton step, go over to float64 products where it brings nothing, or end for want of passes."""
    before, active = measured.before, measured.stats.active
    if measured.passes_left < FEWEST_PASSES:
        return Advance(0.0, moved=True, after=before, active=active, passes=0, short=True)
    counted = CountedRun(problem, run, point_of(before, before.memory[CONTROL]), measured.passes_left)
    step, W, memory = newton_step(counted, gradient, before)
    if step == 0.0 and not before.exact:
        return _with_exact_products(measured)
    after = replace(before, round=before.round + 1, W=W, memory=memory)
    return Advance(step, moved=step > 0.0, after=after, active=active, passes=counted.passes())


def _with_exact_products(measured: Measurement) -> Advance:
    """Go on with float64 products from the same point."""
    before = measured.before
    after = replace(before, round=before.round + 1, exact=True)
    return Advance(0.0, moved=True, after=after, active=measured.stats.active, passes=0)


def warm_start(state: SolverState, dual: float, *, near: bool = True, from_zero: bool = False) -> SolverState:
    """Return a state that proximal steps go on from, given one of A, whose W is W(A) and D is `dual`.

    Where that is not `near` the optimum sigma is that of a new run, and larger where P and D are far below
    P(0): so small are dual variables there.  F is minimised from W or `from_zero` on.
    """
    sigma = _SIGMA_WARM if near else _SIGMA
    if state.primal_at_zero is not None and dual > 0.0:
        sigma *= max(1.0, min(_SMALL * state.primal_at_zero / dual, _smallness(state)))
    control = np.array([sigma, math.inf, _INNER, math.nan])
    memory = {**state.memory, _W_DUAL: state.W, CONTROL: control}
    return replace(state, W=np.zeros_like(state.W) if from_zero else state.W, memory=memory)
