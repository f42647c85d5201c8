"""Population risks against closed forms, brute force and a general solver; propositions 6.8 to 6.13."""

from __future__ import annotations

from itertools import permutations

import numpy as np
import pytest
from scipy.optimize import minimize

from tests.reference import losses as reference
from tests.reference.training_qp import optimum
from tests.solvers.problems import EVERY_LOSS, M, loss_name
from topline import (
    InvalidProblemError,
    MaxHinge,
    OneVsAll,
    Softmax,
    TopKEntropy,
    TopKHinge,
    TruncatedTopKEntropy,
    UnsupportedCombinationError,
)
from topline.solvers.losses.consistency import (
    bayes_error,
    consistency,
    population_minimum,
)

P = np.array([0.35, 0.25, 0.2, 0.12, 0.08])
#: The bound is a dual value, summed in another order than the risk: on some processors the last bit differs.
ROUNDING = 1e-12
CONVEX = [loss for loss in EVERY_LOSS if loss.form(M).convex]


def expected_error(p, scores, k):
    """Return the top-k error of scores (m,) at class probabilities p (m,); ties count as errors."""
    ranks = (np.asarray(scores)[None, :] >= np.asarray(scores)[:, None]).sum(axis=1)
    return np.asarray(p)[ranks > k].sum()


def population_risk(loss, p, scores):
    """Return R at scores (m,) for any loss of single labels, convex or not."""
    return sum(p[y] * reference.sorted_loss(loss, scores, y) for y in range(len(p)))


def test_the_bayes_error_is_the_least_of_all_rankings() -> None:
    p = np.array([0.1, 0.4, 0.2, 0.3])
    for k in (1, 2, 3):
        errors = [expected_error(p, scores, k) for scores in permutations(range(4))]
        assert bayes_error(p, k) == pytest.approx(min(errors))
    assert expected_error(p, np.zeros(4), 1) == pytest.approx(1.0)  # ties count against the scores
    assert expected_error(p, [0.0, 1.0, 0.0, 2.0], 2) == pytest.approx(0.3)


@pytest.mark.parametrize("loss", CONVEX, ids=loss_name)
def test_the_minimum_is_that_of_a_general_solver(loss) -> None:
    """Of one row a class with the weight m p_y and next to no regulariser."""
    lam = 1e-4
    best = optimum(np.ones((M, 1)), np.arange(M), loss, lam, m=M, weights=M * P)
    found = population_minimum(loss, P)
    assert found.bound - ROUNDING <= found.risk <= found.bound + 1e-6
    assert found.bound <= best + 1e-7
    # What the regulariser costs at most, at scores of the least length.
    centred = found.scores if isinstance(loss, OneVsAll) else found.scores - found.scores.mean()
    assert best <= found.risk + 0.5 * lam * centred @ centred + 1e-6


@pytest.mark.parametrize("smoothing", [0.0, 1.0])
def test_level_classes_have_equal_scores_and_cost_no_less(smoothing) -> None:
    free = population_minimum(Softmax() if smoothing == 0 else MaxHinge(), P, smoothing=smoothing)
    level = population_minimum(
        Softmax() if smoothing == 0 else MaxHinge(), P, level=(0, 3), smoothing=smoothing
    )
    assert level.scores[0] == pytest.approx(level.scores[3], abs=1e-9)
    assert level.risk > free.risk + 1e-3


def test_one_vs_all_hinge_is_not_calibrated() -> None:
    """Proposition 6.8, at its own example: -1 everywhere."""
    p = [0.4, 0.3, 0.3]
    np.testing.assert_allclose(population_minimum(OneVsAll("hinge"), p).scores, -1.0)
    assert not consistency(OneVsAll("hinge"), p, 1).consistent


def test_one_vs_all_logistic_is_calibrated() -> None:
    """Proposition 6.9: the minimiser is the log odds of each class."""
    p = np.array([0.5, 0.3, 0.2])
    found = population_minimum(OneVsAll("logistic"), p)
    np.testing.assert_allclose(found.scores, np.log(p / (1.0 - p)), atol=2e-3)
    assert all(consistency(OneVsAll("logistic"), p, s).consistent for s in (1, 2))


