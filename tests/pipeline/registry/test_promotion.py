"""The promotion rule and its evidence, against brute force, SciPy and NumPy."""

from __future__ import annotations

import dataclasses
import itertools
import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from numpy.typing import NDArray
from scipy.sparse import csr_matrix
from scipy.stats import multinomial, norm, ttest_rel

from tests.pipeline.small_data import small_dataset
from tests.storage.models.test_records import record
from topline.pipeline.errors import InputError
from topline.pipeline.evaluation import RowMetric
from topline.pipeline.evaluation.metrics import macro_top_k_accuracy, tail_top_k_accuracy, top_k_accuracy
from topline.pipeline.registry.drift import (
    ClassChanges,
    Drift,
    balance_change,
    bins_for,
    class_changes,
    class_shares,
    domain_area,
    drift_between,
    quantile_edges,
    stability_index,
)
from topline.pipeline.registry.promotion import (
    Evidence,
    PairedMetric,
    PromotionRule,
    class_interval,
    decide,
    gain_interval,
    mcnemar_exact,
    paired_metric,
    t_interval,
)
from topline.pipeline.rows.partition import TrainingRows

ONE = np.ones(1, dtype=np.int64)
CERTIFIED = {"rests_on": "A", "certified": True, "valid": True, "relative_gap": 5e-4, "tol": 1e-3}


def test_the_exact_test_is_the_binomial_one() -> None:
    """Twice the probability of a tail of n fair coins, at most 1."""
    for b, c in itertools.product(range(9), repeat=2):
        tail = sum(math.comb(b + c, i) for i in range(min(b, c) + 1)) / 2 ** (b + c)
        expected = min(1.0, 2.0 * tail)
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


def paired_at(k: int, challenger: NDArray[Any], champion: NDArray[Any]) -> PairedMetric:
    """Top-k accuracy of models that give rows' own classes these ranks."""
    return paired_metric(top_k_accuracy(k), challenger <= k, champion <= k, np.zeros(len(champion), int), ONE)


def test_accuracies_are_compared_row_by_row() -> None:
    challenger, champion = np.array([1, 1, 2, 3, 1, 6]), np.array([2, 1, 1, 1, 9, 6])
    found = paired_at(1, challenger, champion)
    assert (found.only_challenger, found.only_champion, found.rows) == (2, 2, 6)
    assert (found.challenger, found.champion, found.gain, found.p_value) == (0.5, 0.5, 0.0, 1.0)
    assert paired_at(3, challenger, champion).gain == pytest.approx(1 / 6)


def test_other_values_are_compared_by_the_t_test() -> None:
    """Against SciPy's paired test; a loss that falls is a gain; weights make classes count alike."""
    rng = np.random.default_rng(0)
    ours, theirs, y = rng.random(60), rng.random(60), np.repeat([0, 1], (50, 10))
    expected = ttest_rel(theirs, ours)
    loss = RowMetric(name="loss", label="loss", higher_is_better=False, row_values=lambda rows: rows.scores)
    found = paired_metric(loss, ours, theirs, y, ONE, 0.9)
    assert (found.gain, found.p_value) == pytest.approx((theirs.mean() - ours.mean(), expected.pvalue))
    assert (found.low, found.high) == pytest.approx(tuple(expected.confidence_interval(0.9)))
    assert (found.only_challenger, found.to_dict()["metric"]) == (None, "loss")
    balanced = replace(loss, higher_is_better=True, class_weights=lambda classes, trained: np.ones(2))
    found = paired_metric(balanced, ours, theirs, y, np.ones(2, dtype=np.int64))
    means = [np.mean([values[y == c].mean() for c in (0, 1)]) for values in (ours, theirs)]
    assert (found.challenger, found.champion) == pytest.approx(means)
    assert (found.low + found.high) / 2 == pytest.approx(found.gain) == pytest.approx(means[0] - means[1])
    same = paired_metric(loss, ours, ours, y, ONE)
    assert (same.low, same.high, same.p_value) == (0.0, 0.0, 1.0)
    assert t_interval(np.full(5, 0.25), 0.95) == (0.25, 0.25, 0.0)


