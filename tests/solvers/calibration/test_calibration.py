"""Probabilities, sets with a guarantee, and intervals of shares, against libraries and brute force."""

from __future__ import annotations

import re
from itertools import combinations
from math import ceil
from typing import Any

import numpy as np
import pytest
from scipy.optimize import minimize
from scipy.special import expit, log_softmax
from scipy.stats import beta, binomtest, kstest
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.calibration import CalibratedClassifierCV
from sklearn.frozen import FrozenEstimator
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss

from topline.solvers.calibration import (
    Calibration,
    CalibrationRows,
    ProbabilityMap,
    calibration_error,
    class_mean_interval,
    conformity,
    exact_rank,
    fit_labels,
    fit_probabilities,
    least_rows,
    reliability,
    share_interval,
    smallest_weighings,
)
from topline.solvers.errors import InvalidProblemError

NAMES = ("ant", "bee", "cat")


def table(n: int, m: int = 3, seed: int = 0) -> tuple[Any, Any, Any]:
    rng = np.random.default_rng(seed)
    y = rng.integers(m, size=n)
    scores = rng.gumbel(size=(n, m)) + 2.0 * np.eye(m)[y]
    p = np.exp(scores)
    return scores, p / p.sum(axis=1, keepdims=True), y


@pytest.mark.parametrize("penalty", [None, 0.01, 1.0, "probability"])
def test_scores_are_those_of_their_definition(penalty: float | None) -> None:
    scores, p, _ = table(20, 5)
    u = np.random.default_rng(1).random(20)
    found = conformity(scores, p, u, penalty)
    for i in range(20):
        for c in range(5):
            before = [j for j in range(5) if scores[i, j] > scores[i, c]]
            if penalty is None or penalty == "probability":
                expected, tolerance = 1.0 - p[i, c] + (len(before) if penalty is None else 0.0), 1e-6
            else:
                expected = p[i, before].sum() + u[i] * p[i, c] + penalty * (len(before) + u[i])
                tolerance = 1e-12
            assert found[i, c] == pytest.approx(expected, abs=tolerance)
            assert conformity(scores, None, u, None)[i, c] == pytest.approx(len(before) + u[i], rel=1e-12)


@pytest.mark.parametrize("penalty", [None, 0.1, "probability"])
@pytest.mark.parametrize("per_class", [False, True])
def test_thresholds_are_the_quantiles_that_brute_force_finds(penalty: float | None, per_class: bool) -> None:
    scores, p, y = table(60)
    u = np.random.default_rng(2).random(60)
    rows = CalibrationRows.of(scores, p, y, u)
    E = conformity(scores, p, u, penalty)[np.arange(60), y]
    np.testing.assert_allclose(rows.conformity(penalty), E, rtol=1e-12)
    for coverage in (0.5, 0.8, 0.9):
        found = rows.thresholds(coverage, penalty, NAMES, per_class=per_class)
        for code in range(3):
            own = E[y == code] if per_class else E
            # The least value of them that at least (n + 1) coverage of them do not exceed.
            expected = min(q for q in own if (own <= q).sum() >= (len(own) + 1) * coverage - 1e-9)
            assert found[code] == pytest.approx(expected, rel=1e-12)


def test_decimal_coverages_have_exact_ranks() -> None:
    # In floats 0.07 * 100 is above 7 and 0.95 * 20 may be above 19; a rank more would be a row too many.
    assert [exact_rank(99, c) for c in (0.07, 0.9, 0.95)] == [7, 90, 95]
    assert [exact_rank(19, c) for c in (0.9, 0.95, 0.951)] == [18, 19, 20]
    for coverage in (0.5, 0.8, 0.9, 0.95, 0.99):
        n = least_rows(coverage)
        assert exact_rank(n, coverage) == n
        assert exact_rank(n - 1, coverage) > n - 1
        assert n == ceil(round(coverage / (1 - coverage), 6))


