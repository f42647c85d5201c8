"""A dual point with its weights, and the contribution of every example to its duality gap.

The gap of W and A is a sum over the examples plus a square, with s = 1/(lam n) and A's rows already times
their weights w_i:

    P(W) - D(A) = lam/2 |W - W(A)|^2 + (1/n) sum_i e_i
    e_i = w_i (Phi_gamma(s_i; y_i) + Phi_gamma*(-alpha_i / w_i; y_i)) + <alpha_i, s_i>,  s_i = W^T x_i

Each e_i >= 0 is the Fenchel-Young slack of one example, so that the gap of the problem without example i
follows from the same numbers.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from topline.solvers.core.problem import Problem, squared_norm
from topline.solvers.core.rows import RowSource, as_rows, slab_bounds, squared_norms
from topline.solvers.errors import UnsupportedCombinationError
from topline.solvers.jit_cache import JitFunction, jit
from topline.solvers.losses import ranking
from topline.solvers.losses.rows import gradient_rows
from topline.solvers.typing import Float64Array, FloatArray, Int32Array

_FLOAT64 = np.dtype(np.float64)
#: Rows read and scored at once.
_READ_ROWS = 4096


@dataclass(frozen=True, eq=False)
class DualPoint:
    """Weights W, dual variables A, and quantities derived from them; all float64 except X.

    Attributes
    ----------
    problem, X, y, weights : the problem with its examples; weights (n,) of the examples.
    A : (n, m) dual variables times their weights.
    W, W_dual : (d, m) the weights to judge, and W(A).
    scores, dual_scores : (n, m) of the rows at W and at W(A).
    losses, excess : (n,) Phi_gamma and the e_i at W.
    norms : (n,) |x_i|^2.
    """

    problem: Problem
    X: RowSource
    y: Int32Array
    weights: Float64Array
    A: Float64Array
    W: Float64Array
    W_dual: Float64Array
    scores: Float64Array
    dual_scores: Float64Array
    losses: Float64Array
    excess: Float64Array
    norms: Float64Array

    @property
    def primal(self) -> float:
        """P(W)."""
        mean_loss = float(self.weights @ self.losses) / self.problem.n
        return self.problem.primal(self.W, mean_loss)

    @property
    def gap(self) -> float:
        """P(W) - D(A)."""
        apart = squared_norm(self.W - self.W_dual)
        return 0.5 * self.problem.lam * apart + float(self.excess.sum()) / self.problem.n


def dual_point(
    problem: Problem,
    X: RowSource,
    y: Int32Array,
    A: FloatArray,
    weights: Float64Array | None = None,
    W: Float64Array | None = None,
) -> DualPoint:
    """Return the dual point of A (n, m), judging the weights W (d, m), by default W(A).

    Raises `UnsupportedCombinationError` for label sets, a loss without a dual problem and risks other than
    the mean.
    """
    refuse(problem)
    weights = np.ones(problem.n) if weights is None else np.asarray(weights, dtype=np.float64)
    duals: Float64Array = np.asarray(A, dtype=np.float64)
    product, norms = np.zeros((problem.d, problem.m)), np.empty(problem.n)
    for start, stop, rows in read_rows(X, _FLOAT64):
        product += rows.T @ duals[start:stop]
        norms[start:stop] = squared_norms(rows)
    W_dual = problem.scale * product
    dual_scores = scores_of(X, W_dual)
    scores = dual_scores if W is None else scores_of(X, W)
    losses = losses_at(problem, scores, y)
    excess = (
        weights * losses - conjugates_at(problem, duals, y, weights) + np.einsum("ij,ij->i", duals, scores)
    )
    judged = W_dual if W is None else np.asarray(W, dtype=np.float64)
    return DualPoint(
        problem, X, y, weights, duals, judged, W_dual, scores, dual_scores, losses, excess, norms
    )


def refuse(problem: Problem) -> None:
    """Raise `UnsupportedCombinationError` for problems whose rows cannot be left out one by one."""
    if problem.label_sets is not None:
        raise UnsupportedCombinationError(
            "leaving rows out tells right from wrong where each row has one label, and this problem has label"
            " sets; use a loss of single labels"
        )
    if not problem.mean_risk:
        raise UnsupportedCombinationError(
            f"leaving a row out is bounded for the mean of the losses, not for the risk {problem.risk.name};"
            " train with the mean risk"
        )
    if not problem.form.convex:
        raise UnsupportedCombinationError(
            f"the loss {problem.loss.name} is not convex, so nothing bounds what a row does; use another"
        )


def read_rows(X: RowSource, dtype: np.dtype[Any]) -> Iterator[tuple[int, int, Any]]:
    """Yield all rows as (first row, end row, rows) of a float type, dense or CSR."""
    for start, stop in slab_bounds(X, _READ_ROWS, _READ_ROWS):
        yield start, stop, as_rows(X[start:stop], dtype)


def scores_of(X: RowSource, W: FloatArray) -> Float64Array:
    """Return X W (n, r) in float64."""
    out = np.empty((int(X.shape[0]), W.shape[1]))
    for start, stop, rows in read_rows(X, _FLOAT64):
        out[start:stop] = rows @ W
    return out


def losses_at(problem: Problem, scores: Float64Array, y: Int32Array) -> Float64Array:
    """Return Phi_gamma of each row (b,)."""
    losses = np.empty(len(scores))
    ones, sums = np.ones(len(scores)), np.zeros(ranking.N_SUMS)
    gammas = problem.smoothing, problem.smoothing_own
    gradient_rows(problem.form, scores, y, ones, gammas, np.empty_like(scores), sums, losses)
    return losses


def duals_at(problem: Problem, scores: Float64Array, y: Int32Array, weights: Float64Array) -> Float64Array:
    """Return -w_i times the gradients at the scores (b, m): A of a smooth loss."""
    U, sums = np.empty_like(scores), np.zeros(ranking.N_SUMS)
    gammas = problem.smoothing, problem.smoothing_own
    gradient_rows(problem.form, scores, y, np.ones(len(scores)), gammas, U, sums)
    return weights[:, None] * U


def conjugates_at(problem: Problem, A: Float64Array, y: Int32Array, weights: Float64Array) -> Float64Array:
    """Return w_i (-Phi_gamma*(-alpha_i / w_i)) of each row (b,)."""
    form, out = problem.form, np.empty(len(A))
    gammas = problem.smoothing, problem.smoothing_own
    _conjugate_rows(form.conjugate, A, y, weights, *gammas, form.table, out)
    return out


@jit
def _conjugate_rows(
    conjugate: JitFunction,
    A: Float64Array,
    y: Int32Array,
    weights: Float64Array,
    gamma: float,
    gamma_own: float,
    margins: Float64Array,
    out: Float64Array,
) -> None:
    m = A.shape[1]
    row = np.empty(m)
    for i in range(A.shape[0]):
        out[i] = 0.0
        if weights[i] == 0.0:
            continue
        square = 0.0
        for j in range(m):
            row[j] = A[i, j] / weights[i]
            square += (gamma_own if j == y[i] else gamma) * row[j] * row[j]
        out[i] = weights[i] * (conjugate(row, y[i], margins) - 0.5 * square)
