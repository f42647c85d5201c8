"""Isotonic regression by pooling adjacent violators, and the projections made of it.

Values b_(1) >= b_(2) >= .. are paired with weights rho that are non-increasing and end in zeros.  A block is
a run of neighbours that share one value v = mean(b - c t rho); the projection on the permutahedron t P(rho)
is then beta = (b - v) / c (mathematics: weighted top-k, weighted Usunier).  A block keeps the deviations of
its b from its own first element.  Values of 1e9 therefore cost no digits where neighbours differ by less
than c: the mass inside a block is exact to rounding of the mass itself.

The biased projection on {x in t P(rho), 0 <= t <= t_max} is the top-k cone, the top-k simplex and their
weighted forms:

    min over x of (c/2)|x|^2 + (c_S/2) S^2 - <b, x>,   S = sum x = t R,   R = sum rho.

For fixed t the minimiser is x = (b - v) / c with v the isotonic regression of sorted b - c t rho, and the
derivative of the minimum in t is -H(t), H(t) = sum_j rho_j v_[j] - c_S R^2 t.  With rho = 1/k on k ranks
t_max = inf gives the top-k cone {0 <= x_j <= S/k}, and t_max = r its cut S <= r, the top-k simplex alpha
(Lapin, Hein, Schiele, NIPS 2015, and Lapin's thesis, definition 5.2), where c_S = 0 is the plain and c_S > 0
the biased projection.  In a column problem these are the other classes only: the own class does not take part
in the sort.

The weighted Usunier hinge takes one isotonic regression and one biased knapsack:

    min over x >= 0, weakly submajorised by rho_1..rho_{m-1}, of (c/2)|x|^2 + (c_y/2) S^2 - <b, x>,  S = sum
    x.

The multiplier T = c_y S of the second term only shifts b, and isotonic regression commutes with shifts.  With
v = the regression of sorted b - c rho over the m - 1 other classes the solution is
x_j = max(0, b_j - max(T, v_j)) / c, and T >= 0 is the root of (c_y/c) sum_j max(0, b_j - max(T, v_j)) = T.
As max(0, b_j - max(T, v_j)) = b_j - max(v_j, min(T, b_j)), this is the search for T below, w+ = v and w- = b.

The weighted top-k hinge projects on conv({0} u P(rho)), with the own class in the sort:

    min over beta in t P(rho), 0 <= t <= 1, of (c/2)(|x|^2 + S^2) - <b, x>,   x = beta without the own class
    y, S = sum x,   b_j = delta_j + q_j - q_y.

Keeping beta_y and writing S = t R - beta_y with R = sum rho makes it, for fixed t, the Euclidean projection
of p_j = b_j / c, p_y = t R on the permutahedron t P(rho): one isotonic regression v (in units of b here).
The derivative of the minimum in t is -H(t), H(t) = sum_j rho_j v_[j] - R v_y, non-increasing and piecewise
linear.  So t = 0 if H(0) <= 0, t = 1 if H(1) >= 0, and else t is the root of H: Newton's method on the
pieces, bisection as a safeguard.

Where only the other classes are smoothed (Lapin's thesis, prop. 6.2: c = c_y + gamma) the own class has
another curvature,

    min over beta in t P(rho), 0 <= t <= 1, of (c/2)|x|^2 + (c_y/2) S^2 - <b, x>.

Let T = c_y S be the level of the own class.  Classes above that level take the ranks from 1 on, classes below
it the ranks after the own class's, and those between share its value: with w+ and w- the isotonic regressions
of the sorted b - c t rho_1.. and b - c t rho_2.., the common solution is v_j = max(w+_j, min(T, w-_j)).  Then
S(T) = sum (b_j - v_j) / c is non-increasing, so T = c_y S(T) has one root between two breakpoints, and t
follows from H(t) = sum_j rho_j (v_[j] - T).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from topline.solvers.jit_cache import borrowed, jit
from topline.solvers.projections.columns import (
    ColumnProblem,
    column_function,
    few_largest,
    largest_other,
    mass_threshold,
    sorted_candidates,
    violations,
)
from topline.solvers.typing import Float64Array, Int64Array

# Each piece of H is normally visited once; bisection, if needed, ends after 64 halvings.
MAX_EVALUATIONS = 100
_EPS = float(np.finfo(np.float64).eps)


class Blocks(NamedTuple):
    """Sorted values (n,) and their blocks, given by start, deviation and mass.

    Block k covers start[k] <= i < start[k + 1], with deviation[k] = sum_i (b_i - b_start[k]) and mass[k] =
    sum_i rho_i.  Elements after the last block are blocks of one with weight 0, and keep their b.
    """

    values: Float64Array
    start: Int64Array
    deviation: Float64Array
    mass: Float64Array


@jit
def pool_blocks(blocks: Blocks, n: int, rho: Float64Array, ct: float) -> int:
    """Pool values[:n] - ct rho into blocks of non-increasing value; return their number, `count`.

    start[count] is the end of the last one.
    """
    b, start, deviation, mass = blocks
    ranks = rho.shape[0]
    count = 0
    end = 0
    for i in range(n):
        d = 0.0
        r = rho[i] if i < ranks else 0.0
        first = i
        while count > 0:
            p = start[count - 1]
            n_p = first - p
            n_i = i + 1 - first
            rise = (d - ct * r) / n_i - (deviation[count - 1] - ct * mass[count - 1]) / n_p
            if rise <= b[p] - b[first]:
                break
            d += deviation[count - 1] + n_i * (b[first] - b[p])
            r += mass[count - 1]
            first = p
            count -= 1
        if i >= ranks and first == i:
            # With no weights left, this element lies below the block before it, and so do all later ones.
            break
        start[count] = first
        deviation[count] = d
        mass[count] = r
        count += 1
        end = i + 1
    start[count] = end
    return count


@jit
def block_value(blocks: Blocks, k: int, ct: float) -> float:
    """Return the value v = mean(b - ct rho) of block k."""
    b, start, deviation, mass = blocks
    value: float = b[start[k]] + (deviation[k] - ct * mass[k]) / (start[k + 1] - start[k])
    return value


@jit
def block_base(blocks: Blocks, k: int, t: float, c: float) -> float:
    """Return beta of the first element of block k: beta_i = base + (b_i - b_start) / c for the others.

    A block of one gives t rho without a division, so c = 0 (a vertex) needs no case of its own.
    """
    length = blocks.start[k + 1] - blocks.start[k]
    base: float = t * blocks.mass[k]
    if length > 1:
        base = (base - blocks.deviation[k] / c) / length
    return base


@jit
def write_blocks(
    blocks: Blocks, between: tuple[int, int, int], index: Int64Array, c: float, t: float, skip: int,
    out: Float64Array,
) -> tuple[float, int, bool]:  # fmt: skip
    """Write -x for the first blocks, `between` = (count, low, high), that start within [low, high) to `out`.

    Skips the coordinate `skip`.  Returns the sum of x, the number of positive entries, and whether each of
    these blocks is a single element.
    """
    values, start = blocks.values, blocks.start
    count, low, high = between
    s = 0.0
    support = 0
    apart = True
    for k in range(count):
        first = start[k]
        if first < low or first >= high:
            continue
        base = block_base(blocks, k, t, c)
        apart = apart and start[k + 1] - first == 1
        for i in range(first, start[k + 1]):
            x = base
            if i > first:
                x += (values[i] - values[first]) / c
            if x > 0.0 and index[i] != skip:
                out[index[i]] = -x
                s += x
                support += 1
    return s, support, apart


@jit
def next_scale(
    t: float, h: float, slope: float, tolerance: float, low: float, high: float, limit: float
) -> tuple[float, float, float, bool]:
    """Return the next t, the bracket, and whether to continue.

    h = H(t) is non-increasing and piecewise linear with the given slope on the piece of t. (low, high)
    brackets the root, with high = inf at first; limit is the largest t allowed.
    """
    if abs(h) <= tolerance or (h > 0.0 and t >= limit):
        return t, low, high, False
    if h > 0.0:
        low = t
    else:
        high = t
    newton = min(t - h / slope, limit) if slope < 0.0 else -np.inf
    if not low < newton < high:
        newton = 0.5 * (low + min(high, limit))
        if not low < newton < high:
            return t, low, high, False
    return newton, low, high, True


@jit
def scaled_permutahedron(
    problem: ColumnProblem, b: Float64Array, c_sum: float, t_max: float
) -> tuple[float, int, bool]:
    """Write -x to `out` and, if there is an own class (not projected), S to its entry.

    `b` (m,) may lie in the row of `violations`; `c_sum` is the curvature of S^2, `t_max` > 0 the largest
    scale, finite if all curvature is 0.  There are at least as many other classes as ranks.

    Returns (t, number of coordinates with mass, whether x is a vertex: 0 or a permutation of t_max rho).
    """
    problem = borrowed(problem)
    skip, c, rho, out, work = problem.y, problem.c, problem.rho, problem.out, problem.work
    index = problem.index_work[0]
    blocks = Blocks(work[0], problem.index_work[1], work[1], work[2])
    m = b.shape[0]
    out[:] = 0.0
    top = largest_other(b, skip)
    if not top > 0.0:
        return 0.0, 0, True
    total = rho.sum()
    # The optimum satisfies c |x|^2 + c_S S^2 <= <b, x> <= top S, and |x|^2 >= S^2 / m.
    limit = t_max
    if top < (c / m + c_sum) * total * t_max:
        limit = min(t_max, top / ((c / m + c_sum) * total) * (1.0 + 4.0 * _EPS))
    theta = mass_threshold(b, m, skip, c * limit, rho, work[3])
    n = sorted_candidates(b, skip, theta, problem)
    ranks = min(rho.shape[0], n)
    if rho[:ranks] @ work[0, :ranks] <= 0.0:
        return 0.0, 0, True
    t = limit
    low = 0.0
    high = np.inf
    count = 0
    for _ in range(MAX_EVALUATIONS):
        count = pool_blocks(blocks, n, rho, c * t)
        h = -c_sum * total * total * t
        slope = -c_sum * total * total
        scale = -h
        for k in range(count):
            v, mass = block_value(blocks, k, c * t), blocks.mass[k]
            h += mass * v
            scale += mass * (abs(v) + c * t * mass)
            slope -= c * mass * mass / (blocks.start[k + 1] - blocks.start[k])
        t, low, high, moved = next_scale(t, h, slope, 8.0 * _EPS * scale, low, high, limit)
        if not moved:
            break
    s, support, apart = write_blocks(blocks, (count, 0, n), index, c, t, -1, out)
    if skip >= 0:
        out[skip] = s
    return t, support, apart and t == t_max


@column_function
def wtopk_others_column(problem: ColumnProblem) -> tuple[float, int, bool]:
    """Solve the problem of the weighted top-k hinge over the other classes only; L <= m - 1."""
    return scaled_permutahedron(problem, violations(problem), problem.c_own, 1.0)


@column_function
def wusunier_column(problem: ColumnProblem) -> tuple[float, int, bool]:
    """Solve it, with c_own = c for the Moreau envelope; returns S = sum x first."""
    problem = borrowed(problem)
    y, c, c_own, rho = problem.y, problem.c, problem.c_own, problem.rho
    out, work, index = problem.out, problem.work, problem.index_work[0]
    values = work[0]
    b = violations(problem)
    m = b.shape[0]
    out[:] = 0.0
    top = largest_other(b, y)
    if not top > 0.0:
        return 0.0, 0, True
    # S is at least what the first class alone would take; classes below T = c_y S have no mass.
    theta = c_own * min(rho[0], top / (c + c_own)) * (1.0 - 4.0 * _EPS) if c_own > 0.0 else 0.0
    theta = max(theta, mass_threshold(b, m, y, c, rho, work[3]))
    n = sorted_candidates(b, y, theta, problem)
    blocks = Blocks(values, problem.index_work[1], work[1], work[2])
    parts, counts = (blocks, blocks), (pool_blocks(blocks, n, rho, c), 0)
    own = _own_level(parts, counts, n, c, c_own / c if c > 0.0 else 0.0)
    out[y], support, vertex = _write_around(parts, counts, own, index, c, 1.0, out)
    return out[y], support, vertex


@column_function
def wtopk_column(problem: ColumnProblem) -> tuple[float, int, bool]:
    """Solve it for any c_own; returns t first.  Both algorithms are compiled."""
    if problem.c_own == problem.c:
        return _one_curvature(problem)
    return _two_curvatures(problem)


@column_function
def wtopk_alike_column(problem: ColumnProblem) -> tuple[float, int, bool]:
    """Solve it for c_own = c, the Moreau envelope."""
    return _one_curvature(problem)


@jit
def _one_curvature(problem: ColumnProblem) -> tuple[float, int, bool]:
    problem = borrowed(problem)
    y, c, rho, out, work = problem.y, problem.c, problem.rho, problem.out, problem.work
    values, index = work[0], problem.index_work[0]
    blocks = Blocks(values, problem.index_work[1], work[1], work[2])
    b = violations(problem)
    m = b.shape[0]
    out[:] = 0.0
    top = largest_other(b, y)
    if not top > 0.0:
        return 0.0, 0, True
    total = rho.sum()
    # S >= t rest, and the optimum has c S^2 <= <b, x> <= top S.
    rest = total - rho[0]
    limit = 1.0 if c * rest <= top else min(1.0, top / (c * rest) * (1.0 + 4.0 * _EPS))
    theta = mass_threshold(b, m, y, c * limit, rho, work[3])
    reached = few_largest(b, m, y, theta, rho.shape[0], work[3])
    n = sorted_candidates(b, y, reached, problem)
    if loss_of_sorted(values, n, rho) <= 0.0:
        return 0.0, 0, True
    at = n
    index[n] = y
    t = limit
    low = 0.0
    high = np.inf
    count = 0
    for _ in range(MAX_EVALUATIONS):
        at = _place_own_class(values, index, n + 1, at, c * t * total)
        count = pool_blocks(blocks, n + 1, rho, c * t)
        if blocks.start[count] >= n and reached > theta:
            # The last block may continue.
            reached = theta
            n = sorted_candidates(b, y, theta, problem)
            index[n] = y
            at = _place_own_class(values, index, n + 1, n, c * t * total)
            count = pool_blocks(blocks, n + 1, rho, c * t)
        h, slope, scale = _derivative(blocks, count, at, c, t, total)
        t, low, high, moved = next_scale(t, h, slope, 8.0 * _EPS * scale, low, high, 1.0)
        if not moved:
            break
    out[y], support, vertex = write_blocks(blocks, (count, 0, n + 1), index, c, t, y, out)
    return t, support, vertex and t == 1.0


@jit
def loss_of_sorted(values: Float64Array, n: int, rho: Float64Array) -> float:
    """Return H(0) = sum_j rho_j a_[j] for the sorted values with the own class's 0 inserted."""
    total = 0.0
    i = 0
    own = False
    for k in range(rho.shape[0]):
        if i < n and (values[i] > 0.0 or own):
            total += rho[k] * values[i]
            i += 1
        else:
            own = True
    return total