def test_every_order_of_exchangeable_rows_covers_exactly() -> None:
    # Of n + 1 fixed rows each is the new one once: the share that is covered is ceil((n+1)c) / (n+1).
    scores, p, y = table(12)
    u = np.random.default_rng(3).random(12)
    for penalty, coverage in ((None, 0.7), (0.1, 0.9), (0.1, 0.5)):
        covered = 0
        for kept in combinations(range(12), 11):
            new = 78 - 12 - sum(kept)
            rows = CalibrationRows.of(*(part[list(kept)] for part in (scores, p, y, u)))
            bounds = rows.thresholds(coverage, penalty, NAMES, per_class=False)
            one = slice(new, new + 1)
            covered += bool((conformity(scores[one], p[one], u[one], penalty) <= bounds)[0, y[new]])
        assert covered == exact_rank(11, coverage)


@pytest.mark.parametrize("penalty", [None, 0.03, "probability"])
def test_coverage_over_calibration_sets_follows_the_beta_law(penalty: float | None) -> None:
    # P(E <= q | calibration rows) is the r-th of n uniform order statistics: Beta(r, n + 1 - r), if E is
    # continuous.  The distribution of E is that of 240,000 other rows.
    scores, p, y = table(280_000, seed=5)
    u = np.random.default_rng(6).random(len(y))
    E = CalibrationRows.of(scores, p, y, u).conformity(penalty)
    others, n, coverage = np.sort(E[:240_000]), 40, 0.9
    found = [
        np.searchsorted(others, np.sort(part)[exact_rank(n, coverage) - 1], side="right") / len(others)
        for part in E[240_000:].reshape(1000, n)
    ]
    rank = exact_rank(n, coverage)
    # A false alarm in a thousand of seeds; the seed is fixed.
    assert kstest(found, beta(rank, n + 1 - rank).cdf).pvalue > 1e-3


def test_sets_may_be_empty_and_are_prefixes_of_the_order() -> None:
    scores, p, y = table(500)
    u = np.random.default_rng(4).random(500)
    bounds = CalibrationRows.of(scores, p, y, u).thresholds(0.5, 0.01, NAMES, per_class=False)
    sets = conformity(scores, p, u, 0.01) <= bounds
    assert {0, 1} <= set(sets.sum(axis=1))
    along = np.take_along_axis(sets, np.argsort(-scores, axis=1), axis=1)
    assert (np.diff(along.astype(int), axis=1) <= 0).all()


def test_sets_by_rank_are_empty_where_the_best_class_is_least_certain() -> None:
    scores, p, y = table(2000)
    scores = 3.0 * scores
    p = np.exp(scores) / np.exp(scores).sum(axis=1, keepdims=True)
    u = np.random.default_rng(4).random(2000)
    bounds = CalibrationRows.of(scores, p, y, u).thresholds(0.7, None, NAMES, per_class=False)
    sets = conformity(scores, p, u, None) <= bounds
    empty = ~sets.any(axis=1)
    assert 0 < empty.sum() < 1000
    assert p[empty].max() <= p[~empty].max(axis=1).min() + 1e-6
    # Where probabilities are equal the draws decide.
    same = np.full_like(p, 1.0 / 3.0)
    bounds = CalibrationRows.of(scores, same, y, u).thresholds(0.5, None, NAMES, per_class=False)
    drawn = conformity(scores, same, u, None) <= bounds
    size = drawn.sum(axis=1)
    assert u[size == size.max()].max() <= u[size == size.min()].min()


def test_a_coverage_that_so_few_rows_cannot_give_is_refused() -> None:
    scores, _, y = table(18)
    rows = CalibrationRows.of(scores, None, y, np.full(18, 0.5))
    with pytest.raises(InvalidProblemError, match=r"there are 18 .* of 0\.9473 at most, and 0\.95 needs 19"):
        rows.thresholds(0.95, None, NAMES, per_class=False)
    with pytest.raises(InvalidProblemError, match=r"no class has so many .* of 0\.99 needs 99"):
        rows.thresholds(0.99, None, NAMES, per_class=True)
    with pytest.raises(InvalidProblemError, match=r"are 0 .* give a coverage of none"):
        CalibrationRows.of(scores[:0], None, y[:0], np.empty(0)).thresholds(0.5, None, NAMES, per_class=False)
    for coverage in (0.0, 1.0, float("nan")):
        with pytest.raises(InvalidProblemError, match="between 0 and 1"):
            rows.thresholds(coverage, None, NAMES, per_class=False)


