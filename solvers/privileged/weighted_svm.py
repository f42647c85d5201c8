"""Support vector machine with instance weights (WSVM) and an unpenalised bias.

    P(w, b) = 1/2 |w|^2 + sum_i c_i max(0, 1 - y_i (<w, x_i> + b))                       (3.2)
    D(a)    = sum_i a_i - 1/2 |sum_i a_i y_i x_i|^2,   0 <= a_i <= c_i,  y^T a = 0       (3.4), (A.6)

Features enter through K_ij = <x_i, x_j> alone.  The reported gap is P - D at w = sum_i a_i y_i x_i, with the
best b for that w, computed in float64 from a and K however a was found.

Source: M. Lapin, "Image Classification with Limited Training Data and Class Ambiguity", 2017, section 3.2.3.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from topline.solvers.core.problem import positive_integer, positive_number
from topline.solvers.core.state import HasObjective, Objective
from topline.solvers.errors import InvalidProblemError, NonFiniteError
from topline.solvers.kernels.problem import symmetric
from topline.solvers.privileged.interior_point import QuadraticProgram, solve_certified
from topline.solvers.typing import Float64Array

#: Most bytes that a quadratic program's matrix, its copy and its factor may take together.
MEMORY_BYTES = 4 << 30


def signs(y: Any) -> Float64Array:
    """Return labels -1 and +1 as (n,) float64; refuse others, and a single class."""
    values = np.asarray(y)
    if values.ndim != 1 or not np.isin(values, (-1, 1)).all():
        raise InvalidProblemError("the labels are not all -1 or +1; give one of the two for each example")
    if len(np.unique(values)) < 2:
        raise InvalidProblemError("all labels are equal; give examples of both classes")
    return values.astype(np.float64)


def checked_kernel_matrix(name: str, K: Any, n: int) -> Float64Array:
    """Return a symmetric kernel matrix (n, n) in float64; the caller answers for its eigenvalues."""
    matrix = np.asarray(K, dtype=np.float64)
    if matrix.shape != (n, n):
        raise InvalidProblemError(f"{name} has the shape {matrix.shape}; give the kernel of {n} examples")
    if not np.isfinite(matrix).all():
        raise NonFiniteError(f"{name} holds NaN or infinity; fix or scale the features")
    return symmetric(matrix)


def finite_vector(name: str, values: Any, n: int) -> Float64Array:
    """Return n finite numbers as (n,) float64."""
    vector = np.asarray(values, dtype=np.float64)
    if vector.shape != (n,):
        raise InvalidProblemError(f"{name} has the shape {vector.shape}; give one number for each of {n}")
    if not np.isfinite(vector).all():
        raise NonFiniteError(f"{name} holds NaN or infinity; give finite numbers")
    return vector


def instance_weights(c: Any, y: Float64Array) -> Float64Array:
    """Return instance weights c >= 0, not all zero in either class, as (n,) float64."""
    weights = finite_vector("c", c, len(y))
    if (weights < 0.0).any():
        raise InvalidProblemError(f"the least weight in c is {weights.min():g}; give weights of at least 0")
    if len(np.unique(y[weights > 0.0])) < 2:
        raise InvalidProblemError("only one class has weight in c; give examples of both classes weight")
    return weights


def refuse_size(variables: int, what: str) -> None:
    """Refuse a dense program whose matrices do not fit `MEMORY_BYTES`."""
    needed = 3 * 8 * variables**2
    if needed > MEMORY_BYTES:
        raise InvalidProblemError(
            f"{what} of {variables:,} dual variables takes {needed / 2**30:.1f} GiB, and"
            f" {MEMORY_BYTES / 2**30:.1f} GiB are allowed; give fewer examples, or train TopKClassifier with"
            " sample_weight, which needs no matrix"
        )


@dataclass(frozen=True, eq=False, kw_only=True)
class DualSVMResult(HasObjective):
    """A dual point and its classifier f(x) = sum_i alpha_i y_i k(x_i, x) + bias.

    Attributes
    ----------
    alpha : (n,) float64, feasible multipliers of the margins.
    beta : (n,) float64 >= 0, multipliers of slack >= 0, the part of the weights not used by alpha.
    bias : b, the middle of the optimal interval for w.
    scores : (n,) f at the training examples.
    slack : (n,) xi_i = max(0, 1 - y_i f(x_i)).
    objective : P and D (also `primal`, `dual`) at this very point, so that P - D bounds the suboptimality of
        both.
    rounds : of the interior point method.
    """

    alpha: Float64Array
    beta: Float64Array
    bias: float
    scores: Float64Array
    slack: Float64Array
    objective: Objective
    rounds: int


@dataclass(frozen=True, eq=False, kw_only=True)
class WeightedSVMResult(DualSVMResult):
    """Result of `solve_weighted_svm`: `c` (n,) holds the weights, and beta = c - alpha."""

    c: Float64Array


def solve_weighted_svm(
    K: Any, y: Any, c: Any, *, tol: float = 1e-8, max_rounds: int = 100
) -> WeightedSVMResult:
    """Solve (3.2) for a kernel matrix K (n, n), labels y (n,) of -1 and +1 and weights c (n,) >= 0.

    K must be positive semi-definite for P - D to mean anything; this is not checked.  Examples of weight 0
    are scored and otherwise ignored.  Stops at a relative gap of `tol`, or where float64 cannot improve it;
    the result holds the gap reached.

    Raises
    ------
    InvalidProblemError : invalid sizes, labels or weights, or too many examples for memory.
    NonFiniteError : NaN or infinity in K or c.
    """
    y = signs(y)
    c = instance_weights(c, y)
    K = checked_kernel_matrix("K", K, len(y))
    tol, max_rounds = positive_number("tol", tol), positive_integer("max_rounds", max_rounds)
    used = np.flatnonzero(c > 0.0)
    refuse_size(len(used), "a weighted SVM")
    y_used = y[used]
    # The alphas of both classes have equal sums, so twice the weight of the lighter class never binds.
    lighter = min(float(c[y > 0.0].sum()), float(c[y < 0.0].sum()))
    upper = np.minimum(c[used], 2.0 * lighter)
    scale = float(upper.max())
    program = QuadraticProgram(
        H=scale * (y_used[:, None] * K[np.ix_(used, used)] * y_used),
        q=-np.ones(len(used)),
        E=y_used[None, :],
        e=np.zeros(1),
        upper=upper / scale,
    )

    def certify(x: Float64Array, rounds: int) -> WeightedSVMResult:
        alpha = np.zeros(len(y))
        alpha[used] = np.minimum(scale * x, c[used])
        return weighted_svm_result(K, y, c, balanced(alpha, y), rounds)

    return solve_certified(program, certify, tol, max_rounds)


def weighted_svm_result(
    K: Float64Array, y: Float64Array, c: Float64Array, alpha: Float64Array, rounds: int = 0
) -> WeightedSVMResult:
    """Measure P and D of (3.2) at a feasible alpha, with the best bias for its w."""
    centred = K @ (alpha * y)
    norm = float((alpha * y) @ centred)
    bias = best_bias(centred, y, c)
    scores = centred + bias
    slack = np.maximum(0.0, 1.0 - y * scores)
    primal = 0.5 * norm + float(c @ slack)
    dual = float(alpha.sum()) - 0.5 * norm
    return WeightedSVMResult(
        alpha=alpha, beta=c - alpha, bias=bias, scores=scores, slack=slack,
        objective=Objective.checked(primal, dual, abs(primal) + abs(dual)),
        rounds=rounds, c=c,
    )  # fmt: skip


def balanced(alpha: Float64Array, y: Float64Array) -> Float64Array:
    """Return alpha >= 0 with equal sums over both classes, by shrinking the heavier class."""
    positive = y > 0.0
    ups, downs = float(alpha[positive].sum()), float(alpha[~positive].sum())
    if ups == downs or min(ups, downs) < 0.0:
        return alpha
    heavier = positive if ups > downs else ~positive
    return np.where(heavier, alpha * (min(ups, downs) / max(ups, downs)), alpha)


def best_bias(scores: Float64Array, y: Float64Array, c: Float64Array) -> float:
    """Return the middle of `bias_interval`."""
    low, high = bias_interval(scores, y, c)
    return 0.5 * (low + high)


def bias_interval(scores: Float64Array, y: Float64Array, c: Float64Array) -> tuple[float, float]:
    """Return the least and the largest b that minimise sum_i c_i max(0, 1 - y_i (scores_i + b)).

    They are equal unless weights balance as in Theorem 3.1.  The sum is convex with kinks at b = y_i -
    scores_i.  Its slope rises from minus the weight of the positive class, by c_i at each kink; the interval
    is where it is 0.
    """
    bends = y - scores
    order = np.argsort(bends, kind="stable")
    slope = np.cumsum(c[order]) - float(c[y > 0.0].sum())
    # Sums of equal weights differ by rounding.
    noise = 4.0 * len(c) * float(np.finfo(np.float64).eps) * float(c.sum())
    first = int(np.argmax(slope >= -noise))
    last = int(np.argmax(slope > noise)) if slope[-1] > noise else first
    return float(bends[order[first]]), float(bends[order[last]])
