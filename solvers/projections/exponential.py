"""exp of a whole row, in loops that the compiler can make vector instructions of.

exp(x) = 2^n exp(r) with n = round(x / log 2) and |r| <= log(2) / 2, where the Taylor polynomial of degree 13
is exact to rounding.  The C library's exp, called number by number, takes several times as long.
"""

from __future__ import annotations

import math

import numba as nb
import numpy as np

from topline.solvers.typing import Float64Array

_INVERSE_LOG_2 = 1.0 / math.log(2.0)
# log 2 in two parts, the first with so few digits that n times it is exact.
_LOG_2_HIGH = 6.93147180369123816490e-01
_LOG_2_LOW = 1.90821492927058770002e-10
# A number near 1.5 * 2^52 has a whole number in its last bits.
_TO_WHOLE = 6755399441055744.0
_LOWEST = -708.0
_TAYLOR = tuple(1.0 / math.factorial(i) for i in range(14))
_C2, _C3, _C4, _C5, _C6, _C7, _C8, _C9, _C10, _C11, _C12, _C13 = _TAYLOR[2:]


@nb.njit(cache=True, nogil=True, error_model="numpy")
def exp_of_negatives(x: Float64Array, out: Float64Array, powers: Float64Array) -> None:
    """Write exp(x) of x <= 0 to out, both (m,); below -708 it is 3e-308.  `powers` (m,) is for work."""
    for j in range(len(x)):
        v = max(x[j], _LOWEST)
        whole = v * _INVERSE_LOG_2 + _TO_WHOLE
        powers[j] = whole
        n = whole - _TO_WHOLE
        r = (v - n * _LOG_2_HIGH) - n * _LOG_2_LOW
        high = _C8 + r * (_C9 + r * (_C10 + r * (_C11 + r * (_C12 + r * _C13))))
        low = _C2 + r * (_C3 + r * (_C4 + r * (_C5 + r * (_C6 + r * (_C7 + r * high)))))
        out[j] = 1.0 + (r + r * r * low)
    bits = powers.view(np.int64)
    for j in range(len(x)):
        # 2^n, by its exponent.
        bits[j] = (bits[j] + 1023) << 52
    for j in range(len(x)):
        out[j] *= powers[j]
