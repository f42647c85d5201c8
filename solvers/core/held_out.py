"""Bounds from the duality gap on the held-out accuracy of the exact solution.

P is lam-strongly convex, and D falls off from its maximum at least as fast in W(A), because it is a concave
function of A less lam/2 |W(A)|^2.  With W* = W(A*) the one solution of both,

    P(W) - P(W*)    >=  lam/2 |W - W*|^2
    D(A*) - D(A)    >=  lam/2 |W(A) - W*|^2                                                            (1)

and P(W*) = D(A*), so for W = W(A) the two add up, and for any other W only the first applies:

    |W(A) - W*|_F <= sqrt(gap / lam),        |W - W*|_F <= sqrt(2 gap / lam)                           (2)

The scores of a row x under W* are therefore those under W moved by a vector of length at most |x| r, r the
radius of (2).  Whether the own class y is among the first k can change only if a move of that length can
change it, and the shortest such move is known in closed form.  With g_j = s_y - s_j over other classes:

    a row that hits   must lose to k others:   min_t  t^2 + sum over the k smallest g_j of max(0, g_j - t)^2
    one that misses   must beat all but k - 1:  min_t  t^2 + sum over all -g_j but the k - 1 largest
                                                                              of max(0, -g_j - t)^2    (3)

where t is the move of the own score and the rest those of the others.  The sums are water-fillings: with the
terms in decreasing order, those above t have term_i > (term_1 + ... + term_i) / (1 + i).  Rows with a
shortest move below |x| r are undecided; counted as misses and as hits they give an interval that contains the
accuracy of the exact solution, at any time of a run and for any method.

Sources: (2) is the sphere of Ndiaye, Fercoq, Gramfort and Salmon, "Gap safe screening rules for sparsity
enforcing penalties", JMLR 18(128), 2017, without its factor 2 where W = W(A); bounds of the
validation error from it: Shibagaki, Suzuki, Karasuyama and Takeuchi, arXiv:1502.02344, and Ndiaye, Le,
Fercoq, Salmon and Takeuchi, "Safe grid search with optimal complexity", arXiv:1810.05471; (3) is ours.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from topline.solvers.core.rows import squared_norms

#: Relative rounding of an objective value, a sum in float64.
ROUNDING = 1e-13
#: Rows scored together.
ROWS_AT_ONCE = 4096
#: Rounding of one float32 operation, and the underflow that may add to it.
_SINGLE, _TINY = 2.0**-24, 2.0**-126
#: Number of random groups of rows, of about equal size, whose hits are counted separately.
GROUPS = 50
#: 2^32 over the golden ratio: its multiples mod 2^32 are evenly spread whatever the step of the numbers.
_SPREAD = np.uint64(2654435769)


@dataclass(frozen=True)
class HitCount:
    """Counts of held-out rows with their class among the first k: `hits` of `rows`, and low to high under W*.

    With class weights each row counts as often as its class says.  `by_group` are the hits of the groups of
    `row_groups`: their spread between two W measures how significant the difference of the hits is.
    """

    rows: float
    hits: float
    low: float
    high: float
    by_group: tuple[float, ...] = (0.0,) * GROUPS

    def __add__(self, other: HitCount) -> HitCount:
        return HitCount(
            self.rows + other.rows,
            self.hits + other.hits,
            self.low + other.low,
            self.high + other.high,
            tuple(left + right for left, right in zip(self.by_group, other.by_group, strict=True)),
        )


def row_groups(numbers: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the group of each row, from 0 to `GROUPS` - 1, by its number in the data set.

    Rows in a regular order, such as sorted or alternating classes, are spread evenly over the groups.
    """
    mixed = numbers.astype(np.uint64) * _SPREAD & np.uint64(0xFFFFFFFF)
    return np.asarray((mixed * np.uint64(GROUPS)) >> np.uint64(32), dtype=np.int64)


def ball_radius(gap: float, primal: float, lam: float, *, of_duals: bool = True) -> float:
    """Return the radius of (2) around W, `of_duals` if W = W(A); infinite if the gap is unknown."""
    if not math.isfinite(gap):
        return math.inf
    gap = max(gap, 0.0) + ROUNDING * abs(primal)
    return math.sqrt((1.0 if of_duals else 2.0) * gap / lam)


