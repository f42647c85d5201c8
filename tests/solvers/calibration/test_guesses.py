"""The number of guesses by a selector: fitted to the least cost-weighted softmax, and worth its price."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.special import log_softmax, softmax
from sklearn.linear_model import LogisticRegression

from topline import InvalidProblemError, Softmax, TopKClassifier
from topline.solvers.calibration import ProbabilityMap, fit_guesses
from topline.solvers.losses import OneVsAll

OWN = ProbabilityMap("temperature", 1.0)


def drawn(n, m=6, seed=0):
    """Scores that are log probabilities, half of the rows sure and half not, and classes drawn by them."""
    random = np.random.default_rng(seed)
    scores = random.standard_normal((n, m)) * np.where(random.random(n) < 0.5, 6.0, 0.5)[:, None]
    p = softmax(scores, axis=1)
    return scores, np.array([random.choice(m, p=row) for row in p]), p


def test_the_weights_are_those_of_a_weighted_logistic_regression() -> None:
    """The cost-weighted softmax is a softmax of every row repeated with each k, weighted by what it saves."""
    scores, y, _ = drawn(400)
    rule = fit_guesses(OWN, scores, y, 0.1)
    logs = -np.sort(-log_softmax(scores, axis=1), axis=1)
    z = np.column_stack([np.maximum(logs, np.log(1e-12)), np.ones(len(y))])
    ranks = (scores >= scores[np.arange(len(y)), y][:, None]).sum(axis=1)
    costs = (ranks[:, None] > np.arange(1, 7)) + 0.1 * np.log(np.arange(1, 7))
    weights = (costs.max() - costs).ravel() / len(y)
    fitted = LogisticRegression(C=1.0 / 1e-2, fit_intercept=False, tol=1e-10, max_iter=10_000)
    fitted.fit(np.repeat(z, 6, axis=0), np.tile(np.arange(6), len(y)), sample_weight=weights)
    np.testing.assert_allclose(rule.weights.T, fitted.coef_, atol=2e-4)


def test_guesses_cost_less_than_any_fixed_number_of_them() -> None:
    scores, y, p = drawn(3000)
    price = 0.2
    rule, (scores, y, p) = fit_guesses(OWN, scores, y, price), drawn(3000, seed=1)
    sets = rule.sets(scores)
    sizes = sets.sum(axis=1)
    np.testing.assert_array_equal(sets, p >= np.sort(p, axis=1)[np.arange(len(y)), -sizes][:, None])
    spent = np.mean(~sets[np.arange(len(y)), y] + price * np.log(sizes))
    ranks = (scores >= scores[np.arange(len(y)), y][:, None]).sum(axis=1)
    fixed = [np.mean((ranks > k) + price * np.log(k)) for k in range(1, 7)]
    assert spent < 0.97 * min(fixed)
    # No rule is better than the k of the least expected cost.
    tails = 1.0 - np.cumsum(-np.sort(-p, axis=1), axis=1)
    best = np.min(tails + price * np.log(np.arange(1, 7)), axis=1).mean()
    assert spent < 1.05 * best


@pytest.mark.parametrize(("rows", "price"), [(19, 0.1), (40, 0.0), (40, -1.0), (40, np.inf)])
def test_too_few_rows_and_prices_that_are_none_are_refused(rows, price) -> None:
    scores, y, _ = drawn(rows)
    with pytest.raises(InvalidProblemError, match=f"got {rows} rows and the price"):
        fit_guesses(OWN, scores, y, price)


def test_an_estimator_gives_labels_best_first() -> None:
    scores, y, _ = drawn(300)
    names = np.array(list("abcdef"))
    model = TopKClassifier(Softmax(), C=100.0).fit(scores[:200], names[y[:200]])
    found = model.fit_guesses(scores[200:], names[y[200:]], 0.05).predict_guesses(scores[:20])
    assert {len(row) for row in found} > {1}
    assert [row[0] for row in found] == model.predict(scores[:20]).tolist()
    with pytest.raises(AttributeError, match="fit_guesses"):
        TopKClassifier(OneVsAll("hinge")).fit(scores, y).fit_guesses(scores, y)
