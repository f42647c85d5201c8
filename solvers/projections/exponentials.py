"""exp and log(1 + x) of whole rows, in loops that the compiler vectorises.

The C library's functions, called number by number, take several times as long. exp(x) = 2^n exp(r) with n =
round(x / log 2) and |r| <= log(2) / 2, where the Taylor polynomial of degree 13 is exact to rounding, and
log(1 + x) = 2 artanh(x / (2 + x)), whose series in odd powers needs few terms for x in [0, 1].
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from llvmlite import ir
from numba.extending import intrinsic

from topline.solvers.jit_cache import jit
from topline.solvers.typing import FloatArray

_INVERSE_LOG_2 = 1.0 / math.log(2.0)
# log 2 in two parts, the first short enough that n times it is exact; for float64 and float32.
_LOG_2_HIGH, _LOG_2_HIGH_32 = 6.93147180369123816490e-01, 0.693359375
_LOG_2_LOW, _LOG_2_LOW_32 = 1.90821492927058770002e-10, -2.12194440e-4
# Adding 1.5 * 2^52 (float32: 1.5 * 2^23) leaves the rounded number in the last bits.
_TO_WHOLE, _TO_WHOLE_32 = 6755399441055744.0, 12582912.0
LOWEST, _HIGHEST = -708.0, 709.0
LOWEST_32, _HIGHEST_32 = -87.0, 88.0
_TAYLOR = tuple(1.0 / math.factorial(i) for i in range(14))
_C2, _C3, _C4, _C5, _C6, _C7, _C8, _C9, _C10, _C11, _C12, _C13 = _TAYLOR[2:]
_F2, _F3, _F4, _F5, _F6, _F7 = (np.float32(value) for value in _TAYLOR[2:8])
_SERIES = tuple(2.0 / (2 * i + 1) for i in range(18))
_L0, _L1, _L2, _L3, _L4, _L5, _L6, _L7, _L8, _L9, _L10 = _SERIES[:11]
_L11, _L12, _L13, _L14, _L15, _L16, _L17 = _SERIES[11:]
_G0, _G1, _G2, _G3, _G4, _G5, _G6, _G7 = (np.float32(value) for value in _SERIES[:8])


def _power(_: Any, whole: Any) -> Any:
    number = ir.IntType(whole.bitwidth)
    bias, digits = (127, 23) if whole.bitwidth == 32 else (1023, 52)

    def build(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        (value,) = arguments
        exponent = builder.add(builder.bitcast(value, number), number(bias))
        return builder.bitcast(builder.shl(exponent, number(digits)), value.type)

    return whole(whole), build


#: The intrinsic as seen from compiled functions, which pass no typing context.
_compiled: Any = intrinsic
#: Return 2^n, made of bits, for the float n + `_TO_WHOLE`.
_power_of_two: Any = _compiled(_power)


@jit
def exp_of_row(x: FloatArray, out: FloatArray) -> None:
    """Write exp(x) to out, both (m,), with x clipped to [-708, 709].

    In float32 that is [-87, 88], and the polynomial is of degree 7.
    """
    single = x.itemsize == 4
    low, high = number_for(x, _LOG_2_LOW, _LOG_2_LOW_32), number_for(x, _LOG_2_HIGH, _LOG_2_HIGH_32)
    lowest, highest = number_for(x, LOWEST, LOWEST_32), number_for(x, _HIGHEST, _HIGHEST_32)
    to_whole, inverse = number_for(x, _TO_WHOLE, _TO_WHOLE_32), x.dtype.type(_INVERSE_LOG_2)
    for j in range(len(x)):
        v = min(max(x[j], lowest), highest)
        whole = v * inverse + to_whole
        n = whole - to_whole
        r = (v - n * high) - n * low
        out[j] = (_exp_near_0_single(r) if single else _exp_near_0(r)) * _power_of_two(whole)


@jit
def number_for(x: FloatArray, double: float, single: float) -> float:
    """Return one of two constants according to the precision of x, in that precision."""
    return x.dtype.type(single if x.itemsize == 4 else double)  # type: ignore[return-value]


@jit
def _exp_near_0(r: float) -> float:
    high = _C8 + r * (_C9 + r * (_C10 + r * (_C11 + r * (_C12 + r * _C13))))
    low = _C2 + r * (_C3 + r * (_C4 + r * (_C5 + r * (_C6 + r * (_C7 + r * high)))))
    return 1.0 + (r + r * r * low)


@jit
def _exp_near_0_single(r: float) -> float:
    low = _F2 + r * (_F3 + r * (_F4 + r * (_F5 + r * (_F6 + r * _F7))))
    return np.float32(1.0) + (r + r * r * low)  # type: ignore[return-value]


@jit
def log_of_one_and(x: FloatArray, out: FloatArray) -> None:
    """Write log(1 + x) for x in [0, 1] to `out`, both (n,), to full relative accuracy."""
    single, two = x.itemsize == 4, x.dtype.type(2.0)
    for j in range(len(x)):
        z = x[j] / (two + x[j])
        out[j] = _twice_artanh_single(z) if single else _twice_artanh(z)


@jit
def _twice_artanh(z: float) -> float:
    """Return 2 artanh(z) for z in [0, 1/3]: z^2 is at most 1/9, and the truncation error 2e-18."""
    s = z * z
    high = _L12 + s * (_L13 + s * (_L14 + s * (_L15 + s * (_L16 + s * _L17))))
    middle = _L6 + s * (_L7 + s * (_L8 + s * (_L9 + s * (_L10 + s * (_L11 + s * high)))))
    return z * (_L0 + s * (_L1 + s * (_L2 + s * (_L3 + s * (_L4 + s * (_L5 + s * middle))))))


@jit
def _twice_artanh_single(z: float) -> float:
    """Return the same in float32, with a truncation error of 1e-9."""
    s = z * z
    high = _G4 + s * (_G5 + s * (_G6 + s * _G7))
    return z * (_G0 + s * (_G1 + s * (_G2 + s * (_G3 + s * high))))  # type: ignore[return-value]
