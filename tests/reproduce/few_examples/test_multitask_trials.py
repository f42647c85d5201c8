"""The experiment with few examples: what it draws, and that its figures are those of its own models."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.decomposition import PCA

from tests.reproduce.few_examples import multitask_trials
from tests.reproduce.few_examples.multitask_trials import Digits, compare_strategies, few_examples_experiment
from tests.solvers.problems import examples
from topline import InvalidProblemError
from topline.solvers.multitask.strategies import solve_stacked

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

    table = few_examples_experiment(X, LABELS, per_class=(5,), splits=3)
    assert table["stacked", 5][2] == ours
    assert len(table["multi", 5]) == 3


def test_what_cannot_be_drawn_is_refused() -> None:
    with pytest.raises(InvalidProblemError, match="a class has 63 examples and 200 are drawn"):
        Digits.draw(X[:200], LABELS[:200])
    with pytest.raises(InvalidProblemError, match="101 training examples a class"):
        Digits.draw(X, LABELS).split(101, 0)