def test_means_over_classes_are_compared_by_every_way_the_signs_may_fall() -> None:
    """A macro accuracy against all 2^9 signs of the rows on which the models differ."""
    y = np.repeat([0, 1, 2], (20, 6, 2))
    ours, theirs = np.ones(28, dtype=bool), np.ones(28, dtype=bool)
    theirs[[20, 21, 22, 26, 27]] = False
    ours[[0, 1, 2, 3]] = False
    trained = np.array([200, 60, 20])
    found = paired_metric(macro_top_k_accuracy(1), ours, theirs, y, trained)
    gain = (-4 / 20 + 3 / 6 + 2 / 2) / 3
    assert found.gain == pytest.approx(gain)
    differ = np.r_[np.full(4, 1 / 20), np.full(3, 1 / 6), np.full(2, 1 / 2)] / 3
    drawn = [abs(np.dot(signs, differ)) for signs in itertools.product((-1, 1), repeat=9)]
    exact = np.mean(np.array(drawn) >= gain - 1e-12)
    # Of 9,999 draws of this probability the standard error is 0.0024.
    assert found.p_value == pytest.approx(exact, abs=0.0075)
    assert found.low < 0.0 < found.high  # as the test has it: p = 0.06
    # By rows alone the challenger would have no more than one of 28.
    assert paired_metric(top_k_accuracy(1), ours, theirs, y, trained).gain == pytest.approx(1 / 28)
    tail = paired_metric(tail_top_k_accuracy(1), ours, theirs, y, trained)
    assert (tail.challenger, tail.champion, tail.p_value) == (1.0, 0.0, pytest.approx(0.5, abs=0.015))
    assert paired_metric(macro_top_k_accuracy(1), ours, ours, y, trained).p_value == 1.0


@pytest.mark.parametrize(("p", "q"), [(0.03, 0.03), (0.3, 0.1), (0.01, 0.0)])
def test_the_interval_of_a_mean_over_classes_holds_its_level(p: float, q: float) -> None:
    """Ten classes of 200 to 2 rows, as often as the level says; a bootstrap within classes does not."""
    rng, rows = np.random.default_rng(0), np.array([200, 120, 72, 43, 26, 15, 9, 6, 3, 2])
    y, draws, covered = np.repeat(np.arange(10), rows), 1000, 0
    weights = 0.1 / rows[y]
    for _ in range(draws):
        gains = rng.choice([1.0, -1.0, 0.0], size=len(y), p=[p, q, 1.0 - p - q])
        low, high = class_interval(gains, weights, y, 0.95)
        covered += low <= p - q <= high
    # 0.95 less three standard errors of a share of 1,000
    assert covered / draws >= 0.93


def test_the_interval_of_one_class_is_about_that_of_its_rows() -> None:
    """Where the models are as good: Wald's on the same table, but for what each adds to its counts."""
    gains = np.r_[np.ones(50), -np.ones(50), np.zeros(900)]
    found = class_interval(gains, np.full(1000, 1e-3), np.zeros(1000, dtype=np.int64), 0.95)
    assert found == pytest.approx(gain_interval(50, 50, 1000, 0.95), rel=0.03)


def direct_index(before: NDArray[Any], now: NDArray[Any], bins: int = 10) -> NDArray[np.float64]:
    """The population stability index of each column, from the definition, a column at a time."""
    found = []
    for x, z in zip(before.T, now.T, strict=True):
        edges = np.quantile(x, np.arange(1, bins) / bins, method="lower")
        p, q = (
            np.maximum(
                np.bincount(np.searchsorted(edges, v), minlength=bins) / len(v), max(1e-4, 0.5 / len(v))
            )
            for v in (x, z)
        )
        found.append(min(float(np.sum((q - p) * np.log(q / p))), 2.5))
    return np.asarray(found)


