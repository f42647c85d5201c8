"""Exact column updates of the multilabel losses: the own classes are the labels Y of an example.

With q = W^T x_i - (K_ii / (lambda n)) alpha_i and c = K_ii / (lambda n) + gamma, the dual in alpha_i is

    hinge     sum_Y' z - <q, alpha> - (c/2) |alpha|^2,      x = alpha_Y >= 0, z = -alpha_Y' >= 0,
              sum x = sum z <= 1                            (Lapin's thesis, prop. 6.5, 6.6 and 6.18)
    softmax   -<p, log p> - <q, alpha> - (c/2) |alpha|^2,   p = 1_Y / |Y| - alpha >= 0,
              sum p = 1                                     (prop. 6.7 and 6.20)

The first is the projection of (1/2 - q_Y) / c and (1/2 + q_Y') / c on the bipartite simplex; in the second
c p + log p = q + c 1_Y / |Y| - t, with the t for which p sums to 1.  Where Y is empty or, for the hinge,
whole, alpha = 0 is the only point of the domain.
"""

from __future__ import annotations

import math

import numpy as np

from topline.solvers.jit_cache import jit
from topline.solvers.projections.bipartite import bipartite_simplex
from topline.solvers.projections.entropic import entropic_level
from topline.solvers.projections.exponentials import exp_of_row
from topline.solvers.projections.own_classes import own_class, own_count
from topline.solvers.typing import Float64Array, FloatArray, Int64Array


@jit
def multilabel_hinge_column(
    q: FloatArray,
    y: int,
    c: float,
    sets: Float64Array,
    out: Float64Array,
    work: Float64Array,
    index_work: Int64Array,
) -> tuple[float, int, bool]:
    """Write the optimal dual row alpha of one example to `out`.

    Parameters
    ----------
    q : (m,) scores without the example's own contribution.
    y : number of its label set.
    c : curvature, >= 0; 0 gives a maximising vertex.
    sets : the table of label sets, `LabelSets.table`.
    out : (m,) receives alpha.
    work, index_work : from `column_workspace(m)`; `q` may not lie in them.

    Returns
    -------
    (sum x, number of classes outside Y with mass, whether alpha is a vertex of the domain).
    """
    low, high, next_low, next_high, worst, best = _extremes(q, y, sets)
    out[:] = 0.0
    top = (high - low) + 1.0
    if not 0.0 < top < np.inf:
        return 0.0, 0, True
    # One class on either side, as in most columns: the others stay at zero.
    mass = 1.0 if top >= 2.0 * c else top / (2.0 * c)
    if low - next_low <= -c * mass and next_high - high <= -c * mass:
        out[worst], out[best] = mass, -mass
        return mass, 1, mass == 1.0
    # No x and no z exceeds the common sum, which is at most 1 and at most top / c.
    reach = min(c, top)
    b, d, x, z = work[0], work[1], work[2], work[3]
    owners, others = index_work[2], index_work[3]
    n_x = n_z = 0
    place, own = 1, own_class(sets, y, 1)
    for j in range(q.shape[0]):
        if j == own:
            place += 1
            own = own_class(sets, y, place)
            if low - q[j] > -reach:
                b[n_x], owners[n_x] = (low - q[j]) / c, j
                n_x += 1
        elif q[j] - high > -reach:
            d[n_z], others[n_z] = (q[j] - high) / c, j
            n_z += 1
    bipartite_simplex(
        b[:n_x], d[:n_z], 0.0, 0.0, top / c, 1.0, x[:n_x], z[:n_z], work[4], index_work[0], index_work[1]
    )
    mass = 0.0
    for i in range(n_x):
        out[owners[i]] = x[i]
        mass += x[i]
    support = 0
    for i in range(n_z):
        out[others[i]] = -z[i]
        support += z[i] > 0.0
    return mass, support, False


