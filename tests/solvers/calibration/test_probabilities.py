"""Probabilities: against scikit-learn on the same rows, a general minimiser, and where every row is right."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy.optimize import minimize
from scipy.special import expit, log_softmax
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.calibration import CalibratedClassifierCV
from sklearn.frozen import FrozenEstimator
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss

from topline.solvers.calibration import (
    ProbabilityMap,
    calibration_error,
    fit_labels,
    fit_probabilities,
    reliability,
)
from topline.solvers.errors import InvalidProblemError


class Scores(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """A classifier whose rows are its scores."""

    def __init__(self, m: int) -> None:
        self.classes_ = np.arange(m)
        self.m = m

    def fit(self, X: Any, y: Any) -> Scores:
        return self

    def decision_function(self, X: Any) -> Any:
        return np.asarray(X)

    def predict(self, X: Any) -> Any:
        return np.argmax(X, axis=1)


def scored(n: int = 600, m: int = 5, noise: float = 1.5, seed: int = 0) -> tuple[Any, Any]:
    rng = np.random.default_rng(seed)
    y = rng.integers(m, size=n)
    scores = 7.0 + 3.0 * (np.eye(m)[y] + noise * rng.gumbel(size=(n, m)) / 2)
    return scores, y


def loss_of(found: ProbabilityMap, scores: Any, y: Any) -> float:
    return -float(found.log_probabilities(scores)[np.arange(len(y)), y].mean())


@pytest.mark.parametrize("m", [3, 5, 20])
@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e3])
def test_the_temperature_is_that_of_scikit_learn(m: int, scale: float) -> None:
    scores, y = scored(m=m)
    theirs = CalibratedClassifierCV(FrozenEstimator(Scores(m)), method="temperature").fit(scores, y)
    found = fit_probabilities(scale * scores, y)
    assert found.temperature is not None
    # The same minimum of a convex function, found by two searches; ours moves with the scale of scores.
    p = theirs.predict_proba(scores)
    np.testing.assert_allclose(found.probabilities(scale * scores), p, atol=1e-6)
    assert loss_of(found, scale * scores, y) <= log_loss(y, p) + 1e-12


def test_the_slope_has_the_least_loss_and_no_offset_matters() -> None:
    scores, y = scored()
    found = fit_probabilities(scores, y)
    best = minimize(lambda b: -log_softmax(b * scores, axis=1)[np.arange(len(y)), y].mean(), 0.3, tol=1e-12)
    assert found.slope == pytest.approx(best.x[0], rel=1e-5)
    moved = scores + np.random.default_rng(1).normal(size=(len(y), 1))
    assert fit_probabilities(moved, y).slope == pytest.approx(found.slope, rel=1e-9)


def test_sigmoids_are_never_worse_than_the_softmax_on_their_rows() -> None:
    for noise in (0.5, 1.5, 4.0):
        scores, y = scored(noise=noise)
        soft, found = fit_probabilities(scores, y), fit_probabilities(scores, y, one_vs_all=True)
        assert loss_of(found, scores, y) <= loss_of(soft, scores, y)
        np.testing.assert_allclose(found.probabilities(scores).sum(axis=1), 1.0)
    # Rows of a model whose probabilities are normalised sigmoids: their parameters come back.
    rng = np.random.default_rng(3)
    scores = rng.normal(size=(10_000, 4))
    p = expit(1.7 * scores + 0.8)
    p /= p.sum(axis=1, keepdims=True)
    y = (rng.random((len(p), 1)) > np.cumsum(p, axis=1)[:, :-1]).sum(axis=1)
    found = fit_probabilities(scores, y, one_vs_all=True)
    # Standard errors are some 0.1 and 0.2: the two parameters trade against each other.
    assert (found.kind, found.slope, found.offset) == (
        "one_vs_all",
        pytest.approx(1.7, abs=0.5),
        pytest.approx(0.8, abs=1.0),
    )


def test_the_limit_of_sigmoids_is_the_softmax() -> None:
    scores, _ = scored()
    soft = ProbabilityMap("temperature", 0.4).probabilities(scores)
    np.testing.assert_allclose(
        ProbabilityMap("one_vs_all", 0.4, -50.0).probabilities(scores), soft, rtol=1e-9
    )


@pytest.mark.parametrize("one_vs_all", [False, True])
def test_where_every_row_is_right_the_mean_is_laplace_s(one_vs_all: bool) -> None:
    rng = np.random.default_rng(0)
    y = np.arange(98) % 3
    scores = 5.0 * np.eye(3)[y] + rng.uniform(size=(98, 3))
    found = fit_probabilities(scores, y, one_vs_all=one_vs_all)
    assert found.probabilities(scores).max(axis=1).mean() == pytest.approx(99 / 100, abs=1e-9)


def test_scores_that_know_nothing_make_every_class_equally_probable() -> None:
    y = np.arange(30) % 3
    for scores in (np.zeros((30, 3)), -np.eye(3)[y]):
        found = fit_probabilities(scores, y)
        assert (found.slope, found.temperature) == (0.0, None)
        np.testing.assert_allclose(found.probabilities(scores), 1 / 3)
    with pytest.raises(InvalidProblemError, match="at least a row and two classes"):
        fit_probabilities(np.zeros((0, 3)), np.zeros(0, dtype=int))


def test_labels_are_platt_s_sigmoid() -> None:
    rng = np.random.default_rng(0)
    scores = rng.normal(size=(2000, 6)) + 3.0
    relevant = rng.random((2000, 6)) < expit(2.0 * scores - 7.0)
    found = fit_labels(scores, relevant)
    theirs = LogisticRegression(C=np.inf, tol=1e-8).fit(scores.reshape(-1, 1), relevant.ravel())
    # Platt's targets differ from 0 and 1 by one in some thousands.
    assert found.slope == pytest.approx(theirs.coef_[0, 0], rel=0.01)
    assert found.offset == pytest.approx(theirs.intercept_[0], rel=0.01)
    apart = fit_labels(np.where(relevant, 1.0, -1.0), relevant)
    ones = apart.probabilities(np.array([[1.0]]))[0, 0]
    assert ones == pytest.approx((relevant.sum() + 1) / (relevant.sum() + 2), abs=1e-4)


def test_the_calibration_error_is_that_of_the_bins() -> None:
    confidence = np.array([0.55, 0.52, 0.95, 0.99, 1.0, 0.0])
    right = np.array([True, False, True, True, True, False])
    bins = reliability(confidence, right, bins=10)
    assert [(part.low, part.rows) for part in bins] == [(0.0, 1), (0.5, 2), (0.9, 3)]
    expected = (0.0 + 2 * abs(0.535 - 0.5) + 3 * (1.0 - 2.94 / 3)) / 6
    assert calibration_error(bins) == pytest.approx(expected)
    assert calibration_error(reliability(np.zeros(0), np.zeros(0, dtype=bool))) == 0.0
    rng = np.random.default_rng(0)
    p = rng.random(200_000)
    # Of well calibrated probabilities only sampling noise is left: sqrt(15 / n) at most.
    assert calibration_error(reliability(p, rng.random(len(p)) < p)) < np.sqrt(15 / len(p))
