"""A second opinion on the labels of a hinge: a softmax warm-started from its weights.

A hinge gives rows beyond its margin no weight, so its margins say little about how sure a label is.  A
softmax weights every row.  A large C makes it memorise wrong labels and a small one tells few classes apart,
so C depends on the size of the rows alone.  Which of the two ranks more of the wrong labels first depends on
them: random ones the softmax, those of similar classes often the hinge, and the mean of both suspicions is
near the better one.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from topline.solvers.core.problem import Problem
from topline.solvers.core.rows import RowSource, squared_norms
from topline.solvers.core.state import SolveResult, SolverState
from topline.solvers.inspection.dual_point import DualPoint, read_rows
from topline.solvers.inspection.leave_one_out import (
    LeaveOneOut,
    checked_examples,
    leave_out_each,
    trained_point,
)
from topline.solvers.losses import Softmax
from topline.solvers.run import solve
from topline.solvers.typing import Float64Array, Int32Array

#: Relative gap of the softmax: 0.1 ranks few rows of many classes much worse.
_GAP = 1e-3
#: The softmax's C times the mean |x|^2: 3 for unit rows with a constant.
_C = 6.0


def second_opinion(
    X: Any, y: Any, result: SolveResult, *, sample_weight: Any = None, k: int = 1
) -> LeaveOneOut:
    """Return leave-one-out margins of every row by a softmax warm-started from `result`.

    The softmax has a C of 6 over the mean |x|^2, and a relative gap of 1e-3.  Its margins are certified by
    bounds alone: dual steps and folds would not rank rows better.

    Parameters
    ----------
    X, y, sample_weight, k : as for `leave_one_out`.
    result : from `solve`, for a convex loss of single labels; A is not needed.

    Raises
    ------
    UnsupportedCombinationError : a result with a kernel, of label sets, of a risk other than the mean, or of
        a non-convex loss.
    InvalidProblemError : rows, labels or k that do not fit the result.

    Examples
    --------
    >>> import numpy as np
    >>> from topline import MaxHinge, solve
    >>> from topline.solvers.inspection import second_opinion
    >>> X, y = np.eye(3).repeat(4, axis=0), np.arange(3).repeat(4)
    >>> y[0] = 2
    >>> second_opinion(X, y, solve(X, y, MaxHinge(), lam=0.01)).suspects[0].item()
    0
    """
    rows, labels, weights = checked_examples(X, y, result, sample_weight)
    squares = sum(float(squared_norms(some).sum()) for *_, some in read_rows(rows, np.dtype(np.float64)))
    lam = _lam(result.problem, squares / result.problem.n)
    return leave_out_each(_trained(rows, labels, weights, result.W, lam), k, 0)


def has_second_opinion(point: DualPoint) -> bool:
    """Return whether a second opinion differs: for a hinge, and for a softmax with another C."""
    problem = point.problem
    if isinstance(problem.loss, Softmax):
        return not math.isclose(_lam(problem, float(point.norms.mean())), problem.lam, rel_tol=0.01)
    return not problem.form.smooth


def softmax_point(point: DualPoint) -> DualPoint:
    """Return the dual point of the softmax for a second opinion on the labels of `point`."""
    lam = _lam(point.problem, float(point.norms.mean()))
    return _trained(point.X, point.y, point.weights, point.W, lam)


def _trained(X: RowSource, y: Int32Array, weights: Float64Array, W: Float64Array, lam: float) -> DualPoint:
    """Return the dual point of a softmax trained from W (d, m)."""
    start = SolverState.at(W)
    softmax = solve(X, y, Softmax(), lam, sample_weight=weights, tol=_GAP, m=W.shape[1], state=start)
    return trained_point(softmax.problem, X, y, softmax.W, None, weights)


def _lam(problem: Problem, mean_square: float) -> float:
    """Return the lam of the softmax for rows of this mean |x|^2."""
    return (mean_square or 1.0) / (problem.n * _C)
