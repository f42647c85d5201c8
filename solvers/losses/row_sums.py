"""What loops over dense rows share: the sums that a row adds to, and whether it is a row of numbers."""

from __future__ import annotations

import math

from topline.solvers.jit_cache import jit
from topline.solvers.losses.ranking import ACTIVE, B_U, LOSS, U_SQ
from topline.solvers.typing import Float64Array


@jit
def add_to_sums(weight: float, loss: float, conjugate: float, square: float, sums: Float64Array) -> None:
    """Add the loss, -Phi*(-u) and |u|^2 of a row to the sums, each times its weight."""
    sums[LOSS] += weight * loss
    sums[B_U] += weight * conjugate
    sums[U_SQ] += weight * square
    sums[ACTIVE] += square > 0.0


@jit
def is_finite(x: float) -> bool:
    """Return whether x is a number, where arithmetic that may be reordered takes x - x for 0."""
    return math.isfinite(x)
