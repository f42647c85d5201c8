"""A Newton step on a sum of envelopes: conjugate gradients for its direction, and an exact line search.

The blocks multiply with the Hessian lam I + (1/n) sum_i x_i x_i^T (x) J_i.  Where they are small, the Gram
matrices of its diagonal blocks, one a class, precondition.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

import numpy as np
from scipy.linalg import LinAlgError, cho_factor, cho_solve

from topline.solvers.core.problem import Problem, inner
from topline.solvers.core.state import SolverState
from topline.solvers.errors import NonFiniteError
from topline.solvers.methods.line_search import least_slope
from topline.solvers.operations import (
    CurvatureProduct,
    EnvelopePoint,
    FindEnvelopes,
    FindSlope,
    Grams,
    MultiplyCurvature,
    Operation,
    Runner,
    SlopeSum,
    SumGrams,
)
from topline.solvers.typing import Float64Array

#: Name in `SolverState.memory` of sigma, the gap after the last proximal step, the share at which F is
#: minimised well enough, and the last Newton step.
CONTROL = "newton.control"
#: Names of the Gram matrices, of the Cholesky factor of the whole Hessian in their place, and of the products
#: that the first solution with them took.
_GRAMS, _FACTOR, _COUNT = "newton.grams", "newton.factor", "newton.products"
#: Names of what says that nothing, and that Gram matrices alone, led to too many products for a smooth loss.
_PLAIN, _WHOLE = "newton.plain", "newton.whole"
#: Conjugate gradients stop at this share of the residual, or after so many products.
_RESIDUAL = 0.1
_PRODUCTS = 60
#: Passes without which no step is begun: for Gram matrices, a product and the line search.
FEWEST_PASSES = 3
#: Rounds after which scores are products again, and not those of the round before and a step.
_FRESH = 10
#: Numbers in the Gram matrices of all classes up to which they precondition.
_GRAM_NUMBERS = 1 << 23
#: The same for a smooth loss, to whose matrices every row adds in every class: at once where they cost less
#: than this many products, and else once a direction has taken so many without them.
_GRAM_NUMBERS_SMOOTH = 1 << 16
_CHEAP_GRAMS, _PLAIN_PRODUCTS = 1.0, 8
#: Of a smooth loss so many rows are enough for them, for each column of X and for each class.
_ROWS_A_COLUMN, _ROWS_A_CLASS = 10, 50
#: Columns up to which they are solved with all at once, by inverses of their triangles.
_BATCHED = 64
#: They are summed again for every step where d is at most so many times m, for they then cost less than they
#: save, and else where a solution takes so many times the products of the first after them.
_NARROW = 40
_STALE = 1.5
#: Numbers in W, and classes, up to which a hinge's whole Hessian is formed and factored; and bounds of how
#: many products the factor of an earlier step may ask for before it is made anew.
_HESSIAN_SIDE, _HESSIAN_CLASSES = 2_896, 32
_FEW_PRODUCTS, _MOST_PRODUCTS = 4.0, 6.0
#: A step that is shorter leads to where the Hessian is another one.
SHORT = 0.3
#: The same for a smooth loss with a closed form, once a step with Gram matrices has taken more products than
#: this share of the numbers in W: the products that forming costs as much as.
_SMOOTH_SIDE, _SHARE_OF_SIDE = 1_024, 1 / 24
#: Arrays of the shape of W besides a W, the next and a direction: W(A), the gradient, and of conjugate
#: gradients the solution, residual, preconditioned residual and product.
ARRAYS = 6
#: Its factor is that of a Hessian whose diagonal is larger by this share, for its sums may be of float32.
_DAMPED = 1e-6


C = TypeVar("C", CurvatureProduct, Grams, SlopeSum)


@dataclass(frozen=True, eq=False)
class CountedRun:
    """Runs requests at one point and counts the rows whose scores they took, of `passes_left` times all."""

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

        Where classes share weights that is one matrix of them all, or None where it would be too large.
        """
        stride = max(1, self.problem.n // _rows_for_grams(self.problem)) if self.problem.form.smooth else 1
        product = self._counted(SumGrams.at(self.point, stride=stride)).matrix
        if product is None:
            return None
        return np.asarray(product.reshape(-1, product.shape[1], product.shape[1]) / self.problem.n)

    def factor(self) -> Float64Array | None:
        """Return Cholesky's factor (m d, m d) of the Hessian of F.

        None where rounding leaves none, or where classes share weights and they are too many.
        """
        product = self._counted(SumGrams.at(self.point, whole=True)).matrix
        if product is None:
            return None
        # In its place: nobody else has these sums, and they may be large.
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
                # What it has overwritten lies below the diagonal.
                for i in range(1, len(product)):
                    product[i, :i] = product[:i, i]
        return None

    def slope(self, V: Float64Array, step: float) -> float:
        """Return the derivative of F, `step` along V (d, m) away."""
        stats = self._counted(FindSlope.at(self.point, V=V, step=step))
        W = self.point.W
        return self.problem.lam * inner(W + step * V, V) - stats.total / self.problem.n

    def passes(self) -> int:
        """Return how many passes over the examples that was."""
        return math.ceil(sum(self.rows) / self.problem.n)

    def allows_product(self) -> bool:
        """Return whether a product more, of the size of the last, leaves a pass for the line search."""
        return sum(self.rows) + self.rows[-1] + self.problem.n <= self.passes_left * self.problem.n

    def _counted(self, operation: Operation[C]) -> C:
        stats = self.run(operation)
        self.rows.append(stats.visited)
        return stats


def point_of(state: SolverState, control: Float64Array) -> FindEnvelopes:
    """Return the point of a state; scores are made anew from time to time, lest they drift."""
    last_step = math.nan if state.round % _FRESH == 0 else float(control[3])
    return FindEnvelopes(
        state.round, state.W, state.pending_step, sigma=float(control[0]), exact=state.exact,
        last_step=last_step,
    )  # fmt: skip


def few_numbers(problem: Problem) -> bool:
    """Return whether the Gram matrices of a smooth problem are small enough to be summed at each step."""
    return problem.m * problem.d**2 <= _GRAM_NUMBERS_SMOOTH


def factors_hessian(problem: Problem) -> bool:
    """Return whether the whole Hessian of a hinge is small enough to be formed and factored."""
    return problem.m <= _HESSIAN_CLASSES and problem.m * problem.d <= _HESSIAN_SIDE


def _factor_products(problem: Problem) -> float:
    """Return how many products cost as much as a new factor of (d m)^3 / 3 steps in float64."""
    return min(max((problem.m * problem.d) ** 2 / (6.0 * problem.n), _FEW_PRODUCTS), _MOST_PRODUCTS)


def formed_numbers(problem: Problem) -> int:
    """Return how many numbers the largest matrix has that blocks may be asked to sum."""
    side, m = problem.m * problem.d, problem.m
    grams = m * problem.d**2
    if problem.form.smooth:
        whole = m <= _HESSIAN_CLASSES and side <= _SMOOTH_SIDE and problem.form.family.curvature is not None
        return max(side**2 if whole else 0, grams if few_numbers(problem) else 0)
    if factors_hessian(problem):
        return side**2
    return grams if grams <= _GRAM_NUMBERS else 0


def newton_step(
    counted: CountedRun, gradient: Float64Array, state: SolverState
) -> tuple[float, Float64Array, dict[str, Float64Array]]:
    """Return the step along Newton's direction, W after it, and the memory with what preconditions the next.

    A step of 0 says that the direction does not descend.
    """
    problem, memory = counted.problem, dict(state.memory)
    V, products, fresh = _direction(counted, gradient, memory)
    slope = inner(gradient, V)
    if fresh:
        memory[_COUNT] = np.array([float(products)])
    step = least_slope(lambda step: counted.slope(V, step), slope) if slope < 0.0 else 0.0
    if _FACTOR in memory:
        if products > _factor_products(problem) or step < SHORT:
            del memory[_FACTOR]
    elif _GRAMS in memory:
        if problem.form.smooth and products > max(_MOST_PRODUCTS, _SHARE_OF_SIDE * problem.m * problem.d):
            memory[_WHOLE] = np.ones(1)
        stale = products > _STALE * float(memory[_COUNT][0])
        if stale or problem.d <= _NARROW * problem.m:
            del memory[_GRAMS]
    memory[CONTROL] = np.array([*memory[CONTROL][:3], step])
    return step, state.W + step * V, memory


def _direction(
    counted: CountedRun, gradient: Float64Array, memory: dict[str, Float64Array]
) -> tuple[Float64Array, int, bool]:
    """Return about -H^-1 g by conjugate gradients, its products, and whether Gram matrices are new."""
    fresh = _renew(counted, memory)
    precondition = _preconditioner(counted.problem, memory)
    V, residual = np.zeros_like(gradient), -gradient
    z = precondition(residual)
    if _solves(counted.problem, memory, fresh=fresh):
        return z, 0, fresh
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
        stale = products >= _factor_products(counted.problem)
        if stale and _FACTOR in memory and not counted.problem.form.smooth:
            # The factor is that of another Hessian: its own costs no more than the products so far.
            del memory[_FACTOR]
            fresh = _renew(counted, memory)
            precondition = _preconditioner(counted.problem, memory)
            if _solves(counted.problem, memory, fresh=fresh):
                return -precondition(gradient), 0, fresh
            break
        direction = z + (product / last) * direction
        if products >= _PLAIN_PRODUCTS and _may_find_grams(counted.problem, memory):
            memory[_PLAIN] = np.ones(1)
            fresh = _renew(counted, memory)
            precondition = _preconditioner(counted.problem, memory)
            direction = precondition(residual)
            product, first = inner(residual, direction), inner(gradient, precondition(gradient))
    if not inner(gradient, V) < 0.0:
        # Rows at a kink made the Hessian another one for opposite directions.
        V = -precondition(gradient)
    return V, products, fresh


def _solves(problem: Problem, memory: Mapping[str, Float64Array], *, fresh: bool) -> bool:
    """Return whether what the memory holds is the factor of the very Hessian of a hinge at this point."""
    return fresh and _FACTOR in memory and not problem.form.smooth


def _renew(counted: CountedRun, memory: dict[str, Float64Array]) -> bool:
    """Find what preconditions where the memory holds none; return whether it did."""
    problem = counted.problem
    if _wants_factor(problem, memory):
        if _FACTOR in memory:
            return False
        factor = counted.factor()
        if factor is not None:
            memory.pop(_GRAMS, None)
            memory[_FACTOR] = factor
            return True
    if _GRAMS in memory or not _wants_grams(problem, memory):
        return False
    grams = counted.grams()
    if grams is None:
        return False
    memory[_GRAMS] = grams
    return True


def _may_find_grams(problem: Problem, memory: Mapping[str, Float64Array]) -> bool:
    """Return whether a smooth loss goes without Gram matrices for now."""
    return problem.form.smooth and few_numbers(problem) and not {_PLAIN, _GRAMS, _FACTOR} & memory.keys()


def _rows_for_grams(problem: Problem) -> int:
    """Return how many rows are enough for the Gram matrices of a smooth loss, which only precondition."""
    return _ROWS_A_COLUMN * problem.d + _ROWS_A_CLASS * problem.m


def _wants_grams(problem: Problem, memory: Mapping[str, Float64Array]) -> bool:
    """Return whether the Gram matrices of the classes are small, and for a smooth loss save products."""
    if not problem.form.smooth:
        return problem.m * problem.d**2 <= _GRAM_NUMBERS
    cheap = _rows_for_grams(problem) * problem.d <= 2.0 * _CHEAP_GRAMS * problem.n
    return few_numbers(problem) and (cheap or _PLAIN in memory)


def _wants_factor(problem: Problem, memory: Mapping[str, Float64Array]) -> bool:
    """Return whether the whole Hessian is to be formed: it is small, and of a smooth loss saves products."""
    if problem.form.smooth:
        closed = problem.form.family.curvature is not None
        small = problem.m <= _HESSIAN_CLASSES and problem.m * problem.d <= _SMOOTH_SIDE
        return closed and _WHOLE in memory and small
    return factors_hessian(problem)


def _preconditioner(
    problem: Problem, memory: Mapping[str, Float64Array]
) -> Callable[[Float64Array], Float64Array]:
    """Return the product with the inverse of the factored Hessian, of the Gram matrices + lam I, or of I."""
    if _FACTOR in memory:
        factor = memory[_FACTOR]
        return lambda residual: cho_solve((factor, True), residual.T.ravel()).reshape(residual.T.shape).T
    grams = memory.get(_GRAMS)
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
