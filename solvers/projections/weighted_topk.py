"""Exact column update of the weighted top-k hinge: projection on conv({0} u P(rho)), own class in the sort.

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
from topline.solvers.projections.isotonic import (
    MAX_EVALUATIONS,
    Blocks,
    block_value,
    next_scale,
    pool_blocks,
    write_blocks,
)
from topline.solvers.typing import Float64Array, Int64Array

_EPS = float(np.finfo(np.float64).eps)


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
    top, _ = largest_other(b, m, y)
    if not top > 0.0:
        return 0.0, 0, True
    total = rho.sum()
    limit = _largest_scale(top, c, total - rho[0])
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
def _largest_scale(top: float, c: float, rest: float) -> float:
    """Bound t with rest = R - rho_1: S >= t rest, and the optimum has c S^2 <= <b, x> <= top S."""
    if c * rest <= top:
        return 1.0
    return min(1.0, top / (c * rest) * (1.0 + 4.0 * _EPS))


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
    top, _ = largest_other(b, m, y)
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
    level = 0.0
    counts = 0, 0
    above = upto = 0
    for _ in range(MAX_EVALUATIONS):
        counts = pool_blocks(plus, n, rho, c * t), pool_blocks(minus, n, rho[1:], c * t)
        level, above, upto = _own_level((plus, minus), counts, n, c * t, ratio, rho)
        h, slope, scale = _derivative_at_level((plus, minus), counts, c, t, ratio, (level, above, upto))
        t, low, high, moved = next_scale(t, h, slope, 16.0 * _EPS * scale, low, high, 1.0)
        if not moved:
            break
    support, apart = 0, t == 1.0 and above == upto
    s = 0.0
    for i in range(above, upto):
        x = max(0.0, (values[i] - level) / c)
        out[index[i]] = -x
        s += x
        support += x > 0.0
    for part, between in ((plus, (counts[0], 0, above)), (minus, (counts[1], upto, n))):
        total, number, alone = write_blocks(part, between, index, c, t, -1, out)
        s += total
        support += number
        apart = apart and alone
    out[y] = s
    return t, support, apart


@jit
def _own_level(
    parts: tuple[Blocks, Blocks], counts: tuple[int, int], n: int, ct: float, ratio: float, rho: Float64Array
) -> tuple[float, int, int]:
    """Solve T = c_y S(T): return T, the number of classes above it and the end of those at its level.

    T falls from its largest possible value c_y t R. On the way whole blocks of w- join the level and whole
    blocks of w+ leave it upwards, each once.
    """
    (plus, minus), (n_plus, n_minus), b = parts, counts, parts[0].values
    above = 0
    upto = 0
    k_plus = 0
    k_minus = 0
    fixed = rho[1:].sum()
    middle = 0.0
    ceiling = ratio * ct * rho.sum()
    while above < n and _value(plus, k_plus, n_plus, above, ct) >= ceiling:
        above, k_plus, gained = _next_block(plus, k_plus, n_plus, above)
        fixed += gained
    while upto < above or (upto < n and _value(minus, k_minus, n_minus, upto, ct) >= ceiling):
        upto, k_minus, lost = _next_block(minus, k_minus, n_minus, upto)
        fixed -= lost
    for i in range(above, upto):
        middle += b[i]
    while True:
        level = max(0.0, ratio * (ct * fixed + middle) / (1.0 + ratio * (upto - above)))
        joins = _value(minus, k_minus, n_minus, upto, ct) if upto < n else -np.inf
        leaves = -np.inf
        end = above
        if above < upto:
            leaves = _value(plus, k_plus, n_plus, above, ct)
            end, _, _ = _next_block(plus, k_plus, n_plus, above)
        if not level < max(joins, leaves):
            return level, above, upto
        if joins >= leaves or end > upto:
            first = upto
            upto, k_minus, lost = _next_block(minus, k_minus, n_minus, upto)
            fixed -= lost
            for i in range(first, upto):
                middle += b[i]
        else:
            for i in range(above, end):
                middle -= b[i]
            above, k_plus, gained = _next_block(plus, k_plus, n_plus, above)
            fixed += gained


@jit
def _value(blocks: Blocks, k: int, count: int, i: int, ct: float) -> float:
    """Return the value of block k, or b_i after the last block."""
    value: float = blocks.values[i]
    if k < count:
        value = block_value(blocks, k, ct)
    return value


@jit
def _next_block(blocks: Blocks, k: int, count: int, i: int) -> tuple[int, int, float]:
    """Return the end of block k, k + 1 and its mass; after the last block, single elements of mass 0."""
    if k < count:
        return blocks.start[k + 1], k + 1, blocks.mass[k]
    return i + 1, k, 0.0


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
