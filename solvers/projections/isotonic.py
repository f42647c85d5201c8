"""Non-increasing isotonic regression of b - c t rho by pooling adjacent violators.

Values b_(1) >= b_(2) >= .. are paired with weights rho that are non-increasing and end in zeros.  A block is
a run of neighbours that share one value v = mean(b - c t rho); the projection on the permutahedron t P(rho)
is then beta = (b - v) / c (mathematics: weighted top-k, weighted Usunier).

A block keeps the deviations of its b from its own first element.  Values of 1e9 therefore cost no digits
where neighbours differ by less than c: the mass inside a block is exact to rounding of the mass itself.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from topline.solvers.jit_cache import jit
from topline.solvers.typing import Float64Array, Int64Array

# Each piece of H is normally visited once; bisection, if needed, ends after 64 halvings.
MAX_EVALUATIONS = 100


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
