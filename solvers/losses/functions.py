"""Declarations of the compiled functions of a loss other than its column update (`projections.columns`).

All read and write float64 rows (m,).  `rho` (L,) are the rank weights; `margins` is `LossForm.table`: margins
(m, m), the table of label sets, a row of constants, or (0, 0) for single labels with the margins 1 - e_y.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from numba import types

from topline.solvers.jit_cache import JitFunction, jit
from topline.solvers.projections.columns import linear_in_margins
from topline.solvers.typing import Float64Array, FloatArray, IntArray


class LossRows(NamedTuple):
    """Rows of a problem at given scores, and the outputs for their losses and gradients.

    Attributes
    ----------
    scores, y, weights : (b, m), (b,) and (b,).
    rho, margins : rank weights and table of the form.
    U : (b, m) receives u_i = -grad Phi, 0 where scores are not finite; may be `scores`.
    losses : (b,) receives the loss of each row, NaN where scores are not finite; empty to skip.
    sums : the accumulators of `topline.solvers.losses.rows.gradient_rows`.
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
    """Return the rows start..stop - 1, sharing the sums."""
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

    If linear there, it must be linear everywhere: it is also applied to differences of rows.
    """
    return JitFunction(function, _CONJUGATE)


def gradient_function(function: Callable[..., tuple[float, float]]) -> JitFunction:
    """Declare a function (s, y, rho, margins, u, work) that evaluates the loss in closed form.

    It writes u = -grad Phi(s), a point of the domain, and returns Phi(s) and -Phi*(-u) (NaN without a dual).
    """
    return JitFunction(function, _GRADIENT)


@conjugate_function
def hinge_conjugate(alpha: Any, y: Any, margins: Any) -> Any:
    """Return -<delta_y, alpha>, as for every hinge of single labels (Hirohashi and Kato, lemma 1)."""
    return linear_in_margins(alpha, y, margins)
