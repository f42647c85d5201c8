"""Exact column update of the max hinge: biased projection on {x >= 0, sum x <= r}, without sorting.

    min over the simplex of (c/2)|x|^2 + (c_y/2) S^2 - <b, x>,   S = sum x.

The solution is x_j = max(0, b_j - T) / c, where T >= 0 solves (c_y/c) sum_j max(0, b_j - T) = T if that keeps
S = T / c_y <= r, and else sum_j max(0, b_j - T) = c r.  Both left sides are convex in T, so Newton's method
from the left rises to the root in finitely many steps; each step drops the classes that it leaves below T
(Michelot's method).
"""

from __future__ import annotations

import numpy as np

from topline.solvers.jit_cache import jit
from topline.solvers.projections.ordering import largest_other
from topline.solvers.typing import Float64Array, Int64Array

_EPS = float(np.finfo(np.float64).eps)


@jit
def simplex_column(
    b: Float64Array,
    y: int,
    c: float,
    c_own: float,
    radius: float,
    out: Float64Array,
    work: Float64Array,
    index_work: Int64Array,
) -> tuple[float, int, bool]:
    """Write the optimal dual row alpha of one example to `out`.

    Parameters
    ----------
    b : (m,) delta_j + q_j - q_y; b[y] is ignored.
    y : own class.
    c : curvature of |x|^2, >= 0; 0 gives a maximising vertex.
    c_own : curvature of S^2.
    radius : r > 0, the largest S.
    out : (m,) receives alpha_j = -x_j and alpha_y = sum x.
    work, index_work : from `column_workspace`; `b` may not lie in them.

    Returns
    -------
    (S, number of classes other than y with mass, whether alpha is a vertex of the domain).
    """
    m = b.shape[0]
    out[:] = 0.0
    top, best = largest_other(b, m, y)
    if not top > 0.0:
        return 0.0, 0, True
    # T is at least what it would be if the first class were alone, on either branch.
    floor = max(top - c * radius, c_own / (c + c_own) * top * (1.0 - 4.0 * _EPS) if c_own > 0.0 else 0.0)
    drop = work[0]
    index = index_work[0]
    n = 0
    for j in range(m):
        if b[j] > floor and j != y:
            drop[n] = b[j] - top
            index[n] = j
            n += 1
    if n <= 1:
        s = radius if (c + c_own) * radius <= top else top / (c + c_own)
        out[best] = -s
        out[y] = s
        return s, 1, s == radius
    return _spread(drop, index, n, y, top, c, c_own, radius, out)


@jit
def _spread(
    drop: Float64Array,
    index: Int64Array,
    n: int,
    y: int,
    top: float,
    c: float,
    c_own: float,
    radius: float,
    out: Float64Array,
) -> tuple[float, int, bool]:
    """Solve for T among the n candidates with b = top + drop and write alpha.

    `gap` is T - top: taken from the largest b it keeps its digits when b is far larger than c.
    """
    ratio = c_own / c
    gap = -np.inf
    full = False
    while True:
        total = 0.0
        for i in range(n):
            total += drop[i]
        biased = (ratio * total - top) / (1.0 + ratio * n)
        capped = (total - c * radius) / n
        full = capped >= biased
        gap = max(gap, capped if full else biased)
        kept = 0
        for i in range(n):
            if drop[i] > gap:
                drop[kept] = drop[i]
                index[kept] = index[i]
                kept += 1
        if kept == n or kept == 0:
            break
        n = kept
    s = 0.0
    for i in range(n):
        x = max(0.0, (drop[i] - gap) / c)
        out[index[i]] = -x
        s += x
    out[y] = s
    return s, n, full and n == 1


@jit
def one_class_column(
    q: Float64Array, label: int, c: float, c_own: float, radius: float, alpha: Float64Array
) -> bool:
    """Solve the column with margins 1 - e_y where at most one other class has mass, as in most columns.

    What `simplex_column` does in that case, without its buffers; False where several classes have mass.
    """
    top = second = -np.inf
    best = label
    for j in range(len(q)):
        if j == label:
            continue
        if q[j] > top:
            second = top
            top = q[j]
            best = j
        elif q[j] > second:
            second = q[j]
    top = (top - q[label]) + 1.0
    second = (second - q[label]) + 1.0
    mass = 0.0
    if top > 0.0:
        if c <= 0.0 or second > max(top - c * radius, c_own / (c + c_own) * top * (1.0 - 4.0 * _EPS)):
            return False
        mass = radius if (c + c_own) * radius <= top else top / (c + c_own)
    alpha[:] = 0.0
    if mass > 0.0:
        alpha[best] = -mass
        alpha[label] = mass
    return True
