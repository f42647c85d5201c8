"""What projections are made of: sorting, selection, pooled blocks, and the search for a scale."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.optimize import isotonic_regression

from tests.reference.columns import problem_of
from topline import MaxHinge, StructuredHinge
from topline.solvers.projections.columns import largest_values, sort_decreasing, violations
from topline.solvers.projections.isotonic import Blocks, block_value, next_scale, pool_blocks
from topline.solvers.projections.weighted_topk import _derivative, _place_own_class


@pytest.mark.parametrize("table", [False, True])
def test_violations_are_the_margins_and_the_differences_of_scores(table) -> None:
    random = np.random.default_rng(5)
    q, y = random.standard_normal(6), 2
    given = random.random((6, 6)) * (1 - np.eye(6)) if table else 1 - np.eye(6)
    form = (StructuredHinge(given) if table else MaxHinge()).form(6)
    out = violations(problem_of(form, q, y, 1.0))
    assert out[y] == 0.0
    np.testing.assert_array_equal(out, q - q[y] + given[y])


def inputs(random, n):
    """Values that are all different, with ties, all equal, rising and falling."""
    values = random.standard_normal(n)
    return [values, np.round(values), np.zeros(n), np.sort(values), np.sort(values)[::-1].copy()]


@pytest.mark.parametrize("n", [0, 1, 2, 11, 12, 13, 24, 25, 47, 100, 300])
def test_the_sort_keeps_the_order_of_ties(n) -> None:
    """As NumPy's stable sort; what lies behind the first n stays."""
    for values in inputs(np.random.default_rng(n), n):
        sorted_values, index = np.append(values, 7.5), np.arange(n + 1)
        sort_decreasing(sorted_values, index, n, np.empty(n + 1), np.empty(n + 1, dtype=np.int64))
        order = np.argsort(-values, kind="stable")
        assert index.tolist() == [*order, n]
        np.testing.assert_array_equal(sorted_values, [*values[order], 7.5])


