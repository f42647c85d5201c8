"""Newton's method with conjugate gradients; for a hinge, around a proximal step on the dual.

A smooth loss is minimised as it is.  For a hinge, D is maximised by proximal steps (R. T. Rockafellar, Math.
Oper. Res. 1, 1976): from A_t the next A is the maximiser of D(A) - sigma/(2n) |A - A_t|^2, whose own dual is
the smooth problem

    F(W) = lam/2 |W|^2 + (1/n) sum_i Phi_c(q_i; y_i),   q_i = W^T x_i - sigma alpha_i,  c = gamma + sigma,

up to a constant, with grad F(W) = lam (W - W(U)) at u_i = -grad Phi_c(q_i).  F is piecewise quadratic, so a
semismooth Newton method minimises it (X. Li, D. Sun, K.-C. Toh, SIAM J. Optim. 28, 2018): blocks multiply
with its Hessian lam I + (1/n) sum_i x_i x_i^T (x) J_i, and leave out all rows with J_i = 0.  U is dual
feasible, and with E the sum of the slacks in Fenchel and Young's inequality,

    P(W) - D(U) = |grad F(W)|^2 / (2 lam) + E,

so the minimisation stops once its own share is the smaller one.  Then A takes the exact step towards U, so D
never falls, and sigma shrinks if that closed too little of the gap.  None of this depends on how the rows are
cut into blocks.

A Newton step on a sum of envelopes is found by conjugate gradients, with an exact line search.  If they are
small, the Gram matrices of the Hessian's diagonal blocks, one per class, precondition.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import ClassVar, TypeVar

import numpy as np
from scipy.linalg import LinAlgError, cho_factor, cho_solve

from topline.solvers.core.codec import stored
from topline.solvers.core.problem import FEW_CLASSES, Problem, inner, squared_norm
from topline.solvers.core.state import Objective, Point, SolverState
from topline.solvers.errors import NonFiniteError
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
from topline.solvers.methods.quasi_newton import at_gradient, gradient_of
from topline.solvers.methods.step_rules import Direction, ExactStep, least_slope
from topline.solvers.operations import (
    CurvatureProduct,
    EnvelopePoint,
    FindEnvelopes,
    FindSlope,
    Grams,
    MultiplyCurvature,
    Operation,
    OperationRunner,
    Runner,
    SlopeSum,
    SumGrams,
)
from topline.solvers.typing import Float64Array

#: Conjugate gradients stop at this share of the residual, or after this many products.
_RESIDUAL = 0.1
_PRODUCTS = 60
#: Fewest passes for a step: for Gram matrices, a product and the line search.
FEWEST_PASSES = 3
#: Size of the Gram matrices of all classes up to which they precondition.
_GRAM_NUMBERS = 1 << 23
#: The same for a smooth loss, where every row adds to the matrices of all classes: used at once if they cost
#: less than this many products, otherwise after a direction has taken this many without them.
_GRAM_NUMBERS_SMOOTH = 1 << 16
_CHEAP_GRAMS, _PLAIN_PRODUCTS = 1.0, 8
#: Number of sampled rows for them with a smooth loss, per column of X and per class.
_ROWS_A_COLUMN, _ROWS_A_CLASS = 10, 50
#: Columns up to which all classes are solved at once, by inverses of their triangles.
_BATCHED = 64
#: They are renewed for every step if d is at most this multiple of m, where they cost less than they save,
#: and otherwise once a solution takes this multiple of the products of their first one.
_NARROW = 40
_STALE = 1.5
#: Bounds on the products with an old factor of the Hessian before it is renewed.
_FEW_PRODUCTS, _MOST_PRODUCTS = 4.0, 6.0
#: A shorter step leads to a different Hessian.
SHORT = 0.3
#: Numbers in W up to which the Hessian of a smooth loss with a closed form is factored, once a step with Gram
#: matrices has taken more products than this share of these numbers, the cost of forming the Hessian.
_SMOOTH_SIDE, _SHARE_OF_SIDE = 1_024, 1 / 24
#: Arrays of the shape of W besides a W, the next and a direction: W(A), the gradient, and of conjugate
#: gradients the solution, residual, preconditioned residual and product.
ARRAYS = 6
#: Relative increase of the factored Hessian's diagonal, as its sums may be in float32.
_DAMPED = 1e-6


C = TypeVar("C", CurvatureProduct, Grams, SlopeSum)


@dataclass(frozen=True, eq=False)
class CountedRun:
    """Runs requests at one point and counts the rows scored, within `passes_left` times all rows."""

    problem: Problem
    run: Runner
    point: EnvelopePoint
    passes_left: float
    rows: list[int] = field(default_factory=list)

    def curvature(self, V: Float64Array) -> Float64Array:
        """Return the Hessian of F times V (d, m)."""
        stats = self._counted(MultiplyCurvature.at(self.point, V=V))
        return np.asarray(self.problem.lam * V + stats.product / self.problem.n)

    def grams(self) -> Float64Array | None:
        """Return the mean of J_i,jj x_i x_i^T for every class j, shape (m, d, d).

        If classes share weights this is one matrix for all, or None if it would be too large.
        """
        stride = max(1, self.problem.n // _rows_for_grams(self.problem)) if self.problem.form.smooth else 1
        product = self._counted(SumGrams.at(self.point, stride=stride)).matrix
        if product is None:
            return None
        return np.asarray(product.reshape(-1, product.shape[1], product.shape[1]) / self.problem.n)

    def factor(self) -> Float64Array | None:
        """Return the Cholesky factor (m d, m d) of the Hessian of F.

        None if rounding prevents it, or if classes share weights and the matrix would be too large.
        """
        product = self._counted(SumGrams.at(self.point, whole=True)).matrix
        if product is None:
            return None
        # In place: these sums may be large, and are not shared.
        product /= self.problem.n
        diagonal = np.diag_indices(len(product))
        sizes = product[diagonal].copy()
        if not np.isfinite(sizes).all():
            raise NonFiniteError("the squares of the features overflow; scale the features")
        for damped in (_DAMPED,) if self.problem.form.smooth else (0.0, _DAMPED):
            product[diagonal] = sizes * (1.0 + damped) + self.problem.lam
            try:
                return np.asarray(cho_factor(product, lower=True, overwrite_a=True)[0])
            except LinAlgError:
                # The overwritten matrix remains below the diagonal.
                for i in range(1, len(product)):
                    product[i, :i] = product[:i, i]
        return None

    def slope(self, V: Float64Array, step: float) -> float:
        """Return the derivative of F, `step` along V (d, m) away."""
        stats = self._counted(FindSlope.at(self.point, V=V, step=step))
        W = self.point.W
        return self.problem.lam * inner(W + step * V, V) - stats.total / self.problem.n

    def passes(self) -> int:
        """Return the number of passes over the examples so far."""
        return math.ceil(sum(self.rows) / self.problem.n)

    def allows_product(self) -> bool:
        """Return whether another product, as large as the last, leaves a pass for the line search."""
        return sum(self.rows) + self.rows[-1] + self.problem.n <= self.passes_left * self.problem.n

    def _counted(self, operation: Operation[C]) -> C:
        stats = self.run(operation)
        self.rows.append(stats.visited)
        return stats


def few_numbers(problem: Problem) -> bool:
    """Return whether the Gram matrices of a smooth problem are small enough to be summed at each step."""
    return problem.m * problem.d**2 <= _GRAM_NUMBERS_SMOOTH


def _factor_products(problem: Problem) -> float:
    """Return how many products cost as much as a new factor of (d m)^3 / 3 float64 operations."""
    return min(max((problem.m * problem.d) ** 2 / (6.0 * problem.n), _FEW_PRODUCTS), _MOST_PRODUCTS)


def formed_numbers(problem: Problem) -> int:
    """Return the most entries of a matrix that blocks may be asked to sum."""
    side, m = problem.m * problem.d, problem.m
    grams = m * problem.d**2
    if problem.form.smooth:
        whole = m <= FEW_CLASSES and side <= _SMOOTH_SIDE and problem.form.family.curvature is not None
        return max(side**2 if whole else 0, grams if few_numbers(problem) else 0)
    if problem.few_weights:
        return side**2
    return grams if grams <= _GRAM_NUMBERS else 0


def _rows_for_grams(problem: Problem) -> int:
    """Return how many rows suffice for the Gram matrices of a smooth loss, which only precondition."""
    return _ROWS_A_COLUMN * problem.d + _ROWS_A_CLASS * problem.m


@stored
@dataclass(frozen=True, eq=False)
class Preconditioner:
    """The inverse of the Hessian at an earlier point, and the cost of its solutions.

    Attributes
    ----------
    grams : (m, d, d) the Gram matrices of its diagonal blocks, None if there are none.
    factor : (m d, m d) instead of them, the Cholesky factor of the whole.
    products : products that the first solution with them took.
    plain, whole : whether solutions without preconditioner, and with Gram matrices only, took too many
        products for a smooth loss.
    """

    grams: Float64Array | None = None
    factor: Float64Array | None = None
    products: int = 0
    plain: bool = False
    whole: bool = False

    def renewed(self, counted: CountedRun) -> tuple[Preconditioner, bool]:
        """Return the preconditioner, found at the point if there was none, and whether it is new."""
        problem = counted.problem
        if self._wants_factor(problem):
            if self.factor is not None:
                return self, False
            factor = counted.factor()
            if factor is not None:
                return replace(self, grams=None, factor=factor), True
        if self.grams is not None or not self._wants_grams(problem):
            return self, False
        grams = counted.grams()
        return self if grams is None else replace(self, grams=grams), grams is not None

    def after(self, problem: Problem, step: float, products: int) -> Preconditioner:
        """Return the preconditioner for the next step, after one with so many products."""
        if self.factor is not None:
            stale = products > _factor_products(problem) or step < SHORT
            return replace(self, factor=None) if stale else self
        if self.grams is None:
            return self
        most = max(_MOST_PRODUCTS, _SHARE_OF_SIDE * problem.m * problem.d)
        whole = self.whole or (problem.form.smooth and products > most)
        stale = products > _STALE * self.products or problem.d <= _NARROW * problem.m
        return replace(self, whole=whole, grams=None if stale else self.grams)

    def may_find_grams(self, problem: Problem) -> bool:
        """Return whether a smooth loss still does without Gram matrices."""
        without = not self.plain and self.grams is None and self.factor is None
        return without and problem.form.smooth and few_numbers(problem)

    def inverse(self, problem: Problem) -> Callable[[Float64Array], Float64Array]:
        """Return the product with the inverse of the factored Hessian, of Gram matrices + lam I, or of I."""
        factor, grams = self.factor, self.grams
        if factor is not None:
            return lambda residual: cho_solve((factor, True), residual.T.ravel()).reshape(residual.T.shape).T
        if grams is None:
            return lambda residual: residual
        count, side, _ = grams.shape
        damped = grams + problem.lam * np.eye(side)
        try:
            if side <= _BATCHED:
                inverses = np.linalg.inv(np.linalg.cholesky(damped))
                turned = inverses.transpose(0, 2, 1)
                return lambda residual: (
                    (turned @ (inverses @ residual.T.reshape(count, side, 1))).reshape(residual.T.shape).T
                )
            factors = [cho_factor(gram) for gram in damped]
        except LinAlgError:
            return lambda residual: residual

        def solved(residual: Float64Array) -> Float64Array:
            parts = zip(factors, residual.T.reshape(count, side), strict=True)
            return np.stack([cho_solve(*pair) for pair in parts]).reshape(residual.T.shape).T

        return solved

    def _wants_grams(self, problem: Problem) -> bool:
        """Return whether the Gram matrices of the classes are small, and for a smooth loss save products."""
        if not problem.form.smooth:
            return problem.m * problem.d**2 <= _GRAM_NUMBERS
        cheap = _rows_for_grams(problem) * problem.d <= 2.0 * _CHEAP_GRAMS * problem.n
        return few_numbers(problem) and (cheap or self.plain)

    def _wants_factor(self, problem: Problem) -> bool:
        """Return whether the whole Hessian is small, and for a smooth loss saves products."""
        if problem.form.smooth:
            closed = problem.form.family.curvature is not None
            small = problem.m <= FEW_CLASSES and problem.m * problem.d <= _SMOOTH_SIDE
            return closed and self.whole and small
        return problem.few_weights


#: The preconditioner of a first step.
NO_PRECONDITIONER = Preconditioner()


def newton_step(
    counted: CountedRun, gradient: Float64Array, known: Preconditioner
) -> tuple[float, Float64Array, Preconditioner]:
    """Return the step along Newton's direction, W after it, and the next preconditioner.

    A step of 0 means that the direction does not descend.
    """
    V, products, known = _direction(counted, gradient, known)
    slope = inner(gradient, V)
    step = least_slope(lambda step: counted.slope(V, step), slope) if slope < 0.0 else 0.0
    return step, counted.point.W + step * V, known.after(counted.problem, step, products)


def _direction(
    counted: CountedRun, gradient: Float64Array, known: Preconditioner
) -> tuple[Float64Array, int, Preconditioner]:
    """Return nearly -H^-1 g by conjugate gradients, the number of products, and the preconditioner."""
    problem = counted.problem
    known, fresh = known.renewed(counted)
    precondition = known.inverse(problem)
    V, residual = np.zeros_like(gradient), -gradient
    z = precondition(residual)
    # The factor of a hinge's exact Hessian at this point solves at once.
    if fresh and known.factor is not None and not problem.form.smooth:
        return z, 0, replace(known, products=0)
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
        if product <= _RESIDUAL**2 * first or not counted.allows_product():
            break
        if known.factor is not None and not problem.form.smooth and products >= _factor_products(problem):
            # The factor belongs to another Hessian: a new one costs no more than the products so far.
            known, fresh = replace(known, factor=None).renewed(counted)
            precondition = known.inverse(problem)
            if fresh and known.factor is not None:
                return -precondition(gradient), 0, replace(known, products=0)
            break
        direction = z + (product / last) * direction
        if products >= _PLAIN_PRODUCTS and known.may_find_grams(problem):
            known, fresh = replace(known, plain=True).renewed(counted)
            precondition = known.inverse(problem)
            direction = precondition(residual)
            product, first = inner(residual, direction), inner(gradient, precondition(gradient))
    if not inner(gradient, V) < 0.0:
        # Rows at a kink gave the Hessian different values in opposite directions.
        V = -precondition(gradient)
    return V, products, replace(known, products=products) if fresh else known


#: Initial sigma, for dual variables and margins of size 1.
_SIGMA = 10.0
#: Initial sigma if A comes from another method.
_SIGMA_WARM = 1.0
#: Factor of sigma after a proximal step that leaves more than this share of the gap.
_SHRINK = 0.5
_POOR = 0.5
#: F is minimised until its share of the gap is below this share of E and this many times the rise of D by U,
_INNER, _OF_RISE = 0.3, 10.0
#: or U closes all but this share of the gap,
_CLOSES = 0.1
#: and down to this share when proximal steps make no progress.
_LEAST = 1e-6
#: Newton steps without a decrease of |grad F| after which products change to float64.
_STALLED_STEPS = 4
#: Rounds after which scores are recomputed by products, instead of updated by a step.
_FRESH = 10
#: So many short Newton steps multiply sigma by this factor, at a relative gap above this one.
_MANY_SHORT, _GROW, _FAR = 2, 10.0, 0.5
#: P and D count as small below this share of P(0).
_SMALL = 0.1


@stored
@dataclass(frozen=True, eq=False)
class NewtonMemory:
    """The memory of Newton's method.

    Attributes
    ----------
    sigma : weight of the proximal term, 0 for a smooth loss.
    W_dual : W(A) (d, m) of a hinge, None before the first round and for a smooth loss.
    gap : the gap after the last proximal step, infinity before one.
    inner_share : share of E below which F is minimised well enough.
    last_step : the last Newton step, NaN if there was none.
    short : short Newton steps since sigma or A changed.
    least, ago : the least |grad F|^2 / (2 lam) since the last proximal step, and the steps since.
    preconditioner : an approximation of the Hessian.
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
        """Return the point of F; scores are recomputed from time to time to avoid drift."""
        last_step = math.nan if point.round % _FRESH == 0 else self.last_step
        return FindEnvelopes(
            point.round, point.W, point.pending_step, sigma=self.sigma, exact=point.exact, last_step=last_step
        )

    def stalls(self, steepness: float) -> bool:
        """Return whether the gradient has not shrunk for some steps, perhaps by float32 rounding."""
        return steepness >= self.least and self.ago + 1 >= _STALLED_STEPS

    def counted(self, step: float, steepness: float) -> NewtonMemory:
        """Return the memory after a Newton step from a point with this |grad F|^2 / (2 lam)."""
        least, ago = (steepness, 0) if steepness < self.least else (self.least, self.ago + 1)
        return replace(self, short=self.short + (0.0 < step < SHORT), least=least, ago=ago)


