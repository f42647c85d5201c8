"""Weights from P(Y | X), and its estimate by Nadaraya and Watson."""

from __future__ import annotations

import numpy as np
import pytest

from tests.reproduce.few_examples.privileged_trials import (
    best_bandwidth,
    nadaraya_watson,
    probability_weights,
)
from topline import InvalidProblemError


def test_regression_is_the_printed_quotient() -> None:
    """(3.27), row by row in Python."""
    rng = np.random.default_rng(0)
    X, y, new = rng.normal(size=(20, 3)), np.sign(rng.normal(size=20)), rng.normal(size=(7, 3))
    for h in (0.3, 1.0, 5.0):
        expected = []
        for x in new:
            kernel = [np.exp(-np.sum((x - z) ** 2) / (2 * h * h)) for z in X]
            expected.append(np.dot(kernel, y) / np.sum(kernel))
        np.testing.assert_allclose(nadaraya_watson(X, y, new, h), expected, rtol=1e-9)


def test_far_away_the_nearest_decides() -> None:
    """Every kernel value is below the least float64 there; the quotient still has its limit."""
    X, y = np.array([[0.0], [1.0], [1.0]]), np.array([-1.0, 1.0, -1.0])
    np.testing.assert_allclose(nadaraya_watson(X, y, [[-1e3], [1e3]], 0.1), [-1.0, 0.0], atol=1e-9)


def test_weights_are_powers_of_the_probability_of_the_label() -> None:
    eta, y = np.array([1.0, 0.5, -0.5, -1.0]), np.array([1.0, -1.0, -1.0, 1.0])
    np.testing.assert_allclose(probability_weights(eta, y), [1.0, 0.25, 0.75, 0.0])
    np.testing.assert_allclose(probability_weights(eta, y, 2.0), [1.0, 0.0625, 0.5625, 0.0])
    # tau = 0 is the plain SVM, whatever the probability.
    np.testing.assert_array_equal(probability_weights(eta, y, 0.0), np.ones(4))


def test_the_best_bandwidth_has_the_least_validation_error() -> None:
    rng = np.random.default_rng(3)
    X = rng.uniform(-3, 3, size=(300, 1))
    y = np.where(rng.random(300) < 0.5 + 0.5 * np.sin(2 * X[:, 0]), 1.0, -1.0)
    tried = (0.01, 0.3, 30.0)
    chosen = best_bandwidth(X[:150], y[:150], X[150:], y[150:], tried)
    errors = [np.mean((nadaraya_watson(X[:150], y[:150], X[150:], h) - y[150:]) ** 2) for h in tried]
    assert chosen == tried[int(np.argmin(errors))] == 0.3
    # The default tries multiples of the median distance, and beats the constant guess.
    h = best_bandwidth(X[:150], y[:150], X[150:], y[150:])
    eta = nadaraya_watson(X[:150], y[:150], X, h)
    assert np.mean((eta - np.sin(2 * X[:, 0])) ** 2) < 0.3 * np.mean(np.sin(2 * X[:, 0]) ** 2)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: probability_weights([1.5], [1]), "eta reaches 1.5"),
        (lambda: probability_weights([0.5], [1], -1.0), "tau is -1.0"),
        (lambda: nadaraya_watson([[0.0]], [1], [[1.0]], 0.0), "bandwidth is 0.0"),
        (lambda: best_bandwidth([[0.0]], [1], [[1.0]], [1], ()), "no bandwidths"),
    ],
)
def test_refusals(call, message) -> None:
    with pytest.raises(InvalidProblemError, match=message):
        call()