def test_the_stability_index_is_that_of_the_definition() -> None:
    """Whatever the tiles and the layout; with ties, a constant feature, one that moved and one that left."""
    rng = np.random.default_rng(0)
    before, now = rng.normal(size=(900, 6)).astype(np.float32), rng.normal(size=(700, 6)).astype(np.float32)
    now[:, 1] += 0.5
    before[:, 2], now[:, 2] = 7.0, np.where(np.arange(700) % 3, 7.0, 8.0)
    before[:, 3], now[:, 3] = np.maximum(before[:, 3], 0.0), np.maximum(now[:, 3], 0.0)
    now[:, 4] = 100.0
    expected = direct_index(before, now)
    assert expected[0] < 0.1 < 0.15 < expected[1]
    assert expected[4] == 2.5
    for cuts in ([], [1, 1, 400]):
        for made in (np.asarray, csr_matrix):
            tiles = [[made(part) for part in np.split(rows, cuts)] for rows in (before, now)]
            found = stability_index(lambda t=tiles: iter(t[0]), lambda t=tiles: iter(t[1]), 900)
            np.testing.assert_allclose(found, expected, rtol=1e-12)
    with pytest.raises(InputError, match="no rows whose drift"):
        stability_index(lambda: iter([]), lambda: iter([]), 0)


@pytest.mark.parametrize(
    ("before", "now", "bins"), [(9000, 9000, 10), (100, 700, 5), (268, 42, 2), (3, 3, 2)]
)
def test_chance_alone_is_no_drift(before: int, now: int, bins: int) -> None:
    assert bins_for(before, now) == bins
    if before < 100:
        return
    rng = np.random.default_rng(before)
    X, Z = rng.normal(size=(before, 200)), rng.normal(size=(now, 200))
    assert stability_index(lambda: iter([X]), lambda: iter([Z]), before, bins).mean() < 0.06


def test_bins_come_from_a_sample_of_many_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """The sample does not depend on tiles, and the shares count every row."""
    X = np.random.default_rng(1).normal(size=(5000, 3))
    monkeypatch.setattr("topline.pipeline.registry.drift.SAMPLE_ROWS", 1000)
    edges = [quantile_edges(np.split(X, cuts), len(X)) for cuts in ([], [7, 2500])]
    np.testing.assert_array_equal(*edges)
    np.testing.assert_allclose(edges[0], np.quantile(X, np.arange(1, 10) / 10, axis=0), atol=0.1)
    half = stability_index(lambda: iter([X]), lambda: iter([X[:2500]]), len(X))
    assert (half < 0.02).all()


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
    assert still.features < 0.1
    moved = drift_between(before, same)
    X, Z = (np.asarray(csr_matrix(rows[0 : len(rows)]).todense()) for rows in (before, same))
    psi = direct_index(X, Z, bins_for(len(X), len(Z)))
    assert moved.features == pytest.approx(psi.mean(), rel=1e-6)
    assert moved.shifted == np.mean(psi > 0.25)
    assert moved.worst == tuple(np.argsort(-psi, kind="stable")[:5])
    assert drift_between(before, TrainingRows(small_dataset(tmp_path / "c", d=3))).features is None


def evidence(b: int, c: int, n: int = 200, features: float | None = 0.01, classes: float = 0.01) -> Evidence:
    challenger, champion = np.full(n, 9), np.full(n, 9)
    challenger[:b], champion[b : b + c] = 1, 1
    pair = paired_at(2, challenger, champion)
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
        ({"most_balance_change": 0.4}, evidence(9, 9, classes=0.4), True, "of 0.4, within 0.4"),
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
        ({**CERTIFIED, "certified": False}, "5.00e-04 is not certified from A for the tolerance 0.001"),
        ({**CERTIFIED, "valid": False}, "not certified"),
    ]:
        challenger = record(certificate=certificate)
        refused = decide(challenger, None, Evidence(), PromotionRule())
        assert not refused.promote
        assert said in refused.text
        assert decide(challenger, None, Evidence(), PromotionRule(need_certificate=False)).promote
    first = decide(record(certificate=CERTIFIED), None, Evidence(), PromotionRule())
    assert first.promote
    assert first.reasons[-1] == "there was no champion before it"
    few = dataclasses.replace(record(), m=2, loss={"name": "topk_hinge", "k": 5})
    assert (PromotionRule().metric_for(few), PromotionRule(k=2).metric_for(few)) == ("top-1", "top-2")
    assert PromotionRule(k=2, metric="balanced").metric_for(few) == "balanced"


