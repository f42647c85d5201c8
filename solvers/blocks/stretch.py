"""How far W has to be stretched for a hinge to vanish on all rows, where the classes can be told apart."""

from __future__ import annotations

import numpy as np

from topline.solvers.jit_cache import jit
from topline.solvers.losses import LossForm
from topline.solvers.typing import Float64Array, FloatArray, IntArray

#: Scores may be off by so many units in the last place of their size.
_ROUNDINGS = 16.0


def can_vanish(form: LossForm) -> bool:
    """Return whether `least_stretch` knows the loss: a hinge over ranks of single labels."""
    return form.family.ranks is not None and form.label_sets is None


def least_stretch(
    form: LossForm, scores: FloatArray, y: IntArray, weights: Float64Array, least: float
) -> float:
    """Return the least c >= `least` at which the loss at c s_i is 0 for all rows of scores (b, m).

    inf where there is none; rows of weight 0 ask for nothing.  Of a table of margins, and of hinges that are
    cut before they are summed, every margin is kept.
    """
    ranks = form.family.ranks
    summed = ranks is not None and not ranks.hinge_first and form.margins is None
    rho = form.rho if summed else np.ones(1)
    own_in_sort = ranks is not None and ranks.own_in_sort
    rounding = _ROUNDINGS * float(np.finfo(scores.dtype).eps)
    return float(_stretched(scores, y, weights, form.table, rho, own_in_sort, rounding, least))


@jit
def _stretched(
    scores: FloatArray,
    y: IntArray,
    weights: Float64Array,
    margins: Float64Array,
    rho: Float64Array,
    own_in_sort: bool,
    rounding: float,
    c: float,
) -> float:
    """Raise c row by row, by Newton steps on the sum over ranks, which is convex in c."""
    ahead = np.empty(len(rho))
    for i in range(len(y)):
        if weights[i] == 0.0:
            continue
        held = _least_ahead(scores, i, y[i], margins, rounding, ahead)
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
def _least_ahead(
    scores: FloatArray, i: int, label: int, margins: Float64Array, rounding: float, ahead: Float64Array
) -> int:
    """Write by how much the own class is ahead of the others, in margins, the least first; give their number.

    As many are kept as there is room.
    """
    held = 0
    own = np.float64(scores[i, label])
    for j in range(scores.shape[1]):
        if j == label:
            continue
        other = np.float64(scores[i, j])
        by = float(own - other - rounding * (abs(own) + abs(other)))
        if margins.size:
            if margins[label, j] == 0.0:
                if own >= other:
                    continue
                by = -np.inf
            else:
                by /= margins[label, j]
        if held == len(ahead) and by >= ahead[held - 1]:
            continue
        p = min(held, len(ahead) - 1)
        while p > 0 and ahead[p - 1] > by:
            ahead[p] = ahead[p - 1]
            p -= 1
        ahead[p] = by
        held = min(held + 1, len(ahead))
    return held
