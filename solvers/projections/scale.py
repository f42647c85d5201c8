"""The safeguarded Newton step for the scale t of a permutahedron t P(rho)."""

from __future__ import annotations

import numba as nb
import numpy as np

# Pieces of H are left behind for good as a rule; bisection, should it be needed, ends after 64 halvings.
MAX_EVALUATIONS = 100


@nb.njit(cache=True, nogil=True, error_model="numpy")
def next_scale(
    t: float, h: float, slope: float, tolerance: float, low: float, high: float, limit: float
) -> tuple[float, float, float, bool]:
    """Give the next t, the bracket, and whether there is a next one at all.

    h = H(t) is non-increasing and piecewise linear with the given slope on the piece of t.  (low, high)
    encloses the root as far as it is known, high = inf at first; limit is the largest t allowed.
    """
    if abs(h) <= tolerance or (h > 0.0 and t >= limit):
        return t, low, high, False
    if h > 0.0:
        low = t
    else:
        high = t
    newton = min(t - h / slope, limit) if slope < 0.0 else -np.inf
    if not low < newton < high:
        newton = 0.5 * (low + min(high, limit))
        if not low < newton < high:
            return t, low, high, False
    return newton, low, high, True
