"""The convex problem below a shared representation, solved until its dual is as high as it can be.

With as many factors as tasks the least F of `shared` is that of

    min_V sum_ti phi_gamma(y_ti <v_t, x_i>) + tau |V|_*,    tau = 1 / sqrt(C_tasks C_shared),

over n T.  Accelerated proximal steps go along its V with a hinge that is smooth by a share g >= gamma, which
falls in stages: the slopes at every point, y clip((1 - y s)/g, 0, 1), are duals of the problem itself, and
each gives a bound.  Source: A. Beck, M. Teboulle, "A fast iterative shrinkage-thresholding algorithm", 2009;
Yu. Nesterov, "Smooth minimization of non-smooth functions", 2005.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from topline.solvers.core.objective import relative_gap
from topline.solvers.multitask.shared import SharedProblem, smooth_hinge
from topline.solvers.typing import Float64Array

#: What the hinge is smoothed by at first, and by what it falls from stage to stage.
_FIRST, _FALL = 0.5, 0.25
#: Of the tolerance, the share that smoothing may take of it.
_SHARE = 0.5


@dataclass(frozen=True)
class TraceNormBounds:
    """Where the least F lies.

    Attributes
    ----------
    lower, upper : of min F over all U and W with as many factors as tasks.
    passes : steps that were taken, each of two products with the examples.
    """

    lower: float
    upper: float
    passes: int

    @property
    def relative_gap(self) -> float:
        """(upper - lower) / upper."""
        return relative_gap(self.upper - self.lower, self.upper)


def trace_norm_bounds(problem: SharedProblem, tol: float = 1e-3, max_passes: int = 1000) -> TraceNormBounds:
    """Return bounds of the least F, to a relative gap of `tol` or after `max_passes` steps."""
    rows = _rows(problem.K)
    most = float(np.einsum("ij,ij->j", rows, rows).max(initial=0.0))
    V = np.zeros((rows.shape[1], problem.signs.shape[1]))
    best = TraceNormBounds(0.0, _value(problem, rows @ V, 0.0), 0)
    smooth = max(_FIRST, problem.smoothing)
    while best.passes < max_passes and best.relative_gap > tol and most > 0.0:
        V, best = _stage(problem, rows, V, smooth, most / smooth, best, tol, max_passes)
        if smooth == problem.smoothing:
            break
        smooth = max(_FALL * smooth, problem.smoothing)
    return best


def _stage(
    problem: SharedProblem,
    rows: Float64Array,
    V: Float64Array,
    smooth: float,
    curvature: float,
    best: TraceNormBounds,
    tol: float,
    max_passes: int,
) -> tuple[Float64Array, TraceNormBounds]:
    """Take accelerated steps until smoothing is what is left of the gap; gives V and the bounds."""
    tau = 1.0 / math.sqrt(problem.C_tasks * problem.C_shared)
    ahead, momentum = V, 1.0
    final = smooth == problem.smoothing or 0.5 * smooth <= _SHARE * tol * best.upper
    while best.passes < max_passes and best.relative_gap > tol:
        duals = problem.signs * np.clip((1.0 - problem.signs * (rows @ ahead)) / smooth, 0.0, 1.0)
        gradient = rows.T @ duals
        lower = problem.lower_bound(duals, rows @ gradient)
        moved, norm = _shrunk(ahead + gradient / curvature, tau / curvature)
        upper = _value(problem, rows @ moved, tau * norm)
        best = TraceNormBounds(max(best.lower, lower), min(best.upper, upper), best.passes + 1)
        if float(np.sum((ahead - moved) * (moved - V))) > 0.0:
            momentum = 1.0  # the momentum points uphill
        faster = 0.5 * (1.0 + math.sqrt(1.0 + 4.0 * momentum * momentum))
        ahead, V, momentum = moved + (momentum - 1.0) / faster * (moved - V), moved, faster
        if not final and upper - lower <= smooth:
            break
    return V, best


def _rows(K: Float64Array) -> Float64Array:
    """Return rows (n, r) along the eigenvectors of K, whose inner products are K."""
    values, vectors = np.linalg.eigh(K)
    kept = values > 1e-12 * max(float(values[-1]), 0.0)
    return np.asarray(vectors[:, kept] * np.sqrt(values[kept]))


def _value(problem: SharedProblem, scores: Float64Array, penalty: float) -> float:
    """Return the convex objective over n T, of the scores (n, T) and tau |V|_*."""
    losses = smooth_hinge(problem.signs * scores, problem.smoothing)
    return float(losses.mean()) + penalty / losses.size


def _shrunk(V: Float64Array, amount: float) -> tuple[Float64Array, float]:
    """Return V with singular values less by `amount`, and their sum."""
    left, values, right = np.linalg.svd(V, full_matrices=False)
    kept = np.maximum(values - amount, 0.0)
    return np.asarray((left * kept) @ right), float(kept.sum())
