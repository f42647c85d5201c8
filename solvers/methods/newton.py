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
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import ClassVar

import numpy as np
from scipy.linalg import LinAlgError, cho_factor, cho_solve

from topline.solvers.core.block_stats import BlockStats
from topline.solvers.core.problem import Problem, inner, squared_norm
from topline.solvers.core.requests import (
    CurvatureRequest,
    GramRequest,
    PendingStep,
    ProximalRequest,
    SlopeRequest,
)
from topline.solvers.core.state import SolverState
from topline.solvers.methods.base import Advance, Measurement, Method, Runner, measured_at, product_of, rises
from topline.solvers.methods.lbfgs import at_gradient, gradient_of
from topline.solvers.methods.step_rules import Direction, ExactStep
from topline.solvers.typing import Float64Array

#: Names in `SolverState.memory`: sigma, the gap after the last proximal step, the share at which F is
#: minimised well enough and the last Newton step; W(A); the Gram matrices, and the products of the first
#: solution with them.
_CONTROL, _W_DUAL, _GRAMS, _COUNT = "newton.control", "newton.W_dual", "newton.grams", "newton.products"
#: sigma at first, where dual variables are of size 1 and margins too, and its factor where a proximal step
#: leaves more than this share of the gap.
_SIGMA = 10.0
#: sigma at first where A comes from another method.
_SIGMA_WARM = 1.0
_SHRINK = 0.5
_POOR = 0.5
#: F is minimised until its share of the gap is below this one of E,
_INNER = 0.3
#: or U closes all but this share of the gap.
_CLOSES = 0.1
#: and down to this one where proximal steps bring nothing.
_LEAST = 1e-6
#: A relative gap from which on products are in float64.
_SINGLE = 1e-5
#: Conjugate gradients stop at this share of the residual, or after so many products.
_RESIDUAL = 0.1
_PRODUCTS = 60
#: A line search ends where this share of the slope is left, or after so many trials.
_SLOPE_LEFT = 0.1
_TRIALS = 12
#: Rounds after which scores are products again, and not those of the round before and a step.
_FRESH = 10
#: Numbers in the Gram matrices of all classes up to which they precondition.
_GRAM_NUMBERS = 1 << 23
#: The same for a smooth loss, to whose matrices every row adds in every class.
_GRAM_NUMBERS_SMOOTH = 1 << 16
#: They are summed again for every step where d is at most so many times m, for they then cost less than they
#: save, and else where a solution takes so many times the products of the first after them.
_NARROW = 40
_STALE = 1.5


@dataclass(frozen=True, eq=False)
class _Counted:
    """Runs requests at one point and counts the rows whose scores they took."""

    problem: Problem
    run: Runner
    point: ProximalRequest
    rows: list[int] = field(default_factory=list)

    def curvature(self, V: Float64Array) -> Float64Array:
        """Return the Hessian of F times V (d, m)."""
        stats = self._counted(CurvatureRequest(**vars(self.point), V=V))
        return np.asarray(self.problem.lam * V + product_of(stats) / self.problem.n)

    def grams(self) -> Float64Array:
        """Return the mean of J_i,jj x_i x_i^T for every class j, shape (m, d, d)."""
        product = product_of(self._counted(GramRequest(**vars(self.point))))
        return product.reshape(self.problem.m, self.problem.d, self.problem.d) / self.problem.n

    def slope(self, V: Float64Array, step: float) -> float:
        """Return the derivative of F, `step` along V (d, m) away."""
        stats = self._counted(SlopeRequest(**vars(self.point), V=V, step=step))
        W = self.point.W
        return self.problem.lam * inner(W + step * V, V) - float(product_of(stats)[0, 0]) / self.problem.n

    def passes(self) -> int:
        """Return how many passes over the examples that was."""
        return math.ceil(sum(self.rows) / self.problem.n)

    def _counted(self, request: ProximalRequest) -> BlockStats:
        stats = self.run(request)
        self.rows.append(stats.visited)
        return stats


