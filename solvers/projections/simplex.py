"""Exact column updates by projections on the simplex, without sorting: max hinge, polyhedral top-k loss.

The max hinge takes the biased projection on {x >= 0, sum x <= r}:

    min over the simplex of (c/2)|x|^2 + (c_y/2) S^2 - <b, x>,   S = sum x.

The solution is x_j = max(0, b_j - T) / c, where T >= 0 solves (c_y/c) sum_j max(0, b_j - T) = T if that keeps
S = T / c_y <= r, and otherwise sum_j max(0, b_j - T) = c r.  Both left sides are convex in T, so Newton's
method from the left rises to the root in finitely many steps, each dropping the classes below T (Michelot's
method).

Every step loops over all classes without branches: vectorised, this is faster than gathering those above T.
"""

from __future__ import annotations

import numpy as np

from topline.solvers.jit_cache import borrowed, jit
from topline.solvers.projections.columns import (
    VIOLATIONS,
    ColumnProblem,
    column_function,
    largest_values,
    violations,
)
from topline.solvers.typing import Float64Array

_EPS = float(np.finfo(np.float64).eps)


@column_function
def simplex_column(problem: ColumnProblem) -> tuple[float, int, bool]:
    """Project with the radius r = rho_1; returns S = sum x first."""
    problem = borrowed(problem)
    return _biased(violations(problem), problem.rho[0], problem)


@jit
def _biased(b: Float64Array, radius: float, problem: ColumnProblem) -> tuple[float, int, bool]:
    """Write the biased projection of b (m,), which it overwrites, without b_y, to `problem.out`."""
    c, c_own, y, out = problem.c, problem.c_own, problem.y, problem.out
    b[y] = -np.inf
    top = largest(b)
    if not top > 0.0:
        out[:] = 0.0
        return 0.0, 0, True
    # Relative to the largest b all entries keep their digits even if b is far larger than c.
    for j in range(len(b)):
        b[j] -= top
    # T is at least its value with the first class alone, on either branch.
    alone = c_own / (c + c_own) * top * (1.0 - 4.0 * _EPS) if c_own > 0.0 else 0.0
    total, n = above(b, max(top - c * radius, alone) - top)
    if n <= 1:
        s = radius if (c + c_own) * radius <= top else top / (c + c_own)
        out[:] = 0.0
        out[_first_zero(b)] = -s
        out[y] = s
        return s, 1, s == radius
    ratio = c_own / c
    gap = -np.inf
    full = False
    while True:
        biased = (ratio * total - top) / (1.0 + ratio * n)
        capped = (total - c * radius) / n
        full = capped >= biased
        gap = max(gap, capped if full else biased)
        total, kept = above(b, gap)
        if kept == n or kept == 0:
            break
        n = kept
    s = _write(b, gap, c, out)
    out[y] = s
    return s, n, full and n == 1


@jit
def largest(b: Float64Array) -> float:
    """Return the largest b_j, -inf if all are NaN, by four maxima that do not wait for each other."""
    m = len(b)
    first = second = third = fourth = -np.inf
    whole = m - m % 4
    for j in range(0, whole, 4):
        first = max(first, b[j])
        second = max(second, b[j + 1])
        third = max(third, b[j + 2])
        fourth = max(fourth, b[j + 3])
    for j in range(whole, m):
        first = max(first, b[j])
    return max(max(first, second), max(third, fourth))


@jit
def _first_zero(b: Float64Array) -> int:
    for j in range(len(b)):
        if b[j] == 0.0:
            return j
    return 0


@jit(fastmath={"reassoc"})
def above(b: Float64Array, level: float) -> tuple[float, int]:
    """Return the sum of the b_j above a level, and their number."""
    total = 0.0
    n = 0
    for j in range(len(b)):
        total += b[j] if b[j] > level else 0.0
        n += 1 if b[j] > level else 0
    return total, n


