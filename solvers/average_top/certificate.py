"""A certificate for weights that come from anywhere, such as stochastic gradients."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from topline.solvers.average_top.problem import AverageTopProblem, Certificate
from topline.solvers.average_top.solving import solve_problem
from topline.solvers.errors import InvalidProblemError, NonFiniteError
from topline.solvers.typing import Float64Array

#: Relative gap to which the bound of the worst rows is computed, and rounds that it may take.
_TOL = 1e-8
_ROUNDS = 200


def certify(problem: AverageTopProblem, w: Float64Array, dual: float | None = None) -> Certificate:
    """Certify any w (d,): P(w) and a lower bound of the optimum.

    `dual` is such a bound if one is known, like the `dual` of an exact run on the same problem.  Without one
    it is what AT_k of the ceil(k) worst examples at w alone can be brought down to, which is exact for k = n
    and never above the optimum, because AT_k only grows with more examples.

    Raises InvalidProblemError for a w of another shape and NonFiniteError for one that overflowed.
    """
    w = np.asarray(w, dtype=np.float64)
    if w.shape != (problem.d,):
        raise InvalidProblemError(f"the weights have the shape {w.shape}; give {problem.d}, one a feature")
    if not np.isfinite(w).all():
        raise NonFiniteError("the weights hold NaN or infinity and cannot be certified; lower the step size")
    primal, cut = problem.evaluated(w)
    if dual is None:
        worst = np.flatnonzero(cut.p > 0.0)
        fewer = replace(problem, X=problem.X[worst], y=problem.y[worst])
        dual = max(cut.value, solve_problem(fewer, "auto", _TOL, _ROUNDS).dual)
    return Certificate(primal, dual)
