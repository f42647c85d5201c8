"""Stochastic gradients: eq. 4 step by step, and a certificate wherever they end."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import sparse

from tests.reference.average_top import loss_values, objective, optimum
from tests.reproduce.average_top.stochastic import stochastic_gradient
from tests.solvers.average_top.problems import EVERY_LOSS, examples
from topline import InvalidProblemError, NonFiniteError
from topline.solvers.average_top import AverageTopProblem, minimise


def derivative(name, z, y):
    return {
        "hinge": lambda: -y if y * z < 1.0 else 0.0,
        "logistic": lambda: -y / (1.0 + np.exp(y * z)) / np.log(2.0),
        "square": lambda: 2.0 * (z - y),
        "absolute": lambda: np.sign(z - y),
    }[name]()


def equation_4(X, y, name, k, C_3, epochs, step, seed):
    """Run the paper's updates as they are printed; gives the mean of w, the last w and lambda."""
    random = np.random.default_rng(seed)
    n, d = X.shape
    w, lam, seen, t = np.zeros(d), 0.0, [], 0
    for _ in range(epochs):
        for i in random.permutation(n):
            t += 1
            eta = min(step / np.sqrt(t), C_3)
            z = X[i] @ w
            counts = float(loss_values(name, z, y[i]) > lam)
            w = w - eta * (derivative(name, z, y[i]) * X[i] * counts + w / C_3)
            lam = max(lam - eta * (k / n - counts), 0.0)
            seen.append(w)
    return np.mean(seen, axis=0), w, lam


@pytest.mark.parametrize("name", EVERY_LOSS)
@pytest.mark.parametrize("k", [10, 27.5])
@pytest.mark.parametrize("C", [0.01, 5.0])
@pytest.mark.covering(2)
def test_steps_are_those_of_equation_4(name, k, C) -> None:
    """With the small C the first steps are cut to C_3."""
    X, y = examples(name)
    problem = AverageTopProblem.of(X, y, name, k, C)
    mean, last, threshold = equation_4(X, y, name, k, C * 40 / k, epochs=3, step=0.2, seed=7)
    run = stochastic_gradient(problem, epochs=3, step=0.2, seed=7)
    np.testing.assert_allclose(run.w, mean, rtol=1e-9, atol=1e-12)
    assert run.threshold == pytest.approx(threshold, rel=1e-9, abs=1e-12)
    other = stochastic_gradient(problem, epochs=3, step=0.2, seed=7, averaged=False)
    np.testing.assert_allclose(other.w, last, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("name", EVERY_LOSS)
@pytest.mark.parametrize("k", [25, 40])
def test_it_comes_near_the_optimum_and_says_how_near(name, k) -> None:
    X, y = examples(name)
    problem = AverageTopProblem.of(X, y, name, k, 5.0)
    value, _ = optimum(X, y, name, k, 5.0)
    run = stochastic_gradient(problem, epochs=300, step=0.3)
    assert run.primal == pytest.approx(objective(X, y, name, k, 5.0, run.w), rel=1e-13)
    assert value * (1.0 - 1e-6) <= run.primal <= 1.03 * value
    assert run.dual <= value * (1.0 + 1e-6)
    exact = minimise(X, y, name, k, 5.0)
    known = stochastic_gradient(problem, epochs=300, step=0.3, dual=exact.dual)
    assert known.gap == run.primal - exact.dual
    if k == 40:
        # For k = n the bound that needs no exact run is the optimum itself.
        assert run.gap == pytest.approx(known.gap, abs=2e-6 * value)


def test_what_it_cannot_do_is_refused() -> None:
    X, y = examples("square")
    problem = AverageTopProblem.of(X, y, "square", 40, 5.0)
    with pytest.raises(NonFiniteError, match="lower the step size"):
        stochastic_gradient(problem, step=1e3)
    for bad in ({"epochs": 0}, {"step": 0.0}, {"step": np.inf}):
        with pytest.raises(InvalidProblemError, match="give positive numbers"):
            stochastic_gradient(problem, **bad)
    with pytest.raises(InvalidProblemError, match=r"give X.toarray\(\)"):
        stochastic_gradient(AverageTopProblem.of(sparse.csr_matrix(X), y, "square", 40, 5.0))
