"""The experiment on weight learning: its protocol, on examples small enough to run whole."""

from __future__ import annotations

import gzip

import numpy as np
import pytest
from sklearn.decomposition import PCA

from tests.reproduce.few_examples import multitask_trials
from tests.reproduce.few_examples.multitask_trials import Digits, compare_strategies
from tests.reproduce.few_examples.privileged_experiments import (
    w_shape,
    w_shape_experiment,
    weight_learning_experiment,
)
from tests.reproduce.few_examples.privileged_trials import (
    SearchGrid,
    Trial,
    best_bandwidth,
    nadaraya_watson,
    probability_weights,
)
from tests.solvers.privileged.problems import noisy_examples
from tests.solvers.problems import examples
from topline import InvalidProblemError
from topline.solvers.multitask.strategies import solve_stacked

GRID = SearchGrid(costs=(0.1, 1.0), widths=(0.5, 1.0), powers=(1.0,), deltas=(1.0,), steps=10)


def test_rows_are_paired_errors_that_a_seed_repeats() -> None:
    X, y, _ = noisy_examples(0, n=200)
    names = np.array(["no", "yes"])[(y > 0).astype(int)]
    rows = weight_learning_experiment(
        X, names, samples=(30, 60), ratios=((1, 2), (2, 1)), repeats=3, seed=1, grid=GRID
    )
    assert [(row.sample, row.ratio) for row in rows] == [
        (30, (1, 2)),
        (30, (2, 1)),
        (60, (1, 2)),
        (60, (2, 1)),
    ]
    for row in rows:
        assert set(row.errors) == {"svm", "probability", "learnt"}
        for method, errors in row.errors.items():
            assert len(errors) == 3
            # Labels are noisy: about a fifth of them differ from the sign of the feature that decides.
            assert 0.05 < row.mean(method) < 0.5
            assert row.mean(method) == pytest.approx(np.mean(errors))
            assert row.spread(method) == pytest.approx(np.std(errors, ddof=1))
        saved = np.subtract(row.errors["svm"], row.errors["learnt"])
        assert row.gain("learnt") == pytest.approx((saved.mean(), saved.std(ddof=1)))
    again = weight_learning_experiment(X, y, samples=(60,), ratios=((2, 1),), repeats=3, seed=1, grid=GRID)
    assert dict(again[0].errors) == dict(rows[3].errors)


def test_methods_see_the_same_examples_and_not_the_test_half(monkeypatch) -> None:
    """Parts are disjoint and of the sizes asked for; each repeat draws anew, and the test half stays."""
    X, y, _ = noisy_examples(2, n=120)
    seen = []
    original = Trial.of.__func__

    def watched(cls, X, y, train, aside, test, grid):
        seen.append((set(train), set(aside), set(test)))
        return original(cls, X, y, train, aside, test, grid)

    monkeypatch.setattr(Trial, "of", classmethod(watched))
    weight_learning_experiment(X, y, samples=(30,), ratios=((1, 2),), repeats=2, seed=0, grid=GRID)
    for train, aside, test in seen:
        assert len(train) == 10
        assert len(aside) == 20
        assert len(test) in (59, 60, 61)
        assert not train & aside
        assert not (train | aside) & test
    assert seen[0][0] != seen[1][0]
    assert seen[0][2] == seen[1][2]


@pytest.mark.data
def test_learnt_weights_beat_the_svm_on_spambase(shared_data) -> None:
    """Figure 3.7, right, has about 2 points at 486 examples split 1 to 2; here half as many, few repeats."""
    grid = SearchGrid(costs=(1.0, 10.0, 100.0), widths=(0.5, 1.0, 2.0), deltas=(1.0,))
    with gzip.open(shared_data / "spambase" / "spambase.tsv.gz") as file:
        table = np.loadtxt(file, skiprows=1)
    row = weight_learning_experiment(
        table[:, :-1], table[:, -1], samples=(240,), ratios=((1, 2),), repeats=6, seed=0, grid=grid
    )[0]
    assert 0.05 < row.mean("learnt") < row.mean("svm") < 0.2


