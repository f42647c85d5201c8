"""Where on its way to a gap a cell is looked at, beside its end."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from topline.pipeline.sweep.cells import EARLIER, Glance

GAP = 0.1


@pytest.mark.parametrize(
    ("gaps", "seen"),
    [
        ((0.9, 0.3, EARLIER * GAP, 0.19, 0.05), 2),
        ((0.9, 0.15, 0.05), 0),
        ((0.9, 0.15, 0.3, 0.05), 2),  # gaps of an iterate may grow again
        ((0.15, 0.05), None),
    ],
)
def test_the_last_iterate_is_kept_whose_gap_was_so_many_times_as_large(gaps, seen) -> None:
    """Each record is about the iterate that the round before ended with; the first about the start."""
    iterates = [np.full((2, 2), float(number)) for number in range(len(gaps) + 1)]
    glance = Glance(GAP, iterates[0])
    for gap, after in zip(gaps, iterates[1:], strict=True):
        glance(SimpleNamespace(relative_gap=gap), SimpleNamespace(W=after))
    assert (None if glance.W is None else glance.W[0, 0]) == seen


def test_a_start_from_zero_is_none() -> None:
    glance = Glance(GAP, None)
    glance(SimpleNamespace(relative_gap=1.0), SimpleNamespace(W=np.ones((2, 2))))
    assert glance.W is None
    glance(SimpleNamespace(relative_gap=0.5), SimpleNamespace(W=np.zeros((2, 2))))
    assert glance.W is not None
