"""Projection on the bipartite simplex {x, z >= 0, sum x = sum z <= r} (Lapin's thesis, eq. 6.24, prop. 6.19).

    min (1/2)|x - b|^2 + (1/2)|z - d|^2.

Without the cap x = max(0, b - t), z = max(0, d + t), and t equalises the sums.  Over the variables that are
not fixed at zero t = (sum b - sum d) / (number of both); if the x below zero lack less than the z below zero,
the root lies to the left, so those z stay at zero, and else those x (erratum h9).  If the common sum exceeds
r, x and z are two separate projections on {sum = r}.
"""

from __future__ import annotations

from topline.solvers.jit_cache import jit
from topline.solvers.projections.knapsack import equality_knapsack
from topline.solvers.typing import Float64Array, Int64Array


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
    """Write the projection to x (like b) and z (like d); return whether the cap on the sum is active.

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