@jit
def _place_own_class(values: Float64Array, index: Int64Array, n: int, at: int, value: float) -> int:
    """Move the own class from position `at` among n sorted values to where `value` belongs."""
    own = index[at]
    while at > 0 and values[at - 1] < value:
        values[at] = values[at - 1]
        index[at] = index[at - 1]
        at -= 1
    while at < n - 1 and values[at + 1] > value:
        values[at] = values[at + 1]
        index[at] = index[at + 1]
        at += 1
    values[at] = value
    index[at] = own
    return at


@jit
def _derivative(
    blocks: Blocks, count: int, at: int, c: float, t: float, total: float
) -> tuple[float, float, float]:
    """Return H(t), its slope on the current piece, and the magnitude of the terms of H."""
    start, mass = blocks.start, blocks.mass
    own = -1
    v_own = blocks.values[at]
    if at < start[count]:
        low = 0
        high = count - 1
        while low < high:
            middle = (low + high + 1) // 2
            if start[middle] <= at:
                low = middle
            else:
                high = middle - 1
        own = low
        v_own = block_value(blocks, own, c * t)
    h = 0.0
    curvature = total * total if own < 0 else (total - mass[own]) ** 2 / (start[own + 1] - start[own])
    scale = c * t * total * total
    for k in range(count):
        if k == own:
            continue
        v = block_value(blocks, k, c * t)
        h += mass[k] * (v - v_own)
        scale += mass[k] * (abs(v) + abs(v_own))
        curvature += mass[k] * mass[k] / (start[k + 1] - start[k])
    return h, -c * curvature, scale