def test_an_interval_stays_within_all_rows() -> None:
    """A gain is a difference of two shares: one row allows no interval inside, and its ends are cut."""
    assert gain_interval(1, 0, 1, 0.95)[1] == 1.0
    assert gain_interval(0, 1, 1, 0.95)[0] == -1.0
    assert gain_interval(1, 0, 1, 0.95)[0] == pytest.approx(-gain_interval(0, 1, 1, 0.95)[1])


def test_two_rows_that_differ_are_enough_for_the_t_test() -> None:
    gains = np.array([0.1, 0.4])
    expected = ttest_rel(gains, np.zeros(2))
    low, high, p_value = t_interval(gains, 0.9)
    assert p_value == pytest.approx(expected.pvalue)
    assert (low, high) == pytest.approx(tuple(expected.confidence_interval(0.9)))
    assert t_interval(gains[:1], 0.9) == (0.1, 0.1, 0.0)


def test_errors_that_fall_are_a_gain_row_by_row() -> None:
    """Where true means wrong, a row that the champion alone has wrong counts for the challenger."""
    wrong = replace(top_k_accuracy(1), name="errors", higher_is_better=False)
    ours, theirs = np.array([True, False, False, False]), np.array([False, True, True, False])
    found = paired_metric(wrong, ours, theirs, np.zeros(4, np.int64), ONE)
    assert (found.only_challenger, found.only_champion) == (2, 1)
    assert (found.challenger, found.champion, found.gain) == (0.25, 0.5, 0.25)


def compared(gain: float = 0.0, p_value: float = 1.0, low: float = -1.0) -> Evidence:
    pair = PairedMetric(top_k_accuracy(2), 10, 0.5, 0.5 - gain, gain, low, 1.0, 0.95, p_value)
    return Evidence((pair,), Drift(0.0, 0.0, 0.0, (), 10, 10))


@pytest.mark.parametrize(
    ("options", "measured", "promote"),
    [
        # What is asked for is reached where it is met exactly ...
        ({"least_gain": 0.125}, compared(0.125), True),
        ({"least_gain": 0.125}, compared(0.1249), False),
        ({"least_gain": 0.125, "prove_gain": True}, compared(0.5, low=0.125), True),
        ({"most_feature_drift": 0.01, "most_balance_change": 0.02}, evidence(9, 9, classes=0.02), True),
        ({"most_feature_drift": 0.0, "most_balance_change": 0.0}, compared(), True),
        ({"most_feature_drift": 0.009}, evidence(9, 9), False),
        # ... and a champion that is as good, or that differs at a p-value of the level itself, is not better.
        ({"least_gain": -1.0}, compared(0.0, p_value=0.001), True),
        ({"least_gain": -1.0, "confidence": 0.5}, compared(-0.1, p_value=0.5), True),
        ({"least_gain": -1.0, "confidence": 0.5}, compared(-0.1, p_value=0.499), False),
        ({"least_gain": -1.0, "confidence": 0.9}, compared(-0.1, p_value=0.11), True),
    ],
)
def test_a_bound_that_is_met_exactly_is_kept(
    options: dict[str, Any], measured: Evidence, promote: bool
) -> None:
    assert (
        decide(record(certificate=CERTIFIED), record(), measured, PromotionRule(**options)).promote is promote
    )


@pytest.mark.parametrize(("m", "promote"), [(2, False), (3, True)])
def test_a_metric_that_is_always_right_decides_nothing(m: int, promote: bool) -> None:
    challenger = dataclasses.replace(record(certificate=CERTIFIED), m=m)
    found = decide(challenger, record(), compared(), PromotionRule(k=2))
    assert found.promote is promote
    assert ("always right" in found.text) is not promote


def test_an_unlimited_drift_needs_no_measurement() -> None:
    measured = replace(compared(), drift=None)
    rule = PromotionRule(most_feature_drift=None, most_balance_change=None)
    assert decide(record(certificate=CERTIFIED), record(), measured, rule).promote
    for limit in ({"most_feature_drift": 9.0}, {"most_balance_change": 1.0}):
        refused = decide(record(certificate=CERTIFIED), record(), measured, rule.model_copy(update=limit))
        assert not refused.promote
        assert "is not known" in refused.text