@jit
def _extremes(q: FloatArray, y: int, sets: Float64Array) -> tuple[float, float, float, float, int, int]:
    """Return the lowest own score, the highest other one, the next of each, and the classes of the first two.

    Ties go to the lower class; where there is no such class the score is inf, or -inf.
    """
    low = next_low = np.inf
    high = next_high = -np.inf
    worst = best = 0
    place, own = 1, own_class(sets, y, 1)
    for j in range(q.shape[0]):
        value = np.float64(q[j])
        if j == own:
            place += 1
            own = own_class(sets, y, place)
            if value < low:
                next_low, low, worst = low, value, j
            elif value < next_low:
                next_low = value
        elif value > high:
            next_high, high, best = high, value, j
        elif value > next_high:
            next_high = value
    return low, high, next_low, next_high, worst, best


@jit
def multilabel_entropy_column(
    q: FloatArray, y: int, c: float, sets: Float64Array, out: Float64Array, work: Float64Array
) -> tuple[float, int, bool]:
    """Write the optimal dual row alpha of one example to `out`; c = 0 gives -gradient of the loss at q.

    The arguments are those of `multilabel_hinge_column`.  Returns (0, the number of classes outside
    Y, False: no row of the domain's relative interior is a vertex).
    """
    m = q.shape[0]
    size = own_count(sets, y)
    if size == 0:
        out[:] = 0.0
        return 0.0, 0, True
    share = 1.0 / size
    b, weights = work[5][:m], work[0][:m]
    # Scores of 1e9 cost no digits: what is added to them is added to their differences.
    start = q[0]
    for j in range(m):
        start = max(start, q[j])
    place, own = 1, own_class(sets, y, 1)
    highest = -np.inf
    for j in range(m):
        b[j] = q[j] - start
        if j == own:
            place += 1
            own = own_class(sets, y, place)
            b[j] += c * share
        highest = max(highest, b[j])
    for j in range(m):
        b[j] -= highest
    entropic_level(b, 0, c, 1, work)
    total = weights.sum()
    place, own = 1, own_class(sets, y, 1)
    for j in range(m):
        out[j] = -weights[j] / total
        if j == own:
            place += 1
            own = own_class(sets, y, place)
            out[j] += share
    return 0.0, m - size, False


@jit
def multilabel_entropy(alpha: Float64Array, y: int, sets: Float64Array) -> float:
    """Return -<p, log p> of p = 1_Y / |Y| - alpha, which is -Phi*(-alpha) of the softmax loss."""
    size = own_count(sets, y)
    value = 0.0
    place, own = 1, own_class(sets, y, 1)
    for j in range(alpha.shape[0] if size > 0 else 0):
        p = -alpha[j]
        if j == own:
            place += 1
            own = own_class(sets, y, place)
            p += 1.0 / size
        if p > 0.0:
            value -= p * math.log(p)
    return value


@jit
def multilabel_softmax_row(
    s: Float64Array, y: int, sets: Float64Array, u: Float64Array, work: Float64Array
) -> tuple[float, float]:
    """Write u = -grad Phi of the softmax loss at s (m,), and give Phi and -Phi*(-u)."""
    m = s.shape[0]
    size = own_count(sets, y)
    if size == 0:
        u[:] = 0.0
        return 0.0, 0.0
    x, powers = work[0][:m], work[1][:m]
    highest = s[0]
    for j in range(m):
        highest = max(highest, s[j])
    for j in range(m):
        x[j] = s[j] - highest
    exp_of_row(x, u, powers)
    total = u.sum()
    level = math.log(total)
    mean = entropy = 0.0
    place, own = 1, own_class(sets, y, 1)
    for j in range(m):
        p = u[j] / total
        entropy += p * (level - x[j])
        u[j] = -p
        if j == own:
            place += 1
            own = own_class(sets, y, place)
            u[j] += 1.0 / size
            mean += x[j] / size
    return level - mean, entropy