def test_the_w_shape_wants_more_than_a_line_and_many_validation_examples_help() -> None:
    """Section 3.6.2 with a mixture of our own: weights learnt on 1000 validation examples beat the SVM's."""
    X, y = w_shape(4000, np.random.default_rng(0))
    assert np.mean(y) == pytest.approx(0.0, abs=0.05)
    straight = np.linalg.lstsq(np.column_stack([X, np.ones(4000)]), y, rcond=None)[0]
    assert np.mean(np.sign(X @ straight[:2] + straight[2]) != y) > 0.2
    grid = SearchGrid(costs=(1.0, 10.0), widths=(0.25, 0.5), powers=(1.0,), deltas=(0.3,), steps=30)
    row = w_shape_experiment((40,), validation=1000, test=2000, repeats=6, grid=grid)[0]
    assert row.ratio == (40, 1000)
    gain, spread = row.gain("learnt")
    assert gain >= 0.02
    assert gain >= 2.0 * spread / np.sqrt(6)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"samples": (31,)}, "a sample of 31 is larger than the training half of 30"),
        ({"y": np.arange(60) % 3}, "y has 3 values"),
    ],
)
def test_refusals(arguments, message) -> None:
    X, y, _ = noisy_examples(0)
    keywords = {"y": y, "samples": (20,), **arguments}
    with pytest.raises(InvalidProblemError, match=message):
        weight_learning_experiment(X, keywords.pop("y"), **keywords)


X, Y = examples(n=640, d=8, m=3, spread=1.5)
LABELS = np.array(["a", "b", "c"])[Y]


def test_rows_are_drawn_and_projected() -> None:
    digits = Digits.draw(X, LABELS, seed=3)
    assert np.bincount(digits.pool_labels).tolist() == [150, 150, 150]
    assert np.bincount(digits.test_labels).tolist() == [50, 50, 50]
    rows = np.vstack([digits.pool, digits.test])
    # Distances in 95 % of the variance are those of the rows that were drawn, which are all different.
    fitted = PCA(0.95, svd_solver="full").fit(X)
    assert rows.shape[1] == fitted.n_components_
    assert len(np.unique(rows, axis=0)) == 600
    # Components are uncorrelated, the largest first, and centred over all rows.
    covariance = np.cov(rows.T)
    np.testing.assert_allclose(covariance, np.diag(np.diag(covariance)), atol=1e-10)
    assert (np.diff(np.diag(covariance)) < 0).all()
    np.testing.assert_allclose(rows.mean(axis=0), 0.0, atol=1e-10)


def test_splits_are_of_the_pool_and_apart() -> None:
    digits = Digits.draw(X, LABELS)
    train, validation = digits.split(20, seed=1)
    assert np.bincount(digits.pool_labels[train]).tolist() == [20] * 3
    assert np.bincount(digits.pool_labels[validation]).tolist() == [50] * 3
    assert not set(train) & set(validation)
    assert set(digits.split(20, seed=2)[0]) != set(train)
    # Fewer examples of the same split are some of the more, with the same ones for validation.
    fewer, same = digits.split(5, seed=1)
    assert set(fewer) < set(train)
    np.testing.assert_array_equal(same, validation)


def test_figures_are_those_of_the_parameters_that_validation_chose(monkeypatch) -> None:
    monkeypatch.setattr(multitask_trials, "COSTS", (0.1, 1.0))
    monkeypatch.setattr(multitask_trials, "PAIRS", ((0.1, 10.0), (1.0, 1.0)))
    digits = Digits.draw(X, LABELS)
    trials = compare_strategies(digits, 5, split=2)
    assert list(trials) == ["single", "stacked", "multi"]
    assert trials["multi"].chosen["max_alternations"] in multitask_trials.TURNS

    train, validation = digits.split(5, 2)
    rows = digits.pool[train]
    scale = np.mean(np.sum(rows**2, axis=1))
    signs = np.where(digits.pool_labels[train][:, None] == np.arange(3), 1.0, -1.0)
    found = []
    for C_tasks in (0.1, 1.0):
        result = solve_stacked(
            rows @ rows.T / scale + 1.0, signs, trials["single"].chosen["C"], C_tasks, max_passes=100, seed=2
        )
        accuracies = []
        for others, labels in (
            (digits.pool[validation], digits.pool_labels[validation]),
            (digits.test, digits.test_labels),
        ):
            guesses = ((others @ rows.T / scale + 1.0) @ result.coefficients).argmax(axis=1)
            accuracies.append(100.0 * np.mean(guesses == labels))
        found.append((*accuracies, C_tasks))
    best = max(found, key=lambda values: values[0])
    ours = trials["stacked"]
    assert (ours.validation, ours.test, ours.chosen["C_tasks"]) == pytest.approx(best)


def test_what_cannot_be_drawn_is_refused() -> None:
    with pytest.raises(InvalidProblemError, match="a class has 63 examples and 200 are drawn"):
        Digits.draw(X[:200], LABELS[:200])
    with pytest.raises(InvalidProblemError, match="101 training examples a class"):
        Digits.draw(X, LABELS).split(101, 0)


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
def test_what_probabilities_refuse(call, message) -> None:
    with pytest.raises(InvalidProblemError, match=message):
        call()