def test_a_refusal_names_what_speaks_against_it_alone() -> None:
    found = decide(record(certificate=None), record(), evidence(8, 9, features=0.3), PromotionRule())
    assert len(found.reasons) == 3
    for reason, said in zip(
        found.reasons, ("no certificate", "the gain is below", "above 0.25"), strict=True
    ):
        assert said in reason
    assert found.text == "; ".join(found.reasons)


def test_evidence_is_stored_with_top_k_accuracies_apart() -> None:
    """Plain values that JSON keeps; nothing is excluded unless it is said."""
    other = RowMetric(name="margin", label="margin", row_values=lambda rows: rows.scores)
    pairs = (*evidence(3, 1).compared, replace(evidence(5, 1).compared[0], metric=other))
    kept = Evidence(pairs, Drift(0.1, None, None, None, 10, 20), "d0001", "test", unmeasured="").to_dict()
    assert json.loads(json.dumps(kept)) == kept
    assert (kept["dataset"], kept["split"], kept["excluded"], kept["unmeasured"]) == ("d0001", "test", 0, "")
    assert [(found["k"], found["only_challenger"]) for found in kept["accuracies"]] == [(2, 3)]
    assert [(found["metric"], found["only_challenger"]) for found in kept["metrics"]] == [("margin", 5)]
    assert kept["drift"]["rows_now"] == 20
    assert Evidence().to_dict()["drift"] is None
    assert Evidence(pairs).of("margin") is pairs[1]
    assert Evidence(pairs).of("top-1") is None


@pytest.mark.parametrize(
    ("rows", "measured", "kept"),
    [(100, 40, ()), (50, 20, ()), (49, 40, ("rows",)), (100, 19, ("rows",)), (100, None, ())],
)
def test_fewer_rows_than_a_share_of_the_champions_keep_it(
    rows: int, measured: int | None, kept: tuple[str, ...]
) -> None:
    """Most images vanish, and the few that are left are all right: no reason to promote."""
    champion = record(n=100, certificate=CERTIFIED, evaluation={"rows": 40})
    challenger = record(
        n=rows, certificate=CERTIFIED, evaluation=None if measured is None else {"rows": measured}
    )
    found = paired_metric(top_k_accuracy(2), np.ones(12), np.zeros(12), np.zeros(12, np.int64), ONE)
    decision = decide(
        challenger,
        champion,
        Evidence((found,)),
        PromotionRule(most_feature_drift=None, most_balance_change=None),
    )
    assert decision.promote is (not kept)
    assert (decision.kinds if kept else ()) == kept


def test_an_interval_wider_than_the_bound_keeps_the_champion() -> None:
    both = record(certificate=CERTIFIED)
    labels = np.zeros(12, np.int64)
    found = paired_metric(top_k_accuracy(2), np.arange(12) % 3 > 0, labels > 0, labels, ONE)
    width = found.high - found.low
    for bound, promoted in ((width + 1e-9, True), (width - 1e-9, False)):
        rule = PromotionRule(widest_interval=bound, most_feature_drift=None, most_balance_change=None)
        decision = decide(both, both, Evidence((found,)), rule)
        assert decision.promote is promoted
    assert "the interval is wider than" in decision.text


OLD = ("ant", "bee", "cat", "dog")


def manifest(classes: dict[str, str]) -> pa.Table:
    """A manifest of ten images a letter, each with the class of its letter."""
    rows = [(f"{letter}{number}", name) for letter, name in classes.items() for number in range(10)]
    return pa.table({"sha256": [row[0] for row in rows], "class_name": [row[1] for row in rows]})


BEFORE = manifest(dict(zip("abcd", OLD, strict=True)))


