"""Margin violations of one example, and what is linear in them."""

from __future__ import annotations

from topline.solvers.jit_cache import jit
from topline.solvers.typing import Float64Array, FloatArray


@jit
def violations(q: FloatArray, y: int, margins: Float64Array, out: Float64Array) -> None:
    """Write b_j = delta_j + q_j - q_y to out (m,); `margins` is (m, m), or empty for 1 - e_y."""
    own = q[y]
    if margins.shape[0] == 0:
        for j in range(q.shape[0]):
            out[j] = (q[j] - own) + 1.0
    else:
        for j in range(q.shape[0]):
            out[j] = (q[j] - own) + margins[y, j]
    out[y] = 0.0


@jit
def linear_in_margins(alpha: Float64Array, y: int, margins: Float64Array) -> float:
    """Return -<delta_y, alpha>; `margins` as above."""
    value = 0.0
    for j in range(alpha.shape[0]):
        if j != y:
            value -= (1.0 if margins.shape[0] == 0 else margins[y, j]) * alpha[j]
    return value
