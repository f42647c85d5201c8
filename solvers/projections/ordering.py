"""Sorting and selection inside buffers that the caller owns.

A column problem with rank weights (rho_1..rho_L, 0, ..) has at most a few more than L classes with mass.  The
functions here find those classes in one or two passes over the m scores and sort only them.
"""

from __future__ import annotations

import numpy as np

from topline.solvers.jit_cache import jit
from topline.solvers.projections.columns import ColumnProblem
from topline.solvers.typing import Float64Array, FloatArray, Int64Array

# Up to this many largest values are kept in a sorted list; beyond it a heap is faster.
_LIST_LIMIT = 16
# With more than m / 3 ranks a threshold would keep most classes, so all are sorted.
_SELECTION_FACTOR = 3
_RUN = 12
# Classes beyond the ranks tried first, out of several times as many that could have mass.
_FEW = 64
_EPS = float(np.finfo(np.float64).eps)


@jit
def sort_decreasing(
    values: Float64Array, index: Int64Array, n: int, spare: Float64Array, spare_index: Int64Array
) -> None:
    """Sort the first n (value, index) pairs by decreasing value, stably.

    A merge sort: O(n log n) for any input, without allocation.  `spare` and `spare_index` hold at least n
    entries.
    """
    for low in range(0, n, _RUN):
        for i in range(low + 1, min(low + _RUN, n)):
            v = values[i]
            k = index[i]
            j = i - 1
            while j >= low and values[j] < v:
                values[j + 1] = values[j]
                index[j + 1] = index[j]
                j -= 1
            values[j + 1] = v
            index[j + 1] = k
    width = _RUN
    while width < n:
        for low in range(0, n - width, 2 * width):
            _merge(values, index, low, low + width, min(low + 2 * width, n), spare, spare_index)
        width *= 2


@jit
def _merge(
    values: Float64Array,
    index: Int64Array,
    low: int,
    middle: int,
    high: int,
    spare: Float64Array,
    spare_index: Int64Array,
) -> None:
    """Merge two neighbouring decreasing runs, copying the first one out of the way."""
    if values[middle - 1] >= values[middle]:
        return
    length = middle - low
    for i in range(length):
        spare[i] = values[low + i]
        spare_index[i] = index[low + i]
    i = 0
    j = middle
    at = low
    while i < length:
        if j < high and values[j] > spare[i]:
            values[at] = values[j]
            index[at] = index[j]
            j += 1
        else:
            values[at] = spare[i]
            index[at] = spare_index[i]
            i += 1
        at += 1


@jit
def largest_values(b: FloatArray, m: int, count: int, skip: int, out: FloatArray) -> None:
    """Write the `count` < m largest of b[:m], without b[skip], to out[:count] in decreasing order."""
    few = count <= _LIST_LIMIT
    for i in range(count):
        out[i] = -np.inf
    last = count - 1
    smallest = -np.inf
    for j in range(m):
        v = b[j]
        if v > smallest and j != skip:
            if few:
                i = last
                while i > 0 and out[i - 1] < v:
                    out[i] = out[i - 1]
                    i -= 1
                out[i] = v
                smallest = out[last]
            else:
                _replace_smallest(out, count, v)
                smallest = out[0]
    if not few:
        for end in range(last, 0, -1):
            v = out[end]
            smallest = out[0]
            _replace_smallest(out, end, v)
            out[end] = smallest


@jit
def _replace_smallest(heap: FloatArray, size: int, value: float) -> None:
    """Replace the root, the smallest, of a heap by a value that is not below it."""
    at = 0
    child = 1
    while child < size:
        if child + 1 < size and heap[child + 1] < heap[child]:
            child += 1
        if value <= heap[child]:
            break
        heap[at] = heap[child]
        at = child
        child = 2 * at + 1
    heap[at] = value


@jit
def mass_threshold(
    b: Float64Array, m: int, y: int, c: float, rho: Float64Array, spare: Float64Array
) -> float:
    """Return a value below which no class carries mass, whatever the scale t in [0, 1] of the rank weights.

    With top the len(rho) largest b_j, the isotonic regression of top - c rho ends with min_r mean_{i >=
    r}(top_i - c rho_i).  Further classes and the own class can only raise that value, and classes below it
    keep theirs.  Returns -inf if that would keep most classes anyway.
    """
    count = rho.shape[0]
    if count * _SELECTION_FACTOR >= m:
        return -np.inf
    largest_values(b, m, count, y, spare)
    last = spare[count - 1]
    total = 0.0
    lowest = np.inf
    for i in range(count - 1, -1, -1):
        total += spare[i] - c * rho[i] - last
        lowest = min(lowest, total / (count - i))
    # Rounding may keep a class too many, but must never lose one.
    slack = 4.0 * count * _EPS * (spare[0] - last + c * rho[0])
    theta: float = last + lowest - slack
    return theta - 2.0 * _EPS * abs(theta)


@jit
def few_largest(b: Float64Array, m: int, y: int, theta: float, ranks: int, spare: Float64Array) -> float:
    """Return a value above theta that a few classes j != y reach; theta if hardly more reach theta.

    Sorting every candidate takes far longer than selecting a few, which usually suffice; the caller checks
    that they did.
    """
    count, above = ranks + _FEW, 0
    for j in range(m):
        above += b[j] >= theta
    if above <= 2 * count:
        return theta
    largest_values(b, m, count, y, spare)
    least: float = max(spare[count - 1], theta)
    return least


@jit
def sorted_candidates(b: Float64Array, y: int, theta: float, problem: ColumnProblem) -> int:
    """Sort the classes j != y with b_j >= theta by decreasing b; return their number.

    Values and classes go to the first rows of the buffers; the fourth and third are workspace.
    """
    values, index = problem.work[0], problem.index_work[0]
    n = 0
    for j in range(b.shape[0]):
        if b[j] >= theta and j != y:
            values[n] = b[j]
            index[n] = j
            n += 1
    sort_decreasing(values, index, n, problem.work[3], problem.index_work[2])
    return n


@jit
def largest_other(b: Float64Array, m: int, y: int) -> tuple[float, int]:
    """Return the largest b_j over j != y and its j (the first of equals; -1 if none compares)."""
    top = -np.inf
    best = -1
    for j in range(m):
        if b[j] > top and j != y:
            top = b[j]
            best = j
    return top, best


@jit
def room(n: int) -> Float64Array:
    """Return an uninitialised array (n,) float64; wraps NumPy's function so that it is compiled once."""
    return np.empty(n)