@jit
def _two_curvatures(problem: ColumnProblem) -> tuple[float, int, bool]:
    problem = borrowed(problem)
    y, c, rho, out, work = problem.y, problem.c, problem.rho, problem.out, problem.work
    values, index = work[0], problem.index_work[0]
    b = violations(problem)
    m = b.shape[0]
    out[:] = 0.0
    top = largest_other(b, y)
    if not top > 0.0:
        return 0.0, 0, True
    theta = mass_threshold(b, m, y, c, rho, work[3])
    n = sorted_candidates(b, y, theta, problem)
    if loss_of_sorted(values, n, rho) <= 0.0:
        return 0.0, 0, True
    plus = Blocks(values, problem.index_work[1], work[1], work[2])
    minus = Blocks(values, problem.index_work[2], work[3], work[4])
    ratio = problem.c_own / c
    t = 1.0
    low = 0.0
    high = np.inf
    counts, own = (0, 0), (0.0, 0, 0)
    for _ in range(MAX_EVALUATIONS):
        counts = pool_blocks(plus, n, rho, c * t), pool_blocks(minus, n, rho[1:], c * t)
        own = _own_level((plus, minus), counts, n, c * t, ratio)
        h, slope, scale = _derivative_at_level((plus, minus), counts, c, t, ratio, own)
        t, low, high, moved = next_scale(t, h, slope, 16.0 * _EPS * scale, low, high, 1.0)
        if not moved:
            break
    out[y], support, apart = _write_around((plus, minus), counts, own, index, c, t, out)
    return t, support, apart and t == 1.0


