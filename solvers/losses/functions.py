"""The compiled functions that a loss is made of, each with the signature that every loss shares.

All write and read rows of m float64.  `rho` are the rank weights (L,); `margins` is what `LossForm.table`
gives: margins (m, m), the table of label sets, or (0, 0) for single labels with the margins 1 - e_y.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from numba import types

from topline.solvers.jit_pointers import JitFunction
from topline.solvers.projections.violations import linear_in_margins

_ROW = types.Array(types.float64, 1, "C")
_ROWS = types.Array(types.float64, 2, "C")
_PLACES = types.Array(types.int64, 2, "C")
_TABLE = types.Array(types.float64, 2, "C", readonly=True)
_number, _whole = types.float64, types.int64

_COLUMN = types.Tuple((_number, _whole, types.boolean))(  # type: ignore[no-untyped-call]
    _ROW, _whole, _number, _number, _ROW, _TABLE, _ROW, _ROWS, _PLACES, types.boolean
)
_CONJUGATE = _number(_ROW, _whole, _TABLE)
_TWO = types.UniTuple(_number, 2)  # type: ignore[no-untyped-call]
_GRADIENT = _TWO(_ROW, _whole, _ROW, _TABLE, _ROW, _ROWS)


def column_function(function: Callable[..., tuple[float, int, bool]]) -> JitFunction:
    """Declare a function (q, y, c, c_own, rho, margins, out, work, index_work, single): the column update.

    It writes the alpha that maximises -Phi*(-alpha) - <q, alpha> - (c/2) |alpha|^2, with c_own in the place
    of c for alpha_y, to `out`.  With the other columns fixed, q = W^T x_i - (K_ii / (lambda n)) alpha_i and
    c = K_ii / (lambda n) + gamma, it is the dual in alpha_i; with q = s and c = gamma it is minus the
    gradient of the envelope at the scores s, and with c = 0 that of the loss itself (Tajima et al., eq.
    2.21).

    Parameters of the function
    --------------------------
    q : scores of the example without its own contribution.
    y : own class, or the number of a label set.
    c, c_own : curvatures, 0 <= c_own <= c; 0 gives a maximising vertex of a hinge.
    out : receives alpha; it is no part of the buffers.
    work, index_work : from `column_workspace(m)`; `work[5]` is free, the projections use the other rows.
    single : whether alpha is to be kept in float32, so that the digits of that are enough.

    Returns of the function
    -----------------------
    (the scale or level that was found, number of classes other than y with mass, whether alpha is a vertex of
    the domain).  A column that stays at one vertex is a candidate for shrinking.
    """
    return JitFunction(function, _COLUMN)


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
