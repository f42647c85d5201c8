"""exp of a whole row, W(e^z), Lambert's function of the exponential, and the weights that it gives.

exp(x) = 2^n exp(r) with n = round(x / log 2) and |r| <= log(2) / 2, where the Taylor polynomial of degree 13
is exact to rounding, in loops that the compiler can make vector instructions of: the C library's exp, called
number by number, takes several times as long.

w = W(e^z) solves w + log w = z.  Entropic projections need it, without forming e^z, for z from far below zero
(w = e^z) to 1e9.  They need w of a whole row at once: a step of Halley's method on log w takes one exp, in
the same loops.
"""

from __future__ import annotations

import math

import numpy as np

from topline.solvers.jit_cache import jit
from topline.solvers.typing import FloatArray

_INVERSE_LOG_2 = 1.0 / math.log(2.0)
# log 2 in two parts, the first with so few digits that n times it is exact; of float64, and of float32.
_LOG_2_HIGH, _LOG_2_HIGH_32 = 6.93147180369123816490e-01, 0.693359375
_LOG_2_LOW, _LOG_2_LOW_32 = 1.90821492927058770002e-10, -2.12194440e-4
# A number near 1.5 * 2^52 has a whole number in its last bits, and one near 1.5 * 2^23 in float32.
_TO_WHOLE, _TO_WHOLE_32 = 6755399441055744.0, 12582912.0
_LOWEST, _HIGHEST = -708.0, 709.0
_LOWEST_32, _HIGHEST_32 = -87.0, 88.0
_TAYLOR = tuple(1.0 / math.factorial(i) for i in range(14))
_C2, _C3, _C4, _C5, _C6, _C7, _C8, _C9, _C10, _C11, _C12, _C13 = _TAYLOR[2:]
_F2, _F3, _F4, _F5, _F6, _F7 = (np.float32(value) for value in _TAYLOR[2:8])
# Below this three terms of W(x) = x - x^2 + 3/2 x^3 - .. at x = e^z are exact in double precision.
_SERIES_BELOW = -13.0
# Below this W(e^z) = e^z: dividing it by c could only lose what exp(z - log c) still resolves.
_EXPONENTIAL_BELOW = -37.0


# log W(e^z) of z from -4 to 20 as a polynomial in (z - 8) / 12, with an error of at most 0.009.
_FROM, _TO, _MIDDLE, _SCALE = -4.0, 20.0, 8.0, 1.0 / 12.0
_S0, _S1, _S2, _S3, _S4 = 1.81873, 1.68798, -1.11282, 0.72035, -1.36145
_S5, _S6, _S7, _S8 = 2.53931, -0.96451, -1.52077, 1.03633


@jit
def exp_of_row(x: FloatArray, out: FloatArray, powers: FloatArray) -> None:
    """Write exp(x) to out, both (m,); what lies outside [-708, 709] counts as its ends.

    In float32 that is [-87, 88], and the polynomial is of degree 7.  `powers` (m,) is for work.
    """
    single = x.itemsize == 4
    low, high = _number(x, _LOG_2_LOW, _LOG_2_LOW_32), _number(x, _LOG_2_HIGH, _LOG_2_HIGH_32)
    lowest, highest = _number(x, _LOWEST, _LOWEST_32), _number(x, _HIGHEST, _HIGHEST_32)
    to_whole, inverse = _number(x, _TO_WHOLE, _TO_WHOLE_32), x.dtype.type(_INVERSE_LOG_2)
    for j in range(len(x)):
        v = min(max(x[j], lowest), highest)
        whole = v * inverse + to_whole
        powers[j] = whole
        n = whole - to_whole
        r = (v - n * high) - n * low
        out[j] = _exp_near_0_single(r) if single else _exp_near_0(r)
    if single:
        bits_32 = powers.view(np.int32)
        for j in range(len(x)):
            # 2^n, by its exponent.
            bits_32[j] = (bits_32[j] + 127) << 23
    else:
        bits = powers.view(np.int64)
        for j in range(len(x)):
            bits[j] = (bits[j] + 1023) << 52
    for j in range(len(x)):
        out[j] *= powers[j]