@jit
def _write_around(
    parts: tuple[Blocks, Blocks], counts: tuple[int, int], own: tuple[float, int, int], index: Int64Array,
    c: float, t: float, out: Float64Array,
) -> tuple[float, int, bool]:  # fmt: skip
    """Write -x of the classes above, at and below the level `own`; returns as `write_blocks`."""
    values, (level, above, upto) = parts[0].values, own
    s, support, apart = 0.0, 0, above == upto
    for i in range(above, upto):
        x = max(0.0, (values[i] - level) / c)
        out[index[i]] = -x
        s += x
        support += x > 0.0
    for part, between in ((parts[0], (counts[0], 0, above)), (parts[1], (counts[1], upto, len(values)))):
        total, number, alone = write_blocks(part, between, index, c, t, -1, out)
        s += total
        support += number
        apart = apart and alone
    return s, support, apart


@jit
def _own_level(
    parts: tuple[Blocks, Blocks], counts: tuple[int, int], n: int, ct: float, ratio: float
) -> tuple[float, int, int]:
    """Solve T = c_y S(T): return T, the number of classes above it and the end of those at its level.

    S falls and is piecewise linear: Newton's method, between bounds, from the largest possible T.
    """
    values = parts[0].values
    low, high = 0.0, ratio * ct * (parts[0].mass[: counts[0]].sum() + parts[1].mass[: counts[1]].sum())
    level = high
    while True:
        above, fixed, _ = _reaching(parts[0], counts[0], n, ct, level, 0)
        upto, _, left = _reaching(parts[1], counts[1], n, ct, level, above)
        middle = 0.0
        for i in range(above, upto):
            middle += values[i]
        found = max(0.0, ratio * (ct * (fixed + left) + middle) / (1.0 + ratio * (upto - above)))
        low, high = (level, high) if found > level else (low, level)
        if abs(found - level) <= 4.0 * _EPS * level or not low < 0.5 * (low + high) < high:
            return found, above, upto
        level = found if low < found < high else 0.5 * (low + high)


