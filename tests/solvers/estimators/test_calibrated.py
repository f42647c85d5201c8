"""Probabilities, sets and progress of the estimators: scikit-learn's on the same rows, coverage, refusals."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.calibration import CalibratedClassifierCV
from sklearn.datasets import load_iris
from sklearn.exceptions import ConvergenceWarning
from sklearn.frozen import FrozenEstimator

from topline import (
    InvalidProblemError,
    MultilabelClassifier,
    MultitaskClassifier,
    RegularisationPath,
    TopKClassifier,
    TopKClassifierCV,
    TopKHinge,
    solve,
)

RNG = np.random.default_rng(0)
NAMES = np.array(["ant", "bee", "cat", "dog"])
CENTRES = RNG.normal(size=(4, 6))
Y = RNG.integers(4, size=3000)
X = CENTRES[Y] + 1.2 * RNG.normal(size=(3000, 6))
TRAIN, VAL, CALIBRATION, TEST = slice(0, 300), slice(300, 800), slice(800, 1200), slice(1200, None)


@pytest.mark.parametrize("loss", ["topk_hinge", "max_hinge", "softmax", "topk_entropy"])
@pytest.mark.parametrize("classes", [2, 4])
def test_probabilities_are_those_of_scikit_learn_s_temperature(loss: str, classes: int) -> None:
    rows = classes > Y
    X_, y = X[rows], NAMES[Y[rows]]
    model = TopKClassifier(loss, k=1 if classes == 2 else 2).fit(X_[:300], y[:300])
    theirs = CalibratedClassifierCV(FrozenEstimator(model), method="temperature")
    if loss == "softmax":
        # Theirs would take the logarithms of predict_proba; the same up to eps.
        theirs.fit(X_[300:700], y[300:700])
        own = model.predict_proba(X_)
        p = model.fit_probabilities(X_[300:700], y[300:700]).predict_proba(X_)
        assert not np.allclose(own, p)
    else:
        theirs.fit(X_[300:700], y[300:700])
        p = model.fit_probabilities(X_[300:700], y[300:700]).predict_proba(X_)
    np.testing.assert_allclose(p, theirs.predict_proba(X_), atol=1e-5)
    np.testing.assert_allclose(np.exp(model.predict_log_proba(X_)), p)


@pytest.mark.parametrize("loss", ["topk_hinge", "one_vs_all_hinge"])
@pytest.mark.parametrize("per_class", [False, True])
def test_sets_hold_the_class_as_often_as_promised(loss: str, per_class: bool) -> None:
    model = TopKClassifier(loss, k=2).fit(X[TRAIN], NAMES[Y[TRAIN]])
    with pytest.raises(InvalidProblemError, match="no calibration rows, so sets would have no guarantee"):
        model.predict_set(X)
    model.fit_probabilities(X[VAL], NAMES[Y[VAL]]).conformalize(X[CALIBRATION], NAMES[Y[CALIBRATION]])
    for sets_by in (None, "rank"):
        sets = model.predict_set(X[TEST], coverage=0.9, per_class=per_class, sets_by=sets_by)
        assert sets.shape == (1800, 4)
        held = sets[np.arange(1800), Y[TEST]]
        # Coverage given the calibration rows has the standard deviation sqrt(0.09 / n), and its measurement
        # on the test rows as much with their number: four of both.
        for group in [Y[TEST] == c for c in range(4)] if per_class else [np.ones(1800, dtype=bool)]:
            n = 400 / 4 * 0.8 if per_class else 400
            assert abs(held[group].mean() - 0.9) < 4 * 0.3 * np.sqrt(1 / n + 1 / group.sum())
    assert np.array_equal(model.predict_set(X[TEST], seed=3), model.predict_set(X[TEST], seed=3))
    # Without probabilities equal ranks are settled by draws alone.
    plain = (
        TopKClassifier(loss, k=2)
        .fit(X[TRAIN], NAMES[Y[TRAIN]])
        .conformalize(X[CALIBRATION], NAMES[Y[CALIBRATION]])
    )
    assert not np.array_equal(plain.predict_set(X[TEST], seed=3), plain.predict_set(X[TEST], seed=4))
    refused = "there are 400 calibration rows, which give .* and 0.999 needs 999"
    with pytest.raises(InvalidProblemError, match=refused):
        model.predict_set(X[TEST], coverage=0.999)


@pytest.mark.parametrize("classes", [2, 4])
def test_a_row_has_the_same_set_alone_as_among_others(classes: int) -> None:
    rows = np.flatnonzero(classes > Y)
    model = TopKClassifier(k=1).fit(X[rows[:300]], Y[rows[:300]])
    model.conformalize(X[rows[300:700]], Y[rows[300:700]])
    new = rows[700:1000]
    for coverage in (0.3, 0.9):
        sets = model.predict_set(X[new], coverage)
        alone = np.concatenate([model.predict_set(X[row : row + 1], coverage) for row in new])
        assert np.array_equal(alone, sets)
        # Four standard deviations, as above.
        assert abs(sets[np.arange(300), Y[new]].mean() - coverage) < 4 * 0.5 * np.sqrt(1 / 400 + 1 / 300)


def test_sets_may_be_labels_and_need_not_be_empty() -> None:
    model = TopKClassifier(k=1).fit(X[TRAIN], NAMES[Y[TRAIN]])
    model.conformalize(X[CALIBRATION], NAMES[Y[CALIBRATION]])
    plain = model.predict_set(X[TEST], 0.3)
    empty = ~plain.any(axis=1)
    assert empty.any()
    filled = model.predict_set(X[TEST], 0.3, never_empty=True)
    np.testing.assert_array_equal(filled[~empty], plain[~empty])
    assert (filled[empty].sum(axis=1) == 1).all()
    np.testing.assert_array_equal(model.classes_[filled[empty].argmax(axis=1)], model.predict(X[TEST][empty]))
    named = model.predict_set(X[TEST], 0.3, labels=True)
    assert all(
        set(labels) == set(model.classes_[members]) for labels, members in zip(named, plain, strict=True)
    )


def test_sets_by_rank_need_no_probabilities() -> None:
    model = (
        TopKClassifier("topk_hinge", k=2).fit(X[TRAIN], Y[TRAIN]).conformalize(X[CALIBRATION], Y[CALIBRATION])
    )
    assert not hasattr(model, "predict_proba")
    assert model.predict_set(X[TEST]).any(axis=1).mean() > 0.8
    with pytest.raises(InvalidProblemError, match="sets by 'adaptive' need probabilities"):
        model.predict_set(X[TEST], sets_by="adaptive")


def test_a_new_fit_forgets_what_was_calibrated() -> None:
    model = TopKClassifier("topk_hinge", k=2).fit(X[TRAIN], Y[TRAIN]).fit_probabilities(X[VAL], Y[VAL])
    model.conformalize(X[CALIBRATION], Y[CALIBRATION])
    assert model.fit_probabilities(X[VAL], Y[VAL]).calibration_.rows is None
    assert not hasattr(clone(model), "calibration_")
    assert not hasattr(model.fit(X[TRAIN], Y[TRAIN]), "predict_proba")
    with pytest.raises(InvalidProblemError, match="the label 9 is not one of the 4 classes of training"):
        model.fit_probabilities(X[:1], [9])


def test_verbose_of_solve_and_of_each_fit_of_a_path_begins_anew(capsys: pytest.CaptureFixture[str]) -> None:
    X, y = load_iris(return_X_y=True)
    solve(X, y, TopKHinge(1), lam=1e-3, verbose=True)
    alone = capsys.readouterr().out
    assert "relative gap" in alone
    RegularisationPath(TopKClassifier(k=1, verbose=True), Cs=[0.1, 1.0]).fit(X, y)
    starts = [line for line in capsys.readouterr().out.splitlines() if "relative gap" in line]
    passes = [int(line.split()[0]) for line in starts]
    assert any(now <= before for before, now in itertools.pairwise(passes)), (
        "the second C says where it began"
    )


@pytest.mark.parametrize("make", [TopKClassifier, MultilabelClassifier, TopKClassifierCV])
def test_callbacks_see_every_round_and_may_end_the_training(make: Any) -> None:
    X, y = load_iris(return_X_y=True)
    seen = []

    def watch(record: Any, state: Any) -> bool:
        seen.append(record.passes)
        return False

    with pytest.warns(ConvergenceWarning, match="a callback stopped the training"):
        make(tol=1e-9, callbacks=[watch]).fit(X, y)
    assert seen


@pytest.mark.parametrize("model", [TopKClassifier(), MultitaskClassifier()])
def test_a_row_without_a_label_is_named(model: Any) -> None:
    """As of an empty cell of a table; sorting it beside text is a TypeError."""
    with pytest.raises(InvalidProblemError, match="row 1 has no label: drop such rows"):
        model.fit([[0.0], [1.0], [2.0]], ["a", None, "b"])


def test_labels_that_are_fractions_are_refused_and_whole_floats_keep_their_type() -> None:
    X, y = load_iris(return_X_y=True)
    assert TopKClassifier(k=1).fit(X, y.astype(float)).classes_.tolist() == [0.0, 1.0, 2.0]
    with pytest.raises(
        InvalidProblemError, match=r"the label of row 0 is 0\.5, a fraction; .*y\.astype\(str\)"
    ):
        TopKClassifier(k=1).fit(X, y + 0.5)
    assert TopKClassifier(k=1).fit(X, (y + 0.5).astype(str)).classes_.tolist() == ["0.5", "1.5", "2.5"]


def test_a_function_that_is_not_in_a_list_and_labels_that_are_objects_are_named() -> None:
    X, y = load_iris(return_X_y=True)
    with pytest.raises(InvalidProblemError, match=r"callbacks is one function: put it in a list"):
        solve(X, y, TopKHinge(1), lam=1e-3, callbacks=lambda record, state: True)  # type: ignore[arg-type]
    with pytest.raises(InvalidProblemError, match=r"the label of row 0, 0, .* give text, y.astype\(str\)"):
        TopKClassifier(k=1).fit(X, y.astype(object))
    assert TopKClassifier(k=1).fit(X, y.astype(str).astype(object)).classes_.tolist() == ["0", "1", "2"]
