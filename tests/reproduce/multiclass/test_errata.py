"""Errata of the list in the guide that no test of a room shows."""

from __future__ import annotations

import numpy as np
import pytest

from tests.reference.envelopes import envelope_losses
from topline import TopKHinge, WeightedTopKHinge, WeightedUsunierHinge, solve
from topline.solvers.losses import MaxHinge, linear

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
