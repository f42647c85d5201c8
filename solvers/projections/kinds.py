"""Integers by which kernels know a loss, and which classes are an example's own."""

from __future__ import annotations

import numba as nb

from solvers.typing import Float64Array

# What `column_kind` gives and `column_update` takes: an integer, so that it may cross into a kernel.
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


@nb.njit(cache=True, nogil=True, error_model="numpy")
def is_own(sets: Float64Array, y: int, j: int, place: int) -> bool:
    """Say whether class j is an own class of label set y, or is y itself where `sets` is empty.

    Classes are asked for in rising order: `place` is 1, and one more after each class that was an own one.
    """
    if sets.shape[0] == 0:
        return j == y
    return bool(place <= sets[y, 0] and sets[y, place] == j)


@nb.njit(cache=True, nogil=True, error_model="numpy")
def margin_at(kind: int, margins: Float64Array, y: int, j: int, place: int) -> tuple[float, bool]:
    """Give delta_j of a hinge, and whether j is an own class; `place` is that of `is_own`."""
    own = is_own(margins, y, j, place) if kind >= BINARY_HINGE_KIND else j == y
    if own:
        return (-1.0 if kind == BINARY_HINGE_KIND else 0.0), True
    if kind >= BINARY_HINGE_KIND or margins.shape[0] == 0:
        return 1.0, False
    return margins[y, j], False
