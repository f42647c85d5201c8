"""The continuous quadratic knapsack by variable fixing.

    min (1/2)|x - a|^2    subject to    sum x = r,  l <= x_j <= u.

It has x_j = clip(a_j - T, l, u).  Over the variables I that are not fixed at a bound T solves
sum_I (a_j - T) + (fixed sum) = r.  A T puts some variables below l by `lack` in all and some above u by
`excess`; if lack > excess the final T is larger, so those below stay at l for good, and else those above at u
(K. C. Kiwiel, Variable fixing algorithms for the continuous quadratic knapsack problem, 2008).  Each round
fixes at least one variable: O(m) as a rule, O(m^2) at worst.

Before the rounds every variable is fixed that no admissible T leaves free.  What remains lies within a few
u - l of each other, so values of 1e9 beside bounds of 1e-9 do no harm.
"""

from __future__ import annotations

import math

from topline.solvers.jit_cache import jit
from topline.solvers.projections.ordering import select_largest
from topline.solvers.typing import Float64Array, Int64Array


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
    """Write the projection of a (m,) on {sum x = total, lower <= x_j <= upper} to `out`.

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
