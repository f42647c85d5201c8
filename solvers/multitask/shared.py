"""The problem of a shared representation: its objective, and lower bounds of its minimum.

    F(U, W) = (1/T) sum_t [ (1/n) sum_i phi_gamma(y_ti <w_t, U^T x_i>) + lambda/2 |w_t|^2 ] + mu/2 |U|_F^2

(thesis, (4.1) and (4.2)) is convex in U and in W, but not jointly.  Yet lambda/(2T) |W|^2 + mu/2 |U|^2 is at
least tau |U W|_*, the sum of the singular values of V = U W times tau = sqrt(lambda mu / T), and as much for
the best factors of V. So F is bounded from below by a convex problem in V,

    min_V (1/(nT)) sum_ti phi_gamma(y_ti <v_t, x_i>) + tau |V|_*,

and with as many factors as tasks both minima are the same.  Duals a of any of the subproblems, times a factor
that makes the largest singular value of (1/(nT)) X^T A at most tau, are dual feasible here, and their value
is a lower bound of F for every U and W. The smooth hinge phi_gamma(z) = max over 0 <= v <= 1 of v (1 - z) -
gamma/2 v^2 is 0 for z >= 1, (1 - z)^2 / (2 gamma) for 1 - gamma <= z < 1 and 1 - z - gamma/2 below; gamma =
0 is the hinge (4.2.1).  Source: N. Srebro, J. Rennie, T. Jaakkola, "Maximum-margin matrix factorization",
2004, lemma 1; the thesis has no such bound.

Accelerated proximal steps (`trace_norm_bounds`) in V use a hinge smoothed by g >= gamma, reduced in stages:
the slopes at every point, y clip((1 - y s)/g, 0, 1), are duals of the problem itself and give a bound each.
Source: A. Beck, M. Teboulle, "A fast iterative shrinkage-thresholding algorithm", 2009; Yu. Nesterov,
"Smooth minimization of non-smooth functions", 2005.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from topline.solvers.core.problem import inner, squared_norm
from topline.solvers.core.state import relative_gap
from topline.solvers.typing import Float64Array


def smooth_hinge(margins: Float64Array, gamma: float) -> Float64Array:
    """Return phi_gamma of each margin z = y s, in the shape of `margins`."""
    slack = np.maximum(1.0 - margins, 0.0)
    if gamma == 0.0:
        return slack
    v = np.minimum(slack / gamma, 1.0)
    return np.asarray(v * (slack - 0.5 * gamma * v))


def task_losses(signs: Float64Array, scores: Float64Array, gamma: float) -> Float64Array:
    """Return the mean loss of each task, (T,); signs and scores are (T, n)."""
    losses: Float64Array = smooth_hinge(signs * scores, gamma).mean(axis=1)
    return losses


def task_conjugates(signs: Float64Array, duals: Float64Array, gamma: float) -> Float64Array:
    """Return the mean of y a - gamma/2 a^2 of each task, (T,); signs, duals are (T, n), 0 <= y a <= 1."""
    values: Float64Array = (signs * duals - 0.5 * gamma * np.square(duals)).mean(axis=1)
    return values


@dataclass(frozen=True, eq=False)
class SharedProblem:
    """F for n examples and T tasks.

    Attributes
    ----------
    K : (n, n) kernel matrix of the examples.
    signs : (n, T) labels of 1.0 and -1.0.
    C_tasks, C_shared : 1/(lambda n) and 1/(mu n T), weights of the losses against |w_t|^2 / 2 and |U|^2 / 2.
    smoothing : gamma of the smooth hinge.
    """

    K: Float64Array
    signs: Float64Array
    C_tasks: float
    C_shared: float
    smoothing: float = 0.0

    def task_terms(self, Z: Float64Array, W: Float64Array) -> Float64Array:
        """Return each task's part of F, (T,): loss and |w_t|^2, for Z = X U (n, r) and W (r, T)."""
        losses = task_losses(self.signs.T, (Z @ W).T, self.smoothing)
        squares = np.einsum("rt,rt->t", W, W)
        return np.asarray(losses + squares / (2.0 * self.C_tasks * len(Z)))

    def shared_terms(self, Q: Float64Array, Z: Float64Array, W: Float64Array) -> float:
        """Return the part of F with U = X^T Q: the mean of the losses and mu/2 |U|^2; Q and Z are (n, r)."""
        loss = float(task_losses(self.signs.T, (Z @ W).T, self.smoothing).mean())
        return loss + inner(Q, Z) / (2.0 * self.C_shared * self.signs.size)

    def objective(self, Q: Float64Array, Z: Float64Array, W: Float64Array) -> float:
        """Return F at U = X^T Q and W, with Z = K Q."""
        return self.shared_terms(Q, Z, W) + squared_norm(W) / (2.0 * self.C_tasks * self.signs.size)

    def slopes(self, Z: Float64Array, W: Float64Array) -> Float64Array | None:
        """Return the duals (n, T) that are slopes of the losses at the scores Z W; None for the hinge.

        They tend to the optimum of the convex problem as V = U W does, unlike with the kinks of the hinge.
        """
        if self.smoothing == 0.0:
            return None
        slack = (1.0 - self.signs * (Z @ W)) / self.smoothing
        return np.asarray(self.signs * np.clip(slack, 0.0, 1.0))

    def lower_bound(self, A: Float64Array, products: Float64Array) -> float:
        """Return a lower bound of F for all U and W from duals A (n, T), 0 <= y a <= 1, and K A."""
        linear = inner(self.signs, A) / A.size
        square = squared_norm(A) / A.size
        # Squared singular values of X^T A; K A is computed, and rounding must not make them negative.
        spectrum = np.linalg.eigvalsh(A.T @ products)
        largest = math.sqrt(max(float(spectrum[-1]), 0.0))
        tau = 1.0 / math.sqrt(self.C_tasks * self.C_shared)
        scale = min(1.0, tau / largest) if largest > 0.0 else 1.0
        if self.smoothing > 0.0 and square > 0.0:
            scale = min(scale, linear / (self.smoothing * square))
        return scale * linear - 0.5 * self.smoothing * scale**2 * square


#: First smoothing of the hinge, and the factor by which each stage reduces it.
_FIRST, _FALL = 0.5, 0.25
#: Fraction of the tolerance that smoothing may use up.
_SHARE = 0.5


@dataclass(frozen=True)
class TraceNormBounds:
    """Bounds on the least F.

    Attributes
    ----------
    lower, upper : of min F over all U and W with as many factors as tasks.
    passes : steps, each of two products with the examples.
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
    """Take accelerated steps until smoothing dominates the gap; return V and the bounds."""
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
    """Return V with singular values shrunk by `amount`, and their sum."""
    left, values, right = np.linalg.svd(V, full_matrices=False)
    kept = np.maximum(values - amount, 0.0)
    return np.asarray((left * kept) @ right), float(kept.sum())
