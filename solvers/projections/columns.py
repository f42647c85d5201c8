"""The dual problem of one example, as passed to every column update, and shared helpers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numba import types

from topline.solvers.jit_cache import jit
from topline.solvers.jit_pointers import JitFunction
from topline.solvers.typing import Float64Array, Int64Array

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
    margins : margins (m, m), the table of label sets, or (0, 0) for single labels with the margins 1 - e_y.
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
def own_class(sets: Float64Array, y: int, place: int) -> int:
    """Return the `place`-th own class (from 1) of label set y, or of class y without sets; -1 if none."""
    if sets.shape[0] == 0:
        return y if place == 1 else -1
    at = int(sets[0, y]) + place - 1
    return int(sets[0, at]) if at < sets[0, y + 1] else -1


@jit
def own_count(sets: Float64Array, y: int) -> int:
    """Return the size of label set y."""
    return int(sets[0, y + 1] - sets[0, y])


@jit
def minus_others(alpha: Float64Array, sets: Float64Array, y: int, own_sign: float) -> float:
    """Return `own_sign` times the sum of alpha over the own classes, minus the sum over all others."""
    value = 0.0
    place, own = 1, own_class(sets, y, 1)
    for j in range(len(alpha)):
        if j == own:
            value += own_sign * alpha[j]
            place += 1
            own = own_class(sets, y, place)
        else:
            value -= alpha[j]
    return value