@jit
def _number(x: FloatArray, double: float, single: float) -> float:
    """Return the one of two numbers that belongs to the precision of x, in that precision."""
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
def lambert_exp(z: float) -> float:
    """Return W(e^z) for any finite z, with a relative error below 1e-14.

    Two steps of Fritsch, Shafer and Crowley's iteration (order four) from a rough start (Lapin's thesis,
    prop. 6.15, calls the function V).
    """
    if z > 1.0:
        w = z - math.log(z)
    elif z > -1.0:
        # Taylor at z = 1, where W(e) = 1.
        w = 1.0 + (z - 1.0) * (0.5 + (z - 1.0) * (0.0625 - (z - 1.0) * 0.0052083))
    else:
        e = math.exp(z)
        w = e * (1.0 - e * (1.0 - 1.5 * e))
        if z < _SERIES_BELOW:
            return w
    for _ in range(2):
        r = (z - w) - math.log(w)
        q = 2.0 * (1.0 + w) * (1.0 + w + r * (2.0 / 3.0))
        w *= 1.0 + r / (1.0 + w) * (q - r) / (q - 2.0 * r)
    return w


@jit
def entropic_weight(u: float, c: float, log_c: float) -> float:
    """Return x > 0 with c x + log x = u; log_c = log c, and c = 0 gives exp(u)."""
    if c == 0.0 or u + log_c < _EXPONENTIAL_BELOW:
        return math.exp(u)
    return lambert_exp(u + log_c) / c


@jit(fastmath={"reassoc", "contract"})
def entropic_start(u: FloatArray, t: float, log_c: float, logs: FloatArray) -> None:
    """Write about log X, c X + log X = u - t, to logs (m,): to 0.02 of it."""
    number = u.dtype.type
    s0, s1, s2, s3, s4 = number(_S0), number(_S1), number(_S2), number(_S3), number(_S4)
    s5, s6, s7, s8 = number(_S5), number(_S6), number(_S7), number(_S8)
    level, log, least, middle, scale = (
        number(t),
        number(log_c),
        number(_FROM),
        number(_MIDDLE),
        number(_SCALE),
    )
    for j in range(len(u)):
        v = u[j] - level
        z = ((v + log) - middle) * scale
        low = s0 + z * (s1 + z * (s2 + z * (s3 + z * s4)))
        near = low + z * z * z * z * z * (s5 + z * (s6 + z * (s7 + z * s8))) - log
        logs[j] = near if v + log > least else v
    if log_c - t > _TO:
        for j in range(len(u)):
            z = (u[j] - level) + log
            if z > _TO:
                logs[j] = math.log(z - math.log(z)) - log_c


@jit(fastmath={"reassoc", "contract"})
def entropic_step(
    u: FloatArray, t: float, c: float, x: FloatArray, logs: FloatArray
) -> tuple[float, float, float]:
    """Take a step of Halley's method on v = log x, v + c e^v = u - t, from x and logs = log x, each (m,).

    Returns sum x, its slope in t, and the sum of the squares of the steps; below exp(-708) x is 0, in
    float32 below exp(-87).
    """
    number = u.dtype.type
    zero, half, one = number(0.0), number(0.5), number(1.0)
    level, curvature, lowest = number(t), number(c), _number(x, _LOWEST, _LOWEST_32)
    total = zero
    slope = zero
    moved = zero
    for j in range(len(u)):
        w = curvature * x[j]
        flat = one / (one + w)
        newton = (((u[j] - level) - logs[j]) - w) * flat
        # In this order nothing overflows.
        step = newton / (one + half * newton * (w * flat))
        logs[j] += step
        x[j] = x[j] * (one + step * (one + half * step)) if logs[j] > lowest else zero
        total += x[j]
        slope -= x[j] / (one + curvature * x[j])
        moved += step * step
    return np.float64(total), np.float64(slope), np.float64(moved)