@dataclass(frozen=True)
class ProximalNewton(Method):
    """Semismooth Newton steps for the hinges, around proximal steps on the dual.

    W of the state is where F is minimised, not W(A); b and |A|^2 are those of A.
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
        """Take a Newton step, or the proximal step once F is minimised well enough."""
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
    # If D does not rise, F was not minimised well enough or D is at its maximum.
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
    """Return P(0) / P if P is small, otherwise 1."""
    at_zero = state.primal_at_zero
    return 1.0 if at_zero is None or state.best.primal > _SMALL * at_zero else at_zero / state.best.primal


def _with_sigma(before: SolverState, advance: Advance) -> Advance:
    """Increase sigma if F has too many kinks for Newton's method, far from the optimum.

    For a small P the dual variables are small too, and with them sigma alpha: sigma may be larger
    accordingly.
    """
    memory, best = advance.memory, before.best
    far = best.primal - best.dual > _FAR * best.primal
    if memory.short < _MANY_SHORT or not far or _smallness(before) == 1.0:
        return advance
    sigma = max(memory.sigma, min(_GROW * memory.sigma, _SIGMA * _smallness(before)))
    return replace(advance, memory=replace(memory, sigma=sigma, short=0))


@dataclass(frozen=True)
class Newton(Method):
    """Newton steps for a loss with a gradient everywhere, which also gives the dual points."""

    #: W is no W(A): the dual point consists of minus the gradients at W.
    follows_duals: ClassVar[bool] = False
    advances_by_passes: ClassVar[bool] = True

    def measure(self, problem: Problem, run: Runner, state: SolverState) -> Measurement:
        """Evaluate P, its gradient and the resulting dual point at W."""
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
    """Take a Newton step, unless it makes no progress or too few passes are left."""
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
    """Return the memory with which proximal steps continue from A, with the state's W = W(A) and D = `dual`.

    If that is not `near` the optimum sigma is that of a new run, and larger if P and D are far below P(0),
    where dual variables are small.
    """
    sigma = _SIGMA_WARM if near else _SIGMA
    if state.primal_at_zero is not None and dual > 0.0:
        sigma *= max(1.0, min(_SMALL * state.primal_at_zero / dual, _smallness(state)))
    return NewtonMemory(sigma, state.W)
