"""The circle, errata of the guide, and the causes of `letter`'s rows."""

from __future__ import annotations

from itertools import permutations

import numpy as np
import pytest
from scipy.optimize import approx_fprime

from tests.reference.envelopes import envelope_losses
from tests.reproduce.multiclass.circle import LENGTHS, PAPER, STARTS, WEIGHTS, sample
from tests.reproduce.multiclass.letter_causes import Tried, down, truncated
from topline import TopKHinge, WeightedTopKHinge, WeightedUsunierHinge, solve
from topline.solvers.core.state import SolverState
from topline.solvers.losses import MaxHinge, TruncatedTopKEntropy, linear

#: Steps of the interval in a unit of its length, 7; half of the circle is 3.5.
FINE = 10
STEPS, HALF = 7 * FINE, 7 * FINE // 2


def mass() -> np.ndarray:
    """Share of all points of each class in each step of the circle, (3, steps): P(class | segment)."""
    centres = (np.arange(STEPS) + 0.5) / FINE
    segments = np.searchsorted(STARTS + LENGTHS, centres)
    return WEIGHTS[:, segments] / STEPS


def test_tuples_are_probabilities_of_classes_given_the_segment() -> None:
    np.testing.assert_allclose(WEIGHTS.sum(axis=0), 1.0)
    assert WEIGHTS.sum(axis=1) == pytest.approx([1.7, 1.8, 1.5])  # no distribution over segments
    ordered = np.sort(mass(), axis=0)[::-1]
    assert 100.0 * ordered[0].sum() == pytest.approx(80.0, abs=0.05)
    assert 100.0 * ordered[:2].sum() == pytest.approx(98.6, abs=0.05)
    rng = np.random.default_rng(0)
    data = sample(rng, 20_000, by_segment=True, constant=False)
    shares = np.bincount(data.y) / len(data.y)
    np.testing.assert_allclose(shares, mass().sum(axis=1), atol=0.015)


def test_without_a_constant_feature_the_thesis_cannot_have_its_figure() -> None:
    """Three weight vectors divide the plane into cones of at most half a turn, and any such division is one.

    Every division at steps of the circle is tried: the best has 64.3 %, and the thesis prints 65.7 %.
    """
    sums = np.concatenate([np.zeros((3, 1)), np.cumsum(np.tile(mass(), 2), axis=1)], axis=1)
    best = 0.0
    for first in range(STEPS):
        for second in range(first + 1, min(first + HALF, first + STEPS) + 1):
            thirds = np.arange(max(second + 1, first + HALF), min(second + HALF, first + STEPS - 1) + 1)
            for a, b, c in permutations(range(3)):
                own = sums[a, second] - sums[a, first]
                rest = sums[b, thirds] - sums[b, second] + sums[c, first + STEPS] - sums[c, thirds]
                best = max(best, own + rest.max(initial=0.0))
    assert 100.0 * best == pytest.approx(64.3, abs=0.05)
    assert PAPER["top-1 SVM_1"][0] > 100.0 * best


M = 6


def test_weights_of_the_polytopes_are_differences() -> None:
    """Tajima et al. after (2.15): by rho'_l = rho_{k_l} - rho_{k_l + 1} sums of the largest make the loss."""
    rng, rho = np.random.default_rng(0), linear(4)
    padded = np.append(rho, np.zeros(M + 1 - len(rho)))
    form = WeightedTopKHinge(rho).form(M)
    over = []
    for scores in rng.standard_normal((50, M)):
        a = (np.arange(M) != 2) + scores - scores[2]
        sums = np.cumsum(np.sort(a)[::-1])
        loss = envelope_losses(form, scores[None], np.array([2]), 0.0)[0]
        assert loss == pytest.approx(max(0.0, (padded[:-1] - padded[1:]) @ sums), abs=1e-12)
        over.append(max(0.0, padded[:-1] @ sums) - loss)
    assert max(over) > 1.0


def test_the_usunier_loss_is_no_hinge_of_a_sum() -> None:
    """Tajima et al., (A.1): for rho = (1, 1) and violations 1 and -2 the printed side is 0, the loss 1."""
    scores, y = np.array([[0.0, 0.0, -3.0]]), np.array([0])
    loss = envelope_losses(WeightedUsunierHinge(np.array([1.0, 1.0])).form(3), scores, y, 0.0)[0]
    assert loss == 1.0
    assert max(0.0, 1.0 - 2.0) == 0.0


