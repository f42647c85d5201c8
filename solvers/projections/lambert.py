"""W(e^z), Lambert's function of the exponential, without forming e^z.

w = W(e^z) solves w + log w = z.  Entropic projections need it for z from far below zero (w = e^z) to 1e9.
"""

from __future__ import annotations

import math

import numba as nb

# Below this three terms of W(x) = x - x^2 + 3/2 x^3 - .. at x = e^z are exact in double precision.
_SERIES_BELOW = -13.0
# Below this W(e^z) = e^z: dividing it by c could only lose what exp(z - log c) still resolves.
_EXPONENTIAL_BELOW = -37.0


@nb.njit(cache=True, nogil=True, error_model="numpy")
def lambert_exp(z: float) -> float:
    """Give W(e^z) for any finite z, with a relative error below 1e-14.

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


@nb.njit(cache=True, nogil=True, error_model="numpy")
def entropic_weight(u: float, c: float, log_c: float) -> float:
    """Give x > 0 with c x + log x = u; log_c = log c, and c = 0 gives exp(u)."""
    if c == 0.0 or u + log_c < _EXPONENTIAL_BELOW:
        return math.exp(u)
    return lambert_exp(u + log_c) / c
