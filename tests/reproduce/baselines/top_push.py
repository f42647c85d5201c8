"""TopPush: positives are to score above the highest of all negatives.

    P(w) = lam/2 |w|^2 + (1/p) sum_{i positive} l(max_{j negative} s_j - s_i),   l(z) = max(0, 1 + z)^2
    D(a, b) = (1/p) sum_i (a_i - a_i^2 / 4) - lam/2 |w(a, b)|^2,
              w(a, b) = (1/(lam p)) (sum_i a_i x_i - sum_j b_j x_j),   a, b >= 0,  sum a = sum b

An example may have a score for each of m classes, s = W^T x, with positives and negatives among all n m of
them: with one column this is the binary method, and with the own class of every example as the positives it
is the reduction of a multiclass problem that the tables use (thesis, section 5.2.3), without its m d features
ever being made.

The dual is maximised by accelerated projected gradient ascent that starts afresh when it overshoots; the
projection shifts a and b by one number.  A round is two products with X.
Source: N. Li, R. Jin, Z.-H. Zhou, "Top rank optimization in linear time", NIPS 2014.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from tests.reproduce.baselines.rows import finite_rows, positives_of
from topline.solvers.core.problem import positive_integer, positive_number
from topline.solvers.core.state import HasObjective, Objective
from topline.solvers.typing import Float64Array

#: Rounds between two measurements of the gap.
_BETWEEN = 10
#: How much a step length grows back after a step that was not too long.
_LONGER = 1.1


@dataclass(frozen=True, eq=False)
class TopPushResult(HasObjective):
    """What `solve_top_push` reached.

    `W` (d, m) scores rows of X as X @ W; `A` (n, m) holds a_i at positives and -b_j at negatives.
    """

    W: Float64Array
    A: Float64Array
    objective: Objective
    rounds: int


def solve_top_push(
    X: Any, positive: Any, lam: float, *, tol: float = 1e-3, max_rounds: int = 10_000
) -> TopPushResult:
    """Solve P for X (n, d), dense or CSR, and a mask `positive` (n,) or (n, m), to a relative gap of tol.

    The result says which gap it has: it may be more after `max_rounds`.

    Raises InvalidProblemError for a mask without positives or without negatives, or a lam or tol that is no
    positive number, and NonFiniteError for NaN or infinity in X.
    """
    X = finite_rows(X)
    mask = positives_of(positive, X.shape[0])
    max_rounds = positive_integer("max_rounds", max_rounds)
    problem = _Problem(X, mask, positive_number("lam", lam))
    return _ascend(problem, positive_number("tol", tol), max_rounds)


@dataclass(frozen=True, eq=False)
class _Problem:
    """The dual in A, signed as in the result; -p D is minimised, which is smooth."""

    X: Any
    positive: np.ndarray[Any, np.dtype[np.bool_]]
    lam: float

    @property
    def count(self) -> int:
        """p, the number of positives."""
        return int(self.positive.sum())

    def weights(self, A: Float64Array) -> Float64Array:
        """Return W(A) (d, m)."""
        return np.asarray(self.X.T @ A, dtype=np.float64) / (self.lam * self.count)

    def scores(self, W: Float64Array) -> Float64Array:
        """Return X W (n, m)."""
        return np.asarray(self.X @ W, dtype=np.float64)

    def value(self, A: Float64Array, W: Float64Array) -> float:
        """Return -p D(A)."""
        a = A[self.positive]
        return 0.5 * self.lam * self.count * float(np.vdot(W, W)) - float(a.sum() - 0.25 * (a @ a))

    def bend(self, change: Float64Array, W: Float64Array) -> float:
        """Return twice what -p D rises by along a change, whose weights are W, beyond its tangent."""
        a = change[self.positive]
        return self.lam * self.count * float(np.vdot(W, W)) + 0.5 * float(a @ a)

    def gradient(self, A: Float64Array, scores: Float64Array) -> Float64Array:
        """Return the gradient of -p D in A."""
        return scores + np.where(self.positive, 0.5 * A - 1.0, 0.0)

    def primal(self, W: Float64Array, scores: Float64Array) -> float:
        """Return P(W)."""
        over = np.maximum(0.0, 1.0 + scores[~self.positive].max() - scores[self.positive])
        return 0.5 * self.lam * float(np.vdot(W, W)) + float(over @ over) / self.count

    def result(self, A: Float64Array, rounds: int) -> TopPushResult:
        """Measure P and D."""
        W = self.weights(A)
        primal, dual = self.primal(W, self.scores(W)), -self.value(A, W) / self.count
        return TopPushResult(W, A, Objective(primal, min(dual, primal)), rounds)


def _ascend(problem: _Problem, tol: float, max_rounds: int) -> TopPushResult:
    """Minimise -p D by FISTA with backtracking and restarts; return the best point measured."""
    A = ahead = np.zeros(problem.positive.shape)
    W = W_ahead = problem.weights(A)
    momentum, step = 1.0, problem.lam * problem.count
    best = problem.result(A, 0)
    for done in range(1, max_rounds + 1):
        gradient = problem.gradient(ahead, problem.scores(W_ahead))
        while True:
            moved = balance(ahead - step * gradient, problem.positive)
            W_moved = problem.weights(moved)
            change = moved - ahead
            # Said this way round so that what overflowed ends the halving, too.
            if not problem.bend(change, W_moved - W_ahead) * step > float(np.vdot(change, change)):
                break
            step *= 0.5
        overshot = float(np.vdot(ahead - moved, moved - A)) > 0.0
        after = 1.0 if overshot else 0.5 * (1.0 + math.sqrt(1.0 + 4.0 * momentum**2))
        share = 0.0 if overshot else (momentum - 1.0) / after
        # W is linear in A: the point ahead needs no product of its own.
        ahead, W_ahead = moved + share * (moved - A), W_moved + share * (W_moved - W)
        A, W, momentum, step = moved, W_moved, after, _LONGER * step
        if done % _BETWEEN == 0 or done == max_rounds:
            result = problem.result(A, done)
            best = result if result.gap < best.gap else best
            if best.relative_gap <= tol:
                break
    return best


def balance(A: Float64Array, positive: np.ndarray[Any, np.dtype[np.bool_]]) -> Float64Array:
    """Project on A >= 0 at positives, A <= 0 at negatives, sum A = 0: every entry moves by the same t.

    sum max(0, a - t) - sum max(0, b + t) falls with t and bends where an entry reaches zero; its root lies
    between two bends, found by halving.
    """

    def excess(t: float) -> float:
        return float(np.maximum(0.0, A[positive] - t).sum() + np.minimum(0.0, A[~positive] - t).sum())

    bends = np.sort(A, axis=None)
    low, high = 0, len(bends) - 1
    while high - low > 1:
        middle = (low + high) // 2
        if excess(float(bends[middle])) >= 0.0:
            low = middle
        else:
            high = middle
    above, below = excess(float(bends[low])), excess(float(bends[high]))
    share = above / (above - below) if above > below else 0.0
    t = float(bends[low] + min(max(share, 0.0), 1.0) * (bends[high] - bends[low]))
    return np.where(positive, np.maximum(0.0, A - t), np.minimum(0.0, A - t))
