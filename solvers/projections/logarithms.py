"""Logarithms of many numbers at once, in loops that the compiler can make vector instructions of.

log x = 2 artanh((x - 1) / (x + 1)), whose series in odd powers needs few terms where x is near 1.
"""

from __future__ import annotations

import math

import numpy as np

from topline.solvers.jit_cache import jit
from topline.solvers.typing import Float64Array, FloatArray

_LOG_2 = math.log(2.0)
#: The bits of sqrt(1/2): above them, up to twice that number, lies what a number is scaled to.
_ROOT = 0x3FE6A09E667F3BCD
_SERIES = tuple(2.0 / (2 * i + 1) for i in range(18))
_S0, _S1, _S2, _S3, _S4, _S5, _S6, _S7, _S8, _S9, _S10 = _SERIES[:11]
_S11, _S12, _S13, _S14, _S15, _S16, _S17 = _SERIES[11:]
_F0, _F1, _F2, _F3, _F4, _F5, _F6, _F7 = (np.float32(value) for value in _SERIES[:8])


@jit
def log_of_row(x: Float64Array, out: Float64Array) -> None:
    """Write log(x) of positive numbers that are not denormal to `out`, both (n,); x is overwritten."""
    bits = x.view(np.int64)
    for j in range(len(x)):
        exponent = (bits[j] - _ROOT) >> 52
        out[j] = exponent
        bits[j] -= exponent << 52
    for j in range(len(x)):
        z = (x[j] - 1.0) / (x[j] + 1.0)
        s = z * z
        # s is at most 0.03, and what is left out 2e-18.
        high = _S5 + s * (_S6 + s * (_S7 + s * (_S8 + s * (_S9 + s * _S10))))
        out[j] = out[j] * _LOG_2 + z * (_S0 + s * (_S1 + s * (_S2 + s * (_S3 + s * (_S4 + s * high)))))


@jit
def minus_log_of_rest(x: Float64Array, out: Float64Array) -> None:
    """Write -log(1 - x) for x from 0 to 1/2 to `out`, both (n,), to the last digits of a small x too."""
    for j in range(len(x)):
        out[j] = _twice_artanh(x[j] / (2.0 - x[j]))


@jit
def log_of_one_and(x: FloatArray, out: FloatArray) -> None:
    """Write log(1 + x) for x from 0 to 1 to `out`, both (n,), to the last digits of a small x too."""
    single, two = x.itemsize == 4, x.dtype.type(2.0)
    for j in range(len(x)):
        z = x[j] / (two + x[j])
        out[j] = _twice_artanh_single(z) if single else _twice_artanh(z)


@jit
def _twice_artanh(z: float) -> float:
    """Return 2 artanh(z) for z from 0 to 1/3: z^2 is at most 1/9, and what is left out 2e-18."""
    s = z * z
    high = _S12 + s * (_S13 + s * (_S14 + s * (_S15 + s * (_S16 + s * _S17))))
    middle = _S6 + s * (_S7 + s * (_S8 + s * (_S9 + s * (_S10 + s * (_S11 + s * high)))))
    return z * (_S0 + s * (_S1 + s * (_S2 + s * (_S3 + s * (_S4 + s * (_S5 + s * middle))))))


@jit
def _twice_artanh_single(z: float) -> float:
    """Return the same in float32, of which the terms that are left out are 1e-9."""
    s = z * z
    high = _F4 + s * (_F5 + s * (_F6 + s * _F7))
    return z * (_F0 + s * (_F1 + s * (_F2 + s * (_F3 + s * high))))  # type: ignore[return-value]