@dataclass(frozen=True)
class ProximalNewton(Method):
    """Semismooth Newton steps for the hinges, around proximal steps on the dual.

    In the state W is where F is minimised, and not W(A); b and |A|^2 are those of A.  The memory holds W(A),
    sigma, the gap after the last proximal step, the last step and the preconditioner.
    """

    def measure(self, problem: Problem, run: Runner, state: SolverState) -> Measurement:
        """Evaluate P at W; D is that of A."""
        memory = dict(state.memory)
        if _W_DUAL not in memory:
            memory |= {_W_DUAL: state.W, _CONTROL: np.array([_SIGMA, math.inf, _INNER, math.nan])}
        stats = run(_point(state, memory[_CONTROL]))
        value = problem.primal(state.W, stats.loss / problem.n)
        dual = problem.dual(memory[_W_DUAL], state.conjugate_mean, state.mean_sq_dual)
        measured = measured_at(problem, state, stats, value, dual, memory=memory)
        return replace(measured, passes=math.ceil(stats.visited / problem.n))

    def advance(self, problem: Problem, run: Runner, measured: Measurement) -> Advance:
        """Take a Newton step, or the proximal step where F is minimised well enough."""
        before, stats = measured.before, measured.stats
        W_u = problem.scale * product_of(stats)
        gradient = problem.lam * (before.W - W_u)
        steepness = squared_norm(gradient) / (2.0 * problem.lam)
        value = problem.primal(before.W, stats.loss / problem.n)
        dual_u = problem.dual(W_u, stats.conjugate_u / problem.n, stats.u_sq / problem.n)
        inner_share = float(before.memory[_CONTROL][2])
        closes = before.best_primal - dual_u <= _CLOSES * (before.best_primal - measured.dual)
        if steepness <= inner_share * (value - dual_u - steepness) or closes:
            return self._proximal_step(problem, measured, W_u)
        if not before.exact and before.best_primal - measured.dual < _SINGLE * abs(before.best_primal):
            return _with_exact_products(measured)
        counted = _Counted(problem, run, _point(before, before.memory[_CONTROL]))
        step, W, memory = newton_step(counted, gradient, before)
        if step == 0.0 and not before.exact:
            return _with_exact_products(measured)
        after = replace(before, round=before.round + 1, W=W, memory=memory)
        return Advance(step, moved=step > 0.0, after=after, active=stats.active, passes=counted.passes())

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
        sigma, earlier, inner_share, _ = (float(v) for v in before.memory[_CONTROL])
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
                _CONTROL: np.array([sigma, gap, inner_share, 0.0]),
            },
        )
        moved = not (stuck and before.exact and inner_share < _LEAST)
        return Advance(step, moved=moved, after=after, active=stats.active, passes=0)


@dataclass(frozen=True)
class Newton(Method):
    """Newton steps for a loss that has a gradient everywhere, which also makes the dual points."""

    #: W is no W(A): a dual point is made of minus the gradients at W.
    follows_duals: ClassVar[bool] = False

    def measure(self, problem: Problem, run: Runner, state: SolverState) -> Measurement:
        """Evaluate P, its gradient and with it a dual point at W."""
        control = state.memory.get(_CONTROL, np.array([0.0, math.inf, _INNER, math.nan]))
        state = replace(state, memory={**state.memory, _CONTROL: control})
        stats = run(_point(state, control))
        measured = at_gradient(problem, state, stats)
        return replace(measured, passes=math.ceil(stats.visited / problem.n))

    def advance(self, problem: Problem, run: Runner, measured: Measurement) -> Advance:
        """Take a Newton step."""
        before, stats = measured.before, measured.stats
        counted = _Counted(problem, run, _point(before, before.memory[_CONTROL]))
        step, W, memory = newton_step(counted, gradient_of(problem, before.W, stats), before)
        if step == 0.0 and not before.exact:
            return _with_exact_products(measured)
        after = replace(before, round=before.round + 1, W=W, memory=memory)
        return Advance(step, moved=step > 0.0, after=after, active=stats.active, passes=counted.passes())


def _with_exact_products(measured: Measurement) -> Advance:
    """Go on with float64 products from the same point."""
    before = measured.before
    after = replace(before, round=before.round + 1, exact=True)
    return Advance(0.0, moved=True, after=after, active=measured.stats.active, passes=0)


def few_numbers(problem: Problem) -> bool:
    """Return whether the Gram matrices of a smooth problem are small enough to be summed at each step."""
    return problem.m * problem.d**2 <= _GRAM_NUMBERS_SMOOTH


