"""Gradients, losses and conjugates of every loss, against definitions that share nothing with the kernels."""

from __future__ import annotations

import numpy as np
import pytest

from tests.reference import losses as reference
from tests.reference.qp import minimise_qp
from tests.reference.smooth import topk_entropy
from tests.solvers.problems import EVERY_LOSS, M, loss_name
from topline.solvers.losses import (
    LDRKL,
    OneVsAll,
    Softmax,
    StructuredHinge,
    SumExponential,
    TopKEntropy,
    TruncatedTopKEntropy,
)
from topline.solvers.losses.ranking import ACTIVE, B_U, LOSS, N_SUMS, U_SQ
from topline.solvers.losses.rows import conjugate_sum, gradient_rows

#: (gamma, kind) of a smoothing.
SMOOTHINGS = [(0.0, "moreau"), (0.5, "moreau"), (0.5, "others")]


def offered(loss, smoothing, m=M):
    """Say whether a loss takes the smoothing."""
    gamma, kind = smoothing
    form = loss.form(m)
    return gamma == 0 or (not form.smooth and (kind == "moreau" or form.sparse_vertices))


CASES = [(loss, smoothing) for loss in EVERY_LOSS for smoothing in SMOOTHINGS if offered(loss, smoothing)]
SMOOTH = [loss for loss in EVERY_LOSS if loss.form(M).smooth]


def case_name(value):
    return loss_name(value) if hasattr(value, "name") else f"{value[0]:g} {value[1]}"


def rows_of(loss, scores, y, smoothing=(0.0, "moreau"), weights=None):
    """Give U and the sums that the kernel finds."""
    gamma, kind = smoothing
    form = loss.form(scores.shape[1])
    U, sums = np.empty(scores.shape), np.zeros(N_SUMS)
    weights = np.ones(len(y)) if weights is None else weights
    own = gamma if kind == "moreau" else 0.0
    gradient_rows(form, scores, y.astype(np.int32), weights, (gamma, own), U, sums)
    return U, sums


def draw(m=M, n=60, scale=1.5, seed=3):
    random = np.random.default_rng([seed, m])
    return scale * random.standard_normal((n, m)), random.integers(0, m, n)


@pytest.mark.parametrize(("loss", "smoothing"), CASES, ids=case_name)
def test_rows_and_sums_are_those_of_the_definition(loss, smoothing) -> None:
    gamma, kind = smoothing
    scores, y = draw()
    weights = np.random.default_rng(1).uniform(0.0, 3.0, len(y))
    weights[::7] = 0.0
    U, sums = rows_of(loss, scores, y, smoothing, weights)
    rows = list(zip(scores, y, strict=True))
    expected = np.array([reference.gradient(loss, s, label, gamma, kind) for s, label in rows])
    np.testing.assert_allclose(U, expected, atol=1e-11)
    values = [
        reference.envelope(loss, s, label, gamma, kind) if gamma else reference.sorted_loss(loss, s, label)
        for s, label in rows
    ]
    assert sums[LOSS] == pytest.approx(weights @ values, rel=1e-12)
    assert sums[ACTIVE] == np.count_nonzero(np.abs(expected).sum(axis=1) > 1e-12)
    assert sums[U_SQ] == pytest.approx(weights @ np.sum(expected**2, axis=1), rel=1e-11)
    if loss.form(M).convex:
        conjugates = [
            reference.minus_conjugate(loss, u, label) - 0.5 * gamma * reference.squares(u, label, kind)
            for u, label in zip(expected, y, strict=True)
        ]
        assert sums[B_U] == pytest.approx(weights @ conjugates, rel=1e-11)
    else:
        assert np.isnan(sums[B_U])


@pytest.mark.parametrize(("loss", "smoothing"), CASES, ids=case_name)
@pytest.mark.parametrize("scale", [1e-9, 1e-3, 1.0, 1e3, 1e9])
@pytest.mark.covering(2)
def test_every_scale_and_ties(loss, smoothing, scale) -> None:
    """Scores of 1e-9 to 1e9, many of them equal: a feasible row, the value that it attains, and no better."""
    gamma, kind = smoothing
    scores, y = draw(n=12, seed=7)
    scores[::2] = np.round(scores[::2])
    # The exponential of 1e3 is infinite.
    scores *= scale if loss.form(M).family.bounded else min(scale, 10.0)
    for s, label in zip(scores, y, strict=True):
        U, sums = rows_of(loss, s[None], np.array([label]), smoothing)
        u, form = U[0], loss.form(M)
        rounding = 1e-13 * (1.0 + np.abs(s).max())
        if gamma == 0:
            assert sums[LOSS] == pytest.approx(reference.sorted_loss(loss, s, label), rel=1e-13, abs=rounding)
        if not form.convex:
            continue
        assert reference.infeasibility(loss, u, label) <= 1e-13
        attained = reference.minus_conjugate(loss, u, label) - u @ s
        attained -= 0.5 * gamma * reference.squares(u, label, kind)
        assert sums[LOSS] == pytest.approx(attained, rel=1e-12, abs=rounding)
        if form.linear_conjugate:
            slope = -reference.margins_of(loss, label, M) - s - gamma * u
            slope[label] += gamma * u[label] * (kind == "others")
            assert np.max(reference.vertices(loss, label, M) @ slope) - u @ slope <= rounding


