"""Instance weights learned from validation examples, by the gradient through the trained classifier.

    min over c >= 0 of (1/N) sum_j L(y'_j (K'_j a(c) + b(c)))                              (3.21)
    (a(c), b(c)) = argmin 1/2 a^T K a + sum_i c_i L(y_i (K_i a + b))                       (3.22)

With u_i = y_i L'_i and v_i = c_i L''_i the lower optimum satisfies a = -c * u and 1^T a = 0, so that by the
implicit function theorem (3.5)

    [ I + diag(v) K   v ] [da/dc]     [diag(u)]
    [ 1^T             0 ] [db/dc] = - [   0   ].

The printed (3.23) and its case v = 0, (3.25), da/dc = -diag(u) and db/dc = 0, lack the minus.  The gradient
takes one solve with the transposed system, whatever the number of weights.  A new loss is a frozen class with
the methods of `MarginLoss`, and an entry in `LOSSES` of its tests.

Source: M. Lapin's thesis, 2017, section 3.5.3.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from scipy import linalg, optimize

from topline.solvers.core.problem import positive_integer, positive_number
from topline.solvers.errors import InvalidProblemError, NonFiniteError
from topline.solvers.privileged.machines import (
    checked_kernel_matrix,
    finite_vector,
    instance_weights,
    refuse_size,
    signs,
)
from topline.solvers.typing import Float64Array


class MarginLoss(Protocol):
    """A convex, non-increasing, twice continuously differentiable loss L(t)."""

    @property
    def steepest(self) -> float:
        """The maximum of L''."""
        ...

    def value(self, t: Float64Array) -> Float64Array:
        """Return L(t)."""
        ...

    def slope(self, t: Float64Array) -> Float64Array:
        """Return L'(t)."""
        ...

    def curvature(self, t: Float64Array) -> Float64Array:
        """Return L''(t)."""
        ...


@dataclass(frozen=True)
class TwiceSmoothHinge:
    """L_delta: 1 - t - delta below 1 - 2 delta, 0 above 1, a quartic between (3.26); delta -> 0 is the hinge.

    On [1 - 2 delta, 1] it is (1 - t)^3 (t - 1 + 4 delta) / (16 delta^3).
    """

    delta: float = 0.1

    def __post_init__(self) -> None:
        object.__setattr__(self, "delta", positive_number("delta", self.delta))

    @property
    def steepest(self) -> float:
        """L'' in the middle of the quartic: 3 / (4 delta)."""
        return 0.75 / self.delta

    def value(self, t: Float64Array) -> Float64Array:
        """Return L(t)."""
        s = self._share(t)
        return np.asarray(self.delta * s**3 * (2.0 - s) + np.maximum(1.0 - t - 2.0 * self.delta, 0.0))

    def slope(self, t: Float64Array) -> Float64Array:
        """Return L'(t)."""
        s = self._share(t)
        return np.asarray(-(s**2) * (3.0 - 2.0 * s))

    def curvature(self, t: Float64Array) -> Float64Array:
        """Return L''(t)."""
        s = self._share(t)
        return np.asarray(3.0 * s * (1.0 - s) / self.delta)

    def _share(self, t: Float64Array) -> Float64Array:
        """Return the fraction of the quartic's interval above t, from 0 to 1."""
        return np.asarray(np.clip((1.0 - t) / (2.0 * self.delta), 0.0, 1.0))


#: The lower problem is solved if no residual of a = -c u exceeds this fraction of the largest weight.
_TOLERANCE = 1e-12
_NEWTON_STEPS = 200
#: Points tried along one direction.
_TRIALS = 60
#: Curvature added everywhere, as a fraction of the largest possible.
_FIRST_FLOOR = 1e-8
_LEAST_FLOOR = 1e-14
#: A step this short shows that the curvature is misleading.
_SHORT = 0.01


@dataclass(frozen=True, eq=False)
class LowerSolution:
    """Optimum of (3.22): a (n,), bias b, scores K a + b (n,), and the `residual` of its equations."""

    a: Float64Array
    b: float
    scores: Float64Array
    residual: float


@dataclass(frozen=True, eq=False)
class LearnedWeights:
    """Weights c (n,) learned by `learn_weights`, and the `solution` of the lower problem for them.

    `validation_losses` (steps + 1,) are the mean losses on the validation examples, from the start to the
    end, `evaluations` the number of lower problems solved, and `converged` says whether L-BFGS-B met its
    tolerance within its budget.
    """

    c: Float64Array
    solution: LowerSolution
    validation_losses: tuple[float, ...]
    evaluations: int
    converged: bool


def solve_lower(
    K: Float64Array, y: Float64Array, c: Float64Array, loss: MarginLoss, start: LowerSolution | None = None
) -> LowerSolution:
    """Solve (3.22) by Newton's method with an exact line search, warm-started if `start` is given.

    Where the loss is flat or linear at every example its curvature does not determine b, so a little is added
    at first, and more after failed steps.
    """
    n = len(y)
    a, b = (np.zeros(n), 0.0) if start is None else (start.a, start.b)
    K_a = K @ a
    largest = max(float(c.max()), float(np.finfo(np.float64).tiny))
    floor = _FIRST_FLOOR
    best = LowerSolution(a, b, K_a + b, np.inf)
    for _ in range(_NEWTON_STEPS):
        t = y * (K_a + b)
        u = y * loss.slope(t)
        residual = max(float(np.abs(a + c * u).max()), abs(float(c @ u))) / largest
        if residual < best.residual:
            best = LowerSolution(a, b, K_a + b, residual)
        if residual <= _TOLERANCE:
            break
        v = c * loss.curvature(t) + floor * largest * loss.steepest
        change = _solved(_bordered(K, v), -np.append(a + c * u, a.sum()))
        da, db = change[:n], float(change[n])
        K_da = K @ da
        straight, bend, ds = float(K_a @ da), float(K_da @ da), y * (K_da + db)
        length = _line_minimum(
            lambda s: straight + s * bend + float((c * ds) @ loss.slope(t + s * ds))  # noqa: B023 - used here
        )
        if length == 0.0:
            break
        floor = min(100.0 * floor, 1.0) if length < _SHORT else max(0.1 * floor, _LEAST_FLOOR)
        a, b, K_a = a + length * da, b + length * db, K_a + length * K_da
    return best


