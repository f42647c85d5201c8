"""Exact column update of softmax and of the top-k entropy loss.

    min over x of (c/2)(|x|^2 + s^2) - <b, x> + <x, log x> + (1 - s) log(1 - s),
    s = sum x <= 1,  0 <= x_j <= s / k       (Lapin's thesis, prop. 6.3, 6.4 and 6.15 to 6.18).

k = 1 is softmax.  Let X(u) solve c x + log x = u (Lambert's W) and p = 1 - s.  For a multiplier t

    x_j = min(s / k, X(b_j - t)),   p = X(c - t - M / k),
    M = sum over the capped j of b_j - t - c s / k - log(s / k),

where s = s(t) is the positive root of s = sum_j min(s / k, X(b_j - t)): with u capped classes, which are the
u largest, s = k / (k - u) times the sum of X over the others.  Both s and p fall as t rises, so t is the root
of s + p = 1 in one dimension.  The thesis searches over the k possible u; here u follows from t in O(k).
"""

from __future__ import annotations

import math

import numpy as np

from topline.solvers.jit_cache import jit
from topline.solvers.projections.exponentials import entropic_weight, entropic_weights
from topline.solvers.projections.ordering import largest_values
from topline.solvers.typing import Float64Array

_EPS = float(np.finfo(np.float64).eps)
_MAX_STEPS = 200


@jit
def entropic_column(
    b: Float64Array,
    y: int,
    c: float,
    k: int,
    out: Float64Array,
    work: Float64Array,
    t_guess: float,
) -> tuple[float, float]:
    """Write the optimal dual row alpha of one example to `out`.

    Parameters
    ----------
    b : (m,) q_j - q_y; b[y] is ignored.
    y : own class.
    c : curvature K_ii / (lambda n) + gamma >= 0; 0 gives -gradient of the loss at q.
    k : 1 for softmax; at most m - 1.
    out : (m,) receives alpha_j = -x_j and alpha_y = s.
    work : the float buffer of `column_workspace`; `b` may not lie in it.
    t_guess : t of an earlier call for this example, or NaN.

    Returns
    -------
    (t less the largest b_j, p = 1 - s to full relative precision).
    """
    m = b.shape[0]
    weights = work[0]
    top = work[1]
    largest_values(b, m, k, y, top)
    ties = _find_top(b, y, k, top, work[6])
    log_c = math.log(c) if c > 0.0 else 0.0
    # t counts from the largest b: scores of 1e9 cost no digits.  At `low` the k-th class alone has s >= 1; at
    # `high` no weight exceeds 1 / m.
    low = (top[k - 1] - top[0]) - c / k + math.log(k)
    high = max(0.0, c - top[0]) - c / m + math.log(m)
    t = t_guess if low < t_guess < high else high
    s = p = step = 0.0
    for _ in range(_MAX_STEPS):
        s, p, slope = _masses(b, m, y, c, log_c, k, t, weights, top, ties, work)
        total = s + p
        if abs(total - 1.0) <= 4.0 * _EPS * (1.0 + abs(t * slope)):
            break
        if total > 1.0:
            low = t
        else:
            high = t
        newton = t - math.log(total) * total / slope if 0.0 < total < np.inf and slope < 0.0 else np.nan
        # Where s takes over from p the steps could go to and fro for ever.
        if not low < newton < high or (newton - t) * step < -0.5 * step * step:
            newton = 0.5 * (low + high)
            if not low < newton < high:
                break
        step = newton - t
        t = newton
    # Dividing by s + p = 1 + rounding keeps the row inside its set.
    total = s + p
    mass = 0.0
    for j in range(m):
        if j != y:
            x = min(s / k, weights[j]) / total
            out[j] = -x
            mass += x
    out[y] = mass
    return t, p / total


@jit
def _find_top(b: Float64Array, y: int, k: int, top: Float64Array, places: Float64Array) -> int:
    """Write where the k largest b_j lie, and return how many more equal the last of them."""
    found = 0
    for i in range(k):
        places[i] = y
    for j in range(b.shape[0]):
        if b[j] >= top[k - 1] and j != y:
            found += 1
            for i in range(k):
                if top[i] == b[j]:
                    places[i] = j
    return found - k


@jit(fastmath={"reassoc", "contract"})
def _tail(b: Float64Array, last: float, c: float, weights: Float64Array) -> tuple[float, float]:
    """Return the sum of the weights of what lies below `last`, and its slope."""
    tail = slope = 0.0
    for j in range(b.shape[0]):
        x = weights[j] if b[j] < last else 0.0
        tail += x
        slope -= x / (1.0 + c * x)
    return tail, slope


@jit
def _masses(
    b: Float64Array,
    m: int,
    y: int,
    c: float,
    log_c: float,
    k: int,
    t: float,
    weights: Float64Array,
    top: Float64Array,
    ties: int,
    work: Float64Array,
) -> tuple[float, float, float]:
    """Return s(t), p(t) and the slope of s + p, leaving X(b_j - t) in `weights`.

    work[6] says where the k largest lie, which `ties` further ones equal.
    """
    top_weights = work[2]
    entropic_weights(b, top[0], t, c, log_c, weights[:m], work[3][:m], work[4][:m])
    last = top[k - 1]
    for i in range(k):
        top_weights[i] = weights[int(work[6, i])]
    weights[y] = 0.0
    tail, tail_slope = _tail(b, last, c, weights)
    x = top_weights[k - 1]
    # The k-th class is never capped; ties with it that are not among the first k belong to the rest.
    tail += (1 + ties) * x
    tail_slope -= (1 + ties) * x / (1.0 + c * x)
    capped = k - 1
    while capped > 0 and top_weights[capped - 1] * (k - capped) <= tail:
        capped -= 1
        x = top_weights[capped]
        tail += x
        tail_slope -= x / (1.0 + c * x)
    s = tail * k / (k - capped)
    if not s < np.inf:
        return np.inf, 0.0, np.nan
    s_slope = tail_slope * k / (k - capped)
    shift = 0.0
    shift_slope = 1.0
    if capped > 0:
        cap = s / k
        # Where s underflows p is 1, and the exponent of the k-th class tells where that begins.
        floor = (last - top[0]) - t - math.log(k - capped)
        level = c * cap + math.log(cap) if cap > 0.0 else floor
        for i in range(capped):
            shift += ((top[i] - top[0]) - t) - level
        shift /= k
        relative = tail_slope / tail if tail > 0.0 else -1.0
        shift_slope -= capped / k * (1.0 + c * s_slope / k + relative)
    p = entropic_weight((c - top[0]) - t - shift, c, log_c)
    return s, p, s_slope - p / (1.0 + c * p) * shift_slope
