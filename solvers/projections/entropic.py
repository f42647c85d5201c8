"""Exact column updates of the entropies: softmax, the top-k entropy, and the softmax of label sets.

    min over x of (c/2)(|x|^2 + s^2) - <b, x> + <x, log x> + (1 - s) log(1 - s),
    s = sum x <= 1,  0 <= x_j <= s / k       (Lapin's thesis, prop. 6.3, 6.4 and 6.15 to 6.18).

k = 1 is softmax.  Let X(u) solve c x + log x = u (Lambert's W) and p = 1 - s.  For a multiplier t

    x_j = min(s / k, X(b_j - t)),   p = X(c - t - M / k),
    M = sum over the capped j of b_j - t - c s / k - log(s / k),

where s = s(t) is the positive root of s = sum_j min(s / k, X(b_j - t)): with u capped classes, which are the
u largest, s = k / (k - u) times the sum of X over the others.  Both s and p fall as t rises, so t is the root
of s + p = 1 in one dimension.  The thesis searches over the k possible u; here u follows from t in O(k).

So the own class is treated like another class, with b_y = c and no cap.  Whole rows are processed at once, in
loops that vectorise, in float64 or in float32: a step of Halley's method on log X takes one exp.

w = W(e^z) solves w + log w = z.  It is computed without forming e^z, for z from far below zero, where w =
e^z, to 1e9.
"""

from __future__ import annotations

import math

import numpy as np

from topline.solvers.jit_cache import borrowed, jit
from topline.solvers.projections.columns import ColumnProblem, column_function, largest_other, largest_values
from topline.solvers.projections.exponentials import LOWEST, LOWEST_32, exp_of_row, number_for
from topline.solvers.projections.simplex import largest
from topline.solvers.typing import Float64Array, FloatArray

# Below this, three terms of W(x) = x - x^2 + 3/2 x^3 - .. at x = e^z are exact to double precision.
_SERIES_BELOW = -13.0
# Below this W(e^z) = e^z: dividing it by c could only lose what exp(z - log c) still resolves.
_EXPONENTIAL_BELOW = -37.0
# Polynomial in (z - 8) / 12 for log W(e^z), z from -4 to 20, with an error of at most 0.009.
_FROM, _TO, _MIDDLE, _SCALE = -4.0, 20.0, 8.0, 1.0 / 12.0
_S0, _S1, _S2, _S3, _S4 = 1.81873, 1.68798, -1.11282, 0.72035, -1.36145
_S5, _S6, _S7, _S8 = 2.53931, -0.96451, -1.52077, 1.03633
_EPS, _EPS_32 = (float(np.finfo(dtype).eps) for dtype in (np.float64, np.float32))
#: Squared steps below which the next would be rounding.
_SETTLED, _SETTLED_32 = _EPS ** (2.0 / 3.0), _EPS_32 ** (2.0 / 3.0)
_MAX_STEPS = 200
#: Larger curvatures use float64: float32 resolves c x only to c times its rounding.
_MOST_SINGLE = 256.0
#: If float32 leaves s + p farther from 1, the scores exceed its precision.
_RIGHT = 1e-3
#: After larger changes of t the weights are no good start for the next ones.
_NEAR = 0.5
#: Classes of a vector, and the score of one without weight.
_LANES, _NO_WEIGHT = 16, -1e30


@column_function
def entropic_column(problem: ColumnProblem) -> tuple[float, int, bool]:
    """Solve it with k = len(rho), k = 1 for softmax; returns p = 1 - s first, to full relative precision."""
    problem = borrowed(problem)
    others, work = problem.q.shape[0] - 1, problem.work
    if problem.single and problem.c <= _MOST_SINGLE * temperature(problem.margins)[0]:
        total, p = _row(problem, work.view(np.float32))
        if abs(total - 1.0) <= _RIGHT:
            return p / total, others, False
    total, p = _row(problem, work)
    return p / total, others, False


@jit
def temperature(table: Float64Array) -> tuple[float, float]:
    """Return the temperature and the margin of an entropy with this table, 1 and 0 for an empty one."""
    return (table[0, 0], 1.0) if table.shape[0] else (1.0, 0.0)