@jit
def _reaching(
    blocks: Blocks, count: int, n: int, ct: float, level: float, least: int
) -> tuple[int, float, float]:
    """Return the end (>= least) of the positive blocks that reach a level, and the mass before and after it.

    After the last block each element is one of its own, without mass.
    """
    values, mass = blocks.values, blocks.mass
    end, k = 0, 0
    while k < count and (end < least or (values[end] > 0.0 and block_value(blocks, k, ct) >= level)):
        end, k = blocks.start[k + 1], k + 1
    while k == count and end < n and (end < least or (values[end] > 0.0 and values[end] >= level)):
        end += 1
    return end, mass[:k].sum(), mass[k:count].sum()


@jit
def _derivative_at_level(
    parts: tuple[Blocks, Blocks], counts: tuple[int, int], c: float, t: float, ratio: float,
    own: tuple[float, int, int],
) -> tuple[float, float, float]:  # fmt: skip
    """Return H(t), its slope on the current piece, and the size of the terms; `own` is from `_own_level`."""
    level, above, upto = own
    h = 0.0
    curvature = 0.0
    scale = 0.0
    fixed = 0.0
    for blocks, count, low, high in (
        (parts[0], counts[0], 0, above),
        (parts[1], counts[1], upto, len(parts[0].values)),
    ):
        start = blocks.start
        for k in range(count):
            if start[k] < low or start[k] >= high:
                continue
            r = blocks.mass[k]
            v = block_value(blocks, k, c * t)
            h += r * (v - level)
            scale += r * (abs(v) + level + c * t * r)
            curvature += r * r / (start[k + 1] - start[k])
            fixed += r
    curvature += ratio * fixed * fixed / (1.0 + ratio * (upto - above))
    return h, -c * curvature, scale
