"""A Newton step on a sum of envelopes: conjugate gradients for its direction, and an exact line search.

The blocks multiply with the Hessian lam I + (1/n) sum_i x_i x_i^T (x) J_i.  Where they are small, the Gram
matrices of its diagonal blocks, one a class, precondition.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TypeVar

import numpy as np
from scipy.linalg import LinAlgError, cho_factor, cho_solve

from topline.solvers.core.codec import stored
from topline.solvers.core.problem import Problem, inner
from topline.solvers.errors import NonFiniteError
from topline.solvers.methods.line_search import least_slope
from topline.solvers.operations import (
    CurvatureProduct,
    EnvelopePoint,
    FindSlope,
    Grams,
    MultiplyCurvature,
    Operation,
    Runner,
    SlopeSum,
    SumGrams,
)
from topline.solvers.typing import Float64Array

#: Conjugate gradients stop at this share of the residual, or after so many products.
_RESIDUAL = 0.1
_PRODUCTS = 60
#: Passes without which no step is begun: for Gram matrices, a product and the line search.
FEWEST_PASSES = 3
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


def _rows_for_grams(problem: Problem) -> int:
    """Return how many rows are enough for the Gram matrices of a smooth loss, which only precondition."""
    return _ROWS_A_COLUMN * problem.d + _ROWS_A_CLASS * problem.m


@stored
@dataclass(frozen=True, eq=False)
class Preconditioner:
    """The inverse of the Hessian as an earlier point had it, and what that has led to.

    Attributes
    ----------
    grams : (m, d, d) the Gram matrices of its diagonal blocks, None where there are none.
    factor : (m d, m d) in their place, Cholesky's factor of the whole.
    products : products that the first solution with them took.
    plain, whole : whether nothing, and Gram matrices alone, led to too many products for a smooth loss.
    """

    grams: Float64Array | None = None
    factor: Float64Array | None = None
    products: int = 0
    plain: bool = False
    whole: bool = False

    def renewed(self, counted: CountedRun) -> tuple[Preconditioner, bool]:
        """Return one that was found at the point if there was none, and whether it was."""
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
        """Return what is left for the next step, after one with so many products."""
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
        """Return whether a smooth loss goes without Gram matrices for now."""
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
            small = problem.m <= _HESSIAN_CLASSES and problem.m * problem.d <= _SMOOTH_SIDE
            return closed and self.whole and small
        return factors_hessian(problem)


#: That of a first step.
NO_PRECONDITIONER = Preconditioner()


def newton_step(
    counted: CountedRun, gradient: Float64Array, known: Preconditioner
) -> tuple[float, Float64Array, Preconditioner]:
    """Return the step along Newton's direction, W after it, and what preconditions the next.

    A step of 0 says that the direction does not descend.
    """
    V, products, known = _direction(counted, gradient, known)
    slope = inner(gradient, V)
    step = least_slope(lambda step: counted.slope(V, step), slope) if slope < 0.0 else 0.0
    return step, counted.point.W + step * V, known.after(counted.problem, step, products)


def _direction(
    counted: CountedRun, gradient: Float64Array, known: Preconditioner
) -> tuple[Float64Array, int, Preconditioner]:
    """Return about -H^-1 g by conjugate gradients, its products, and what preconditioned it."""
    problem = counted.problem
    known, fresh = known.renewed(counted)
    precondition = known.inverse(problem)
    V, residual = np.zeros_like(gradient), -gradient
    z = precondition(residual)
    # The factor of the very Hessian of a hinge at this point solves at once.
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
            # The factor is that of another Hessian: its own costs no more than the products so far.
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
        # Rows at a kink made the Hessian another one for opposite directions.
        V = -precondition(gradient)
    return V, products, replace(known, products=products) if fresh else known
