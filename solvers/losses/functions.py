"""The compiled functions that a loss is made of beside its column update (`projections.columns`).

All write and read rows of m float64.  `rho` are the rank weights (L,); `margins` is what `LossForm.table`
gives: margins (m, m), the table of label sets, or (0, 0) for single labels with the margins 1 - e_y.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from numba import types

from topline.solvers.jit_cache import jit
from topline.solvers.jit_pointers import JitFunction
from topline.solvers.projections.columns import linear_in_margins
from topline.solvers.typing import Float64Array, FloatArray, IntArray


class LossRows(NamedTuple):
    """Rows of a problem at some scores, and where their losses and gradients go.

    Attributes
    ----------
    scores, y, weights : (b, m), (b,) and (b,).
    rho, margins : of the form, `margins` its table.
    U : (b, m) receives u_i = -grad Phi, 0 for scores that are no numbers; it may be `scores`.
    losses : (b,) receives the loss of each row, NaN for scores that are no numbers; empty where nobody asks.
    sums : what `topline.solvers.losses.rows.gradient_rows` adds to.
    """

    scores: FloatArray
    y: IntArray
    weights: Float64Array
    rho: Float64Array
    margins: Float64Array
    U: FloatArray
    losses: Float64Array
    sums: Float64Array


@jit
def rows_between(rows: LossRows, start: int, stop: int) -> LossRows:
    """Return some of the rows, to the same sums."""
    some = slice(start, stop)
    return LossRows(
        rows.scores[some], rows.y[some], rows.weights[some], rows.rho, rows.margins, rows.U[some],
        rows.losses[some], rows.sums,
    )  # fmt: skip


_ROW = types.Array(types.float64, 1, "C")
_ROWS = types.Array(types.float64, 2, "C")
_TABLE = types.Array(types.float64, 2, "C", readonly=True)
_number, _whole = types.float64, types.int64

_CONJUGATE = _number(_ROW, _whole, _TABLE)
_TWO = types.UniTuple(_number, 2)  # type: ignore[no-untyped-call]
_GRADIENT = _TWO(_ROW, _whole, _ROW, _TABLE, _ROW, _ROWS)


def conjugate_function(function: Callable[..., float]) -> JitFunction:
    """Declare a function (alpha, y, margins) that returns -Phi*(-alpha) of a row inside its domain.

    Where that is linear it must be so everywhere: it is taken of differences of rows as well.
    """
    return JitFunction(function, _CONJUGATE)


def gradient_function(function: Callable[..., tuple[float, float]]) -> JitFunction:
    """Declare a function (s, y, rho, margins, u, work): the loss itself, where a closed form is faster.

    It writes u = -grad Phi(s), which is also in the domain, and returns Phi(s) and -Phi*(-u), NaN where there
    is no dual.
    """
    return JitFunction(function, _GRADIENT)


@conjugate_function
def hinge_conjugate(alpha: Any, y: Any, margins: Any) -> Any:
    """Return -<delta_y, alpha>, as for every hinge of single labels (Hirohashi and Kato, lemma 1)."""
    return linear_in_margins(alpha, y, margins)