@jit
def _row(problem: ColumnProblem, work: FloatArray) -> tuple[float, float]:
    """Solve in the precision of `work`; return s + p before normalisation of the row, and p."""
    q, y, m = problem.q, problem.y, len(problem.q)
    T, margin = temperature(problem.margins)
    sharp, c = 1.0 / T, problem.c / T
    # Whole vectors of classes: further ones have no weight.
    u = work[5][: m if work.itemsize == 8 else min(-(-m // _LANES) * _LANES, 2 * m)]
    # Scores count from the largest, so that 1e9 costs no digits.
    top = largest(q) if margin == 0.0 else largest_other(q, y)
    own, highest = q[y], max(((top - q[y]) + margin) * sharp, c)
    for j in range(m):
        u[j] = ((q[j] - own) + margin) * sharp - highest
    u[y] = c - highest
    u[m:] = _NO_WEIGHT
    cap, p = entropic_level(u, y, c, len(problem.rho), work)
    work[0, y] = 0.0
    return _normalise(work[0], cap, p, problem), p


@column_function
def exponential_column(problem: ColumnProblem) -> tuple[float, int, bool]:
    """Solve the problem of the sum of exponentials; returns S = sum x first.

        min over x >= 0 of (c/2)|x|^2 + (c_own/2) S^2 - <b, x> + <x, log x> - S,   b_j = q_j - q_y

    has x_j = X(b_j - t) with t = c_own S.  S(t) falls and is convex, so that Newton's method on
    log(c_own S(t)) = log t, nearly linear, is safe between bounds.
    """
    problem = borrowed(problem)
    q, y, c, out, m = problem.q, problem.y, problem.c, problem.out, len(problem.q)
    log_c = math.log(c) if c > 0.0 else -np.inf
    low, high, t = 0.0, np.inf, 0.0
    for _ in range(_MAX_STEPS):
        total = slope = 0.0
        for j in range(m):
            x = entropic_weight((q[j] - q[y]) - t, c, log_c) if j != y else 0.0
            out[j] = -x
            total += x
            slope -= x / (1.0 + c * x)
        out[y] = total
        goal = problem.c_own * total
        low, high = (t, high) if goal > t else (low, t)
        if abs(goal - t) <= 2.0 * _EPS * goal or high <= low * (1.0 + 2.0 * _EPS):
            break
        if t == 0.0:
            # Newton's step on c_own S(t) = t, which is left of the root.
            t, high = goal / (1.0 - problem.c_own * slope), goal
            continue
        following = t * math.exp(math.log(goal / t) / (1.0 - t * slope / total))
        t = following if low < following < high else 0.5 * (low + high)
    return out[y], m - 1, False


@jit(fastmath={"reassoc", "contract"})
def _normalise(x: FloatArray, cap: float, p: float, problem: ColumnProblem) -> float:
    """Write the row of weights x, 0 for the own class, capped and over their sum with p; return that sum."""
    out, total, mass = problem.out, p, 0.0
    for j in range(len(out)):
        total += min(cap, np.float64(x[j]))
    # Dividing by s + p = 1 + rounding keeps the row inside its domain.
    for j in range(len(out)):
        share = min(cap, np.float64(x[j])) * (1.0 / total)
        out[j] = -share
        mass += share
    out[problem.y] = mass
    return total


@jit
def entropic_level(u: FloatArray, y: int, c: float, k: int, work: FloatArray) -> tuple[float, float]:
    """Find the t at which s + p = 1 for u = b minus its largest entry, and return (s / k, p).

    Leaves X(u_j - t) in work[0]; with k = 1, where no class is capped, y only tells which of them is p.  `u`
    may lie in the fifth row of `work` or beyond.  The search starts left of the root and takes the step that
    would be exact if all classes with mass were equal.
    """
    m = len(u)
    x, logs = work[0][:m], work[1][:m]
    eps = _EPS if work.itemsize == 8 else _EPS_32
    settled = _SETTLED if work.itemsize == 8 else _SETTLED_32
    log_c = math.log(c) if c > 0.0 else -np.inf
    # At `low` the k-th class alone has s >= 1; at `high` no weight exceeds 1 / m.
    low, high, ties = -c, math.log(m) - c / m, 0
    t = low
    if k > 1:
        largest_values(u, m, k, y, work[3])
        ties = _find_top(u, y, k, work[3], work[4])
        low = np.float64(work[3, k - 1]) - c / k + math.log(k)
        t = min(max(low, np.float64(u[y]) - c), high)
    low, high = low - 1.0, high + 1.0
    entropic_start(u, t, log_c, logs)
    cap, p = np.inf, 0.0
    for _ in range(_MAX_STEPS):
        exp_of_row(logs, x)
        total, slope, change = entropic_step(u, t, c, x, logs)
        p = np.float64(x[y])
        if k > 1:
            cap, p, slope = _capped(u, y, c, log_c, k, t, ties, work)
            total = k * cap + p
        if change <= settled and abs(total - 1.0) <= 4.0 * eps * (1.0 + abs(t * slope)):
            break
        # Halley's step leaves a third-order error, so the root may be that far on the wrong side.
        if abs(total - 1.0) > change * math.sqrt(change):
            low, high = (t, high) if total > 1.0 else (low, t)
        following = np.nan
        if 0.0 < total < np.inf and slope < 0.0:
            # c x + log x is linear in t for each class, and for n equal ones with c total / n.
            alike = -total / slope - 1.0
            following = t + math.log(total) + alike * (total - 1.0) / total
        if not low < following < high:
            following = 0.5 * (low + high)
            if not low < following < high:
                break
        step = following - t
        t = following
        if abs(step) > _NEAR:
            entropic_start(u, t, log_c, logs)
            continue
        _follow(x, c, step, logs)
        if k == 1 and change <= settled and step * step <= eps:
            return cap, np.float64(x[y])
    return cap, p


@jit(fastmath={"reassoc", "contract"})
def _follow(x: FloatArray, c: float, step: float, logs: FloatArray) -> None:
    """Update weights x and their logarithms to first order for a step of t."""
    one, curvature, change = x.dtype.type(1.0), x.dtype.type(c), x.dtype.type(step)
    for j in range(len(x)):
        moved = change / (one + curvature * x[j])
        logs[j] -= moved
        x[j] *= one - moved


@jit
def _find_top(u: FloatArray, y: int, k: int, top: FloatArray, places: FloatArray) -> int:
    """Write the positions of the k largest u_j; return how many more equal the last of them."""
    found = 0
    for i in range(k):
        places[i] = y
    last = top[k - 1]
    for j in range(u.shape[0]):
        if u[j] >= last and j != y:
            found += 1
            for i in range(k):
                if top[i] == u[j]:
                    places[i] = j
    return found - k


@jit
def _capped(
    u: FloatArray, y: int, c: float, log_c: float, k: int, t: float, ties: int, work: FloatArray
) -> tuple[float, float, float]:
    """Return s(t) / k, p(t) and the slope of s + p, for the weights X(u_j - t) in work[0].

    work[3] holds the k largest u_j and work[4] their positions; `ties` further ones equal the last.
    """
    x, top = work[0][: len(u)], work[3]
    p: float = np.float64(x[y])
    x[y] = 0.0
    tail, tail_slope = _tail(u, top[k - 1], c, x)
    x[y] = p
    # The k-th class is never capped; its ties outside the first k belong to the rest.
    weight = np.float64(x[int(work[4, k - 1])])
    tail += (1 + ties) * weight
    tail_slope -= (1 + ties) * weight / (1.0 + c * weight)
    capped = k - 1
    while capped > 0 and x[int(work[4, capped - 1])] * (k - capped) <= tail:
        capped -= 1
        weight = np.float64(x[int(work[4, capped])])
        tail += weight
        tail_slope -= weight / (1.0 + c * weight)
    cap = tail / (k - capped)
    if not cap < np.inf:
        return np.inf, 0.0, np.nan
    slope = tail_slope * k / (k - capped)
    if capped == 0:
        return cap, p, slope - p / (1.0 + c * p)
    # If s underflows, p is 1, and the exponent of the k-th class tells where that begins.
    level = c * cap + math.log(cap) if cap > 0.0 else (top[k - 1] - t) - math.log(k - capped)
    shift = 0.0
    for i in range(capped):
        shift += (np.float64(top[i]) - t) - level
    relative = tail_slope / tail if tail > 0.0 else -1.0
    shift_slope = 1.0 - capped / k * (1.0 + c * slope / k + relative)
    p = entropic_weight((np.float64(u[y]) - t) - shift / k, c, log_c)
    return cap, p, slope - p / (1.0 + c * p) * shift_slope


@jit(fastmath={"reassoc", "contract"})
def _tail(u: FloatArray, last: float, c: float, x: FloatArray) -> tuple[float, float]:
    """Return the sum of the weights of classes below `last`, and its slope."""
    zero, one, curvature = x.dtype.type(0.0), x.dtype.type(1.0), x.dtype.type(c)
    tail = zero
    slope = zero
    for j in range(len(u)):
        weight = x[j] if u[j] < last else zero
        tail += weight
        slope -= weight / (one + curvature * weight)
    return np.float64(tail), np.float64(slope)


@jit
def lambert_exp(z: float) -> float:
    """Return W(e^z) for any finite z, with a relative error below 1e-14.

    Two steps of Fritsch, Shafer and Crowley's iteration (order four) from a rough start (Lapin's thesis,
    prop. 6.15, calls the function V).
    """
    if z > 1.0:
        w = z - math.log(z)
    elif z > -1.0:
        # Taylor at z = 1, where W(e) = 1.
        w = 1.0 + (z - 1.0) * (0.5 + (z - 1.0) * (0.0625 - (z - 1.0) * 0.0052083))
    else:
        e = math.exp(z)
        w = e * (1.0 - e * (1.0 - 1.5 * e))
        if z < _SERIES_BELOW:
            return w
    for _ in range(2):
        r = (z - w) - math.log(w)
        q = 2.0 * (1.0 + w) * (1.0 + w + r * (2.0 / 3.0))
        w *= 1.0 + r / (1.0 + w) * (q - r) / (q - 2.0 * r)
    return w


@jit
def entropic_weight(u: float, c: float, log_c: float) -> float:
    """Return x > 0 with c x + log x = u; log_c = log c, and c = 0 gives exp(u)."""
    if c == 0.0 or u + log_c < _EXPONENTIAL_BELOW:
        return math.exp(u)
    return lambert_exp(u + log_c) / c


@jit(fastmath={"reassoc", "contract"})
def entropic_start(u: FloatArray, t: float, log_c: float, logs: FloatArray) -> None:
    """Write log X, where c X + log X = u - t, to logs (m,), to within 0.02."""
    number = u.dtype.type
    s0, s1, s2, s3, s4 = number(_S0), number(_S1), number(_S2), number(_S3), number(_S4)
    s5, s6, s7, s8 = number(_S5), number(_S6), number(_S7), number(_S8)
    level, log, least = number(t), number(log_c), number(_FROM)
    middle, scale = number(_MIDDLE), number(_SCALE)
    for j in range(len(u)):
        v = u[j] - level
        z = ((v + log) - middle) * scale
        low = s0 + z * (s1 + z * (s2 + z * (s3 + z * s4)))
        near = low + z * z * z * z * z * (s5 + z * (s6 + z * (s7 + z * s8))) - log
        logs[j] = near if v + log > least else v
    if log_c - t > _TO:
        for j in range(len(u)):
            z = (u[j] - level) + log
            if z > _TO:
                logs[j] = math.log(z - math.log(z)) - log_c


@jit(fastmath={"reassoc", "contract"})
def entropic_step(
    u: FloatArray, t: float, c: float, x: FloatArray, logs: FloatArray
) -> tuple[float, float, float]:
    """Take a step of Halley's method on v = log x, v + c e^v = u - t, from x and logs = log x, each (m,).

    Returns sum x, its slope in t, and the sum of squared steps; below exp(-708) (float32: exp(-87)) x is 0.
    """
    number = u.dtype.type
    zero, half, one = number(0.0), number(0.5), number(1.0)
    level, curvature, lowest = number(t), number(c), number_for(x, LOWEST, LOWEST_32)
    total = zero
    slope = zero
    moved = zero
    for j in range(len(u)):
        w = curvature * x[j]
        flat = one / (one + w)
        newton = (((u[j] - level) - logs[j]) - w) * flat
        # This order of operations cannot overflow.
        step = newton / (one + half * newton * (w * flat))
        logs[j] += step
        x[j] = x[j] * (one + step * (one + half * step)) if logs[j] > lowest else zero
        total += x[j]
        slope -= x[j] / (one + curvature * x[j])
        moved += step * step
    return np.float64(total), np.float64(slope), np.float64(moved)
