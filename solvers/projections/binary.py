"""Column updates of one-vs-all losses: an independent problem for every class.

With z_j = 1 for the own class, or for each label of the example's set, z_j = -1 elsewhere and a_j = z_j
alpha_j in [0, 1], the dual in one coordinate is

    hinge      a (1 - z q) - (c/2) a^2              logistic   H(a) - a z q - (c/2) a^2

with H(a) = -a log a - (1 - a) log(1 - a), and q the score without the coordinate's own contribution.
"""

from __future__ import annotations

import math

import numpy as np

from topline.solvers.jit_cache import borrowed, jit
from topline.solvers.projections.columns import ColumnProblem, column_function, own_class

_EPS = float(np.finfo(np.float64).eps)
_MAX_STEPS = 100


@column_function
def binary_hinge_column(problem: ColumnProblem) -> tuple[float, int, bool]:
    """Solve the problems of the hinge."""
    problem = borrowed(problem)
    q, y, sets = problem.q, problem.y, problem.margins
    support = 0
    vertex = True
    place, own = 1, own_class(sets, y, 1)
    for j in range(q.shape[0]):
        z, curvature = -1.0, problem.c
        if j == own:
            z, curvature = 1.0, problem.c_own
            place += 1
            own = own_class(sets, y, place)
        slack = 1.0 - z * q[j]
        a = 0.0
        if slack > 0.0:
            a = 1.0 if slack >= curvature else slack / curvature
        vertex = vertex and (a in (0.0, 1.0))
        support += z < 0.0 and a > 0.0
        problem.out[j] = z * a
    return -1.0, support, vertex


@column_function
def binary_logistic_column(problem: ColumnProblem) -> tuple[float, int, bool]:
    """Solve the problems of the logistic loss."""
    problem = borrowed(problem)
    q, y, sets, out = problem.q, problem.y, problem.margins, problem.out
    place, own = 1, own_class(sets, y, 1)
    for j in range(q.shape[0]):
        if j == own:
            out[j] = logistic_weight(-q[j], problem.c_own)
            place += 1
            own = own_class(sets, y, place)
        else:
            out[j] = -logistic_weight(q[j], problem.c)
    return -1.0, q.shape[0] - 1, False


@jit
def logistic_weight(u: float, c: float) -> float:
    """Solve log(a / (1 - a)) + c a = u for a in (0, 1), by Newton's method on v = log(a / (1 - a)).

    v + c a(v) rises and its slope 1 + c a (1 - a) is at least 1; u - c <= v <= u brackets the root.
    """
    low, high = u - c, u
    v = high if u < 0.0 else 0.5 * (low + high)
    last = math.inf
    for _ in range(_MAX_STEPS):
        a = _sigmoid(v)
        residual = v + c * a - u
        slope = 1.0 + c * a * (1.0 - a)
        if abs(residual) <= 4.0 * _EPS * (slope * abs(v) + c * a + abs(u)):
            break
        if residual > 0.0:
            high = v
        else:
            low = v
        newton = v - residual / slope
        # Where the sigmoid bends, Newton's steps can oscillate forever within the bracket.
        if not low < newton < high or abs(residual) > 0.5 * last:
            newton = 0.5 * (low + high)
            if not low < newton < high:
                break
        last = abs(residual)
        v = newton
    return _sigmoid(v)


@jit
def binary_entropy(a: float) -> float:
    """Return H(a), 0 outside (0, 1)."""
    if not 0.0 < a < 1.0:
        return 0.0
    return -a * math.log(a) - (1.0 - a) * math.log1p(-a)


@jit
def _sigmoid(v: float) -> float:
    if v >= 0.0:
        return 1.0 / (1.0 + math.exp(-v))
    e = math.exp(v)
    return e / (1.0 + e)
