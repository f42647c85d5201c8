"""Weight learning: the smooth hinge, the trained classifier and the hypergradient, against other ways."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pytest
from scipy.optimize import minimize
from scipy.special import expit

from tests.solvers.privileged.problems import rbf
from topline import InvalidProblemError
from topline.solvers.privileged import (
    TwiceSmoothHinge,
    hypergradient,
    learn_weights,
    solve_lower,
    solve_weighted_svm,
)


@dataclass(frozen=True)
class Logistic:
    """log(1 + exp(-t))."""

    steepest: ClassVar[float] = 0.25

    def value(self, t: np.ndarray) -> np.ndarray:
        """Return L(t)."""
        return np.logaddexp(0.0, -t)

    def slope(self, t: np.ndarray) -> np.ndarray:
        """Return L'(t)."""
        return np.asarray(-expit(-t))

    def curvature(self, t: np.ndarray) -> np.ndarray:
        """Return L''(t)."""
        return np.asarray(expit(t) * expit(-t))


LOSSES = [TwiceSmoothHinge(1.0), TwiceSmoothHinge(0.1), TwiceSmoothHinge(0.01), Logistic()]


def halves(seed, n=40, N=60):
    """Give K (n, n), y (n,), K (N, n) and y (N,) of a curved boundary with noise."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n + N, 3))
    y = np.where(X[:, 0] + X[:, 1] ** 2 - 0.7 + 0.5 * rng.normal(size=n + N) > 0, 1.0, -1.0)
    return rbf(X[:n]), y[:n], rbf(X[n:], X[:n]), y[n:]


# ---------------------------------------------------------------- losses


@pytest.mark.parametrize("loss", LOSSES)
def test_slopes_and_curvatures_are_derivatives(loss) -> None:
    t = np.linspace(-3.0, 3.0, 2001) + 1e-3 * np.pi
    h = 1e-5
    slopes = (loss.value(t + h) - loss.value(t - h)) / (2 * h)
    # What central differences leave out, by the largest third derivative there is.
    third = 1.5 / getattr(loss, "delta", 1.0) ** 2
    np.testing.assert_allclose(loss.slope(t), slopes, atol=1e-9 + h**2 * third)
    bends = (loss.slope(t + h) - loss.slope(t - h)) / (2 * h)
    np.testing.assert_allclose(loss.curvature(t), bends, atol=1e-9 + 2 * h * third)
    assert (loss.curvature(t) >= 0).all()
    assert loss.curvature(t).max() <= loss.steepest * (1 + 1e-12)


@pytest.mark.parametrize("delta", [1.0, 0.1, 0.01])
def test_the_smooth_hinge_is_the_printed_formula_and_tends_to_the_hinge(delta) -> None:
    """(3.26), and twice continuous: both derivatives meet at 1 - 2 delta and at 1."""
    loss = TwiceSmoothHinge(delta)
    t = np.linspace(-2.0, 2.0, 801)
    quartic = (1 - t) ** 3 * (t - 1 + 4 * delta) / (16 * delta**3)
    printed = np.where(t < 1 - 2 * delta, 1 - t - delta, np.where(t <= 1, quartic, 0.0))
    np.testing.assert_allclose(loss.value(t), printed, atol=1e-12)
    assert np.abs(loss.value(t) - np.maximum(0.0, 1.0 - t)).max() <= delta * (1 + 1e-12)
    for place in (1.0 - 2.0 * delta, 1.0):
        sides = np.array([place - 1e-12, place + 1e-12])
        for part in (loss.value, loss.slope, loss.curvature):
            assert np.ptp(part(sides)) <= 1e-8 / delta**2


# ---------------------------------------------------------------- the trained classifier


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("C", [0.1, 100.0])
def test_the_lower_problem_is_solved(loss, C) -> None:
    """Against BFGS of scipy on the objective in (a, b); (3.22)."""
    K, y, _, _ = halves(0)
    c = C * (0.5 + np.random.default_rng(1).random(len(y)))
    solution = solve_lower(K, y, c, loss)
    assert solution.residual <= 1e-10

    def objective(z):
        f = K @ z[:-1] + z[-1]
        pull = c * y * loss.slope(y * f)
        value = 0.5 * z[:-1] @ K @ z[:-1] + c @ loss.value(y * f)
        return value, np.append(K @ (z[:-1] + pull), pull.sum())

    ours = objective(np.append(solution.a, solution.b))[0]
    other = minimize(objective, np.zeros(len(y) + 1), jac=True, method="BFGS", options={"gtol": 1e-8})
    assert ours <= other.fun + 1e-9 * abs(ours)
    assert ours == pytest.approx(other.fun, rel=1e-4)
    np.testing.assert_allclose(solution.a, -c * y * loss.slope(y * solution.scores), atol=1e-9 * C)
    assert abs(solution.a.sum()) <= 1e-9 * C


def test_the_smooth_hinge_trains_the_weighted_svm_in_the_limit() -> None:
    K, y, _, _ = halves(3)
    c = 1.0 + np.random.default_rng(2).random(len(y))
    svm = solve_weighted_svm(K, y, c)
    distances = []
    for delta in (0.1, 0.01, 0.001):
        smooth = solve_lower(K, y, c, TwiceSmoothHinge(delta))
        change = smooth.a - svm.alpha * y
        distances.append(np.sqrt(change @ K @ change))
        # Each loss moves by delta at most, so the objective by delta sum c, and it is 1-strongly convex in w.
        assert distances[-1] <= np.sqrt(2.0 * delta * c.sum())
    assert distances[2] < 0.2 * distances[0]


# ---------------------------------------------------------------- the hypergradient


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("C", [0.3, 30.0])
def test_the_hypergradient_is_the_derivative(loss, C) -> None:
    """Theorem 3.5 with the minus that print lost, against central differences."""
    K, y, rows, y_rows = halves(1)
    c = C * (0.5 + np.random.default_rng(1).random(len(y)))
    solution = solve_lower(K, y, c, loss)
    _, gradient = hypergradient(K, y, rows, y_rows, c, loss, solution)

    def value(c):
        return hypergradient(K, y, rows, y_rows, c, loss, solve_lower(K, y, c, loss, solution))[0]

    h = 1e-4 * C
    differences = [(value(c + h * e) - value(c - h * e)) / (2 * h) for e in np.eye(len(y))[::4]]
    np.testing.assert_allclose(gradient[::4], differences, atol=1e-5 * np.abs(gradient).max())
    assert np.abs(gradient).max() > 1e-6
    # With the other sign every difference would be wrong.
    assert gradient[::4] @ np.array(differences) > 0


def test_the_case_without_curvature_has_its_own_gradient() -> None:
    """(3.25) with its minus: every example on the straight part, b held; da/dc = -diag(u)."""
    K, rows, y_rows = np.diag([0.01, 0.02]), np.array([[0.004, 0.001]]), np.array([1.0])
    y, c, loss = np.array([1.0, -1.0]), np.array([1.0, 1.0]), TwiceSmoothHinge(0.05)
    solution = solve_lower(K, y, c, loss)
    assert not loss.curvature(y * solution.scores).any()
    _, gradient = hypergradient(K, y, rows, y_rows, c, loss, solution)
    u = -y  # slope -1 on the straight part
    outer = loss.slope(rows @ solution.a + solution.b)
    np.testing.assert_allclose(gradient, -u * (rows.T @ outer), atol=1e-15)
    assert (gradient < 0).tolist() == [True, False]


# ---------------------------------------------------------------- learning


@pytest.mark.parametrize("loss", [TwiceSmoothHinge(0.3), Logistic()])
def test_learning_lowers_the_validation_loss_and_keeps_weights_nonnegative(loss) -> None:
    K, y, rows, y_rows = halves(2)
    learnt = learn_weights(K, y, rows, y_rows, loss, 1.0, max_steps=40)
    losses = np.array(learnt.validation_losses)
    assert (np.diff(losses) <= 0).all()
    assert losses[-1] < 0.8 * losses[0]
    assert (learnt.c >= 0).all()
    t = y_rows * (rows @ learnt.solution.a + learnt.solution.b)
    assert loss.value(t).mean() == pytest.approx(losses[-1], rel=1e-12)
    again = solve_lower(K, y, learnt.c, loss)
    np.testing.assert_allclose(again.scores, learnt.solution.scores, atol=1e-8)


def test_learning_puts_outliers_aside() -> None:
    """Figure 3.3: two outliers turn the SVM between two clouds around; learnt weights forget them."""
    rng = np.random.default_rng(0)
    y = np.where(np.arange(150) % 2 == 0, 1.0, -1.0)
    X = y[:, None] * np.array([2.0, 0.0]) + 0.5 * rng.normal(size=(150, 2))
    X[0], X[1] = (-200.0, 0.0), (200.0, 0.0)
    K, rows = X[:50] @ X[:50].T, X[50:] @ X[:50].T
    plain = solve_weighted_svm(K, y[:50], np.ones(50))
    turned = rows @ (plain.alpha * y[:50]) + plain.bias
    assert np.mean(np.sign(turned) != y[50:]) > 0.3
    learnt = learn_weights(K, y[:50], rows, y[50:], TwiceSmoothHinge(0.5), 1.0)
    straight = rows @ learnt.solution.a + learnt.solution.b
    assert np.mean(np.sign(straight) != y[50:]) == 0.0
    assert (learnt.c[:2] < 0.01 * learnt.c[2:].max()).all()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"K_validation": np.ones((3, 5))}, "K_validation has the shape"),
        ({"y_validation": [1, 1, 1]}, "all labels are equal"),
        ({"start": -1.0}, "at least 0"),
        ({"max_steps": 2.5}, "max_steps is 2.5; give a whole number"),
        ({"start": [1.0, 0.0, 1.0, 0.0]}, "only one class"),
    ],
)
def test_refusals(change, message) -> None:
    arguments = {
        "K": np.eye(4),
        "y": [1, -1, 1, -1],
        "K_validation": np.ones((3, 4)),
        "y_validation": [1, -1, 1],
        "loss": Logistic(),
        "start": 1.0,
        **change,
    }
    with pytest.raises(InvalidProblemError, match=message):
        learn_weights(**arguments)


@pytest.mark.parametrize("delta", [0.0, -1.0, np.inf, "0.1"])
def test_a_delta_that_is_none(delta) -> None:
    with pytest.raises(InvalidProblemError, match=r"delta is .*; give a positive number"):
        TwiceSmoothHinge(delta)
