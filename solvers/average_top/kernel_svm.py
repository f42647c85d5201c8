"""AT_k with kernels: any of the losses in the space of a kernel, and the AT_k-SVM in the paper's own terms.

By the representer theorem f = sum_j c_j k(x_j, .) with c = -C u.  The problem is solved in the features of
`topline.solvers.kernels.low_rank`, and certified on the kernel matrix itself:

    P(c) = AT_k(l(K c)) + c^T K c / (2 C),    D(u, b) = b - (C/2) u^T K u.

With the hinge this is the AT_k-SVM.  Times k/n, with rho = 1 - t and C_3 = C n/k, it is eq. 5, and less k/n

    (6)  min over f and 0 <= rho <= 1 of (1/n) sum_i [rho - y_i f(x_i)]_+ - (k/n) rho + |f|^2 / (2 C_3),

whose dual, missing from the paper, is with alpha_i = (k/n) p_i

    max  sum_i alpha_i - k/n - (C_3/2) |sum_i alpha_i y_i k(x_i, .)|^2
    over 0 <= alpha_i <= 1/n, sum_i alpha_i <= k/n.

For k = n that is the C-SVM without a bias.  Where rho <= 1 does not bind it is the nu-SVM without a bias for
nu = k/n, but for scale: f and rho are C_3 times those at C_3 = 1.  It does not bind where
C_3 (k/n) max_i k(x_i, x_i) <= 1; the paper asks for C_3 = 1 and k(x, x) <= 1, which implies that.
Likewise the absolute loss is the nu-SVR without a bias for nu = k/n, with t in the place of its epsilon.
Source: Y. Fan, S. Lyu, Y. Ying, B.-G. Hu, "Learning with Average Top-k Loss", NIPS 2017, eq. 5 and 6.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from topline.solvers.average_top.aggregates import average_top
from topline.solvers.average_top.problem import AverageTopProblem, AverageTopResult, LowerBound
from topline.solvers.average_top.solving import solve_problem
from topline.solvers.core.objective import Objective
from topline.solvers.core.stopping import Status
from topline.solvers.crew import blas_threads_for
from topline.solvers.errors import InvalidProblemError
from topline.solvers.kernels import KernelExpansion, KernelFeatures
from topline.solvers.typing import Float64Array

#: Relative gap to go for: a few rounds beyond what is asked tell the support from the rest.
_SHARP = 1e-10
#: Coefficients below such a share of the largest are left out where that costs less than tol.
_NEGLIGIBLE = (1e-3, 1e-5, 1e-7)


@dataclass(frozen=True, eq=False, kw_only=True)
class AverageTopKernelResult(AverageTopResult):
    """What a run with a kernel reached; values are those of the kernel matrix.

    Attributes
    ----------
    w : (r,) weights of the factor's features; they mean nothing besides.
    expansion : the support and its coefficients (s, 1), which score new rows.
    coefficients : (n,) those of all training rows.
    """

    expansion: KernelExpansion = field(repr=False)
    coefficients: Float64Array = field(repr=False)


def minimise_with_kernel(
    kernel: Any,
    X: Any,
    y: Any,
    loss: Any,
    k: float,
    C: float,
    *,
    tol: float = 1e-6,
    max_iterations: int = 200,
) -> AverageTopKernelResult:
    """Minimise AT_k(l(f)) + |f|^2 / (2 C) over the functions f of a kernel, and certify the result.

    `kernel` is what `solve` takes: a name, a value, "precomputed" with X = K(train, train), or a
    `KernelFeatures`, which serves many calls on the same rows.  K must fit in memory and a round takes n^3
    multiplications.  `WithConstant` around a kernel makes a bias.  Errors are those of `minimise`, and of
    `KernelFeatures.of`.
    """
    features = KernelFeatures.of(kernel, X)
    problem = AverageTopProblem.of(features.rows, y, loss, k, C)
    result = solve_problem(problem, "interior_point", min(0.5 * tol, _SHARP), max_iterations)
    if result.bound is None:
        raise InvalidProblemError("the kernel values are too large for this C; scale the features or lower C")
    with blas_threads_for(problem.n**2):
        dual = _dual(features.K, result.bound, problem.C)
        candidates = _candidates(result, features, problem)
        values = [_primal(features.K, candidate, problem) for candidate in candidates]
    enough = min(values) + 0.25 * tol * abs(dual)
    primal, coefficients = next(
        (value, candidate) for value, candidate in zip(values, candidates, strict=True) if value <= enough
    )
    expansion = KernelExpansion.of(
        features.kernel, features.train, np.arange(problem.n), coefficients[:, None]
    )
    objective = Objective(primal, min(dual, primal))  # but for rounding D is the smaller
    solved = objective.reaches(tol)
    status = Status.SOLVED if solved else result.status
    if not solved and status is Status.SOLVED:
        status = Status.NO_PROGRESS
    return AverageTopKernelResult(
        objective, result.w, status, result.iterations, result.collapsed, result.bound,
        expansion=expansion, coefficients=coefficients,
    )  # fmt: skip


def _candidates(
    result: AverageTopResult, features: KernelFeatures, problem: AverageTopProblem
) -> list[Float64Array]:
    """Return coefficients (n,) of the optimum, those with the smallest support first."""
    if result.collapsed or result.bound is None or not result.bound.u.any():
        return [np.zeros(problem.n)]
    whole = -problem.C * result.bound.u
    sizes = np.abs(whole) / np.abs(whole).max()
    sparse = [np.where(sizes > share, whole, 0.0) for share in _NEGLIGIBLE]
    pivots = np.zeros(problem.n)
    pivots[features.pivots] = features.coefficients(result.w[:, None])[:, 0]
    return [*sparse, whole, pivots]


def _primal(K: Float64Array, coefficients: Float64Array, problem: AverageTopProblem) -> float:
    scores = K @ coefficients
    norm = max(float(coefficients @ scores), 0.0)
    return average_top(problem.pieces(scores).losses(), problem.k) + norm / (2.0 * problem.C)


def _dual(K: Float64Array, bound: LowerBound, C: float) -> float:
    return bound.b - 0.5 * C * max(float(bound.u @ (K @ bound.u)), 0.0)