def hypergradient(
    K: Float64Array,
    y: Float64Array,
    K_validation: Float64Array,
    y_validation: Float64Array,
    c: Float64Array,
    loss: MarginLoss,
    solution: LowerSolution,
) -> tuple[float, Float64Array]:
    """Return the mean validation loss and its gradient in c (n,) at the optimum of (3.22) for c.

    K (n, n), y (n,) and c (n,) belong to the training examples; K_validation (N, n) has a row for each of
    the validation examples, y_validation (N,) their labels, -1 and +1 both.
    """
    count = len(y_validation)
    t = y_validation * (K_validation @ solution.a + solution.b)
    outer = y_validation * loss.slope(t) / count
    value = float(loss.value(t).mean())
    inner_t = y * solution.scores
    u, v = y * loss.slope(inner_t), c * loss.curvature(inner_t)
    by_a = K_validation.T @ outer
    if not v.any():
        return value, -by_a * u
    adjoint = _solved(_bordered(K, v).T, np.append(by_a, outer.sum()))
    return value, np.asarray(-adjoint[:-1] * u)


def learn_weights(
    K: Any,
    y: Any,
    K_validation: Any,
    y_validation: Any,
    loss: MarginLoss,
    start: Any,
    *,
    max_steps: int = 100,
) -> LearnedWeights:
    """Learn weights c >= 0 by L-BFGS-B from `start`, usually C everywhere, whose loss they never exceed.

    K (n, n) and y (n,) belong to the training examples, K_validation (N, n) and y_validation (N,) to the
    validation examples, with labels -1 and +1; `loss` is used on both levels, and `start` is (n,) or one
    number for all.  Raises InvalidProblemError for invalid sizes, labels or weights.
    """
    y, y_validation = signs(y), signs(y_validation)
    n = len(y)
    K = checked_kernel_matrix("K", K, n)
    refuse_size(n, "weight learning")
    max_steps = positive_integer("max_steps", max_steps)
    rows = np.asarray(K_validation, dtype=np.float64)
    if rows.shape != (len(y_validation), n):
        raise InvalidProblemError(
            f"K_validation has the shape {rows.shape}; give {len(y_validation)} rows of {n} kernel values,"
            " one for each validation example"
        )
    first = instance_weights(finite_vector("start", np.broadcast_to(start, n), n), y)
    scale, evaluations = float(first.mean()), 0
    # The lower solution of the last weights, and the least loss with its weights and solution.
    last: LowerSolution | None = None
    best: tuple[float, Float64Array, LowerSolution] | None = None
    losses: list[float] = []

    def value_and_gradient(scaled: Float64Array) -> tuple[float, Float64Array]:
        nonlocal last, best, evaluations
        c = scale * scaled
        last = solve_lower(K, y, c, loss, last)
        value, gradient = hypergradient(K, y, rows, y_validation, c, loss, last)
        evaluations += 1
        if value < (np.inf if best is None else best[0]):
            best = value, c, last
        if not losses:
            losses.append(value)
        return value, scale * gradient

    minimize: Callable[..., Any] = optimize.minimize  # its stubs know no bounds of None
    ended = minimize(
        value_and_gradient, first / scale, jac=True, method="L-BFGS-B", bounds=[(0.0, None)] * n,
        callback=lambda _: losses.append(np.inf if best is None else best[0]),
        options={"maxiter": max_steps},
    )  # fmt: skip
    if best is None:
        raise NonFiniteError("the validation loss is not a number; scale the features or the weights")
    return LearnedWeights(best[1], best[2], tuple(losses), evaluations, bool(ended.success))


def _bordered(K: Float64Array, v: Float64Array) -> Float64Array:
    """Return [[I + diag(v) K, v], [1^T, 0]]."""
    n = len(v)
    matrix = np.empty((n + 1, n + 1))
    matrix[:n, :n] = v[:, None] * K
    matrix[np.arange(n), np.arange(n)] += 1.0
    matrix[:n, n] = v
    matrix[n, :n] = 1.0
    matrix[n, n] = 0.0
    return matrix


def _solved(matrix: Float64Array, right: Float64Array) -> Float64Array:
    """Solve the system, by least squares if it is singular: v can underflow."""
    factor, pivots, info = linalg.lapack.dgetrf(matrix)
    if info == 0:
        found: Float64Array = linalg.lapack.dgetrs(factor, pivots, right)[0]
        if np.isfinite(found).all():
            return found
    return np.asarray(linalg.lstsq(matrix, right)[0])


def _line_minimum(slope: Callable[[float], float]) -> float:
    """Return a step at which the rising `slope` of a convex function is at most a tenth of its value at 0.

    Return 0 if, by rounding, the function does not fall from there.
    """
    first = slope(0.0)
    if not first < 0.0:
        return 0.0
    low, high, length = 0.0, np.inf, 1.0
    for _ in range(_TRIALS):
        now = slope(length)
        if abs(now) <= -0.1 * first:
            break
        if now < 0.0:
            low = length
        else:
            high = length
        length = 2.0 * length if np.isinf(high) else 0.5 * (low + high)
    return length