@pytest.mark.parametrize(
    ("now", "expected"),
    [
        ("ant bee cat dog", ClassChanges((), (), (), (), OLD, 1.0)),
        ("ant bee cat dog eel", ClassChanges(("eel",), (), (), (), OLD, 1.0)),
        ("ant bee cat -", ClassChanges((), ("dog",), (), (), ("ant", "bee", "cat"), 0.75)),
        (
            "emmet bee cat dog",
            ClassChanges((), (), (("ant", "emmet"),), (), ("bee", "cat", "dog", "emmet"), 1.0),
        ),
        ("ant bee cat cat", ClassChanges((), (), (), (("dog", "cat"),), ("ant", "bee", "cat"), 1.0)),
        (
            "bug bug cat dog",
            ClassChanges((), (), (), (("ant", "bug"), ("bee", "bug")), ("bug", "cat", "dog"), 1.0),
        ),
    ],
)
def test_what_became_of_classes(now: str, expected: ClassChanges) -> None:
    words = dict(zip("abcde", now.split(), strict=False))
    kept = {letter: name for letter, name in words.items() if name != "-"}
    names = tuple(sorted(set(kept.values())))
    found = class_changes(OLD, names, BEFORE, manifest(kept))
    assert found == expected
    assert found.any == (names != OLD)
    columns = {old for name in found.common for old in found.sources(name, OLD)}
    assert columns == set(OLD) - set(found.removed)
    even = found.shares(dict.fromkeys(OLD, 0.25), before=True)
    assert set(even) == set(found.common)
    assert sum(even.values()) == pytest.approx(1)


def test_without_contents_names_decide_and_a_class_that_was_split_is_gone() -> None:
    found = class_changes(OLD, ("ant", "bee", "cat", "wolf"), None, None)
    assert (found.removed, found.added) == (("dog",), ("wolf",))
    halves = manifest({"a": "ant", "b": "bee", "c": "cat", "d": "wolf"}).to_pylist()
    for row in halves[35:]:
        row["class_name"] = "fox"
    found = class_changes(OLD, ("ant", "bee", "cat", "fox", "wolf"), BEFORE, pa.Table.from_pylist(halves))
    assert (found.removed, found.added, str(found)) == (("dog",), ("fox", "wolf"), "gone dog; new fox, wolf")


@pytest.mark.parametrize(
    ("rule", "kept", "promote", "said"),
    [
        ({}, 0.75, True, "compared on the 3 classes that both know (gone dog)"),
        ({}, 0.25, False, "25% of the champion's are less than the least"),
        ({"least_common": 0.2}, 0.25, True, "compared on the 3 classes"),
        ({"on_class_changes": "refuse"}, 0.75, False, "not know 1 classes of the champion (gone dog)"),
        ({"on_class_changes": "count-misses"}, 0.75, True, "are its misses (gone dog)"),
    ],
)
def test_what_the_rule_makes_of_them(rule: dict[str, object], kept: float, promote: bool, said: str) -> None:
    changes = ClassChanges((), ("dog",), (), (), OLD[:3], kept)
    measured = replace(evidence(20, 9), classes=changes, on_common=rule.get("on_class_changes") is None)
    options = PromotionRule(**rule)
    found = decide(record(certificate=CERTIFIED), record(), measured, options)
    assert found.promote is promote
    assert said in found.text
    assert "classes" in found.kinds
    assert measured.to_dict()["classes"]["removed"] == ("dog",)


def test_a_domain_classifier_tells_apart_what_no_feature_does() -> None:
    rng = np.random.default_rng(0)
    before, same = rng.standard_normal((600, 20)), rng.standard_normal((400, 20))
    # The standard deviation of the area of a classifier that knows nothing is about 0.02 here.
    assert domain_area(before, same) == pytest.approx(0.5, abs=0.07)
    moved = same + 0.25
    exact = domain_area(before, moved)
    # A shift by 0.25 in 20 features: the best area is Phi(0.25 sqrt(20) / sqrt(2)) = 0.785.
    assert 0.7 < exact < 0.82
    assert domain_area(before[:19], same) is None


def test_a_limit_on_the_domain_classifier() -> None:
    measured = evidence(20, 9)
    assert measured.drift is not None
    telling = replace(measured, drift=replace(measured.drift, domain=0.9))
    rule = PromotionRule(most_domain_auc=0.8)
    assert not decide(record(certificate=CERTIFIED), record(), telling, rule).promote
    assert decide(record(certificate=CERTIFIED), record(), telling, PromotionRule()).promote
    unknown = decide(record(certificate=CERTIFIED), record(), Evidence(measured.compared), rule)
    assert "is not known" in unknown.text
