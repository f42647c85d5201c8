"""When a weighted SVM and SVM+ have the same solutions, both ways.

Every solution of SVM+ is one of a weighted SVM, with the weights c = alpha + beta (Theorem 3.3).  The other
way it takes weights with rho(c, xi) = <c - mean(c) 1, xi> >= 0 at the slacks xi of the solution, that is
heavier examples among those that lose more; then one privileged feature is enough (Theorem 3.4).  Different
weights can have the same solution, and the test may fail for some of them only: `most_favourable_weights`
gives those for which rho is largest.
Source: M. Lapin, M. Hein, B. Schiele, "Learning using privileged information: SVM+ and weighted SVM", Neural
Networks 53, 2014; Lapin's thesis, 2017, section 3.4.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.optimize import linprog

from topline.solvers.errors import InvalidProblemError
from topline.solvers.privileged.machines import (
    DualSVMResult,
    SVMPlusResult,
    checked_kernel_matrix,
    finite_vector,
    signs,
)
from topline.solvers.typing import Float64Array

#: A rho below this share of the terms that it is the difference of is rounding.
_ROUNDING = 1e-12
#: A margin counts as met, or a slack as zero, within this.
_TOUCHING = 1e-7
#: Status of scipy's linprog.
_UNBOUNDED = 3


@dataclass(frozen=True, eq=False)
class PrivilegedConstruction:
    """An SVM+ problem with the solution of a weighted SVM: (3.8) and (3.9).

    Attributes
    ----------
    C, gamma : of the SVM+; gamma = rho is 0 where the condition holds with equality, and then (3.1) does not
        penalise w~: `solve_svm_plus` wants gamma > 0.
    X_privileged : (n, 1) privileged features, for the linear kernel.
    privileged_weight, privileged_bias : w~ (1,) and b~ at the solution.
    """

    C: float
    gamma: float
    X_privileged: Float64Array
    privileged_weight: Float64Array
    privileged_bias: float


def weights_from_svm_plus(result: SVMPlusResult) -> Float64Array:
    """Return weights c (n,) whose weighted SVM has the w, b and slacks of an SVM+ solution (Theorem 3.3).

    The bias of that weighted SVM need not be unique where that of SVM+ is (Theorems 3.1 and 3.2): then only
    w is sure to agree.
    """
    return np.asarray(result.alpha + result.beta)


def rho(c: Any, slack: Any) -> float:
    """Return <c - mean(c) 1, xi> for weights c and slacks xi (n,): (3.7)."""
    slack = finite_vector("slack", slack, np.size(slack))
    c = finite_vector("c", c, len(slack))
    return float((c - c.mean()) @ slack)


def svm_plus_from_weights(c: Any, slack: Any) -> PrivilegedConstruction:
    """Return the SVM+ problem with the solution of a weighted SVM, from its weights c and slacks xi (n,).

    Raises
    ------
    InvalidProblemError : rho(c, xi) < 0, so that no SVM+ has these weights; the weights are all zero, or one
        is negative.
    """
    slack = finite_vector("slack", slack, np.size(slack))
    c = finite_vector("c", c, len(slack))
    total = float(c.sum())
    if (c < 0.0).any() or total <= 0.0:
        raise InvalidProblemError("the weights c are negative or all zero; give weights of at least 0")
    value = rho(c, slack)
    if value < -_ROUNDING * float(np.abs(c) @ np.abs(slack)):
        raise InvalidProblemError(
            f"rho(c, xi) is {value:.6g} < 0: examples that lose more weigh less, and no SVM+ has such weights"
            " whatever the privileged features; most_favourable_weights tells whether others with the same"
            " solution do"
        )
    bias = float(c @ slack) / total
    return PrivilegedConstruction(
        C=total / len(c),
        gamma=max(value, 0.0),
        X_privileged=(slack - bias)[:, None],
        privileged_weight=np.ones(1),
        privileged_bias=bias,
    )


def most_favourable_weights(K: Any, y: Any, result: DualSVMResult) -> tuple[Float64Array, float]:
    """Return, of all weights with this solution (w, b, xi), those with the largest rho, and that rho.

    They are c = alpha + beta with sum_i alpha_i y_i x_i = w, y^T alpha = 0, alpha_i = 0 beyond the margin and
    beta_i = 0 where the slack is positive (A.5); beta > 0 stands where the slack is 0 and lowers rho.  What
    remains is a linear program in alpha; where rho has no bound, weights with a positive one are given.
    rho >= 0 if and only if some SVM+ has the solution (Theorem 3.4).

    Definition 3.1 of the thesis also fixes the sum of alpha, which leaves weights out: its counterexample
    3.4.4 has the same solution for c = (2, 2, 0) and c = (4, 6, 2).
    """
    y = signs(y)
    K = checked_kernel_matrix("K", K, len(y))
    inside = np.flatnonzero(y * result.scores <= 1.0 + _TOUCHING)
    gain = (result.slack - result.slack.mean())[inside]
    # K a = K a* as far as K's rank goes, in the coordinates of its eigenvectors.
    values, vectors = np.linalg.eigh(K)
    kept = values > len(y) * float(np.finfo(np.float64).eps) * float(max(values[-1], 0.0))
    rows = np.sqrt(values[kept])[:, None] * vectors[:, kept].T
    equal = np.vstack([rows[:, inside] * y[inside], y[inside]])
    right = np.append(rows @ (result.alpha * y), 0.0)
    # Rounding of the result itself can leave the program without a point; alpha is one up to that.
    best = result.alpha.copy()
    for bound in (None, *(float(result.alpha.max()) * 10.0**power for power in range(1, 9))):
        solved = linprog(-gain, A_eq=equal, b_eq=right, bounds=(0.0, bound), method="highs")
        if solved.status == 0:
            best = np.zeros(len(y))
            best[inside] = solved.x
        if solved.status != _UNBOUNDED and (bound is None or rho(best, result.slack) > 0.0):
            break
    return best, rho(best, result.slack)
