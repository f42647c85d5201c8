"""Splits into training and validation examples."""

from __future__ import annotations

from typing import Any

import numpy as np

from topline.solvers.errors import InvalidProblemError
from topline.solvers.typing import Int64Array


def stratified_split(y: Any, share: float, rng: np.random.Generator) -> tuple[Int64Array, Int64Array]:
    """Give the places of the examples outside and inside a random `share` of every class, both in order.

    Every class is on both sides.  Raises InvalidProblemError where one has a single example, or for a share
    outside (0, 1).
    """
    if not 0.0 < share < 1.0:
        raise InvalidProblemError(f"the share of a split is {share!r}; give a number between 0 and 1")
    y = np.asarray(y)
    outside: list[Int64Array] = []
    inside: list[Int64Array] = []
    for label in np.unique(y):
        rows = rng.permutation(np.flatnonzero(y == label))
        if len(rows) < 2:
            raise InvalidProblemError(
                f"the class {label} has 1 example, and a split wants one on each side; give more examples"
            )
        count = min(max(round(share * len(rows)), 1), len(rows) - 1)
        inside.append(rows[:count])
        outside.append(rows[count:])
    return np.sort(np.concatenate(outside)), np.sort(np.concatenate(inside))
