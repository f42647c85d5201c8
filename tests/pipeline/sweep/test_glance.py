"""Where on its way to a gap a cell is looked at, beside its end."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from topline.pipeline.sweep.cells import EARLIER, Glance


@pytest.mark.parametrize(
    ("gaps", "seen"),
    [
        ((0.9, 0.3, EARLIER * 0.05, 0.09, 0.05), 2),
        ((0.9, 0.05), 0),
        ((0.15, 0.05, 0.3, 0.05), 2),  # gaps of an iterate may grow again
        ((0.07, 0.06, 0.05), None),
        ((0.05,), None),
    ],
)
def test_the_last_iterate_is_given_whose_gap_was_so_many_times_the_one_that_was_reached(gaps, seen) -> None:
    """Each record is about the iterate that the round before ended with; the first about the start."""
    iterates = [np.full((2, 2), float(number)) for number in range(len(gaps) + 1)]
    glance = Glance(iterates[0])
    for gap, after in zip(gaps, iterates[1:], strict=True):
        glance(SimpleNamespace(relative_gap=gap), SimpleNamespace(W=after))
    found = glance.before(gaps[-1])
    assert (None if found is None else found[0, 0]) == seen


def test_a_start_from_zero_is_none_and_little_is_kept() -> None:
    glance = Glance(None)
    glance(SimpleNamespace(relative_gap=1.0), SimpleNamespace(W=np.ones((2, 2))))
    assert glance.before(0.1) is None
    for gap in np.logspace(-0.1, -3, 30):
        glance(SimpleNamespace(relative_gap=gap), SimpleNamespace(W=np.zeros((2, 2))))
    assert glance.before(1e-3) is not None
    assert len(glance._seen) <= 5