def test_the_last_weight_of_the_usunier_loss_has_no_effect() -> None:
    """Tajima et al. ask for rho_m = 0: it weighs max(0, smallest violation), and the own class has 0."""
    rho = np.linspace(1.0, 0.5, M)
    scores, y = np.random.default_rng(1).standard_normal((40, M)), np.arange(40) % M
    with_last, without = (
        envelope_losses(WeightedUsunierHinge(weights).form(M), scores, y, 0.0)
        for weights in (rho, np.append(rho[:-1], 0.0))
    )
    np.testing.assert_allclose(with_last, without, rtol=1e-14)


def test_the_smooth_hinge_bends_by_m_over_gamma_in_the_scores() -> None:
    """Lapin, proposition 6.2, says 1/gamma.  Where no bound is active the loss is a parabola: second
    differences are exact.
    """
    step, at = 0.01, np.where(np.arange(M) == 2, 0.9, 0.0)
    moves = step * np.eye(M)

    def loss(scores: np.ndarray) -> float:
        form = MaxHinge().form(M)
        return float(envelope_losses(form, scores[None], np.array([2]), 1.0, smooth_own=False)[0])

    hessian = [
        [(loss(at + p + q) - loss(at + p) - loss(at + q) + loss(at)) / step**2 for q in moves] for p in moves
    ]
    assert np.linalg.eigvalsh(hessian)[-1] == pytest.approx(M, rel=1e-9)


def test_eight_iterations_need_gamma_times_n() -> None:
    """Hirohashi and Kato, figure 1: with gamma = .1 the gap is far from 1e-3, with .1 n it is there."""
    n, d, m = 2000, 100, 20
    rng = np.random.default_rng(0)
    y = rng.integers(m, size=n)
    X = rng.standard_normal((m, d))[y] + 3.0 * rng.standard_normal((n, d))
    X /= np.linalg.norm(X, axis=1, keepdims=True)
    gaps = {
        gamma: solve(
            X, y, TopKHinge(5), 1.0 / n, smoothing=gamma, method="fw", max_passes=8, tol=1e-9
        ).history[-1].gap
        for gamma in (0.1, 0.1 * n)
    }  # fmt: skip
    assert gaps[0.1] > 1e-2
    assert gaps[0.1 * n] < 1e-3


N, D, LETTERS = 40, 4, 6


@pytest.fixture
def examples() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(3)
    y = np.concatenate([np.arange(LETTERS), rng.integers(LETTERS, size=N - LETTERS)])
    return rng.normal(size=(N, D)), y, rng.normal(size=(D, LETTERS))


@pytest.mark.parametrize("k", [1, 3, 5])
def test_the_value_is_the_librarys_and_the_slope_is_its_slope(examples, k: int) -> None:
    X, y, W = examples
    C = 0.7
    value, slope = truncated(X, y, W, k, C)
    numeric = approx_fprime(W.ravel(), lambda w: truncated(X, y, w.reshape(D, LETTERS), k, C)[0], 1e-7)
    np.testing.assert_allclose(slope.ravel(), numeric, rtol=1e-4, atol=1e-4)
    # A run without a pass reports the objective of where it starts, per example and over C.
    loss = TruncatedTopKEntropy(k)
    start = SolverState.at(W)
    here = solve(X, y, loss, 1.0 / (C * N), method="lbfgs", m=LETTERS, max_passes=1, state=start)
    assert here.history[0].primal * C * N == pytest.approx(value, rel=1e-9)


@pytest.mark.parametrize("k", [1, 3])
def test_every_step_goes_down_and_many_come_to_where_the_library_stands_still(examples, k: int) -> None:
    X, y, W = examples
    values = [truncated(X, y, down(X, y, W, k, 1.0, steps), k, 1.0)[0] for steps in range(6)]
    assert values == sorted(values, reverse=True)
    assert values[-1] < 0.9 * values[0]
    end = down(X, y, W, k, 1.0, 3000)
    assert np.abs(truncated(X, y, end, k, 1.0)[1]).max() < 1e-3
    if k == 1:  # the softmax, whose minimum is one
        result = solve(X, y, TruncatedTopKEntropy(1), 1.0 / N, method="lbfgs", m=LETTERS, tol=1e-8)
        np.testing.assert_allclose(end, result.W, atol=1e-3)


def test_C_is_chosen_for_each_column_or_for_all() -> None:
    tried = Tried(
        [[60.0, 80.0, 90.0, 95.0], [50.0, 85.0, 90.0, 99.0]], [[1.0, 2.0, 3.0, 4.0], [5.0, 6.0, 7.0, 8.0]]
    )
    assert tried.by_column() == [1.0, 6.0, 3.0, 8.0]
    assert tried.by_one(10) == [5.0, 6.0, 7.0, 8.0]