def test_a_class_with_too_few_rows_of_its_own_is_in_every_set_and_named() -> None:
    scores, p, y = table(400, 4, seed=2)
    keep = (y != 3) | (np.cumsum(y == 3) <= 8)
    u = np.random.default_rng(9).random(400)
    rows = CalibrationRows.of(scores[keep], p[keep], y[keep], u[keep])
    rule = Calibration(("a", "b", "c", "d"), ProbabilityMap("temperature", 1.0), rows=rows).rule(
        0.9, per_class=True, sets_by="rank"
    )
    assert rule.note is not None
    assert re.match(r"1 of 4 classes are in every set \(d\), .* the 9 calibration rows .* of 0\.9", rule.note)
    assert rule.facts()["thresholds"][3] is None
    assert np.isfinite(rule.thresholds[:3]).all()
    found = rule.sets(scores, u)
    assert found[:, 3].all()
    # The others' thresholds are those of their own rows.
    for code in range(3):
        own = np.sort(rows.conformity(None)[rows.labels == code])
        assert rule.thresholds[code] == own[exact_rank(len(own), 0.9) - 1]


def test_the_penalty_with_the_smallest_sets_is_found() -> None:
    scores, p, y = table(2000, 8, seed=7)
    u = np.random.default_rng(8).random(2000)
    coverages = (0.8, 0.95)
    for coverage, best in zip(coverages, smallest_weighings(scores, p, y, u, coverages), strict=True):
        rows, sizes = CalibrationRows.of(scores, p, y, u), {}
        for penalty in (best, None, "probability", 0.001, 100.0):
            bounds = rows.thresholds(coverage, penalty, "abcdefgh", per_class=False)
            sizes[penalty] = (conformity(scores, p, u, penalty) <= bounds).sum(axis=1).mean()
        assert sizes[best] == min(sizes.values())
        # A fixed number of guesses with the same coverage is never smaller than sets by rank.
        ranks = np.sort(1 + (scores > scores[np.arange(2000), y][:, None]).sum(axis=1))
        assert sizes[None] <= ranks[exact_rank(2000, coverage) - 1]


def test_calibration_rows_are_counted_and_not_printed() -> None:
    scores, p, y = table(1200)
    assert repr(CalibrationRows.of(scores, p, y, np.zeros(1200))) == "CalibrationRows(1,200 rows)"


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


@pytest.mark.parametrize(("hits", "rows"), [(0, 1), (3, 6), (30, 60), (57, 58), (58, 58), (909, 1000)])
@pytest.mark.parametrize("confidence", [0.8, 0.95])
def test_intervals_of_shares_are_wilsons(hits: int, rows: int, confidence: float) -> None:
    truth = binomtest(hits, rows).proportion_ci(confidence, "wilson")
    found = share_interval(hits / rows, rows, confidence)
    assert found == pytest.approx((truth.low, truth.high), abs=1e-12)
    assert found[0] <= hits / rows <= found[1]


def test_nothing_is_known_of_no_rows() -> None:
    assert share_interval(0.0, 0) == (0.0, 1.0)


@pytest.mark.parametrize(
    ("sizes", "rates"),
    [
        ([4, 6, 10, 50, 200], np.array([0.5, 0.6, 0.8, 0.9, 0.97])),
        ([3] * 50, np.full(50, 0.8)),
        ([2] * 5 + [100] * 5, np.repeat([0.3, 0.95], 5)),
    ],
)
def test_means_over_classes_hold_what_is_true_as_often_as_they_promise(
    sizes: list[int], rates: np.ndarray
) -> None:
    """Classes of a few rows that are right with probabilities of their own, drawn 2,000 times."""
    random = np.random.default_rng(0)
    classes = np.repeat(np.arange(len(sizes)), sizes)
    weights = (1.0 / len(sizes) / np.array(sizes))[classes]
    held = 0
    for _ in range(2000):
        low, high = class_mean_interval(random.random(len(classes)) < rates[classes], classes, weights)
        held += low <= rates.mean() <= high
    # Three standard errors of 2,000 draws.
    assert held / 2000 >= 0.95 - 3.0 * (0.95 * 0.05 / 2000) ** 0.5