@pytest.mark.parametrize("n", [2, 3, 30, 120])
def test_the_largest_values_in_their_order(n) -> None:
    """However many, by insertion and by selection, with a class left out wherever it stands."""
    random = np.random.default_rng(n)
    for values in inputs(random, n):
        for count in sorted({1, 2, 5, n // 3, n // 2, n - 1} & set(range(1, n))):
            for skip in (0, int(np.argmax(values)), n - 1):
                out = np.empty(n)
                largest_values(values, n, count, skip, out)
                rest = np.sort(np.delete(values, skip))[::-1]
                np.testing.assert_array_equal(out[:count], rest[:count])


@pytest.mark.parametrize("ranks", [1, 3, 12])
@pytest.mark.parametrize("ct", [0.0, 0.4, 6.0])
def test_blocks_are_those_of_the_isotonic_regression(ranks, ct) -> None:
    """Non-increasing means of b - ct rho, and elements behind the last block keep their values."""
    random = np.random.default_rng(ranks)
    for trial in range(40):
        b = np.sort(random.standard_normal(12))[::-1].copy()
        b = np.round(b) if trial % 4 == 0 else b
        rho = np.sort(random.random(ranks))[::-1].copy()
        blocks = Blocks(b, np.empty(13, dtype=np.int64), np.empty(13), np.empty(13))
        start, count = blocks.start, pool_blocks(blocks, 12, rho, ct)
        assert count > 0
        assert start[0] == 0
        assert start[count] >= ranks
        found = b.copy()
        for k in range(count):
            found[start[k] : start[k + 1]] = block_value(blocks, k, ct)
            assert blocks.mass[k] == pytest.approx(rho[start[k] : start[k + 1]].sum(), abs=1e-13)
        weights = np.append(rho, np.zeros(12 - ranks))
        expected = isotonic_regression(b - ct * weights, increasing=False).x
        np.testing.assert_allclose(found, expected, atol=1e-13)


def test_the_search_for_a_scale_ends_at_a_root_and_at_the_limit() -> None:
    """A Newton step where it lies inside the bracket, a halving where it does not, and no more at the end."""
    assert next_scale(0.5, 1e-12, -1.0, 1e-9, 0.0, np.inf, 1.0) == (0.5, 0.0, np.inf, False)
    assert next_scale(0.5, 1e-9, -1.0, 1e-9, 0.0, np.inf, 1.0)[3] is False
    assert next_scale(1.0, 0.3, -1.0, 1e-9, 0.0, np.inf, 1.0) == (1.0, 0.0, np.inf, False)
    assert next_scale(0.5, 0.1, -1.0, 1e-9, 0.0, np.inf, 1.0) == (0.6, 0.5, np.inf, True)
    assert next_scale(0.5, -0.1, -1.0, 1e-9, 0.0, np.inf, 1.0) == (0.4, 0.0, 0.5, True)
    assert next_scale(1.0, -0.25, -1.0, 1e-9, 0.0, np.inf, 1.0) == (0.75, 0.0, 1.0, True)
    # Beyond the limit, below the bracket, and without a slope.
    assert next_scale(0.5, 9.0, -1.0, 1e-9, 0.0, np.inf, 1.0)[0] == 1.0
    assert next_scale(0.5, -9.0, -1.0, 1e-9, 0.25, np.inf, 1.0) == (0.375, 0.25, 0.5, True)
    assert next_scale(0.5, -0.1, 0.0, 1e-9, 0.0, np.inf, 1.0) == (0.25, 0.0, 0.5, True)
    assert next_scale(0.5, 0.1, 0.0, 1e-9, 0.0, 0.75, 1.0) == (0.625, 0.5, 0.75, True)
    tight = np.nextafter(0.5, 1.0)
    assert next_scale(0.5, 0.1, 0.0, 1e-9, 0.0, tight, 1.0)[3] is False


@pytest.mark.parametrize("n", [1, 2, 5])
def test_the_own_class_moves_to_where_its_value_belongs(n) -> None:
    """From any place to any, up or down, before and behind all; the others stay in their order."""
    others = -np.arange(n - 1.0)
    for at in range(n):
        for value in (*(others + 0.5), *(others - 0.5), 9.0, -9.0):
            values, index = np.insert(others, at, 0.123), np.insert(np.arange(n - 1), at, 77)
            place = _place_own_class(values, index, n, at, value)
            assert place == np.count_nonzero(others > value)
            assert values[place] == value
            assert index[place] == 77
            np.testing.assert_array_equal(np.delete(values, place), others)
            np.testing.assert_array_equal(np.delete(index, place), np.arange(n - 1))


def test_the_slope_of_a_scale_is_that_of_its_definition() -> None:
    """H(t) = <rho, v> - R v_y of the isotonic regression v, the own class inside blocks, alone and behind."""
    random = np.random.default_rng(4)
    behind = 0
    for _ in range(300):
        n, c = 8, 10.0 ** random.uniform(-1, 1)
        others = np.sort(random.standard_normal(n))[::-1]
        rho = np.sort(random.random(int(random.integers(1, 6))))[::-1].copy()
        total, t = float(rho.sum()), float(random.uniform(0.0, 1.0))

        def at_scale(t, n=n, c=c, others=others, rho=rho, total=total):
            place = int(np.count_nonzero(others > c * t * total))
            values = np.insert(others, place, c * t * total)
            weights = np.append(rho, np.zeros(n + 1 - len(rho)))
            v = isotonic_regression(values - c * t * weights, increasing=False).x
            return values, place, weights @ v - total * v[place]

        values, place, expected = at_scale(t)
        blocks = Blocks(values, np.empty(n + 2, dtype=np.int64), np.empty(n + 2), np.empty(n + 2))
        count = pool_blocks(blocks, n + 1, rho, c * t)
        h, slope, scale = _derivative(blocks, count, place, c, t, total)
        assert h == pytest.approx(expected, abs=1e-12 * (1.0 + scale))
        # The slope is that of one piece: a step that leaves it gives another.
        before, after = (at_scale(t + step)[2] for step in (-1e-7, 1e-7))
        if abs(after + before - 2.0 * expected) <= 1e-12 * (1.0 + scale):
            assert slope == pytest.approx((after - before) / 2e-7, rel=1e-4, abs=1e-5 * (1.0 + scale))
        behind += place == blocks.start[count]
    assert behind > 10
