"""Exact dual steps without one row: dual ascent on the others, from where the dual point stands."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from topline.solvers.core.rows import as_rows
from topline.solvers.core.state import SolveResult, SolverState
from topline.solvers.inspection.bounds import margins_around
from topline.solvers.inspection.dual_point import DualPoint
from topline.solvers.run import solve
from topline.solvers.typing import Float64Array, FloatArray

#: The interval is to be this much shorter than what tells the margin from zero.
_MARGIN_OF_SAFETY = 0.5
#: A margin that is within this of zero is left open: no accuracy that float64 has tells its sign.
_SMALLEST = 1e-5
#: Runs for one row: each asks for what the one before it showed to be needed.
_TRIES = 4
_TINY = 1e-300


@dataclass(frozen=True)
class Steps:
    """The margin of a row without itself, its bounds, its best rival, and the passes that this took."""

    middle: float
    low: float
    high: float
    rival: int
    passes: int


def continued(
    point: DualPoint, start: Start, weights: Float64Array, gap: float, max_passes: int
) -> SolveResult:
    """Return what further steps with these weights reach: until the gap, or after so many passes.

    Dual ascent goes on from A; a smooth loss is minimised from W, and minus its gradients are its A.
    """
    problem = point.problem
    smooth = problem.form.smooth
    return solve(
        point.X,
        point.y,
        problem.loss,
        problem.lam,
        smoothing=problem.smoothing,
        smoothing_kind=problem.smoothing_kind,
        method="lbfgs" if smooth else "dual_ascent",
        sample_weight=weights,
        tol=max(gap / max(abs(point.primal), _TINY), 1e-14),
        max_passes=max(max_passes, 2),
        m=problem.m,
        state=SolverState.at(start.W) if smooth else None,
        duals=None if smooth else [(0, problem.n, start.A)],
        keep_duals=not smooth,
    )


@dataclass(frozen=True, eq=False)
class Start:
    """Where steps start from: W (d, m), and A (n, m) times the weights."""

    W: Float64Array
    A: FloatArray

    @classmethod
    def of(cls, result: SolveResult, before: Start) -> Start:
        """Return what a result leaves."""
        return cls(result.W, before.A if result.A is None else result.A)


def margin_without(point: DualPoint, row: int, k: int, estimate: float, max_passes: int) -> Steps:
    """Return the margin of a row without itself, by steps on all other rows until its sign is certain."""
    problem = point.problem
    weights, A = point.weights.copy(), point.A.copy()
    weights[row], A[row] = 0.0, 0.0
    if not weights.any():
        # The best of no rows is W = 0.
        return Steps(0.0, 0.0, 0.0, rival=int(point.y[row] == 0), passes=0)
    start = Start(point.W, A)
    x = as_rows(point.X[row : row + 1], np.dtype(np.float64))
    norm, passes = point.norms[row : row + 1], 0
    for _ in range(_TRIES):
        wanted = max(_MARGIN_OF_SAFETY * abs(estimate), _SMALLEST)
        # sqrt(2) |x| radius, of the ball of radius^2 = 2 gap / lam about W
        gap = problem.lam * wanted * wanted / (4.0 * max(float(norm[0]), _TINY))
        result = continued(point, start, weights, gap, max_passes - passes)
        passes += result.passes
        radius = np.array([math.sqrt(max(2.0 * result.gap, 0.0) / problem.lam)])
        found = margins_around(np.asarray(x @ result.W), point.y[row : row + 1], radius, norm, k)
        estimate = float(found.middle[0])
        if not len(found.open) or passes >= max_passes or wanted <= _SMALLEST:
            break
        start = Start.of(result, start)
    middle, low, high = (float(values[0]) for values in (found.middle, found.low, found.high))
    return Steps(middle, low, high, int(found.rival[0]), passes)
