"""Intervals of shares against SciPy's, and against how often they hold what is true."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import binomtest

from topline.solvers.calibration import class_mean_interval, share_interval


@pytest.mark.parametrize(("hits", "rows"), [(0, 1), (3, 6), (30, 60), (57, 58), (58, 58), (909, 1000)])
@pytest.mark.parametrize("confidence", [0.8, 0.95])
def test_intervals_of_shares_are_wilsons(hits: int, rows: int, confidence: float) -> None:
    truth = binomtest(hits, rows).proportion_ci(confidence, "wilson")
    found = share_interval(hits / rows, rows, confidence)
    assert found == pytest.approx((truth.low, truth.high), abs=1e-12)
    assert found[0] <= hits / rows <= found[1]


def test_nothing_is_known_of_no_rows() -> None:
    assert share_interval(0.0, 0) == (0.0, 1.0)


@pytest.mark.parametrize(
    ("sizes", "rates"),
    [
        ([4, 6, 10, 50, 200], np.array([0.5, 0.6, 0.8, 0.9, 0.97])),
        ([3] * 50, np.full(50, 0.8)),
        ([2] * 5 + [100] * 5, np.repeat([0.3, 0.95], 5)),
    ],
)
def test_means_over_classes_hold_what_is_true_as_often_as_they_promise(
    sizes: list[int], rates: np.ndarray
) -> None:
    """Classes of a few rows that are right with probabilities of their own, drawn 2,000 times."""
    random = np.random.default_rng(0)
    classes = np.repeat(np.arange(len(sizes)), sizes)
    weights = (1.0 / len(sizes) / np.array(sizes))[classes]
    held = 0
    for _ in range(2000):
        low, high = class_mean_interval(random.random(len(classes)) < rates[classes], classes, weights)
        held += low <= rates.mean() <= high
    # Three standard errors of 2,000 draws.
    assert held / 2000 >= 0.95 - 3.0 * (0.95 * 0.05 / 2000) ** 0.5
