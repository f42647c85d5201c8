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
from topline.solvers.projections.entropic import entropic_level
from topline.solvers.projections.exponentials import exp_of_row
from topline.solvers.projections.ordering import select_largest
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


@jit
def bipartite_simplex(
    b: Float64Array,
    d: Float64Array,
    b_max: float,
    d_max: float,
    top: float,
    radius: float,
    x: Float64Array,
    z: Float64Array,
    scratch: Float64Array,
    index_x: Int64Array,
    index_z: Int64Array,
) -> bool:
    """Project on {x, z >= 0, sum x = sum z <= r}; return whether the cap r on the sum is active.

    min (1/2)|x - b|^2 + (1/2)|z - d|^2 (Lapin's thesis, eq. 6.24, prop. 6.19), written to x (like b) and z
    (like d).  Without the cap x = max(0, b - t), z = max(0, d + t), and t equalises the sums.  Over the
    variables that are not fixed at zero t = (sum b - sum d) / (number of both); if the x below zero lack less
    than the z below zero, the root lies to the left, so those z stay at zero, and else those x (erratum h9).
    If the common sum exceeds r, x and z are two separate projections on {sum = r}.

    b_max and d_max are the largest entries, and `top` is their sum.  Only the sum counts, not how it is
    shared: b and d may each be less a number of their own.  index_x and index_z are buffers of the lengths of
    b and d, scratch one of the longer length.
    """
    if top <= 0.0:
        x[:] = 0.0
        z[:] = 0.0
        return False
    shift_x, shift_z = _common_sum(b, d, b_max, d_max, top, index_x, index_z)
    for j in range(b.shape[0]):
        x[j] = max(0.0, (b[j] - b_max) + shift_x)
    for j in range(d.shape[0]):
        z[j] = max(0.0, (d[j] - d_max) + shift_z)
    if x.sum() <= radius and z.sum() <= radius:
        return False
    equality_knapsack(b, radius, 0.0, radius, x, scratch, index_x)
    equality_knapsack(d, radius, 0.0, radius, z, scratch, index_z)
    return True


@jit
def _common_sum(
    b: Float64Array,
    d: Float64Array,
    b_max: float,
    d_max: float,
    top: float,
    index_x: Int64Array,
    index_z: Int64Array,
) -> tuple[float, float]:
    """Return b_max - t and d_max + t at the t that equalises the sums.

    x and z of the largest values are these two numbers; counted from there, sums of 1e9 cost no digits.
    """
    n_x = b.shape[0]
    n_z = d.shape[0]
    for j in range(n_x):
        index_x[j] = j
    for j in range(n_z):
        index_z[j] = j
    while True:
        summed = 0.0
        for i in range(n_x):
            summed += b[index_x[i]] - b_max
        for i in range(n_z):
            summed -= d[index_z[i]] - d_max
        shift_x = (n_z * top - summed) / (n_x + n_z)
        shift_z = (n_x * top + summed) / (n_x + n_z)
        lack_x = _lack(b, b_max, shift_x, index_x, n_x)
        lack_z = _lack(d, d_max, shift_z, index_z, n_z)
        before = n_x + n_z
        if lack_x < lack_z:
            n_z = _keep(d, d_max, shift_z, index_z, n_z)
        elif lack_x > lack_z:
            n_x = _keep(b, b_max, shift_x, index_x, n_x)
        if n_x + n_z == before:
            return shift_x, shift_z


@jit
def _lack(values: Float64Array, origin: float, shift: float, index: Int64Array, n: int) -> float:
    """Return by how much the values below zero lie below it in all."""
    lack = 0.0
    for i in range(n):
        lack += max(0.0, (origin - values[index[i]]) - shift)
    return lack


@jit
def _keep(values: Float64Array, origin: float, shift: float, index: Int64Array, n: int) -> int:
    """Keep the values that are not below zero; the largest is always one of them."""
    kept = 0
    for i in range(n):
        v = values[index[i]]
        if v == origin or (v - origin) + shift >= 0.0:
            index[kept] = index[i]
            kept += 1
    return kept


@jit
def equality_knapsack(
    a: Float64Array,
    total: float,
    lower: float,
    upper: float,
    out: Float64Array,
    scratch: Float64Array,
    index: Int64Array,
) -> None:
    """Write the projection of a (m,) on {sum x = total, lower <= x_j <= upper} to `out`, by variable fixing.

    It has x_j = clip(a_j - T, lower, upper).  Over the variables I that are not fixed at a bound T solves
    sum_I (a_j - T) + (fixed sum) = total.  A T puts some variables below `lower` by `lack` in all and some
    above `upper` by `excess`; if lack > excess the final T is larger, so those below stay there for good, and
    else those above (K. C. Kiwiel, Variable fixing algorithms for the continuous quadratic knapsack problem,
    2008).  Each round fixes at least one variable: O(m) as a rule, O(m^2) at worst.

    Before the rounds every variable is fixed that no admissible T leaves free.  What remains lies within a
    few upper - lower of each other, so values of 1e9 beside bounds of 1e-9 do no harm.

    The set must not be empty.  `out` may not be `a`; scratch and index hold m entries.
    """
    m = a.shape[0]
    width = upper - lower
    # p variables at u and the others at l sum to at least the total, p - 1 to less: T lies in a_[p] - [l, u].
    p = 1
    if width > 0.0:
        p = min(max(math.ceil((total - m * lower) / width), 1), m)
    # Loops: what NumPy does at once is compiled with its messages about shapes, some seconds' worth.
    for j in range(m):
        scratch[j] = a[j]
    select_largest(scratch, m, p)
    pivot = scratch[0]
    for j in range(1, p):
        pivot = min(pivot, scratch[j])
    n = 0
    rest = total
    for j in range(m):
        if a[j] - pivot >= width and a[j] != pivot:
            out[j] = upper
            rest -= upper
        elif a[j] - pivot <= -width and a[j] != pivot:
            out[j] = lower
            rest -= lower
        else:
            index[n] = j
            n += 1
    _fix(a, rest, lower, upper, out, index, n)


@jit
def _fix(
    a: Float64Array,
    rest: float,
    lower: float,
    upper: float,
    out: Float64Array,
    index: Int64Array,
    n: int,
) -> None:
    """Solve for the n variables in `index`, which sum to `rest`."""
    while n > 0:
        # Deviations from one of the values keep the digits of x where |a| is far larger than u - l.
        origin = a[index[0]]
        summed = 0.0
        for i in range(n):
            summed += a[index[i]] - origin
        offset = (summed - rest) / n
        lack = 0.0
        excess = 0.0
        for i in range(n):
            x = (a[index[i]] - origin) - offset
            out[index[i]] = min(max(x, lower), upper)
            lack += max(lower - x, 0.0)
            excess += max(x - upper, 0.0)
        if lack == excess:
            break
        bound = lower if lack > excess else upper
        kept = 0
        for i in range(n):
            j = index[i]
            if out[j] == bound:
                rest -= bound
            else:
                index[kept] = j
                kept += 1
        if kept == n:
            break
        n = kept
