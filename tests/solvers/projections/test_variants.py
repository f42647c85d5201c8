"""The thesis's set (own class out of the sort) and the smoothing of the other classes only."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tests.reference.columns import (
    infeasibility,
    optimality_gap,
    others_twin,
    solved_column,
    support_value,
    two_curvatures_twin,
    wusunier_twin,
)
from tests.reference.envelopes import envelope_losses
from tests.reference.qp import column_qp, column_value
from topline.solvers.errors import InvalidProblemError
from topline.solvers.losses import (
    LossForm,
    MaxHinge,
    OneVsAll,
    Softmax,
    TopKEntropy,
    TopKHinge,
    TopKOthersHinge,
    UsunierHinge,
    WeightedTopKHinge,
    WeightedUsunierHinge,
    exponential,
    linear,
)
from topline.solvers.losses.base import Ranks
from topline.solvers.losses.hinges import OTHERS_SUM_THEN_HINGE, SUM_THEN_HINGE
from topline.solvers.losses.rows import column_updates, nearest_rows

# (loss for m classes, whether the own class is in the sort)
CASES = {
    "max": (lambda m: MaxHinge(), True),
    "top-2": (lambda m: TopKHinge(2), True),
    "top-m": (lambda m: TopKHinge(m), True),
    "top-k linear": (lambda m: WeightedTopKHinge(linear(min(3, m))), True),
    "top-k exponential": (lambda m: WeightedTopKHinge(exponential(m)), True),
    "usunier": (lambda m: UsunierHinge(min(3, m)), True),
    "usunier linear": (lambda m: WeightedUsunierHinge(linear(m)), True),
    "others top-2": (lambda m: TopKHinge(min(2, m - 1)), False),
    "others top-(m-1)": (lambda m: TopKHinge(m - 1), False),
    "others exponential": (lambda m: WeightedTopKHinge(exponential(m - 1)), False),
    "others linear": (lambda m: WeightedTopKHinge(linear(min(4, m - 1))), False),
}


def violations_of(form, q, y):
    return form.margin_rows(np.array([y]))[0] + q - q[y]


def sorted_by(form, own_in_sort):
    """Give the same loss with the own class out of the sort where asked."""
    return form if own_in_sort else replace(form, family=OTHERS_SUM_THEN_HINGE)


def update(form, q, y, c, c_own, own_in_sort):
    return column_updates(sorted_by(form, own_in_sort), q[None], np.array([y]), c, c_own=c_own)[0]


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("m", [2, 3, 7])
@pytest.mark.covering(1)
def test_agrees_with_a_general_qp_solver(name, m):
    rng = np.random.default_rng([m, len(name)])
    make, own_in_sort = CASES[name]
    form = make(m).form(m)
    for trial in range(8):
        q = rng.standard_normal(m) if trial % 2 else np.round(rng.standard_normal(m))
        y, c = int(rng.integers(m)), [0.05, 0.7, 4.0][trial % 3]
        c_own = c * [0.0, 0.3, 1.0, 0.9][trial % 4]
        alpha = update(form, q, y, c, c_own, own_in_sort)
        expected, value = column_qp(form, q, y, c, c_own, own_in_sort)
        got = column_value(violations_of(form, q, y), alpha, y, c, c_own)
        assert got == pytest.approx(value, abs=1e-7)
        np.testing.assert_allclose(alpha, expected, atol=2e-4)


@pytest.mark.parametrize("name", [name for name in CASES if name != "max"])
def test_agrees_with_its_slow_twin(name):
    rng = np.random.default_rng(len(name))
    make, own_in_sort = CASES[name]
    for m in (3, 8, 20):
        form = make(m).form(m)
        for trial in range(5):
            q = rng.standard_normal(m) * [0.3, 3.0][trial % 2]
            y, c = int(rng.integers(m)), [0.05, 0.7, 4.0][trial % 3]
            c_own = c * [0.0, 0.3, 0.9][trial % 3]
            b = violations_of(form, q, y)
            if not own_in_sort:
                expected = others_twin(b, y, c, c_own, form.rho)
            elif form.ranks == Ranks():
                expected = two_curvatures_twin(b, y, c, c_own, form.rho)
            else:
                expected = wusunier_twin(b, y, c, c_own, form.rho)
            np.testing.assert_allclose(update(form, q, y, c, c_own, own_in_sort), expected, atol=1e-11)


@pytest.mark.parametrize("own_in_sort", [True, False])
def test_optimal_and_feasible_at_every_scale(own_in_sort):
    rng = np.random.default_rng(17)
    scales = 10.0 ** np.array([-9, -5, 0, 0, 0, 5, 9])
    for _ in range(3000):
        m = int(rng.integers(2, 40))
        rho = np.sort(rng.random(int(rng.integers(1, m + own_in_sort))) + 1e-3)[::-1].copy()
        if rng.random() < 0.3:
            rho[:] = rho[0]
        margins = 3 * rng.random((m, m)) * (1 - np.eye(m)) if rng.random() < 0.5 else None
        form = LossForm(m=m, family=SUM_THEN_HINGE, rho=rho, margins=margins)
        q = rng.standard_normal(m)
        if rng.random() < 0.3:
            q = np.round(q)
        q *= rng.choice(scales)
        c, y = rng.random() * rng.choice(scales), int(rng.integers(m))
        c_own = c * rng.choice([0.0, 1e-9, 0.1, 0.99, 1.0])
        alpha = update(form, q, y, c, c_own, own_in_sort)
        b = violations_of(form, q, y)
        radius = rho.sum()
        assert infeasibility(form, alpha, y, own_in_sort) <= 1e-13 * radius
        gap = optimality_gap(form, b, alpha, y, c, c_own, own_in_sort)
        assert gap <= 3e-13 * radius * (np.abs(b).max() + c * radius)


@pytest.mark.parametrize("k", [1, 3])
def test_the_two_smoothings_of_one_name_at_zero_scores(k):
    """Erratum h1: m = 6, gamma = 1, scores 0: 0.9 for the others only, 5/12 for the Moreau envelope."""
    form, scores, y = TopKHinge(k).form(6), np.zeros((1, 6)), np.array([2])
    assert envelope_losses(form, scores, y, 1.0)[0] == pytest.approx(5 / 12, abs=1e-14)
    others = envelope_losses(sorted_by(form, False), scores, y, 1.0, smooth_own=False)[0]
    assert others == pytest.approx(0.9, abs=1e-14)


def test_without_smoothing_the_thesis_loss_sums_the_largest_others():
    rng = np.random.default_rng(2)
    form = TopKHinge(3).form(7)
    scores, y = rng.standard_normal((20, 7)), rng.integers(7, size=20)
    got = envelope_losses(sorted_by(form, False), scores, y, 0.0)
    expected = [support_value(form, violations_of(form, scores[i], y[i]), y[i], False) for i in range(20)]
    np.testing.assert_allclose(got, expected, atol=1e-14)


@pytest.mark.parametrize("own_in_sort", [True, False])
def test_reports_vertex_and_support(own_in_sort):
    rng = np.random.default_rng(12)
    seen = set()
    for _ in range(300):
        rho = np.sort(rng.random(int(rng.integers(2, 12))))[::-1].copy()
        form = LossForm(m=12, family=SUM_THEN_HINGE, rho=rho)
        q, y, c = rng.standard_normal(12), np.int32(rng.integers(12)), 10.0 ** rng.uniform(-2, 1)
        alpha, (_, support, vertex) = solved_column(sorted_by(form, own_in_sort), q, y, c, 0.5 * c)
        mass = -np.delete(alpha, y)
        assert support == np.count_nonzero(mass)
        assert vertex == (set(mass[mass > 0]) <= set(rho))
        seen.add(vertex)
    assert seen == {False, True}


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("name", CASES)
def test_kernels_come_back_from_values_that_are_not_finite(name, value):
    make, own_in_sort = CASES[name]
    form = make(30).form(30)
    for spots in ([3], [0], list(range(30))):
        q = np.linspace(-1, 1, 30)
        q[spots] = value
        _, result = solved_column(sorted_by(form, own_in_sort), q, 0, 1.0, 0.5)
        assert 0 <= result[1] <= 30


def test_refuses_k_of_all_classes_where_the_own_class_is_out():
    with pytest.raises(InvalidProblemError, match="has 4 others"):
        TopKOthersHinge(5).form(5)


def test_refuses_a_larger_curvature_of_the_own_class():
    with pytest.raises(InvalidProblemError, match="own class exceeds"):
        column_updates(TopKHinge(2).form(5), np.zeros((1, 5)), np.array([0]), 1.0, c_own=2.0)


@pytest.mark.parametrize(
    "loss",
    [
        MaxHinge(), TopKHinge(2), UsunierHinge(3), TopKOthersHinge(2), TopKEntropy(2), OneVsAll("hinge"),
        OneVsAll("logistic"),
    ],
    ids=lambda loss: f"{loss.name}",
)  # fmt: skip
def test_nearest_rows_are_in_the_domain_and_no_other_point_of_it_is_nearer(loss) -> None:
    """The angle at p between a row and any point v of the domain is obtuse: <z - p, v - p> <= 0."""
    m = 6
    form, rng = loss.form(m), np.random.default_rng(0)
    Z, y = rng.standard_normal((40, m)), rng.integers(m, size=40)
    nearest = nearest_rows(form, Z, y)
    for scale in (0.3, 3.0):
        for _ in range(20):
            inside = column_updates(form, scale * rng.standard_normal((40, m)), y, 1.0)
            assert np.sum((Z - nearest) * (inside - nearest), axis=1).max() < 1e-9
            np.testing.assert_allclose(nearest_rows(form, inside, y), inside, atol=1e-9)
    np.testing.assert_allclose(nearest_rows(form, nearest, y), nearest, atol=1e-9)


def test_rows_of_softmax_are_scaled_into_the_domain() -> None:
    """The positive entries of -Z of the other classes; where their sum is above 1, in shares of it."""
    m = 6
    form, rng = Softmax().form(m), np.random.default_rng(0)
    Z, y = rng.standard_normal((40, m)), rng.integers(m, size=40)
    others = np.clip(-Z, 0.0, None) * (np.arange(m) != y[:, None])
    totals = others.sum(axis=1)
    assert (totals > 1.0).any()
    assert (totals < 1.0).any()
    nearest = nearest_rows(form, Z, y)
    np.testing.assert_allclose(nearest.sum(axis=1), 0.0, atol=1e-15)
    np.testing.assert_allclose(
        -np.where(np.arange(m) == y[:, None], 0.0, nearest),
        others / np.maximum(totals, 1.0)[:, None],
        rtol=1e-15,
    )
    np.testing.assert_allclose(nearest_rows(form, nearest, y), nearest, atol=1e-15)
