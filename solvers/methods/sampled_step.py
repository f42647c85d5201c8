"""A first step from weights trained on other rows, with the Hessian of a sample of the rows.

Weights that were optimal with a few rows more, or fewer, have a gradient that one Newton step removes, and a
Hessian with a tenth of error leaves a hundredth of the gap, |grad P|^2 / (2 lam).  So the step is found by
conjugate gradients on every sixteenth row, or every fourth, and as many other rows estimate the gradient
after it.  If that is small enough the certificate is the first measurement.  Products with the Hessian are
differences of the sample's gradients, in float64.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from topline.solvers.core.dual_points import FoundAt
from topline.solvers.core.problem import Problem, SelectedRows, inner, squared_norm
from topline.solvers.core.state import SolverState
from topline.solvers.methods.base import Advance, Measurement, Method, product_of
from topline.solvers.methods.newton import Newton
from topline.solvers.methods.quasi_newton import gradient_of
from topline.solvers.operations import FindSelectedVertices, Runner
from topline.solvers.typing import Float64Array

#: Stride of the sample, first and if that fails, and the least number of rows.  A gap above the last multiple
#: of the goal is left to the method itself.
_STRIDES, _FEWEST_ROWS, _FAR = (16, 4), 48, 30.0
#: The same before Newton's method, whose own step takes about four passes.
_STRIDES_NEWTON, _FAR_NEWTON = (16,), 12.0
#: Products with the Hessian of one sample, and the shares of the goal and of the gap at which they end: the
#: influence of the other rows should be gone, not just small enough.
_PRODUCTS, _SHARE, _GONE = 24, 0.1, 0.01
#: A step that leaves more than this share of the gap is not taken.
_BRINGS = 0.25
#: Tolerated excess over the goal: independent rows overestimate the gradient by the error of the sample.
_NOISE = 1.5
#: Length of the finite difference in a product, relative to |W|.
_SHORT = 1e-6


@dataclass(frozen=True, eq=False)
class SampledStep(Method):
    """A step with a sample's Hessian from the weights of round 0, followed by another method.

    `then` moves W by gradients, `tol` is the requested relative gap, and `weights` (n,) are those of the
    rows.
    """

    then: Method
    tol: float
    weights: Float64Array
    follows_duals: ClassVar[bool] = False

    def measure(self, problem: Problem, run: Runner, state: SolverState) -> Measurement:
        """Measure as the following method does."""
        return self.then.measure(problem, run, state)

    def advance(self, problem: Problem, run: Runner, measured: Measurement) -> Advance:
        """Take the step at round 0 if other rows confirm its gain; otherwise delegate."""
        if measured.before.round > 0:
            return self.then.advance(problem, run, measured)
        gradient = gradient_of(problem, measured.before.W, measured.stats)
        goal = 2.0 * problem.lam * self.tol * abs(measured.primal)
        square = squared_norm(gradient)
        found = _Step(problem, run, measured, gradient, self.weights, goal)
        is_newton = isinstance(self.then, Newton)
        if square <= (_FAR_NEWTON if is_newton else _FAR) * goal:
            found.look(_STRIDES_NEWTON if is_newton else _STRIDES)
        spent = math.ceil(found.visited / problem.n)
        if found.left > _BRINGS * square and found.left > _NOISE * goal:
            advance = self.then.advance(problem, run, measured)
            return replace(advance, passes=advance.passes + spent)
        before = measured.before
        W = before.W + found.V
        point = replace(before.point, round=before.round + 1, W=W)
        dual_point = FoundAt(W) if found.left <= _NOISE * goal else None
        return Advance(
            1.0, point, None, measured.stats.active, spent,
            claims=dual_point is not None, dual_point=dual_point,
        )  # fmt: skip


class _Step:
    """Looks for V (d, m) with grad P(W) + H V near 0; `left` is its squared norm on independent rows."""

    def __init__(
        self,
        problem: Problem,
        run: Runner,
        measured: Measurement,
        gradient: Float64Array,
        weights: Float64Array,
        goal: float,
    ) -> None:
        self._problem, self._run, self._weights = problem, run, weights
        self._W, self._gradient, self._goal = measured.before.W, gradient, goal
        self._most = measured.passes_left * problem.n
        self.V = np.zeros_like(gradient)
        self.left, self.visited = math.inf, 0

    def look(self, strides: Sequence[int]) -> None:
        """Try samples with these strides, the smallest sample first."""
        for stride in strides:
            rows = self._problem.n // stride
            if rows < _FEWEST_ROWS or self.visited + (_PRODUCTS + 4) * rows > self._most:
                continue
            self._conjugate_gradients(stride)
            hessian = self._hessian(stride, stride // 2)
            self.left = squared_norm(self._gradient + hessian(self.V))
            if self.left <= _NOISE * self._goal:
                return

    def _conjugate_gradients(self, stride: int) -> None:
        """Reduce the residual with the sample's Hessian, starting from V."""
        hessian = self._hessian(stride, 0)
        residual = -self._gradient - (hessian(self.V) if self.V.any() else 0.0)
        direction, square = residual, squared_norm(residual)
        enough = min(_SHARE * self._goal, _GONE * squared_norm(self._gradient))
        for _ in range(_PRODUCTS):
            if square <= enough:
                return
            product = hessian(direction)
            curvature = inner(direction, product)
            if not curvature > 0.0:
                return
            self.V = self.V + (square / curvature) * direction
            residual = residual - (square / curvature) * product
            before, square = square, squared_norm(residual)
            direction = residual + (square / before) * direction

    def _hessian(self, stride: int, first: int) -> Callable[[Float64Array], Float64Array]:
        """Return the product with the Hessian of P at W, with the loss of some rows."""
        rows = np.arange(first, self._problem.n, stride)
        some = SelectedRows(rows, self._weights[rows] * (self._problem.n / len(rows)))
        here = self._product_at(self._W, some)

        def times(V: Float64Array) -> Float64Array:
            size = math.sqrt(squared_norm(V)) or 1.0
            length = _SHORT * (math.sqrt(squared_norm(self._W)) or 1.0) / size
            there = self._product_at(self._W + length * V, some)
            return np.asarray(self._problem.lam * V + (here - there) / (length * self._problem.n))

        return times

    def _product_at(self, W: Float64Array, rows: SelectedRows) -> Float64Array:
        """Return the sum of x_i u_i^T, u_i = -grad Phi at W, over some rows times their weights."""
        self.visited += len(rows)
        return product_of(self._run(FindSelectedVertices(W, rows, exact=True)))
