"""Which classes are an example's own: one, or the labels of its set."""

from __future__ import annotations

from topline.solvers.jit_cache import jit
from topline.solvers.typing import Float64Array


@jit
def own_class(sets: Float64Array, y: int, place: int) -> int:
    """Return own class number `place` of label set y, from 1 and ascending; -1 where there are fewer.

    Where `sets` is empty the only own class is y itself.
    """
    if sets.shape[0] == 0:
        return y if place == 1 else -1
    at = int(sets[0, y]) + place - 1
    return int(sets[0, at]) if at < sets[0, y + 1] else -1


@jit
def own_count(sets: Float64Array, y: int) -> int:
    """Return the size of label set y."""
    return int(sets[0, y + 1] - sets[0, y])


@jit
def minus_others(alpha: Float64Array, sets: Float64Array, y: int, own_sign: float) -> float:
    """Return `own_sign` times the sum of alpha over the own classes, less that over all others."""
    value = 0.0
    place, own = 1, own_class(sets, y, 1)
    for j in range(len(alpha)):
        if j == own:
            value += own_sign * alpha[j]
            place += 1
            own = own_class(sets, y, place)
        else:
            value -= alpha[j]
    return value
