"""The dual problem of one example, as passed to every column update, and what the updates share.

A column problem with rank weights (rho_1..rho_L, 0, ..) has at most a few more than L classes with mass.
Those classes are found in one or two passes over the m scores, and only they are sorted, inside buffers that
the caller owns.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numba import types

from topline.solvers.jit_cache import JitFunction, jit
from topline.solvers.typing import Float64Array, FloatArray, Int64Array

# Up to this many largest values are kept in a sorted list; beyond it a heap is faster.
_LIST_LIMIT = 16
# With more than m / 3 ranks a threshold would keep most classes, so all are sorted.
_SELECTION_FACTOR = 3
# Values that the sort's largest gap leaves in a run, at most about so many.
_RUN = 9
# Classes beyond the ranks tried first, out of several times as many that could have mass.
_FEW = 64
_EPS = float(np.finfo(np.float64).eps)


@jit
def sort_decreasing(values: Float64Array, index: Int64Array, n: int) -> None:
    """Sort the first n (value, index) pairs by decreasing value, equal ones by increasing index.

    Shell's sort with Knuth's gaps: about O(n^1.3), without further memory.
    """
    gap = 1
    while gap < n // _RUN:
        gap = 3 * gap + 1
    while gap > 0:
        for i in range(gap, n):
            v = values[i]
            k = index[i]
            j = i - gap
            while j >= 0 and (values[j] < v or (values[j] == v and index[j] > k)):
                values[j + gap] = values[j]
                index[j + gap] = index[j]
                j -= gap
            values[j + gap] = v
            index[j + gap] = k
        gap //= 3


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

    Values and classes go to the first rows of the buffers.
    """
    values, index = problem.work[0], problem.index_work[0]
    n = 0
    for j in range(b.shape[0]):
        if b[j] >= theta and j != y:
            values[n] = b[j]
            index[n] = j
            n += 1
    sort_decreasing(values, index, n)
    return n


@jit
def largest_other(b: Float64Array, y: int) -> float:
    """Return the largest b_j over j != y; -inf if none compares."""
    top = -np.inf
    for j in range(len(b)):
        if b[j] > top and j != y:
            top = b[j]
    return top


@jit
def room(n: int) -> Float64Array:
    """Return an uninitialised array (n,) float64; wraps NumPy's function so that it is compiled once."""
    return np.empty(n)


#: Rows of the two buffers.  Updates name the rows they use at their start; `VIOLATIONS` stays free.
FLOAT_ROWS, INDEX_ROWS, VIOLATIONS = 7, 4, 5


class ColumnProblem(NamedTuple):
    """The dual in alpha_i with all other columns fixed, and the buffer for its solution.

    The solution maximises -Phi*(-alpha) - <q, alpha> - (c/2) |alpha|^2, with c_own in place of c for alpha_y.
    With q = W^T x_i - (K_ii / (lambda n)) alpha_i and c = K_ii / (lambda n) + gamma it is the new alpha_i;
    with q = s and c = gamma it is minus the gradient of the envelope at the scores s, and with c = 0 that of
    the loss itself (Tajima et al., eq. 2.21).

    Attributes
    ----------
    q : (m,) scores of the example without its own contribution.
    y : own class, or the number of a label set.
    c, c_own : curvatures, 0 <= c_own <= c; 0 gives a maximising vertex of a hinge.
    rho : (L,) rank weights, positive and non-increasing; for the entropies only their number k counts.
    margins : margins (m, m), the table of label sets, a row of constants of the loss, or (0, 0) for single
        labels with the margins 1 - e_y.
    out : (m,) receives alpha.
    work, index_work : from `column_workspace(m)`; must not contain `q` or `out`.
    single : whether alpha is stored in float32, so that float32 accuracy suffices.
    """

    q: Float64Array
    y: Any
    c: float
    c_own: float
    rho: Float64Array
    margins: Float64Array
    out: Float64Array
    work: Float64Array
    index_work: Int64Array
    single: bool


_ROW = types.Array(types.float64, 1, "C")
_SIGNATURE = types.Tuple((types.float64, types.int64, types.boolean))(  # type: ignore[no-untyped-call]
    types.NamedTuple(  # type: ignore[no-untyped-call]
        [
            _ROW, types.int64, types.float64, types.float64, _ROW,
            types.Array(types.float64, 2, "C", readonly=True), _ROW, types.Array(types.float64, 2, "C"),
            types.Array(types.int64, 2, "C"), types.boolean,
        ],
        ColumnProblem,
    )
)  # fmt: skip


def column_function(function: Callable[[Any], tuple[float, int, bool]]) -> JitFunction:
    """Declare a function that solves a `ColumnProblem`: the column update of a loss.

    It returns the scale or level found, the number of classes other than y with mass, and whether alpha is a
    vertex of the domain.  A column that stays at one vertex is a candidate for shrinking.
    """
    return JitFunction(function, _SIGNATURE)


@jit
def column_workspace(m: int) -> tuple[Float64Array, Int64Array]:
    """Return the two buffers that every column update for m classes needs, one pair per thread.

    They are (FLOAT_ROWS, m + 1) float64 and (INDEX_ROWS, m + 1) int64, uninitialised.
    """
    return np.empty((FLOAT_ROWS, m + 1)), np.empty((INDEX_ROWS, m + 1), dtype=np.int64)


@jit
def violations(problem: ColumnProblem) -> Float64Array:
    """Return b_j = delta_j + q_j - q_y (m,), b_y = 0, in a row of the buffers that projections leave free."""
    q, y, margins = problem.q, problem.y, problem.margins
    b: Float64Array = problem.work[VIOLATIONS][: q.shape[0]]
    own = q[y]
    if margins.shape[0] == 0:
        for j in range(q.shape[0]):
            b[j] = (q[j] - own) + 1.0
    else:
        for j in range(q.shape[0]):
            b[j] = (q[j] - own) + margins[y, j]
    b[y] = 0.0
    return b


@jit
def linear_in_margins(alpha: Float64Array, y: int, margins: Float64Array) -> float:
    """Return -<delta_y, alpha>; `margins` as in `ColumnProblem`."""
    value = 0.0
    for j in range(alpha.shape[0]):
        if j != y:
            value -= (1.0 if margins.shape[0] == 0 else margins[y, j]) * alpha[j]
    return value


@jit
def own_shares(sets: Float64Array, y: int, shares: Float64Array) -> int:
    """Write 1 / |Y| for the classes of label set Y, the y-th, and 0 for all others; return |Y|.

    Without sets Y is class y alone.
    """
    shares[:] = 0.0
    if sets.shape[0] == 0:
        shares[y] = 1.0
        return 1
    start, stop = int(sets[0, y]), int(sets[0, y + 1])
    for at in range(start, stop):
        shares[int(sets[0, at])] = 1.0 / (stop - start)
    return stop - start


@jit
def minus_others(alpha: Float64Array, sets: Float64Array, y: int, own_sign: float) -> float:
    """Return `own_sign` times the sum of alpha over the own classes, minus the sum over all others."""
    value = 0.0
    for j in range(len(alpha)):
        value -= alpha[j]
    if sets.shape[0] == 0:
        value += (1.0 + own_sign) * alpha[y]
    else:
        for at in range(int(sets[0, y]), int(sets[0, y + 1])):
            value += (1.0 + own_sign) * alpha[int(sets[0, at])]
    return value
