"""Sets with a guarantee: brute-force quantiles, the beta law of coverage, and refusals."""

from __future__ import annotations

import re
from itertools import combinations
from math import ceil
from typing import Any

import numpy as np
import pytest
from scipy.stats import beta, kstest

from topline.solvers.calibration import (
    Calibration,
    CalibrationRows,
    ProbabilityMap,
    conformity,
    least_rows,
    prediction_sets,
)
from topline.solvers.calibration.conformal import exact_rank, smallest_weighings
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
            covered += bool(prediction_sets(scores[one], p[one], u[one], penalty, bounds)[0, y[new]])
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
    sets = prediction_sets(scores, p, u, 0.01, bounds)
    assert {0, 1} <= set(sets.sum(axis=1))
    along = np.take_along_axis(sets, np.argsort(-scores, axis=1), axis=1)
    assert (np.diff(along.astype(int), axis=1) <= 0).all()


def test_sets_by_rank_are_empty_where_the_best_class_is_least_certain() -> None:
    scores, p, y = table(2000)
    scores = 3.0 * scores
    p = np.exp(scores) / np.exp(scores).sum(axis=1, keepdims=True)
    u = np.random.default_rng(4).random(2000)
    bounds = CalibrationRows.of(scores, p, y, u).thresholds(0.7, None, NAMES, per_class=False)
    sets = prediction_sets(scores, p, u, None, bounds)
    empty = ~sets.any(axis=1)
    assert 0 < empty.sum() < 1000
    assert p[empty].max() <= p[~empty].max(axis=1).min() + 1e-6
    # Where probabilities are equal the draws decide.
    same = np.full_like(p, 1.0 / 3.0)
    bounds = CalibrationRows.of(scores, same, y, u).thresholds(0.5, None, NAMES, per_class=False)
    drawn = prediction_sets(scores, same, u, None, bounds)
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
            sizes[penalty] = prediction_sets(scores, p, u, penalty, bounds).sum(axis=1).mean()
        assert sizes[best] == min(sizes.values())
        # A fixed number of guesses with the same coverage is never smaller than sets by rank.
        ranks = np.sort(1 + (scores > scores[np.arange(2000), y][:, None]).sum(axis=1))
        assert sizes[None] <= ranks[exact_rank(2000, coverage) - 1]


def test_calibration_rows_are_counted_and_not_printed() -> None:
    scores, p, y = table(1200)
    assert repr(CalibrationRows.of(scores, p, y, np.zeros(1200))) == "CalibrationRows(1,200 rows)"
