"""The compiled rankings against a stable sort, in every regime of m and k."""

from __future__ import annotations

import numpy as np
import pytest

from topline.solvers.losses.base import NO_MARGINS
from topline.solvers.losses.ranking import LANES, N_SUMS, SORT_FROM, RankRule, rank_rows


def ranks(scores, y, k, margins=None):
    rho = np.linspace(2.0, 1.0, k)
    ranked = np.zeros((len(y), k), dtype=np.int32)
    counts = np.zeros(len(y), dtype=np.int32)
    sums = np.zeros(N_SUMS)
    margins = NO_MARGINS if margins is None else margins
    rule = RankRule(rho, False, True, 1.0, margins)
    rank_rows(scores.copy(), y, np.ones(len(y)), rule, ranked, counts, sums)
    return ranked, counts, sums


def sorted_ranks(scores, y, k, margins=None):
    rows = np.arange(len(y))
    a = scores.astype(np.float64)
    if margins is None:
        a[rows, y] -= 1.0
    else:
        a += margins[y]
    return np.argsort(-a, axis=1, kind="stable")[:, :k]


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(
    ("m", "k"),
    [
        (2, 1),
        (5, 5),
        (31, 3),
        (32, 1),
        (33, 5),
        (100, 1),
        (100, LANES),
        (100, LANES + 1),
        (100, SORT_FROM),
        (77, 77),
    ],
)
def test_the_largest_in_order(m, k, dtype) -> None:
    random = np.random.default_rng(m * k)
    y = random.integers(0, m, 300).astype(np.int32)
    for scores in (random.standard_normal((300, m)), random.integers(-2, 3, (300, m)), np.zeros((300, m))):
        values = scores.astype(dtype)
        ranked, counts, _ = ranks(values, y, k)
        active = counts > 0
        assert active.any()
        np.testing.assert_array_equal(ranked[active], sorted_ranks(values, y, k)[active])


def test_class_margins_enter_the_order() -> None:
    random = np.random.default_rng(0)
    m, k = 40, 4
    margins = random.integers(0, 4, (m, m)).astype(np.float64)
    np.fill_diagonal(margins, 0.0)
    y = random.integers(0, m, 200).astype(np.int32)
    scores = random.integers(-2, 3, (200, m)).astype(np.float32)
    ranked, counts, _ = ranks(scores, y, k, margins)
    active = counts > 0
    np.testing.assert_array_equal(ranked[active], sorted_ranks(scores, y, k, margins)[active])


@pytest.mark.parametrize("m", [8, 100])
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_scores_that_are_no_numbers_show_in_the_loss(m, bad) -> None:
    scores = np.full((3, m), bad, dtype=np.float32)
    _, _, sums = ranks(scores, np.zeros(3, dtype=np.int32), 3)
    assert not np.isfinite(sums[0])
