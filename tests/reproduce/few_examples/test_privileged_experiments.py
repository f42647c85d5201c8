"""The experiment on weight learning: its protocol, on examples small enough to run whole."""

from __future__ import annotations

import gzip

import numpy as np
import pytest

from tests.reproduce.few_examples.privileged_experiments import (
    w_shape,
    w_shape_experiment,
    weight_learning_experiment,
)
from tests.reproduce.few_examples.privileged_trials import SearchGrid, Trial
from tests.solvers.privileged.problems import noisy_examples
from topline import InvalidProblemError

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