@pytest.mark.parametrize("m", [2, 3, 40])
def test_the_smallest_and_the_largest_k(m) -> None:
    scores, y = draw(m=m, n=30)
    for k in {1, m - 1}:
        for loss in (TopKEntropy(k), TruncatedTopKEntropy(k)):
            U, sums = rows_of(loss, scores, y)
            rows = list(zip(scores, y, strict=True))
            expected = [reference.gradient(loss, s, label) for s, label in rows]
            np.testing.assert_allclose(U, expected, atol=1e-12)
            total = sum(reference.sorted_loss(loss, s, label) for s, label in rows)
            assert sums[LOSS] == pytest.approx(total, rel=1e-12)
    U, sums = rows_of(Softmax(), scores, y)
    for loss in (TopKEntropy(1), TruncatedTopKEntropy(1)):
        again, again_sums = rows_of(loss, scores, y)
        np.testing.assert_allclose(again, U, atol=1e-15)
        assert again_sums[LOSS] == pytest.approx(sums[LOSS], rel=1e-13)


@pytest.mark.parametrize("loss", EVERY_LOSS, ids=loss_name)
def test_the_rows_may_overwrite_the_scores_and_come_in_float32(loss) -> None:
    scores, y = draw()
    scores = scores.astype(np.float32)
    U, sums = rows_of(loss, scores.astype(np.float64), y)
    form, again = loss.form(M), np.zeros(N_SUMS)
    gradient_rows(form, scores, y.astype(np.int32), np.ones(len(y)), (0.0, 0.0), scores, again)
    if form.family.gradient_rows is None and loss.name != "topk_entropy":
        np.testing.assert_array_equal(scores, U.astype(np.float32))
        np.testing.assert_array_equal(again, sums)
    else:  # All of a row in float32.
        np.testing.assert_allclose(scores, U, rtol=2e-6, atol=0.0)
        np.testing.assert_allclose(again, sums, rtol=2e-7)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize(("loss", "smoothing"), CASES, ids=case_name)
@pytest.mark.covering(2)
def test_scores_that_are_no_numbers_show_in_the_loss(loss, smoothing, value) -> None:
    scores, y = draw(n=3)
    scores[1, 2] = value
    U, sums = rows_of(loss, scores, y, smoothing)
    assert np.isnan(sums[LOSS])
    assert np.isfinite(U).all()
    np.testing.assert_array_equal(U[1], 0.0)


@pytest.mark.parametrize("m", [2, 5, 9])
def test_the_topk_entropy_of_the_definition_is_that_of_a_conic_solver(m) -> None:
    """max <a, x> - sum x log x - p log p over the top-k simplex, by exponential cones."""
    random = np.random.default_rng(m)
    for k in range(1, m):
        a = 2.0 * random.standard_normal(m - 1)
        cap = np.eye(m - 1) - 1.0 / k
        G = np.hstack([np.vstack([-np.eye(m - 1), cap]), np.zeros((2 * (m - 1), 1))])
        flat, sums = np.zeros((m, m)), np.ones((1, m))
        z = minimise_qp(flat, np.append(-a, 0.0), G, np.zeros(len(G)), sums, [1.0], entropies=range(m))
        value, x = topk_entropy(a, k)
        z = np.maximum(z, 1e-300)
        assert value == pytest.approx(a @ z[:-1] - z @ np.log(z), abs=1e-7)
        np.testing.assert_allclose(x, z[:-1], atol=1e-4)


@pytest.mark.parametrize("loss", [loss for loss in SMOOTH if loss.form(M).convex], ids=loss_name)
def test_the_conjugate_on_the_edge_of_its_domain(loss) -> None:
    """0 log 0 = 0: no mass, all mass on one class, all coordinates at a bound."""
    form = loss.form(M)
    assert form.conjugate(np.zeros(M), 1, form.table) == 0.0
    corner = -np.eye(M)[0]
    if not isinstance(loss, OneVsAll):
        k = getattr(loss, "k", 1)
        corner = np.zeros(M)
        corner[[0, 2][:k]] = -1.0 / k
        corner[1] = 1.0
        # The mass that is moved pays the margin, or 1 in a sum of exponentials.
        paid = float(isinstance(loss, LDRKL | SumExponential))
        assert form.conjugate(corner, 1, form.table) == pytest.approx(np.log(k) + paid, abs=1e-15)
    else:
        assert form.conjugate(corner, 1, form.table) == 0.0


@pytest.mark.parametrize("loss", [loss for loss in EVERY_LOSS if loss.form(M).convex], ids=loss_name)
def test_conjugates_are_summed_with_their_weights(loss) -> None:
    scores, y = draw(n=20)
    weights = np.random.default_rng(4).uniform(0.0, 2.0, 20)
    A = np.array([0.7 * reference.gradient(loss, s, label) for s, label in zip(scores, y, strict=True)])
    form = loss.form(M)
    got = conjugate_sum(form.conjugate, A, y.astype(np.int32), weights, form.table)
    rows = zip(A, y, strict=True)
    expected = weights @ [reference.minus_conjugate(loss, alpha, label) for alpha, label in rows]
    assert got == pytest.approx(expected, rel=1e-13)
    if isinstance(loss, StructuredHinge):
        assert got != pytest.approx(weights @ np.array([A[i, y[i]] for i in range(20)]), rel=1e-3)
