"""The rule of promotion and what it rests on, against brute force, SciPy and numerical integration."""

from __future__ import annotations

import dataclasses
import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.integrate import quad
from scipy.sparse import csr_matrix
from scipy.stats import binomtest, multinomial, norm

from tests.pipeline.small_data import small_dataset
from tests.storage.models.test_records import record
from topline.pipeline.registry.drift import (
    Drift,
    FeatureMoments,
    balance_change,
    class_shares,
    drift_between,
    feature_moments,
    stability_index,
)
from topline.pipeline.registry.mcnemar import gain_interval, mcnemar_exact, paired_accuracy
from topline.pipeline.registry.promotion import Evidence, PromotionRule, decide
from topline.pipeline.rows.partition import TrainingRows

CERTIFIED = {"certified": True, "valid": True, "relative_gap": 5e-4, "tol": 1e-3}


def test_the_exact_test_is_the_binomial_one() -> None:
    for b, c in itertools.product(range(9), repeat=2):
        expected = binomtest(b, b + c).pvalue if b + c else 1.0
        assert mcnemar_exact(b, c) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize(("p", "q"), [(0.02, 0.02), (0.1, 0.1), (0.3, 0.1), (0.05, 0.0), (0.45, 0.4)])
def test_the_interval_holds_its_level(p: float, q: float) -> None:
    """Coverage summed over every outcome of 40 rows; Wald's interval covers 87 % of the fourth case."""
    n, covered = 40, 0.0
    for b in range(n + 1):
        for c in range(n + 1 - b):
            low, high = gain_interval(b, c, n, 0.95)
            if low <= p - q <= high:
                covered += multinomial.pmf([b, c, n - b - c], n, [p, q, 1 - p - q])
    assert covered >= 0.94


def test_the_interval_is_that_of_the_formula() -> None:
    """Wald's interval on the table with half a row added to each of its four cells."""
    for b, c, n, level in [(12, 5, 100, 0.95), (0, 0, 50, 0.9), (40, 2, 60, 0.99)]:
        ours = np.r_[np.ones(b + 1), -np.ones(c + 1), np.zeros(n - b - c)]
        half = norm.isf((1 - level) / 2) * ours.std() / np.sqrt(n + 2)
        assert gain_interval(b, c, n, level) == pytest.approx((ours.mean() - half, ours.mean() + half))


def test_accuracies_are_compared_row_by_row() -> None:
    challenger, champion = np.array([1, 1, 2, 3, 1, 6]), np.array([2, 1, 1, 1, 9, 6])
    found = paired_accuracy(challenger, champion, 1)
    assert (found.only_challenger, found.only_champion, found.rows) == (2, 2, 6)
    assert (found.challenger, found.champion, found.gain, found.p_value) == (0.5, 0.5, 0.0, 1.0)
    assert paired_accuracy(challenger, champion, 3).gain == pytest.approx(1 / 6)


def test_moments_do_not_depend_on_tiles_or_layout() -> None:
    X = np.random.default_rng(0).normal(3.0, 2.0, size=(101, 7)).astype(np.float32)
    X[:, 3] = 0.1
    for tiles in ([X], [X[:1], X[:0], X[1:40], X[40:]], [csr_matrix(X[:50]), csr_matrix(X[50:])]):
        found = feature_moments(tiles)
        assert found.rows == 101
        np.testing.assert_allclose(found.mean, X.mean(axis=0, dtype=float), rtol=1e-12)
        np.testing.assert_allclose(found.variance, X.var(axis=0, dtype=float), rtol=1e-9, atol=1e-15)


def test_the_stability_index_is_the_divergence_of_two_normals() -> None:
    mean, variance = np.array([0.0, 0.0, 5.0, 7.0]), np.array([1.0, 1.0, 4.0, 0.0])
    before = FeatureMoments(9, mean, variance)
    now = FeatureMoments(9, np.array([0.3, 0.0, 4.0, 7.0 + 1e-12]), np.array([1.0, 2.0, 3.0, 0.0]))
    found = stability_index(before, now)
    for j in range(3):
        p, q = norm(mean[j], variance[j] ** 0.5), norm(now.mean[j], now.variance[j] ** 0.5)
        expected = quad(lambda x, p=p, q=q: (p.pdf(x) - q.pdf(x)) * (p.logpdf(x) - q.logpdf(x)), -30, 30)[0]
        assert found[j] == pytest.approx(expected, rel=1e-6)
    assert found[3] == pytest.approx(0.0, abs=1e-9)
    assert stability_index(before, FeatureMoments(9, mean + 1, variance))[3] == 2.5


