"""TopKClassifierCV and RegularisationPath keep scikit-learn's contract and find what fits one by one find."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import balanced_accuracy_score, top_k_accuracy_score
from sklearn.metrics.pairwise import rbf_kernel
from sklearn.model_selection import GroupKFold, KFold, StratifiedKFold

from tests.solvers.problems import examples
from topline import (
    InvalidProblemError,
    RegularisationPath,
    TopKClassifier,
    TopKClassifierCV,
    UnsupportedCombinationError,
)

X, Y = examples()
CS = [0.01, 0.1, 1.0]


@pytest.mark.parametrize("scoring", [None, "top_k"])
def test_it_finds_the_C_of_an_exhaustive_search(scoring) -> None:
    pixels, digits = load_digits(n_class=6, return_X_y=True)
    pixels, digits = pixels[:300] / 16.0, digits[:300]
    folds = StratifiedKFold(3)
    parameters = {"k": 2, "tol": 1e-5, "max_passes": 5000}
    found = TopKClassifierCV(CS, cv=folds, scoring=scoring, **parameters).fit(pixels, digits)
    truth = np.empty((3, len(CS)))
    for fold, (train, test) in enumerate(folds.split(pixels, digits)):
        for place, C in enumerate(CS):
            model = TopKClassifier(C=C, **parameters).fit(pixels[train], digits[train])
            scores = model.decision_function(pixels[test])
            truth[fold, place] = top_k_accuracy_score(
                digits[test], scores, k=1 if scoring is None else 2, labels=model.classes_
            )
    # Both lie within 1e-5 of the same optimum: at most one row of the hundred of a fold is so near a tie.
    np.testing.assert_allclose(found.scores_, truth, atol=0.0101)
    assert found.C_ == CS[int(np.argmax(found.scores_.mean(axis=0)))] == found.Cs_[found.best_index_]
    assert found.best_score_ == found.scores_.mean(axis=0).max()
    assert found.best_score_ - truth.mean(axis=0)[found.best_index_] == pytest.approx(0.0, abs=0.0101)
    again = TopKClassifier(C=found.C_, **parameters).fit(pixels, digits)
    np.testing.assert_array_equal(found.coef_, again.coef_)
    np.testing.assert_array_equal(found.predict_top_k(pixels[:20]), again.predict_top_k(pixels[:20]))


def test_of_equally_good_values_the_smallest_is_taken() -> None:
    """Every row is among all of its classes' guesses."""
    found = TopKClassifierCV([1.0, 0.1, 0.1], k=5, cv=2, scoring="top_k").fit(X, Y)
    np.testing.assert_array_equal(found.Cs_, [0.1, 1.0])
    assert (found.scores_ == 1.0).all()
    assert found.C_ == 0.1


def test_a_path_has_the_certified_optimum_of_each_C() -> None:
    path = RegularisationPath(TopKClassifier(k=2, tol=1e-7, max_passes=20_000), CS).fit(X, Y)
    for C, model in zip(CS, path.models_, strict=True):
        alone = TopKClassifier(k=2, C=C, tol=1e-7, max_passes=20_000).fit(X, Y)
        assert model.C == C
        # Two certificates of 1e-7 bound the distance of the values.
        assert model.primal_ == pytest.approx(alone.primal_, rel=2e-7)
    assert (path.relative_gaps_ <= 1e-7).all()
    np.testing.assert_array_equal(path.coef_path_[1], path.models_[1].coef_)
    assert path.passes_.shape == (3,)


def test_folds_of_a_matrix_of_kernel_values_are_cut_from_rows_and_columns() -> None:
    K = rbf_kernel(X, gamma=0.2)
    parameters = {"Cs": CS, "k": 1, "cv": KFold(3), "tol": 1e-6, "max_passes": 20_000}
    given = TopKClassifierCV(kernel="precomputed", **parameters).fit(K, Y)
    named = TopKClassifierCV(kernel="rbf", gamma=0.2, **parameters).fit(X, Y)
    np.testing.assert_array_equal(given.scores_, named.scores_)
    np.testing.assert_allclose(given.decision_function(K[:9]), named.decision_function(X[:9]), atol=1e-2)


def test_rows_of_weight_zero_train_nothing() -> None:
    """Whatever their labels, though these count where a fold holds them out."""
    weights = np.where(np.arange(len(Y)) % 4 == 0, 0.0, 1.0)
    turned = np.where(weights > 0.0, Y, (Y + 1) % (Y.max() + 1))
    model = TopKClassifier(k=1, tol=1e-8, max_passes=50_000)
    one, other = (RegularisationPath(model, CS).fit(X, labels, weights) for labels in (Y, turned))
    # Strong convexity: a gap of 1e-8 of P leaves the weights within sqrt(2e-8 P / lam), lam = 1 / (n C).
    np.testing.assert_allclose(one.coef_path_, other.coef_path_, atol=2e-3)
    found = TopKClassifierCV(CS, k=1, cv=KFold(3)).fit(X, turned, weights)
    held_out = TopKClassifierCV(CS, k=1, cv=KFold(3)).fit(X, Y, weights)
    assert (found.scores_.mean(axis=0) < held_out.scores_.mean(axis=0)).all()