@jit(fastmath={"reassoc"})
def _write(b: Float64Array, level: float, c: float, out: Float64Array) -> float:
    """Write -x_j = -max(0, b_j - level) / c to `out`, and return the sum of x.

    In two loops: a single loop would change its summation order if the arrays lie close together.
    """
    for j in range(len(b)):
        out[j] = -((b[j] - level) / c) if b[j] > level else 0.0
    s = 0.0
    for j in range(len(b)):
        s -= out[j]
    return s


@jit
def project_on_simplex(a: Float64Array, radius: float, x: Float64Array) -> None:
    """Write the projection of a (n,), whose largest is 0, on {x >= 0, sum x = radius} to x.

    Michelot's method, starting from the level if only the largest had mass, below which none has.
    """
    level = -radius
    total, n = above(a, level)
    while True:
        level = max(level, (total - radius) / n)
        total, kept = above(a, level)
        if kept == n or kept == 0:
            break
        n = kept
    for j in range(len(a)):
        x[j] = max(0.0, a[j] - level)


@column_function
def polyhedral_column(problem: ColumnProblem) -> tuple[float, int, bool]:
    """Solve the problem of the polyhedral top-k loss; returns 1 - p_y first.

        max over p >= 0, sum p = 1 of <b, p> - (c/2)|p|^2 - (the sum of the k largest p),   b = q + c e_y,

    p = e_y - alpha.  The sum is max <z, p> over 0 <= z <= 1, sum z = k.  With z the projection of b on that
    set, b - z = min(b, max(v, b - 1)) orders the classes as z does, so p, the projection of (b - z) / c on
    the simplex, and z are a saddle point.  The p_j of the others are the biased projection of the violations
    (b - z)_j - (q - z)_y, in which a large c costs no digits.  For c = 0 the mass is even where b - z is
    largest.
    """
    problem = borrowed(problem)
    q, y, c, out, m = problem.q, problem.y, problem.c, problem.out, len(problem.q)
    b, p = problem.work[VIOLATIONS][:m], problem.work[0][:m]
    top = largest(q)
    for j in range(m):
        b[j] = q[j] - top
    own = b[y]
    b[y] += c
    v = _capped_level(b, int(problem.margins[0, 0]), problem.work[1])
    own = own - 1.0 if v <= b[y] - 1.0 else min(own, v - c)
    top = -np.inf
    for j in range(m):
        b[j] = min(b[j], max(v, b[j] - 1.0))
        top = max(top, b[j])
    if c > 0.0:
        for j in range(m):
            b[j] -= own
        return _biased(b, 1.0, problem)
    for j in range(m):
        b[j] = 0.0 if b[j] == top else -np.inf
    project_on_simplex(b, 1.0, p)
    mass, support = 0.0, 0
    for j in range(m):
        out[j] = -p[j]
        mass += p[j] if j != y else 0.0
        support += p[j] > 0.0 and j != y
    out[y] = mass
    return mass, support, support + (p[y] > 0.0) == 1


@jit
def _capped_level(b: Float64Array, k: int, spare: Float64Array) -> float:
    """Return a v where sum_j clip(b_j - v, 0, 1) = k < m, by Newton's method between bounds."""
    largest_values(b, len(b), k, -1, spare)
    low, high = spare[k - 1] - 1.0, spare[k - 1]
    v = low
    while True:
        total, n = _clipped(b, v)
        low, high = (v, high) if total >= k else (low, v)
        following = v + (total - k) / n if n > 0 else high
        if total == k or following == v or not low < 0.5 * (low + high) < high:
            break
        v = following if low < following < high else 0.5 * (low + high)
    level: float = v
    return level


@jit(fastmath={"reassoc"})
def _clipped(b: Float64Array, v: float) -> tuple[float, int]:
    """Return sum_j clip(b_j - v, 0, 1), and the number of b_j strictly between v and v + 1."""
    total, n = 0.0, 0
    for j in range(len(b)):
        over = b[j] - v
        total += min(max(over, 0.0), 1.0)
        n += 0.0 < over < 1.0
    return total, n