def warm_start(state: SolverState) -> SolverState:
    """Return a state that proximal steps go on from, given one of A, whose W is W(A)."""
    control = np.array([_SIGMA_WARM, math.inf, _INNER, math.nan])
    return replace(state, memory={**state.memory, _W_DUAL: state.W, _CONTROL: control})


def newton_step(
    counted: _Counted, gradient: Float64Array, state: SolverState
) -> tuple[float, Float64Array, dict[str, Float64Array]]:
    """Return the step along Newton's direction, W after it, and the memory with what preconditions the next.

    A step of 0 says that the direction does not descend.
    """
    problem, memory = counted.problem, dict(state.memory)
    V, products, fresh = _direction(counted, gradient, memory)
    slope = inner(gradient, V)
    if fresh:
        memory[_COUNT] = np.array([float(products)])
    if _GRAMS in memory:
        stale = products > _STALE * float(memory[_COUNT][0])
        if stale or problem.d <= _NARROW * problem.m:
            del memory[_GRAMS]
    step = _line_search(lambda step: counted.slope(V, step), slope) if slope < 0.0 else 0.0
    memory[_CONTROL] = np.array([*memory[_CONTROL][:3], step])
    return step, state.W + step * V, memory


def _direction(
    counted: _Counted, gradient: Float64Array, memory: dict[str, Float64Array]
) -> tuple[Float64Array, int, bool]:
    """Return about -H^-1 g by conjugate gradients, its products, and whether Gram matrices are new."""
    problem = counted.problem
    few = few_numbers(problem) if problem.form.smooth else problem.m * problem.d**2 <= _GRAM_NUMBERS
    fresh = few and _GRAMS not in memory
    if fresh:
        memory[_GRAMS] = counted.grams()
    precondition = _preconditioner(problem, memory.get(_GRAMS))
    V, residual = np.zeros_like(gradient), -gradient
    z = precondition(residual)
    direction, product = z, inner(residual, z)
    first, products = product, 0
    while products < _PRODUCTS and product > 0.0:
        Hp = counted.curvature(direction)
        products += 1
        curvature = inner(direction, Hp)
        if not curvature > 0.0:
            break
        length = product / curvature
        V = V + length * direction
        residual = residual - length * Hp
        z = precondition(residual)
        product, last = inner(residual, z), product
        if product <= _RESIDUAL**2 * first:
            break
        direction = z + (product / last) * direction
    if not inner(gradient, V) < 0.0:
        # Rows at a kink made the Hessian another one for opposite directions.
        V = -precondition(gradient)
    return V, products, fresh


def _preconditioner(problem: Problem, grams: Float64Array | None) -> Callable[[Float64Array], Float64Array]:
    """Return the product with the inverse of lam I + the Gram matrix of each class; the identity without."""
    if grams is None:
        return lambda residual: residual
    try:
        factors = [cho_factor(gram + problem.lam * np.eye(problem.d)) for gram in grams]
    except LinAlgError:
        return lambda residual: residual
    return lambda residual: np.stack(
        [cho_solve(factor, residual[:, j]) for j, factor in enumerate(factors)], axis=1
    )


def _line_search(slope_at: Callable[[float], float], slope: float) -> float:
    """Return a step at which little of the slope is left, by secants between steps too short and too long."""
    low, low_slope, high, high_slope = 0.0, slope, math.inf, math.nan
    step = 1.0
    for _ in range(_TRIALS):
        found = slope_at(step)
        if abs(found) <= _SLOPE_LEFT * abs(slope) or math.isnan(found):
            break
        if found < 0.0:
            low, low_slope = step, found
        else:
            high, high_slope = step, found
        if math.isinf(high):
            step *= 2.0
            continue
        share = -low_slope / (high_slope - low_slope)
        step = low + min(max(share, 0.1), 0.9) * (high - low)
    return step


def _point(state: SolverState, control: Float64Array) -> ProximalRequest:
    """Return the point of a state; scores are made anew from time to time, lest they drift."""
    last_step = math.nan if state.round % _FRESH == 0 else float(control[3])
    return ProximalRequest(
        state.round, state.W, state.pending_step, sigma=float(control[0]), exact=state.exact,
        last_step=last_step,
    )  # fmt: skip
