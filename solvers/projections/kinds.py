"""Integers by which compiled functions know a loss, and which classes are an example's own."""

from __future__ import annotations

from topline.solvers.jit_cache import jit
from topline.solvers.typing import Float64Array

# What `column_kind` gives and `column_update` takes: an integer, so that it may cross into a compiled
# function.
MAX_KIND = 0
SUM_KIND = 1
HINGE_KIND = 2
OTHERS_KIND = 3
ENTROPY_KIND = 4
# From here on an example may have several labels, and `margins` is the table of label sets, or empty.
BINARY_HINGE_KIND = 5
BINARY_LOGISTIC_KIND = 6
MULTILABEL_HINGE_KIND = 7
MULTILABEL_ENTROPY_KIND = 8
TRUNCATED_KIND = 9


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
def own_class_of(kind: int, margins: Float64Array, y: int, place: int) -> int:
    """Return the same for any loss; `margins` is the table of label sets of a kind that takes them."""
    if kind >= BINARY_HINGE_KIND:
        return own_class(margins, y, place)
    return y if place == 1 else -1


@jit
def margin_at(kind: int, margins: Float64Array, y: int, j: int, own: bool) -> float:
    """Return delta_j of a hinge, for an own class or another."""
    if own:
        return -1.0 if kind == BINARY_HINGE_KIND else 0.0
    return 1.0 if kind >= BINARY_HINGE_KIND or margins.shape[0] == 0 else margins[y, j]