@pytest.mark.parametrize(
    ("parameters", "error", "said"),
    [
        ({"Cs": 0}, InvalidProblemError, "Cs is 0"),
        ({"Cs": []}, InvalidProblemError, "there is no C"),
        ({"Cs": "1e-3:1:3"}, InvalidProblemError, "give a number of values"),
        ({"Cs": [1.0, -1.0]}, InvalidProblemError, "-1"),
        ({"method": "fw"}, UnsupportedCombinationError, "starts from no earlier solution"),
    ],
)
def test_what_makes_no_path_is_refused(parameters, error, said) -> None:
    with pytest.raises(error, match=said):
        TopKClassifierCV(**{"Cs": CS, "cv": 2, **parameters}).fit(X, Y)


def test_a_path_of_another_estimator_is_refused() -> None:
    with pytest.raises(InvalidProblemError, match="give a TopKClassifier"):
        RegularisationPath(KFold(2)).fit(X, Y)  # type: ignore[arg-type]


@pytest.mark.parametrize("scoring", [None, "top_k", "macro"])
def test_a_searched_loss_is_near_the_best_that_scikit_learn_finds(scoring: str | None) -> None:
    """Within two standard errors on rows that nobody saw, for the accuracy that was named."""
    pixels, digits = load_digits(return_X_y=True)
    train, test = slice(0, 800), slice(800, 1797)
    found = TopKClassifierCV(loss="auto", scoring=scoring, k=2).fit(pixels[train] / 16.0, digits[train])
    peers = [
        LogisticRegression(C=C, max_iter=5000).fit(pixels[train] / 16.0, digits[train])
        for C in (0.1, 1.0, 10.0)
    ]
    X, y = pixels[test] / 16.0, digits[test]

    def share(model: Any) -> float:
        if scoring == "top_k":
            return float(top_k_accuracy_score(y, model.decision_function(X), k=2))
        if scoring == "macro":
            return float(balanced_accuracy_score(y, model.predict(X)))
        return float(model.score(X, y))

    best = max(map(share, peers))
    assert share(found) >= best - 2.0 * (best * (1.0 - best) / len(y)) ** 0.5
    assert found.relative_gap_ <= found.tol
    chosen, results = found.best_params_, found.cv_results_
    assert found.C_ == chosen["C"] == found.C
    assert ("topk_hinge" in results["loss"]) == (scoring == "top_k")
    assert found.best_score_ == results["mean_test_score"][
        (results["loss"] == chosen["loss"]) & (results["C"] == found.C_)
        & (results["smoothing"] == chosen["smoothing"])
    ]  # fmt: skip
    again = TopKClassifier(**chosen).fit(pixels[train] / 16.0, digits[train])
    np.testing.assert_array_equal(again.coef_, found.coef_)
    assert hasattr(found, "predict_proba") == (chosen["loss"] == "softmax")


def test_a_search_takes_given_values_of_C_and_weights() -> None:
    found = TopKClassifierCV([0.3, 3.0], loss="auto", cv=3, class_weight="balanced").fit(X, Y)
    assert set(found.cv_results_["C"].tolist()) <= {0.3, 3.0}


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"scoring": "f1_macro"}, "goes by the scoring accuracy, top_k or macro, not 'f1_macro'"),
        ({"kernel": "rbf"}, "compares linear models of its own losses, and kernel is given"),
        ({"smoothing": 0.5}, "and smoothing is given"),
    ],
)
def test_a_search_refuses_what_it_cannot_compare(given: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidProblemError, match=said):
        TopKClassifierCV(loss="auto", **given).fit(X, Y)


@pytest.mark.parametrize("loss", ["softmax", "auto"])
@pytest.mark.parametrize("cv", [3, GroupKFold(3)])
def test_no_fold_cuts_a_group(cv, loss) -> None:
    """Labels of 60 groups by lot are learned by heart from near copies, and not from other groups."""
    rng = np.random.default_rng(0)
    group = rng.permutation(np.repeat(np.arange(60), 4))
    rows = rng.normal(size=(60, 80))[group] + 0.01 * rng.normal(size=(240, 80))
    labels = rng.integers(0, 3, 60)[group]
    cut = TopKClassifierCV([1.0], loss, cv=3).fit(rows, labels)
    whole = TopKClassifierCV([1.0], loss, cv=cv).fit(rows, labels, groups=group)
    assert cut.best_score_ > 0.95
    assert whole.best_score_ < 0.6


@pytest.mark.parametrize("loss", ["softmax", "auto"])
def test_classes_that_a_fold_does_not_train_on_are_warned_of(loss: str) -> None:
    """All rows of two classes are of one group each, which a fold holds out whole."""
    labels = np.repeat(["a", "b", "c", "d"], [30, 30, 7, 5])
    rows = np.eye(4)[np.unique(labels, return_inverse=True)[1]]
    group = np.where(labels >= "c", labels, np.arange(72).astype(str))
    said = (
        r"^12 held-out rows count as errors, .* no row of the class \(c 7, d 5\): give it more rows or groups"
    )
    with pytest.warns(UserWarning, match=said):
        found = TopKClassifierCV([1.0], loss, k=1, cv=3).fit(rows, labels, groups=group)
    assert found.best_score_ < 1.0
