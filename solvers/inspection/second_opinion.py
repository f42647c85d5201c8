"""A second opinion on the labels of a hinge: a softmax that starts at its weights.

A hinge gives a row beyond its margin no weight at all, so its margins say little of how sure a label is.  The
softmax of the same problem weighs every row, and has more of the wrong labels among its first suspects.
"""

from __future__ import annotations

from typing import Any

from topline.solvers.core.problem import Problem
from topline.solvers.core.rows import RowSource
from topline.solvers.core.state import SolveResult, SolverState
from topline.solvers.inspection.dual_point import DualPoint
from topline.solvers.inspection.leave_one_out import (
    LeaveOneOut,
    checked_examples,
    leave_out_each,
    trained_point,
)
from topline.solvers.losses import Softmax
from topline.solvers.run import solve
from topline.solvers.typing import Float64Array, Int32Array

#: Relative gap at which the softmax ends: a smaller one ranks the rows no better.
_GAP = 0.1


def second_opinion(
    X: Any, y: Any, result: SolveResult, *, sample_weight: Any = None, k: int = 1
) -> LeaveOneOut:
    """Return what a softmax that starts at the weights of `result` says of every row, without that row.

    The softmax has the lam of the result and ends at a relative gap of 0.1.  Bounds prove its margins as far
    as they go, without dual steps.  Its `suspects` find more wrong labels than those of a hinge.

    Parameters
    ----------
    X, y, sample_weight : what `solve` was given.
    result : what it returned, of a convex loss of single labels; A is not needed.
    k : a row is right while its class is among the k best.

    Raises
    ------
    UnsupportedCombinationError : a result with a kernel, of label sets, of another risk than the mean, or of
        a loss that is not convex.
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
    return leave_out_each(softmax_point(result.problem, rows, labels, result.W, weights), k, 0)


def softmax_point(
    problem: Problem, X: RowSource, y: Int32Array, W: Float64Array, weights: Float64Array
) -> DualPoint:
    """Return the dual point of a softmax with the lam of `problem` that was trained from W (d, m)."""
    softmax = solve(
        X,
        y,
        Softmax(),
        problem.lam,
        sample_weight=weights,
        tol=_GAP,
        m=problem.m,
        state=SolverState(round=0, W=W),
    )
    return trained_point(softmax.problem, X, y, softmax.W, None, weights)
