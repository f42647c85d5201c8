"""Entropic column updates, exponentials and logarithms, against general solvers and libraries."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.optimize import brentq
from scipy.special import wrightomega

from tests.reference.columns import solved_column
from tests.reference.envelopes import entropy_losses, entropy_updates
from tests.reference.qp import minimise_qp
from topline.solvers.losses import Softmax, TopKEntropy
from topline.solvers.projections.entropic import entropic_start, entropic_step, entropic_weight, lambert_exp
from topline.solvers.projections.exponentials import exp_of_row, log_of_one_and


def update(q, y, c, k):
    return entropy_updates(q[None], np.array([y]), c, k)[0]


def entropic_conic(q, y, c, k):
    """Solve the column problem with exponential cones: variables x (others) and p = 1 - s."""
    b = np.delete(q - q[y], y)
    d = len(b)
    P = np.zeros((d + 1, d + 1))
    P[:d, :d] = c * (np.eye(d) + np.ones((d, d)))
    G = np.vstack([-np.eye(d + 1), np.hstack([np.eye(d) - np.ones((d, d)) / k, np.zeros((d, 1))])])
    z = minimise_qp(
        P, np.append(-b, 0.0), G, np.zeros(len(G)), np.ones((1, d + 1)), [1.0], entropies=range(d + 1)
    )
    return np.insert(-z[:d], y, z[:d].sum())


def entropic_twin(q, y, c, k):
    """The thesis's way: one scalar equation for each number of capped classes, the consistent one wins."""
    b = np.delete(q - q[y], y)
    order = np.argsort(-b)
    best, best_value = None, np.inf

    def weight(u):
        return wrightomega(u + np.log(c)) / c if c > 0 else np.exp(u)

    for capped in range(k):
        top, rest = b[order[:capped]], b[order[capped:]]

        def masses(t, capped=capped, top=top, rest=rest):
            free = weight(rest - t)
            s = free.sum() * k / (k - capped)
            shift = sum(top - t - c * s / k - np.log(s / k)) / k
            return free, s, weight(c - t - shift)

        low, high = b.min() - c - 50, b.max() + c + 50
        t = brentq(lambda t: np.log(sum(masses(t)[1:])), low, high, xtol=1e-14, rtol=1e-15)
        free, s, _ = masses(t)
        x = np.empty(len(b))
        x[order[:capped]] = s / k
        x[order[capped:]] = free
        if x.max() > s / k * (1 + 1e-9) and k > 1:
            continue
        s = min(s, 1 - 1e-16)
        value = c / 2 * (x @ x + s * s) - b @ x + x @ np.log(x) + (1 - s) * np.log(1 - s)
        if value < best_value:
            best, best_value = x, value
    return np.insert(-best, y, best.sum())


@pytest.mark.parametrize(("m", "k"), [(2, 1), (5, 1), (3, 2), (6, 2), (6, 5), (9, 4)])
def test_agrees_with_a_general_conic_solver_and_with_the_twin(m, k):
    rng = np.random.default_rng([m, k])
    for c in (0.0, 0.1, 1.0, 8.0):
        for trial in range(3):
            q, y = 2 * rng.standard_normal(m), int(rng.integers(m))
            if trial == 0:
                q = np.round(q)
            alpha = update(q, y, c, k)
            np.testing.assert_allclose(alpha, entropic_conic(q, y, c, k), atol=2e-4)
            np.testing.assert_allclose(alpha, entropic_twin(q, y, c, k), atol=1e-10)


