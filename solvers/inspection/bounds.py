"""Bounds on the weights trained without one row, and on the margins that follow.

Let P_-i be the objective without the term of row i, with lam and n unchanged (and so C).  It is lam-strongly
convex, and so is minus its dual in W(A).  Any W and feasible A with the gap g therefore bound the minimiser:

    lam/2 |W_-i - W|^2 + lam/2 |W_-i - W(A)|^2 <= g,  so  |W_-i - (W + W(A))/2|^2 <= g/lam - |W - W(A)|^2/4.

Setting row i of A to zero moves W(A) by V = s x_i alpha_i^T and changes nothing else, so the bound needs no
pass: at the optimum it is the ball whose diameter is that move.  A row with alpha_i = 0 does not move W(A).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from topline.solvers.core.problem import squared_norm
from topline.solvers.inspection.dual_point import DualPoint
from topline.solvers.typing import Float64Array, Int64Array, IntArray

#: Rounding error of float64 sums, relative to a score.
_ROUNDING = 1e-12


@dataclass(frozen=True, eq=False)
class Margins:
    """Leave-one-out margins (b,): certified `low` <= exact <= `high`, best estimate `middle`, best rival."""

    middle: Float64Array
    low: Float64Array
    high: Float64Array
    rival: Int64Array

    @property
    def open(self) -> Int64Array:
        """Positions of margins of uncertain sign."""
        return np.flatnonzero((self.low <= 0.0) & (self.high >= 0.0))


def margins_around(
    scores: Float64Array, y: IntArray, radius: Float64Array, norms: Float64Array, k: int
) -> Margins:
    """Return the margins of rows at scores (b, m) of weights with errors of at most `radius` (b,).

    A margin is the own score minus the k-th best of the others, and each difference of two classes changes by
    at most sqrt(2) |x| radius; `norms` are |x|^2.
    """
    middle, rival = margins_of(scores, y, k)
    reach = np.sqrt(2.0 * norms) * radius + _ROUNDING * (1.0 + np.abs(scores).max(axis=1, initial=0.0))
    return Margins(middle, middle - reach, middle + reach, rival)


def margins_of(scores: Float64Array, y: IntArray, k: int) -> tuple[Float64Array, Int64Array]:
    """Return each row's own score minus the k-th best of the others, and the best other class (b,)."""
    rows = np.arange(len(scores))
    others = scores.copy()
    others[rows, y] = -np.inf
    rival = np.argmax(others, axis=1)
    limit = others[rows, rival] if k == 1 else -np.partition(-others, k - 1, axis=1)[:, k - 1]
    return scores[rows, y] - limit, rival


def free_margins(point: DualPoint, k: int) -> Margins:
    """Return the margins of all rows that the dual point alone certifies."""
    problem, scale = point.problem, point.problem.scale
    apart = point.scores - point.dual_scores
    move = scale * scale * point.norms * np.einsum("ij,ij->i", point.A, point.A)
    cross = scale * np.einsum("ij,ij->i", apart, point.A)
    distance = squared_norm(point.W - point.W_dual) + 2.0 * cross + move
    excess = np.maximum(point.excess.sum() - point.excess, 0.0) / problem.n
    square = 0.25 * distance + excess / problem.lam
    centre = 0.5 * (point.scores + point.dual_scores - scale * point.norms[:, None] * point.A)
    return margins_around(centre, point.y, np.sqrt(np.maximum(square, 0.0)), point.norms, k)
