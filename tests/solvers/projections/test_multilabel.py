"""Column updates, envelopes and domains of the losses of label sets, against general solvers and twins."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
from scipy.special import entr, logsumexp, softmax

from tests.reference import losses as reference
from tests.reference import multilabel
from tests.reference.columns import solved_column
from tests.reference.envelopes import column_updates, entropy_losses, entropy_updates, envelope_losses
from tests.reference.qp import minimise_qp
from topline import LabelSets, MaxHinge, MultilabelHinge, MultilabelSoftmax, OneVsAll
from topline.solvers.losses.ranking import B_U, LOSS, N_SUMS
from topline.solvers.losses.rows import gradient_rows, nearest_rows

M = 6
#: Every set of up to M labels, the empty one first.
EVERY_SET, _ = LabelSets.from_lists([s for size in range(M + 1) for s in combinations(range(M), size)], M)
HINGE = MultilabelHinge().form(M).with_label_sets(EVERY_SET, "hinge")
SOFTMAX = MultilabelSoftmax().form(M).with_label_sets(EVERY_SET, "softmax")
SETTLED = np.flatnonzero(EVERY_SET.sizes > 0)
SINGLE = np.flatnonzero(EVERY_SET.sizes == 1)
SCALES = 10.0 ** np.array([-9, -5, -1, 0, 0, 1, 2, 5, 9])


def draw(random, codes, count):
    """Give scores with ties here and there, label sets and curvatures."""
    q = random.standard_normal((count, M)) * random.choice([0.1, 1.0, 10.0], (count, 1))
    q[::3] = np.round(q[::3])
    return q, random.choice(codes, count), random.choice([1e-3, 0.2, 0.7, 5.0], count)


def value_of(q, c, alpha, conjugate):
    """Give the restricted dual of one example."""
    return conjugate - q @ alpha - 0.5 * c * alpha @ alpha


def hinge_qp(q, labels, c):
    """Solve the column problem of the hinge by the general solver."""
    own = multilabel.own_classes(labels, M)
    signs = np.where(own, 1.0, -1.0)
    G = np.vstack([-np.diag(signs), own.astype(float)])
    h = np.append(np.zeros(M), 1.0)
    return minimise_qp(c * np.eye(M), q + (1.0 - own), G, h, np.ones((1, M)), np.zeros(1))


def softmax_qp(q, labels, c):
    """Solve the column problem of the softmax loss in p = 1_Y / |Y| - alpha."""
    shares = multilabel.own_classes(labels, M) / len(labels)
    ones = np.ones((1, M))
    p = minimise_qp(c * np.eye(M), -q - c * shares, -np.eye(M), np.zeros(M), ones, np.ones(1), range(M))
    return shares - p


@pytest.mark.parametrize("name", ["hinge", "softmax"])
def test_the_row_is_that_of_a_general_solver(name) -> None:
    random = np.random.default_rng(3)
    form, solve = (HINGE, hinge_qp) if name == "hinge" else (SOFTMAX, softmax_qp)
    loss = MultilabelHinge() if name == "hinge" else MultilabelSoftmax()
    q, y, c = draw(random, SETTLED, 60)
    rows = column_updates(form, q, y, c)
    for i, alpha in enumerate(rows):
        labels = EVERY_SET.labels(y[i])
        assert reference.infeasibility(loss, alpha, labels) <= 1e-14
        expected = solve(q[i], labels, c[i])
        # Interior points come near the boundary: 1e-10 in the value, its square root in the row.
        assert alpha == pytest.approx(expected, abs=3e-5 if c[i] > 0.1 else 1e-3)
        got = value_of(q[i], c[i], alpha, reference.minus_conjugate(loss, alpha, labels))
        best = value_of(q[i], c[i], expected, reference.minus_conjugate(loss, expected, labels))
        assert got >= best - 1e-8


def test_the_hinge_says_how_many_classes_outside_have_mass() -> None:
    random = np.random.default_rng(8)
    q, y, c = draw(random, SETTLED, 200)
    supports = set()
    for i in range(len(q)):
        alpha, (mass, support, _) = solved_column(HINGE, q[i], y[i], c[i])
        outside = np.delete(alpha, EVERY_SET.labels(y[i]))
        assert support == np.count_nonzero(outside)
        assert mass == pytest.approx(-outside.sum(), abs=1e-12)
        supports.add(support)
    assert supports >= {0, 1, 2}


def test_a_hinge_without_curvature_gives_a_best_vertex() -> None:
    random = np.random.default_rng(4)
    q, y, _ = draw(random, range(len(EVERY_SET)), 300)
    for s, code, alpha in zip(q, y, column_updates(HINGE, q, y, 0.0), strict=True):
        assert alpha == pytest.approx(multilabel.hinge_vertex(s, EVERY_SET.labels(code)), abs=0)


def test_the_hinge_at_every_scale() -> None:
    """No point of the domain is better, by the slope of the dual at the row: scores and c of 1e-9 to 1e9."""
    random = np.random.default_rng(5)
    for _ in range(1500):
        q = random.standard_normal(M) * random.choice(SCALES)
        if random.random() < 0.3:
            q[:3] = q[0]
        c, code = float(random.choice(SCALES)), int(random.choice(SETTLED))
        labels = EVERY_SET.labels(code)
        alpha = column_updates(HINGE, q[None], np.array([code]), c)[0]
        assert multilabel.hinge_infeasibility(alpha, labels) <= 1e-14
        # The slope of the dual at alpha; the best vertex of it is worth as much as alpha itself.
        delta = 1.0 - multilabel.own_classes(labels, M)
        slope = -(delta + q) - c * alpha
        short = (multilabel.hinge_vertices(labels, M) @ slope).max() - alpha @ slope
        assert short <= 1e-14 * (np.abs(slope).max() + 1.0)


def test_the_softmax_at_every_scale() -> None:
    """log p + c p is q + c 1_Y / |Y| less one number for all classes, where p can be told from 0."""
    random = np.random.default_rng(6)
    for _ in range(1500):
        q = random.standard_normal(M) * random.choice(SCALES)
        c, code = float(random.choice([0.0, *SCALES])), int(random.choice(SETTLED))
        labels = EVERY_SET.labels(code)
        alpha = column_updates(SOFTMAX, q[None], np.array([code]), c)[0]
        shares = multilabel.own_classes(labels, M) / len(labels)
        assert multilabel.entropy_infeasibility(alpha, labels) <= 1e-15
        p = shares - alpha
        known = p > 1e-12 * max(1.0, 1.0 / c if c else 1.0)
        # An own class's p comes out of 1 / |Y| - p, which costs it digits.
        level = np.log(p[known]) + c * p[known] - (q + c * shares)[known]
        slope = np.max(1.0 / p[known] + c)
        assert np.ptp(level) <= 1e-15 * (8.0 * slope + 4.0 * np.abs(q).max() + 8.0 * c)


@pytest.mark.parametrize("c", [0.0, 0.3, 4.0])
def test_single_labels_give_the_single_label_losses(c) -> None:
    random = np.random.default_rng(7)
    q, y = 3.0 * random.standard_normal((80, M)), random.integers(0, M, 80)
    # The sets of one label are in the order of their labels.
    codes = SINGLE[y]
    hinge = MaxHinge().form(M)
    np.testing.assert_allclose(column_updates(HINGE, q, codes, c), column_updates(hinge, q, y, c), atol=1e-14)
    np.testing.assert_allclose(column_updates(SOFTMAX, q, codes, c), entropy_updates(q, y, c), atol=1e-14)
    losses = envelope_losses(HINGE, q, codes, c)
    np.testing.assert_allclose(losses, envelope_losses(hinge, q, y, c), atol=1e-13)
    np.testing.assert_allclose(envelope_losses(SOFTMAX, q, codes, c), entropy_losses(q, y, c), atol=1e-13)
    for base in ("hinge", "logistic"):
        form = OneVsAll(base).form(M)
        several = form.with_label_sets(EVERY_SET, base)
        np.testing.assert_array_equal(column_updates(several, q, codes, c), column_updates(form, q, y, c))


@pytest.mark.parametrize("gamma", [0.05, 0.8, 6.0])
def test_the_envelope_and_its_slope(gamma) -> None:
    """The smooth multilabel SVM against a bisection, and the least of Phi(z) + |z - s|^2 / (2 gamma)."""
    random = np.random.default_rng(8)
    q, y, _ = draw(random, range(len(EVERY_SET)), 60)
    loss = MultilabelHinge()
    values, rows = envelope_losses(HINGE, q, y, gamma), column_updates(HINGE, q, y, gamma)
    for s, code, value, u in zip(q, y, values, rows, strict=True):
        labels = EVERY_SET.labels(code)
        assert u == pytest.approx(multilabel.smoothed_hinge_vertex(s, labels, gamma), abs=1e-12)
        assert value == pytest.approx(reference.envelope(loss, s, labels, gamma), abs=1e-12)
        # u = -grad: the least lies at z = s + gamma u.
        nearest = multilabel.hinge(s + gamma * u, labels) + 0.5 * gamma * u @ u
        assert value == pytest.approx(nearest, abs=1e-12)


def test_without_labels_and_with_all_of_them() -> None:
    """There is no pair: the hinge is 0.  All labels make the softmax loss pull scores together."""
    scores = np.array([[3.0, -1.0, 0.5, 9.0, -7.0, 2.0]])
    empty, full = np.array([0]), np.flatnonzero(EVERY_SET.sizes == M)
    for code in (empty, full):
        assert envelope_losses(HINGE, scores, code, 0.7)[0] == 0.0
        assert not column_updates(HINGE, scores, code, 0.7).any()
        assert not nearest_rows(HINGE, scores, code).any()
    assert not column_updates(SOFTMAX, scores, empty, 0.7).any()
    s = scores[0]
    expected = np.log(np.exp(s).sum()) - s.mean()
    assert envelope_losses(SOFTMAX, scores, full, 0.0)[0] == pytest.approx(expected, rel=1e-14)


def test_scores_that_are_far_up_cost_no_digits() -> None:
    random = np.random.default_rng(9)
    q, y, _ = draw(random, SETTLED, 40)
    q = np.round(q, 1)
    for form in (HINGE, SOFTMAX):
        for c in (0.0, 0.5):
            far, near = column_updates(form, q + 2.0**40, y, c), column_updates(form, q, y, c)
            # 2^40 leaves the scores twelve bits behind the point.
            np.testing.assert_allclose(far, near, atol=2.0**-11)
            np.testing.assert_allclose(
                envelope_losses(form, q + 2.0**40, y, c), envelope_losses(form, q, y, c), atol=2.0**-10
            )


@pytest.mark.parametrize("loss", [MultilabelHinge(), MultilabelSoftmax(), OneVsAll("hinge")], ids=str)
def test_rows_are_put_back_inside_and_those_inside_stay(loss) -> None:
    random = np.random.default_rng(10)
    form = loss.form(M).with_label_sets(EVERY_SET, loss.name)
    codes = random.choice(SETTLED, 60)
    # Mixtures of gradients at many scores.
    gradients = [column_updates(form, random.standard_normal((60, M)) * 5.0, codes, 0.0) for _ in range(4)]
    inside = np.mean(gradients, axis=0)
    for size, moved in ((0.0, 1e-15), (1e-7, 2e-7)):
        rows = inside + size * random.standard_normal(inside.shape)
        back = nearest_rows(form, rows, codes)
        assert np.abs(back - inside).max() <= moved * M
        for alpha, code in zip(back, codes, strict=True):
            assert reference.infeasibility(loss, alpha, EVERY_SET.labels(code)) <= 1e-14


def test_small_rows_of_the_hinge_keep_their_digits() -> None:
    """Tiny rows, as float32 dual variables of easy examples are: put back, they are the same numbers."""
    row = np.zeros((1, M))
    row[0, :4] = 1e-30 * np.array([2.0, 1.0, -2.5, -0.5])
    code = np.array([next(s for s in range(len(EVERY_SET)) if list(EVERY_SET.labels(s)) == [0, 1])])
    np.testing.assert_allclose(nearest_rows(HINGE, row, code), row, rtol=1e-12)


def test_the_softmax_row_its_loss_and_its_entropy() -> None:
    """The shares of a set less the probabilities, at scores of several sizes; nothing for the empty set."""
    random = np.random.default_rng(11)
    for code in range(len(EVERY_SET)):
        labels = EVERY_SET.labels(code)
        for size in (0.1, 1.0, 20.0):
            s = size * random.standard_normal(M)
            u, sums = np.empty((1, M)), np.zeros(N_SUMS)
            gradient_rows(SOFTMAX, s[None], np.array([code], np.int32), np.ones(1), (0.0, 0.0), u, sums)
            u, value, entropy = u[0], sums[LOSS], sums[B_U]
            if not len(labels):
                assert (value, entropy, u.tolist()) == (0.0, 0.0, [0.0] * M)
                continue
            p = softmax(s)
            shares = np.isin(np.arange(M), labels) / len(labels)
            np.testing.assert_allclose(u, shares - p, atol=1e-14)
            assert value == pytest.approx(logsumexp(s) - s[labels].mean(), abs=1e-13 * (1.0 + size))
            assert entropy == pytest.approx(entr(p).sum(), abs=1e-13)
            assert entropy == pytest.approx(SOFTMAX.conjugate(u, code, SOFTMAX.table), abs=1e-12)
