"""The least factor c at which a hinge vanishes on all rows at c W, if the classes can be separated."""

from __future__ import annotations

import numpy as np

from topline.solvers.core.rows import Rows, squared_norms
from topline.solvers.jit_cache import jit
from topline.solvers.losses import LossForm
from topline.solvers.typing import Float64Array, FloatArray, IntArray

#: Error of a score in units of rounding of |x_i| |w_j|, as the sum may cancel.
_ROUNDINGS = 4.0
#: Ranks up to which the least margins are kept by insertion; beyond it all are sorted.
_FEW_RANKS = 32


def can_vanish(form: LossForm) -> bool:
    """Return whether `least_stretch` knows the loss: a hinge of single labels, over ranks or one-vs-all."""
    return (form.family.ranks is not None or form.family.binary_hinges) and form.label_sets is None


def slack_of(X: Rows, W: FloatArray) -> tuple[Float64Array, Float64Array]:
    """Return e (b,) and f (m,): the scores X W, in the precision of W (d, m), have errors up to e_i f_j."""
    sizes = np.sqrt(np.einsum("ij,ij->j", W, W, dtype=np.float64))
    rounding = _ROUNDINGS * float(np.finfo(W.dtype).eps)
    return rounding * np.sqrt(squared_norms(X)), sizes


def least_stretch(
    form: LossForm,
    scores: FloatArray,
    y: IntArray,
    weights: Float64Array,
    slack: tuple[Float64Array, Float64Array],
    least: float,
) -> float:
    """Return the least c >= `least` at which the loss at c s_i is 0 for all rows of scores (b, m).

    `slack` comes from `slack_of`.  Returns inf if there is none; rows of weight 0 are ignored.  With a table
    of margins, and for hinges cut before they are summed, every margin counts.
    """
    ranks = form.family.ranks
    if ranks is None:
        return float(_stretched_apart(scores, y, weights, slack, least))
    summed = not ranks.hinge_first and form.margins is None
    rho = form.rho if summed else np.ones(1)
    return float(_stretched(scores, y, weights, slack, form.table, rho, ranks.own_in_sort, least))


@jit
def _stretched_apart(
    scores: FloatArray,
    y: IntArray,
    weights: Float64Array,
    slack: tuple[Float64Array, Float64Array],
    c: float,
) -> float:
    """Raise c until every class is ahead of 0 by 1 on its own rows, and behind by 1 on all others."""
    off, sizes = slack
    for i in range(len(y)):
        if weights[i] == 0.0:
            continue
        for j in range(scores.shape[1]):
            score = np.float64(scores[i, j])
            ahead = (score if j == y[i] else -score) - off[i] * sizes[j]
            if not ahead > 0.0:
                return np.inf
            c = max(c, 1.0 / ahead)
    return c


@jit
def _stretched(
    scores: FloatArray,
    y: IntArray,
    weights: Float64Array,
    slack: tuple[Float64Array, Float64Array],
    margins: Float64Array,
    rho: Float64Array,
    own_in_sort: bool,
    c: float,
) -> float:
    """Raise c row by row, by Newton steps on the sum over ranks, which is convex in c."""
    off, sizes = slack
    ahead = np.empty(len(rho))
    every = np.empty(scores.shape[1])
    for i in range(len(y)):
        if weights[i] == 0.0:
            continue
        held = _ahead(scores, i, y[i], margins, off[i], sizes, every)
        held = _least(every, held, ahead)
        while True:
            value = slope = 0.0
            for r in range(held):
                violation = 1.0 - c * ahead[r]
                rank = r + 1 if own_in_sort and violation <= 0.0 else r
                if rank < len(rho):
                    value += rho[rank] * violation
                    slope += rho[rank] * ahead[r]
            if value <= 0.0:
                break
            if not slope > 0.0:
                return np.inf
            longer = c + value / slope
            if not longer > c:
                break
            c = longer
    return c


@jit
def _ahead(
    scores: FloatArray,
    i: int,
    label: int,
    margins: Float64Array,
    off: float,
    sizes: Float64Array,
    every: Float64Array,
) -> int:
    """Write the lead of the own class over the others, in margins; return their number.

    With a margin of 0 a tie is enough.
    """
    held = 0
    own = np.float64(scores[i, label])
    for j in range(scores.shape[1]):
        if j == label:
            continue
        other = np.float64(scores[i, j])
        by = float(own - other - off * (sizes[label] + sizes[j]))
        if margins.size:
            if margins[label, j] == 0.0:
                if own >= other:
                    continue
                by = -np.inf
            else:
                by /= margins[label, j]
        every[held] = by
        held += 1
    return held


@jit
def _least(every: Float64Array, count: int, least: Float64Array) -> int:
    """Write the least of the first `count` numbers in ascending order, as many as fit."""
    if len(least) > _FEW_RANKS:
        ascending = np.sort(every[:count])
        held = min(count, len(least))
        least[:held] = ascending[:held]
        return held
    held = 0
    for j in range(count):
        if held == len(least) and every[j] >= least[held - 1]:
            continue
        p = min(held, len(least) - 1)
        while p > 0 and least[p - 1] > every[j]:
            least[p] = least[p - 1]
            p -= 1
        least[p] = every[j]
        held = min(held + 1, len(least))
    return held