def test_optimal_and_feasible_at_every_scale():
    rng = np.random.default_rng(1)
    checked = 0
    for _ in range(4000):
        m = int(rng.integers(2, 30))
        k, y = int(rng.integers(1, m)), int(rng.integers(m))
        c = rng.choice([0.0, 1e-9, 1e-3, 1.0, 1e3, 1e9]) * rng.random()
        b = rng.standard_normal(m) * rng.choice([1e-9, 0.1, 1.0, 10.0, 1e3, 1e9])
        if rng.random() < 0.3:
            b = np.round(b)
        b[y] = 0.0
        alpha, (p, _, _) = solved_column(TopKEntropy(k).form(m), b, y, c)
        x, s = -np.delete(alpha, y), alpha[y]
        assert x.min() >= 0
        assert max(s - 1, x.max() - s / k, abs(s + p - 1)) <= 1e-14
        if min(x.min(), p) < 1e-290:
            continue  # the gradient is not a number that doubles hold
        checked += 1
        gradient = np.delete(b, y) - c * x - c * s - np.log(x) + np.log(p)
        gap = max(0.0, np.sort(gradient)[::-1][:k].mean()) - gradient @ x
        assert gap <= 1e-13 * (1 + np.abs(b).max() + c)
    assert checked > 2000


def test_steps_that_would_go_to_and_fro_end():
    """Where the classes take over from p, Newton's steps from one side lead to the other."""
    c = 150.0
    for seed in range(20):
        b = np.random.default_rng(seed).standard_normal(10)
        b += 0.21 * c - b[1:].max()
        b[0] = 0.0
        alpha, (p, _, _) = solved_column(Softmax().form(10), b, 0, c)
        x = -alpha[1:]
        np.testing.assert_allclose(c * x + c * alpha[0] + np.log(x) - np.log(p), b[1:], atol=1e-11)


@pytest.mark.parametrize("k", [1, 2, 9])
@pytest.mark.parametrize("spread", [0.1, 3.0, 100.0, 1e9])
def test_float32_gives_its_own_digits(k, spread):
    """Also where curvature or scores are beyond them, as those of float64 are then."""
    rng = np.random.default_rng(2)
    m = 40
    for c in (0.0, 1e-3, 1.0, 30.0, 200.0, 1e6):
        b = spread * rng.standard_normal(m)
        exact, rounded = (solved_column(TopKEntropy(k).form(m), b, 5, c, single=s)[0] for s in (False, True))
        np.testing.assert_allclose(
            rounded, exact, rtol=1e-6 * (10.0 + min(c, 256.0) + min(spread, 100.0)), atol=1e-30
        )
        x = -np.delete(rounded, 5)
        assert max(-x.min(), rounded[5] - 1.0, x.max() - rounded[5] / k) <= 1e-6


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_the_kernel_comes_back_from_values_that_are_not_finite(value):
    for k in (1, 3, 11):
        for spots in ([3], list(range(12))):
            b = np.linspace(-1, 1, 12)
            b[spots] = value
            for single in (False, True):
                out, _ = solved_column(TopKEntropy(k).form(12), b, 0, 1.0, single=single)
            assert not out[1:].max() > 0  # mass has one sign or is NaN


@pytest.mark.parametrize("k", [1, 2, 5])
@pytest.mark.parametrize("gamma", [0.0, 0.5])
def test_loss_has_alpha_as_its_gradient(k, gamma):
    rng = np.random.default_rng(4)
    scores, y, eps = rng.standard_normal((6, 6)), rng.integers(6, size=6), 1e-5
    alpha = entropy_updates(scores, y, gamma, k)
    for j in range(6):
        step = np.zeros((6, 6))
        step[:, j] = eps
        up, down = (entropy_losses(scores + s * step, y, gamma, k) for s in (1, -1))
        np.testing.assert_allclose((up - down) / (2 * eps), -alpha[:, j], atol=1e-6)


def test_lambert_of_exp():
    z = np.concatenate([np.linspace(-700, 60, 40001), 10.0 ** np.linspace(1, 12, 200)])
    got = np.array([lambert_exp(v) for v in z])
    np.testing.assert_allclose(got, wrightomega(z), rtol=1e-14)
    assert lambert_exp(-800.0) == 0.0
    assert lambert_exp(1.0) == pytest.approx(1.0, abs=1e-16)