def test_class_balance_counts_the_rows_that_would_have_to_change() -> None:
    before = class_shares(np.array([0, 0, 0, 1]), ["ant", "bee", "cow"])
    now = class_shares(np.array([0, 1, 1, 2]), ["bee", "dog", "ant"])
    assert before == {"ant": 0.75, "bee": 0.25, "cow": 0.0}
    assert balance_change(before, now) == pytest.approx(0.5)
    assert balance_change(before, before) == 0.0


def test_drift_of_datasets_sees_the_feature_that_moved(tmp_path: Path) -> None:
    before = TrainingRows(small_dataset(tmp_path / "a", n=400))
    same, val = (
        TrainingRows(small_dataset(tmp_path / "b", n=400, sparse=True)),
        TrainingRows(before.dataset, "val"),
    )
    still = drift_between(before, val)
    assert still.rows_before == len(before)
    assert still.features is not None
    assert still.features < 0.1
    moved = drift_between(before, same)
    X, Z = (np.asarray(csr_matrix(rows[0 : len(rows)]).todense(), dtype=float) for rows in (before, same))
    ratio, shift = X.var(axis=0) / Z.var(axis=0), (X.mean(axis=0) - Z.mean(axis=0)) ** 2
    psi = (ratio + 1 / ratio) / 2 - 1 + shift * (1 / X.var(axis=0) + 1 / Z.var(axis=0)) / 2
    assert moved.features == pytest.approx(psi.mean(), rel=1e-6)
    assert moved.worst == tuple(np.argsort(-psi)[:5])
    assert drift_between(before, TrainingRows(small_dataset(tmp_path / "c", d=3))).features is None


def evidence(b: int, c: int, n: int = 200, features: float | None = 0.01, classes: float = 0.01) -> Evidence:
    challenger, champion = np.full(n, 9), np.full(n, 9)
    challenger[:b], champion[b : b + c] = 1, 1
    pair = paired_accuracy(challenger, champion, 2)
    return Evidence((pair,), Drift(classes, features, 0.0, (), 10, 10))


@pytest.mark.parametrize(
    ("options", "measured", "promote", "said"),
    [
        ({}, evidence(9, 9), True, "the gain reaches +0.00%"),
        ({}, evidence(8, 9), False, "the gain is below +0.00%"),
        ({"prove_gain": True}, evidence(12, 9), False, "the lower end is below"),
        ({"prove_gain": True}, evidence(40, 9), True, "the lower end reaches"),
        ({"least_gain": -0.2}, evidence(8, 12), True, "the gain reaches -20.00%"),
        ({"least_gain": -0.2}, evidence(1, 12), False, "it is worse beyond chance"),
        ({"k": 3}, evidence(9, 9), False, "top-3 of 3 classes is always right"),
        ({"k": 1}, evidence(9, 9), False, "top-1 was not among what was measured"),
        ({}, evidence(9, 9, features=0.3), False, "features moved by a stability index of 0.3, above 0.25"),
        ({"most_feature_drift": None}, evidence(9, 9, features=0.3), True, "class shares moved"),
        ({}, evidence(9, 9, features=None), False, "whether the features moved is not known"),
        ({}, evidence(9, 9, classes=0.4), False, "class shares moved by a total variation of 0.4, above 0.2"),
        (
            {},
            Evidence(unmeasured="the data is gone"),
            False,
            "not compared on the same rows: the data is gone",
        ),
    ],
)
def test_the_rule(options: dict[str, Any], measured: Evidence, promote: bool, said: str) -> None:
    challenger = record(certificate=CERTIFIED)
    found = decide(challenger, record(), measured, PromotionRule(**options))
    assert found.promote is promote
    assert said in found.text


def test_certificates_and_first_champions() -> None:
    for certificate, said in [
        (None, "no certificate"),
        ({**CERTIFIED, "certified": False}, "5.00e-04 is not certified for the tolerance 0.001"),
        ({**CERTIFIED, "valid": False}, "not certified"),
    ]:
        challenger = record(certificate=certificate)
        refused = decide(challenger, None, Evidence(), PromotionRule())
        assert not refused.promote
        assert said in refused.text
        assert decide(challenger, None, Evidence(), PromotionRule(need_certificate=False)).promote
    first = decide(record(certificate=CERTIFIED), None, Evidence(), PromotionRule())
    assert first.promote
    assert first.reasons[-1] == "there is no champion yet"
    few = dataclasses.replace(record(), m=2, loss={"name": "topk_hinge", "k": 5})
    assert (PromotionRule().k_for(few), PromotionRule(k=2).k_for(few)) == (1, 2)
