"""Theorems 1 and 2 on distributions over few points, where the population problem can be solved."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from scipy.optimize import minimize_scalar

from topline import InvalidProblemError
from topline.solvers.average_top import minimise
from topline.solvers.average_top.problem import individual_loss
from topline.solvers.typing import Float64Array

#: Scores between which the least risk of a loss is sought.
_RANGE = 60.0


def sufficient_share(eta: Float64Array, mass: Float64Array, loss: Any) -> float:
    """Give E*, the least risk E l(y f(x)) over all f: for k/n above it AT_k is calibrated (part i).

    For the hinge it is twice the error of the Bayes rule.  `loss` is "hinge" or "logistic".
    """
    loss = individual_loss(loss)
    if not loss.binary:
        raise InvalidProblemError(f"the loss {loss.name} is not one of signs; use hinge or logistic")
    signs = np.array([1.0, -1.0])

    def risk(z: float, share: float) -> float:
        both = loss.pieces(np.full(2, z), signs).losses()
        return float(share * both[0] + (1.0 - share) * both[1])

    least = [
        minimize_scalar(risk, bounds=(-_RANGE, _RANGE), args=(share,), options={"xatol": 1e-10}).fun
        for share in np.asarray(eta, dtype=np.float64)
    ]
    return float(np.asarray(mass) @ np.array(least))


def necessary_share(eta: Float64Array, mass: Float64Array) -> float:
    """Give the share k/n below which AT_k cannot be calibrated (part ii).

    It is the mass-weighted min(eta, 1 - eta) where eta is not 1/2: the error of the Bayes rule, if it is
    nowhere undecided.
    """
    eta = np.asarray(eta, dtype=np.float64)
    return float(np.asarray(mass) @ np.where(eta == 0.5, 0.0, np.minimum(eta, 1.0 - eta)))


def error_bound(
    n: int, mu: float, eps: float, C_3: float, kappa: float, norm: float, approximation: float = 0.0
) -> tuple[float, float]:
    """Give (excess, probability) of theorem 2: the error exceeds Bayes' by `excess` with that chance at most.

    For eq. 6 with k = ceil(n (E_h(f_H) + mu)), 0 < mu < 1 - E_h(f_H), and 0 < eps <= 1; `kappa` is the
    largest sqrt(k(x, x)), `norm` that of f_H, the best function of the kernel, and `approximation` what its
    hinge risk has above the least.
    """
    if not (n >= 1 and mu > 0.0 and 0.0 < eps <= 1.0 and C_3 > 0.0):
        raise InvalidProblemError(
            f"n, mu, eps and C are {n}, {mu}, {eps} and {C_3}; give positive numbers, eps at most 1"
        )
    constant = 1.0 + kappa * (2.0 * math.sqrt(2.0 * C_3) + 4.0 * norm)
    excess = mu + approximation + eps + constant / (math.sqrt(n) * mu)
    return excess, min(1.0, 2.0 * math.exp(-n * mu**2 * eps**2 / constant**2))


def k_for_error_bound(n: int, hinge_risk: float, mu: float) -> int:
    """Give the k that theorem 2 takes: ceil(n (E_h(f_H) + mu))."""
    return math.ceil(n * (hinge_risk + mu))


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
    with pytest.raises(InvalidProblemError, match="use hinge or logistic"):
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
