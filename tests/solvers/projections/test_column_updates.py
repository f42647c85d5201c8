from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import product

import numpy as np
import pytest

from tests.reference.columns import (
    infeasibility,
    optimality_gap,
    others_twin,
    solved_column,
    support_value,
    twin,
    two_curvatures_twin,
    wusunier_twin,
)
from tests.reference.envelopes import column_updates, envelope_losses
from tests.reference.qp import column_qp, column_value
from topline.solvers.blocks.ascent.dual_changes import project_rows
from topline.solvers.errors import NonFiniteError
from topline.solvers.losses import (
    LossForm,
    MaxHinge,
    OneVsAll,
    Softmax,
    StructuredHinge,
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
from topline.solvers.losses.hinges import HINGE_THEN_SUM, MAX, OTHERS_SUM_THEN_HINGE, SUM_THEN_HINGE
from topline.solvers.losses.rows import nearest_rows

#: The loss for m classes, and whether its own class is in the sort.
LOSSES = {
    "max": (lambda m, rng: MaxHinge(), True),
    "structured": (lambda m, rng: StructuredHinge(3 * rng.random((m, m)) * (1 - np.eye(m))), True),
    "top-2": (lambda m, rng: TopKHinge(2), True),
    "top-m": (lambda m, rng: TopKHinge(m), True),
    "usunier-2": (lambda m, rng: UsunierHinge(2), True),
    "usunier-m": (lambda m, rng: UsunierHinge(m), True),
    "top-k linear": (lambda m, rng: WeightedTopKHinge(linear(min(3, m))), True),
    "top-k exponential": (lambda m, rng: WeightedTopKHinge(exponential(m)), True),
    "usunier linear": (lambda m, rng: WeightedUsunierHinge(linear(m)), True),
    "usunier exponential": (lambda m, rng: WeightedUsunierHinge(exponential(min(4, m))), True),
    "others top-2": (lambda m, rng: TopKHinge(min(2, m - 1)), False),
    "others top-(m-1)": (lambda m, rng: TopKHinge(m - 1), False),
    "others exponential": (lambda m, rng: WeightedTopKHinge(exponential(m - 1)), False),
    "others linear": (lambda m, rng: WeightedTopKHinge(linear(min(4, m - 1))), False),
}
OWN_IN_SORT = [name for name, (_, own_in_sort) in LOSSES.items() if own_in_sort]
#: Curvatures, and shares of them that the own class has.
CURVATURES = list(product([0.05, 0.7, 4.0], [1.0, 0.0, 0.3, 0.9]))


def form_of(name, m, rng):
    return LOSSES[name][0](m, rng).form(m)


def violations_of(form, q, y):
    return form.margin_rows(np.array([y]))[0] + q - q[y]


def sorted_by(form, own_in_sort):
    """Give the same loss with the own class out of the sort where asked."""
    return form if own_in_sort else replace(form, family=OTHERS_SUM_THEN_HINGE)


def update(form, q, y, c, c_own=None, own_in_sort=True):
    return column_updates(sorted_by(form, own_in_sort), q[None], np.array([y]), c, c_own=c_own)[0]


def random_form(rng, m, own_in_sort=True):
    aggregate = [SUM_THEN_HINGE, HINGE_THEN_SUM][int(rng.integers(1 + own_in_sort))]
    rho = np.sort(rng.random(int(rng.integers(1, m + own_in_sort))) + 1e-3)[::-1].copy()
    if rng.random() < 0.3:
        rho[:] = rho[0]
    margins = 3 * rng.random((m, m)) * (1 - np.eye(m)) if rng.random() < 0.5 else None
    return LossForm(m=m, family=aggregate, rho=rho, margins=margins)


@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("m", [2, 3, 7])
@pytest.mark.covering(1)
def test_agrees_with_a_general_qp_solver(name, m):
    rng = np.random.default_rng([m, len(name)])
    form, own_in_sort = form_of(name, m, rng), LOSSES[name][1]
    for trial, (c, share) in enumerate(CURVATURES):
        q = rng.standard_normal(m) if trial % 2 else np.round(rng.standard_normal(m))  # rounded: ties
        y = int(rng.integers(m))
        alpha = update(form, q, y, c, share * c, own_in_sort)
        expected, value = column_qp(form, q, y, c, share * c, own_in_sort)
        b = violations_of(form, q, y)
        # The QP solver stops at 1e-9: its value may lie that far on either side, its point the square root.
        assert column_value(b, alpha, y, c, share * c) == pytest.approx(value, abs=1e-7)
        np.testing.assert_allclose(alpha, expected, atol=2e-4)


def twin_of(name, form, b, y, c, c_own):
    if not LOSSES[name][1]:
        return others_twin(b, y, c, c_own, form.rho)
    if c_own == c:
        return twin(form, b, y, c)
    return (two_curvatures_twin if form.ranks == Ranks() else wusunier_twin)(b, y, c, c_own, form.rho)


@pytest.mark.parametrize("name", LOSSES)
def test_agrees_with_its_slow_twin(name):
    rng = np.random.default_rng(len(name))
    for m in (2, 5, 24):
        form = form_of(name, m, rng)
        for trial, (c, share) in enumerate(CURVATURES):
            q, y = rng.standard_normal(m) * [0.3, 3.0][trial % 2], int(rng.integers(m))
            expected = twin_of(name, form, violations_of(form, q, y), y, c, share * c)
            np.testing.assert_allclose(
                update(form, q, y, c, share * c, LOSSES[name][1]), expected, atol=1e-11
            )


@pytest.mark.parametrize("name", ["top-2", "top-k linear"])
@pytest.mark.parametrize(
    ("spread", "c", "many"), [(0.05, 1, False), (0.5, 60, False), (0.005, 1, True), (0.0005, 0.1, True)]
)
def test_of_many_classes_those_with_mass_are_found(name, spread, c, many):
    """A few classes are looked at first: enough of them, or far too few, the own one among them or below."""
    m, rng = 150, np.random.default_rng(5)
    form = form_of(name, m, rng)
    for trial in range(4):
        q, y = spread * rng.standard_normal(m), int(rng.integers(m))
        q = np.round(q / spread) * spread if trial == 3 else q  # ties
        expected = twin(form, violations_of(form, q, y), y, c)
        np.testing.assert_allclose(update(form, q, y, c), expected, atol=1e-11)
        assert (np.count_nonzero(np.abs(expected) > 1e-9) > 100) == many or trial == 3


@pytest.mark.parametrize("own_in_sort", [True, False])
def test_optimal_and_feasible_at_every_scale(own_in_sort):
    """A certificate: over the domain no direction improves, scores and curvature from 1e-9 to 1e9."""
    rng = np.random.default_rng(7)
    scales = 10.0 ** np.array([-9, -5, 0, 0, 0, 5, 9])
    for _ in range(4000):
        form = random_form(rng, int(rng.integers(2, 40)), own_in_sort)
        q = rng.standard_normal(form.m)
        if rng.random() < 0.3:
            q = np.round(q)
        q *= rng.choice(scales)
        c = 0.0 if rng.random() < 0.05 else rng.random() * rng.choice(scales)
        share, y = rng.choice([1.0, 1.0, 0.99, 0.1, 1e-9, 0.0]), int(rng.integers(form.m))
        alpha = update(form, q, y, c, share * c, own_in_sort)
        b = violations_of(form, q, y)
        radius = form.rho.sum()
        assert infeasibility(form, alpha, y, own_in_sort) <= 1e-13 * radius
        rounding = 1e-13 if share == 1.0 and own_in_sort else 3e-13
        gap = optimality_gap(form, b, alpha, y, c, share * c, own_in_sort)
        assert gap <= rounding * radius * (np.abs(b).max() + c * radius)


@pytest.mark.parametrize("name", OWN_IN_SORT)
def test_a_curvature_far_above_the_scores_only_scales_the_row(name):
    """Large features and a large C: the alphas are tiny and must keep their digits."""
    rng = np.random.default_rng(3)
    form = form_of(name, 5, rng)
    q, y = 0.3 * rng.standard_normal((200, 5)), rng.integers(0, 5, 200)
    expected = 1e4 * column_updates(form, q, y, 1e4)
    for c in (1e8, 1e12, 1e15):
        np.testing.assert_allclose(c * column_updates(form, q, y, c), expected, rtol=0, atol=1e-13)


def test_close_scores_far_from_zero_keep_the_digits_of_the_mass():
    """Equal scores of 1e9 must share the weights equally, not to the 1e-7 that a double of 1e9 resolves."""
    form = WeightedTopKHinge((0.5, 0.3, 0.2)).form(6)
    alpha = update(form, np.array([0.0, 1e9, 1e9, 1e9, -1e9, 5.0]), 0, 1.0)
    np.testing.assert_allclose(alpha, [1.0, -1 / 3, -1 / 3, -1 / 3, 0.0, 0.0], rtol=1e-14, atol=0)


@pytest.mark.parametrize(
    "loss",
    [
        MaxHinge(), TopKHinge(2), UsunierHinge(2), WeightedTopKHinge(linear(3)),
        WeightedTopKHinge(linear(40)), WeightedUsunierHinge(exponential(4)),
    ],
    ids=lambda loss: f"{loss.name}-{len(loss.form(60).rho)}",
)  # fmt: skip
@pytest.mark.parametrize("m", [60, 500])
def test_few_ranks_of_many_classes_equal_all_ranks(loss, m):
    """Selection before the sort drops only classes without mass: zero weights in the tail change nothing."""
    rng = np.random.default_rng(m)
    form = loss.form(m)
    for trial in range(60):
        q = rng.standard_normal(m)
        if trial % 3 == 0:
            q = np.round(2 * q)
        y, c = int(rng.integers(m)), 10.0 ** rng.uniform(-3, 3)
        alpha = update(form, q, y, c)
        b = violations_of(form, q, y)
        assert infeasibility(form, alpha, y) <= 1e-14
        assert optimality_gap(form, b, alpha, y, c) <= 1e-14 * (np.abs(b).max() + c)


def test_own_score_far_ahead_gives_zero():
    for name in OWN_IN_SORT:
        form = form_of(name, 5, np.random.default_rng(0))
        q = np.array([0.0, 0.0, 50.0, 0.0, 0.0])
        np.testing.assert_array_equal(update(form, q, 2, 1.0), np.zeros(5), err_msg=name)


@pytest.mark.parametrize("own_in_sort", [True, False])
@pytest.mark.parametrize("share", [1.0, 0.5])
def test_reports_vertex_and_support(own_in_sort, share):
    rng = np.random.default_rng(11)
    seen = set()
    for _ in range(400):
        form = random_form(rng, 12, own_in_sort)
        q, y, c = rng.standard_normal(12), int(rng.integers(12)), 10.0 ** rng.uniform(-2, 1)
        alpha, (_, support, vertex) = solved_column(sorted_by(form, own_in_sort), q, y, c, share * c)
        mass = -np.delete(alpha, y)
        assert support == np.count_nonzero(mass)
        # A vertex carries the rank weights themselves; the own class may stand for one of them.
        carried, weights = Counter(mass[mass > 0].tolist()), Counter(form.rho.tolist())
        assert vertex == (carried <= weights)
        seen.add((form.family, vertex))
    families = (MAX, SUM_THEN_HINGE, HINGE_THEN_SUM) if own_in_sort else (MAX, SUM_THEN_HINGE)
    assert seen == {(family, vertex) for family in families for vertex in (False, True)}


@pytest.mark.parametrize("name", ["max", "top-2", "usunier-2", "top-k linear", "usunier linear"])
def test_a_margin_that_is_just_kept_gives_the_vertex_zero(name):
    form = form_of(name, 4, np.random.default_rng(0))
    alpha, (_, support, vertex) = solved_column(form, [1.0, 0.0, -1.0, 0.0], 0, 0.5)
    assert (support, vertex, alpha.tolist()) == (0, True, [0.0] * 4)


@pytest.mark.parametrize("name", OWN_IN_SORT)
def test_envelope_value_gradient_and_limit(name):
    rng = np.random.default_rng(5)
    m, gamma, eps = 6, 0.4, 1e-6
    form = form_of(name, m, rng)
    scores = rng.standard_normal((8, m))
    y = rng.integers(m, size=8)
    values = envelope_losses(form, scores, y, gamma)
    alpha = column_updates(form, scores, y, gamma)
    for i in range(8):
        assert values[i] == pytest.approx(column_qp(form, scores[i], y[i], gamma)[1], abs=1e-7)
        # -grad Phi_gamma = alpha; the envelope has a gradient with constant 1/gamma, so differences err
        # by eps.
        for j in range(m):
            step = np.zeros_like(scores)
            step[i, j] = eps
            up, down = (envelope_losses(form, scores + s * step, y, gamma)[i] for s in (1, -1))
            assert (up - down) / (2 * eps) == pytest.approx(-alpha[i, j], abs=1e-5)
    plain = [support_value(form, violations_of(form, scores[i], y[i]), y[i]) for i in range(8)]
    np.testing.assert_allclose(envelope_losses(form, scores, y, 0.0), plain, atol=1e-13)
    assert (values <= np.array(plain) + 1e-13).all()


def test_one_curvature_for_each_row():
    form = TopKHinge(2).form(4)
    rng = np.random.default_rng(1)
    q, y, c = rng.standard_normal((3, 4)), np.array([0, 3, 1]), np.array([0.0, 0.5, 2.0])
    rows = column_updates(form, q, y, c)
    for i in range(3):
        np.testing.assert_array_equal(rows[i], update(form, q[i], y[i], c[i]))


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_no_point_is_near_what_is_no_number(value):
    with pytest.raises(NonFiniteError, match="dual variables"):
        nearest_rows(TopKHinge(2).form(4), np.full((2, 4), value), np.array([0, 1]))


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


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_updates_come_back_from_values_that_are_not_finite(value):
    """An update inside a loop sees them before anybody checks; it must neither hang nor leave its buffers."""
    rng = np.random.default_rng(0)
    forms = [sorted_by(form_of(name, 30, rng), own_in_sort) for name, (_, own_in_sort) in LOSSES.items()]
    for form, c_own in product(forms, (1.0, 0.5)):
        for spots in ([3], [0], list(range(30))):
            q = np.linspace(-1, 1, 30)
            q[spots] = value
            _, result = solved_column(form, q, 0, 1.0, c_own)
            assert 0 <= result[1] <= 30


def test_a_score_that_is_no_number_gives_one_vs_all_no_mass():
    alpha, _ = solved_column(OneVsAll("hinge").form(3), np.array([np.nan, np.nan, 0.0]), 0, 1.0, 1.0)
    assert np.abs(alpha).tolist() == [0.0, 0.0, 1.0]


def projected(form, Z, y):
    rows = Z.copy()
    project_rows(rows, y.astype(np.int32), form)
    return rows


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
    # Of hinges also as sweeps project what extrapolation left outside.
    for project in (nearest_rows, projected)[: 1 + form.linear_conjugate]:
        nearest = project(form, Z, y)
        for scale in (0.3, 3.0):
            for _ in range(20):
                inside = column_updates(form, scale * rng.standard_normal((40, m)), y, 1.0)
                assert np.sum((Z - nearest) * (inside - nearest), axis=1).max() < 1e-9
                np.testing.assert_allclose(project(form, inside, y), inside, atol=1e-9)
        np.testing.assert_allclose(project(form, nearest, y), nearest, atol=1e-9)


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