@pytest.mark.parametrize("gamma", [0.5, 1.0, 1.5])
def test_smooth_one_vs_all_is_calibrated(gamma) -> None:
    """Proposition 6.10, with the thresholds gamma/2 and 1 - gamma/2 for gamma > 1 (erratum h)."""
    p = np.array([0.6, 0.25, 0.15])
    expected = []
    for own in p:
        high, sign = max(own, 1.0 - own), np.sign(own - 0.5)
        inside = 2.0 * high - 1.0 <= gamma - 1.0
        expected.append(sign * (2.0 * high - 1.0 if inside else 1.0 - gamma * (1.0 - high) / high))
    found = population_minimum(OneVsAll("hinge"), p, smoothing=gamma)
    np.testing.assert_allclose(found.scores, expected, atol=2e-3)
    assert all(consistency(OneVsAll("hinge"), p, s, smoothing=gamma).consistent for s in (1, 2))


@pytest.mark.parametrize(("p", "top_1"), [((0.45, 0.3, 0.25), False), ((0.6, 0.3, 0.1), True)])
def test_the_multiclass_hinge_is_not_calibrated(p, top_1) -> None:
    """Proposition 6.11: the least risk is min(1, 2 (1 - max p)), and the other classes stay level."""
    assert population_minimum(MaxHinge(), p).risk == pytest.approx(min(1.0, 2.0 * (1.0 - p[0])), abs=1e-6)
    assert consistency(MaxHinge(), p, 1).consistent is top_1
    assert not consistency(MaxHinge(), p, 2).consistent


def test_softmax_is_calibrated_for_every_k() -> None:
    """Proposition 6.12: the minimiser is log p but for a constant."""
    p = P[:3] / P[:3].sum()
    found = population_minimum(Softmax(), p).scores
    np.testing.assert_allclose(found - found[0], np.log(p / p[0]), atol=5e-3)
    assert population_minimum(Softmax(), p).risk == pytest.approx(-p @ np.log(p), abs=1e-6)
    assert all(consistency(Softmax(), p, s).consistent for s in (1, 2))


def least_truncated(p, k, level=None):
    """The least risk of truncated top-k entropy from many starts, two scores equal if asked for."""
    m, rng = len(p), np.random.default_rng(0)
    free = [j for j in range(m) if level is None or j != level[1]]

    def scores(x):
        g = np.empty(m)
        g[free] = x
        if level is not None:
            g[level[1]] = g[level[0]]
        return g

    starts = [20.0 * rng.normal(size=len(free)) for _ in range(40)]
    bounds = [(-30.0, 30.0)] * len(free)
    runs = [
        minimize(lambda x: population_risk(TruncatedTopKEntropy(k), p, scores(x)), x0, bounds=bounds).fun
        for x0 in starts
    ]
    return min(runs)


@pytest.mark.slow
@pytest.mark.parametrize("s", [1, 2, 3])
def test_truncated_entropy_is_calibrated_from_k_on(s) -> None:
    """Proposition 6.13 with k = 3 of 4 classes: the 2 likeliest go to infinity, in any order of their own."""
    p = np.array([0.4, 0.3, 0.18, 0.12])
    likely = sorted(range(4), key=lambda j: -p[j])
    free = least_truncated(p, 3)
    lowest = min(least_truncated(p, 3, (a, b)) for a in likely[:s] for b in likely[s:])
    if s == 1:
        assert lowest == pytest.approx(free, abs=1e-6)
    else:
        assert lowest > free + 1e-3
    # The least risk that the thesis derives: the entropy of the rest.
    rest = p[2:] / p[2:].sum()
    assert free == pytest.approx(-p[2:] @ np.log(rest), abs=1e-4)
    with pytest.raises(UnsupportedCombinationError, match="not convex"):
        population_minimum(TruncatedTopKEntropy(3), p)


def test_what_the_open_question_looks_like_for_one_distribution() -> None:
    """Top-2 hinge and entropy: the first leaves the lower classes level, the second ranks them."""
    p = [0.4, 0.3, 0.18, 0.12]
    assert not consistency(TopKHinge(2), p, 2).consistent
    assert consistency(TopKHinge(2), p, 2, smoothing=1.0).consistent
    assert consistency(TopKEntropy(2), p, 2).consistent


def test_equal_probabilities_may_stand_in_any_order_and_others_are_refused() -> None:
    assert consistency(MaxHinge(), [0.6, 0.2, 0.2], 2).consistent
    for p in ([0.5, 0.6], [1.0], [-0.5, 1.5]):
        with pytest.raises(InvalidProblemError, match="probabilities of two or more classes"):
            bayes_error(p, 1)
    with pytest.raises(InvalidProblemError, match="give 1 to 2"):
        consistency(Softmax(), [0.5, 0.3, 0.2], 3)
