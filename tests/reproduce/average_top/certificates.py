"""A certificate for weights of the average top-k problem that come from anywhere."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from topline.solvers.average_top import AverageTopProblem
from topline.solvers.average_top.solving import solve_problem
from topline.solvers.core.state import Objective
from topline.solvers.errors import InvalidProblemError, NonFiniteError
from topline.solvers.typing import Float64Array

#: Relative gap to which the bound of the worst rows is computed, and rounds that it may take.
_BOUND_TOL, _BOUND_ROUNDS = 1e-8, 200
#: What a bound may exceed P by, as a share of both.
_ROUNDING = 1e-6


def certify(problem: AverageTopProblem, w: Float64Array, dual: float | None = None) -> Objective:
    """Certify any w (d,): P(w) and a lower bound of the optimum.

    `dual` is such a bound if one is known, like the `dual` of an exact run on the same problem.  Without one
    it is what AT_k of the ceil(k) worst examples at w alone can be brought down to, which is exact for k = n
    and never above the optimum, because AT_k only grows with more examples.

    Raises InvalidProblemError for a w of another shape, NonFiniteError for one that overflowed, and
    CertificateError for a `dual` above P(w), which is no bound.
    """
    w = np.asarray(w, dtype=np.float64)
    if w.shape != (problem.d,):
        raise InvalidProblemError(f"the weights have the shape {w.shape}; give {problem.d}, one per feature")
    if not np.isfinite(w).all():
        raise NonFiniteError("the weights hold NaN or infinity and cannot be certified; lower the step size")
    primal, cut = problem.evaluated(w)
    if dual is None:
        worst = np.flatnonzero(cut.p > 0.0)
        fewer = replace(problem, X=problem.X[worst], y=problem.y[worst])
        dual = max(cut.value, solve_problem(fewer, "auto", _BOUND_TOL, _BOUND_ROUNDS).dual)
    return Objective.checked(primal, dual, abs(primal) + abs(dual), _ROUNDING)
