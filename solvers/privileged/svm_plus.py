"""SVM+: a support vector machine whose slacks are a function of privileged features.

    P = 1/2 (|w|^2 + gamma |w~|^2) + C sum_i xi_i,   xi_i = <w~, x~_i> + b~
        with y_i (<w, x_i> + b) >= 1 - xi_i and xi_i >= 0                                  (3.1), (A.7)
    D = sum_i a_i - 1/2 a^T Y K Y a - 1/(2 gamma) d^T K~ d,   d = a + beta - C,
        with a, beta >= 0, y^T a = 0 and 1^T d = 0                                         (3.3), (A.9)

Features x and privileged features x~, which are known in training only, enter through K and K~ alone.  The
reported gap is P - D at w = sum_i a_i y_i x_i and w~ = sum_i d_i x~_i / gamma (A.8), with the best b and b~
for these: both have a closed form, since given b the least feasible b~ is
max_i (max(0, 1 - y_i (<w, x_i> + b)) - <w~, x~_i>).

With gamma < 0 ("SVM-", 3.15) the problem is unbounded below: |w~| grows faster than C sum xi.  It is refused.
Source: V. Vapnik and A. Vashist, Neural Networks 22, 2009; M. Lapin's thesis, 2017, sections 3.2.2 and A.1.3.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from numbers import Real
from typing import Any

import numpy as np

from topline.solvers.core.problem import positive_integer, positive_number
from topline.solvers.core.state import Objective
from topline.solvers.errors import InvalidProblemError
from topline.solvers.privileged.interior_point import QuadraticProgram, solve_certified
from topline.solvers.privileged.weighted_svm import (
    DualSVMResult,
    balanced,
    checked_kernel_matrix,
    refuse_size,
    signs,
)
from topline.solvers.typing import Float64Array


@dataclass(frozen=True, eq=False, kw_only=True)
class SVMPlusResult(DualSVMResult):
    """Result of `solve_svm_plus`.

    Attributes
    ----------
    C, gamma : as given.
    privileged_bias : b~.
    correction : (n,) <w~, x~_i> + b~, which is at least `slack`.
    """

    C: float
    gamma: float
    privileged_bias: float
    correction: Float64Array

    @property
    def privileged_coefficients(self) -> Float64Array:
        """Coefficients (n,) of the privileged kernel in <w~, .>: (alpha + beta - C) / gamma."""
        return np.asarray((self.alpha + self.beta - self.C) / self.gamma)


def solve_svm_plus(
    K: Any, K_privileged: Any, y: Any, C: float, gamma: float, *, tol: float = 1e-8, max_rounds: int = 100
) -> SVMPlusResult:
    """Solve (3.1) for kernel matrices K and K~ (n, n) and labels y (n,) of -1 and +1.

    Both must be positive semi-definite for P - D to mean anything; this is not checked.  Stops at a relative
    gap of `tol`, or where float64 cannot improve it; the result holds the gap reached.

    Raises
    ------
    InvalidProblemError : invalid sizes, labels or parameters, such as gamma < 0 (SVM-), or too many examples
        for memory.
    NonFiniteError : NaN or infinity in a kernel matrix.
    """
    y = signs(y)
    n = len(y)
    C, gamma, tol = positive_number("C", C), _gamma(gamma), positive_number("tol", tol)
    max_rounds = positive_integer("max_rounds", max_rounds)
    K = checked_kernel_matrix("K", K, n)
    correcting = checked_kernel_matrix("K_privileged", K_privileged, n)
    refuse_size(2 * n, "SVM+")

    def certify(x: Float64Array, rounds: int) -> SVMPlusResult:
        alpha, beta = _feasible(C * x[:n], C * x[n:], y, n * C)
        return svm_plus_result(K, correcting, y, C, gamma, alpha, beta, rounds)

    return solve_certified(_program(K, correcting, y, C, gamma), certify, tol, max_rounds)


def svm_plus_result(
    K: Float64Array,
    K_privileged: Float64Array,
    y: Float64Array,
    C: float,
    gamma: float,
    alpha: Float64Array,
    beta: Float64Array,
    rounds: int = 0,
) -> SVMPlusResult:
    """Measure P and D of (3.1) at a feasible (alpha, beta), with the best b and b~ for its w and w~."""
    centred = K @ (alpha * y)
    norm = float((alpha * y) @ centred)
    change = alpha + beta - C
    correction = K_privileged @ change / gamma
    correcting_norm = float(change @ correction)  # gamma |w~|^2
    missing = 1.0 - y * centred - correction
    ups, downs = float(missing[y > 0.0].max()), float(missing[y < 0.0].max())
    bias = 0.5 * (ups - downs)
    privileged_bias = max(0.5 * (ups + downs), float((-correction).max()))
    correction = correction + privileged_bias
    scores = centred + bias
    primal = 0.5 * (norm + correcting_norm) + C * float(correction.sum())
    dual = float(alpha.sum()) - 0.5 * (norm + correcting_norm)
    return SVMPlusResult(
        alpha=alpha, beta=beta, bias=bias, scores=scores, slack=np.maximum(0.0, 1.0 - y * scores),
        objective=Objective.checked(primal, dual, abs(primal) + abs(dual)), rounds=rounds, C=C, gamma=gamma,
        privileged_bias=privileged_bias, correction=correction,
    )  # fmt: skip


def _gamma(gamma: Any) -> float:
    if isinstance(gamma, Real) and -math.inf < float(gamma) < 0.0:
        raise InvalidProblemError(
            f"gamma is {gamma!r}: with gamma < 0 this is SVM-, which is unbounded below and has no solution;"
            " give a positive number, or reach such solutions with solve_weighted_svm"
        )
    return positive_number("gamma", gamma)


def _program(
    K: Float64Array, correcting: Float64Array, y: Float64Array, C: float, gamma: float
) -> QuadraticProgram:
    """Return (A.9) in x = (alpha, beta) / C, divided by C."""
    n = len(y)
    H = np.empty((2 * n, 2 * n))
    H[n:, n:] = (C / gamma) * correcting
    H[:n, n:] = H[n:, n:]
    H[n:, :n] = H[n:, n:]
    H[:n, :n] = H[n:, n:] + C * (y[:, None] * K * y)
    pull = -(C / gamma) * correcting.sum(axis=1)
    return QuadraticProgram(
        H=H,
        q=np.concatenate([pull - 1.0, pull]),
        E=np.stack([np.concatenate([y, np.zeros(n)]), np.ones(2 * n)]),
        e=np.array([0.0, float(n)]),
        upper=np.full(2 * n, np.inf),
    )


def _feasible(
    alpha: Float64Array, beta: Float64Array, y: Float64Array, total: float
) -> tuple[Float64Array, Float64Array]:
    """Rescale to (alpha, beta) >= 0 with y^T alpha = 0 and a sum of `total`."""
    alpha = balanced(alpha, y)
    used, rest = float(alpha.sum()), float(beta.sum())
    if used >= total or rest <= 0.0:
        return alpha * (total / used), np.zeros_like(beta)
    return alpha, beta * ((total - used) / rest)
