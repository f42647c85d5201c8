"""Theorems 1 and 2 on distributions over few points, where the population problem can be solved."""

from __future__ import annotations

import math

import numpy as np
import pytest

from tests.reproduce.average_top_theory import (
    error_bound,
    k_for_error_bound,
    necessary_share,
    sufficient_share,
)
from topline import InvalidProblemError
from topline.solvers.average_top import minimise

#: Pr(y = 1 | x) and the mass of four points: E* is 0.4 for the hinge, the Bayes error 0.2.
ETA = np.array([0.9, 0.7, 0.25, 0.1])
MASS = np.array([0.3, 0.2, 0.2, 0.3])
SIZE = 200


def population_minimiser(loss, share):
    """Minimise eq. 7 over all functions of the four points: one indicator each, and next to no penalty.

    200 examples have exactly the probabilities of the distribution, so that means are expectations.
    """
    counts = np.rint(SIZE * MASS).astype(int)
    X = np.repeat(np.eye(4), counts, axis=0)
    y = np.concatenate(
        [np.repeat([1.0, -1.0], [round(c * e), c - round(c * e)]) for c, e in zip(counts, ETA, strict=True)]
    )
    return minimise(X, y, loss, share * SIZE, 1e7, tol=1e-9)


def test_the_least_risks() -> None:
    assert sufficient_share(ETA, MASS, "hinge") == pytest.approx(2.0 * necessary_share(ETA, MASS), rel=1e-6)
    entropy = -(ETA * np.log2(ETA) + (1.0 - ETA) * np.log2(1.0 - ETA))
    assert sufficient_share(ETA, MASS, "logistic") == pytest.approx(MASS @ entropy, rel=1e-8)
    assert necessary_share(ETA, MASS) == pytest.approx(0.17)
    assert necessary_share(np.array([0.5, 0.9]), np.array([0.5, 0.5])) == pytest.approx(0.05)
    with pytest.raises(InvalidProblemError, match="take hinge or logistic"):
        sufficient_share(ETA, MASS, "square")


@pytest.mark.parametrize("loss", ["hinge", "logistic"])
@pytest.mark.parametrize("above", [0.02, 0.2])
def test_above_the_least_risk_the_signs_are_those_of_bayes(loss, above) -> None:
    """Theorem 1 (i)."""
    result = population_minimiser(loss, min(sufficient_share(ETA, MASS, loss) + above, 1.0))
    assert not result.collapsed
    np.testing.assert_array_equal(np.sign(result.w), np.sign(ETA - 0.5))


@pytest.mark.parametrize("loss", ["hinge", "logistic"])
def test_below_the_bayes_error_it_cannot_be_calibrated(loss) -> None:
    """Theorem 1 (ii): here the optimum is f = 0 altogether."""
    assert population_minimiser(loss, 0.9 * necessary_share(ETA, MASS)).collapsed


def test_the_bound_of_theorem_2() -> None:
    """Its terms by hand: C_kH = 1 * (2 sqrt(2) + 8) at C = 1 and |f_H| = 2."""
    constant = 1.0 + 2.0 * math.sqrt(2.0) + 8.0
    excess, chance = error_bound(10**6, 0.1, 0.5, 1.0, 1.0, 2.0, approximation=0.01)
    assert excess == pytest.approx(0.1 + 0.01 + 0.5 + constant / 100.0)
    assert chance == pytest.approx(2.0 * math.exp(-(10**6) * 0.0025 / constant**2))
    assert error_bound(10, 0.1, 0.5, 1.0, 1.0, 2.0)[1] == 1.0
    assert k_for_error_bound(100, 0.301, 0.1) == 41
    with pytest.raises(InvalidProblemError, match="give positive numbers"):
        error_bound(10, 0.0, 0.5, 1.0, 1.0, 2.0)