@pytest.mark.parametrize("c", [0.0, 1e-300, 1e-9, 1.0, 1e9])
def test_entropic_weight_solves_its_equation(c):
    for u in (-600.0, -30.0, -1.0, 0.0, 3.0, 300.0):
        x = entropic_weight(u, c, np.log(c) if c else 0.0)
        assert c * x + np.log(x) == pytest.approx(u, rel=1e-13, abs=1e-13)


@pytest.mark.parametrize("m", [1, 2, 7, 1000])
@pytest.mark.parametrize("scale", [0.0, 1e-300, 1e-12, 0.3, 1.0, 30.0, 700.0])
def test_it_is_exp_to_the_last_bits(m, scale) -> None:
    x = -scale * np.random.default_rng(m).random(m)
    out = np.empty(m)
    exp_of_row(x, out)
    np.testing.assert_allclose(out, np.exp(x), rtol=4e-16, atol=0.0)


@pytest.mark.parametrize("scale", [0.0, 1e-30, 0.3, 1.0, 30.0, 87.0])
def test_in_single_precision_it_is_exp_to_its_last_bits(scale) -> None:
    x = (scale * np.random.default_rng(0).uniform(-1.0, 1.0, 1000)).astype(np.float32)
    out = np.empty_like(x)
    exp_of_row(x, out)
    np.testing.assert_allclose(out, np.exp(x.astype(np.float64)), rtol=1.5e-7, atol=0.0)


def test_what_is_above_one_too() -> None:
    x, out = np.array([0.5, 1.0, 20.0, 300.0, 709.0]), np.empty(5)
    exp_of_row(x, out)
    np.testing.assert_allclose(out, np.exp(x), rtol=4e-16, atol=0.0)


@pytest.mark.parametrize("c", [0.0, 1e-300, 1e-12, 1e-3, 0.3, 1.0, 16.0, 1e4, 1e9])
def test_the_weights_of_a_row_solve_their_equation(c) -> None:
    """c x + log x = u to the last digits of u, wherever the search for t may look."""
    random = np.random.default_rng(0)
    for scale in (1e-9, 1.0, 30.0, 700.0, 1e9):
        b = np.append(-scale * random.random(40), 0.0)
        log_c = np.log(c) if c > 0.0 else -np.inf
        # At most the largest weight is 1, or as much more as the search begins with.
        for t in (-c, -0.5 * c, 0.0, 1.0, 40.0):
            x, logs = np.empty(len(b)), np.empty(len(b))
            entropic_start(b, t, log_c, logs)
            for _ in range(3):
                exp_of_row(logs, x)
                total, slope, _ = entropic_step(b, t, c, x, logs)
            assert total == pytest.approx(x.sum(), rel=1e-14)
            assert slope == pytest.approx(-(x / (1.0 + c * x)).sum(), rel=1e-14)
            u = b - t
            inside = u > -700.0
            near = x[inside]
            error = np.abs(c * near + np.log(near) - u[inside]) / (1.0 + c * near)
            np.testing.assert_array_less(error, 4e-15 * (1.0 + np.abs(u[inside])))
            assert (x[u < -710.0] == 0.0).all()
            for value, other in zip(near, u[inside], strict=True):
                assert value == pytest.approx(entropic_weight(other, c, log_c), rel=1e-12)


def test_what_is_far_below_is_next_to_nothing() -> None:
    out = np.empty(3)
    exp_of_row(np.array([-708.5, -1e9, -1e300]), out)
    assert (out > 0.0).all()
    assert (out < 1e-306).all()


@pytest.mark.parametrize(("dtype", "rounding"), [(np.float32, 2e-7), (np.float64, 5e-16)])
def test_what_a_small_number_adds_to_one_is_exact(dtype, rounding) -> None:
    x = np.append(np.geomspace(1e-37, 1.0, 1000), 0.0).astype(dtype)
    out = np.empty_like(x)
    log_of_one_and(x, out)
    np.testing.assert_allclose(out, np.log1p(x.astype(np.float64)), rtol=rounding, atol=0.0)