def count_hits(
    X: Any,
    y: NDArray[Any],
    W: NDArray[np.float64],
    k: int,
    radius: float,
    class_weights: Sequence[float] | None = None,
    numbers: NDArray[np.int64] | None = None,
) -> HitCount:
    """Count the rows of X (r, d), dense or CSR, that have their class y among the first k under W (d, m).

    Products of float32 features are taken in float32 first, and in float64 for rows where their rounding
    could matter.  A tie counts against the row, as in `topline.pipeline.evaluation`.  A row of class c counts
    `class_weights[c]` times, once by default.  `numbers` (r,) assign rows to groups, from 0 by default.
    """
    groups = row_groups(np.arange(len(y)) if numbers is None else numbers)
    often = None if class_weights is None else np.asarray(class_weights, dtype=np.float64)
    total = HitCount(0, 0, 0, 0)
    for start in range(0, len(y), ROWS_AT_ONCE):
        rows = X[start : start + ROWS_AT_ONCE]
        labels = np.asarray(y[start : start + ROWS_AT_ONCE], dtype=np.int64)
        hit, decided = _decided(rows, labels, W, k, radius)
        worth = np.ones(len(labels)) if often is None else often[labels]
        by_group = np.bincount(groups[start : start + ROWS_AT_ONCE][hit], worth[hit], minlength=GROUPS)
        low, high = float(worth @ (hit & decided)), float(worth @ (hit | ~decided))
        total += HitCount(float(worth.sum()), float(worth @ hit), low, high, tuple(by_group.tolist()))
    return total


def _decided(
    rows: Any, y: NDArray[np.int64], W: NDArray[np.float64], k: int, radius: float
) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Return whether y is among the first k of each row, and whether no move within the radius changes it."""
    norms = np.sqrt(squared_norms(rows))
    if not isinstance(rows, np.ndarray) or rows.dtype != np.float32:
        wide = rows if not isinstance(rows, np.ndarray) else rows.astype(np.float64)
        hit, distance = decisions(np.asarray(wide @ W, dtype=np.float64), y, k)
        return hit, distance > radius * norms
    # Each score is off by at most `off`, in whatever order its terms are added, and the distance to another
    # decision by sqrt(m) times that.
    d, m = W.shape
    most = np.sqrt(np.einsum("ij,ij->j", W, W).max(initial=0.0))
    off = np.sqrt(m) * (d + 4) * (1.01 * _SINGLE * most * norms + _TINY * (1.0 + norms))
    with np.errstate(over="ignore", invalid="ignore"):
        hit, distance = decisions((rows @ W.astype(np.float32)).astype(np.float64), y, k)
        decided = distance > radius * norms
        # Written so that NaN is not sure.
        sure = (distance > off) & (np.abs(distance - radius * norms) > off)
    again = np.flatnonzero(~sure)
    if len(again) and k < m:
        exact = rows[again].astype(np.float64) @ W
        hit[again], distance[again] = decisions(exact, y[again], k)
        decided[again] = distance[again] > radius * norms[again]
    return hit, decided


def decisions(
    scores: NDArray[np.float64], y: NDArray[np.int64], k: int
) -> tuple[NDArray[np.bool_], NDArray[np.float64]]:
    """Return whether y is among the first k of each row of scores (r, m), and the distance (3) to a change.

    The distance is infinite if no move can change the decision, as with k = m.
    """
    r, m = scores.shape
    if k >= m:
        return np.ones(r, dtype=bool), np.full(r, np.inf)
    ahead = scores - np.take_along_axis(scores, y[:, None], axis=1)
    # Infinity excludes the own class.
    ahead[np.arange(r), y] = np.inf
    ahead.sort(axis=1)
    ahead = ahead[:, -2::-1]
    hit = ahead[:, k - 1] < 0.0
    distance = np.empty(r)
    distance[hit] = _shortest(-ahead[hit, :k][:, ::-1])
    distance[~hit] = _shortest(ahead[~hit, k - 1 :])
    return hit, distance


def _shortest(terms: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the root of min_t t^2 + sum_i max(0, term_i - t)^2 for each row of decreasing terms (r, p)."""
    terms = np.maximum(terms, 0.0)
    sums, squares = np.cumsum(terms, axis=1), np.cumsum(terms * terms, axis=1)
    count = np.arange(1, terms.shape[1] + 1)
    above = (terms * (1.0 + count) > sums).sum(axis=1)
    last = np.maximum(above, 1) - 1
    rows = np.arange(len(terms))
    least = squares[rows, last] - sums[rows, last] ** 2 / (1.0 + count[last])
    return np.asarray(np.sqrt(np.maximum(least, 0.0)))
