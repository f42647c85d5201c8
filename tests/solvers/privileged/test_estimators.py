"""The classifiers for limited data keep scikit-learn's contract and say the same as the functions."""

from __future__ import annotations

import numpy as np
import pytest
import sklearn
from scipy import sparse
from sklearn.exceptions import ConvergenceWarning
from sklearn.model_selection import cross_val_score
from sklearn.svm import SVC

from tests.solvers.privileged.problems import noisy_examples, rbf, told_of_slack
from topline import InvalidProblemError, LearnedWeightsSVC, RBFKernel, SVMPlusClassifier, WeightedSVC
from topline.solvers.privileged import TwiceSmoothHinge, learn_weights, solve_svm_plus

X, Y, PRIVILEGED = noisy_examples(0)
LABELS = np.array(["no", "yes"])[(Y > 0).astype(int)]


def test_weighted_svc_is_svc_and_certified() -> None:
    weights = np.random.default_rng(0).random(len(Y)) + 0.1
    ours = WeightedSVC(C=3.0, gamma=0.3).fit(X, LABELS, weights)
    theirs = SVC(C=3.0, gamma=0.3, tol=1e-8).fit(X, LABELS, weights)
    np.testing.assert_allclose(ours.decision_function(X), theirs.decision_function(X), atol=1e-4)
    np.testing.assert_array_equal(ours.predict(X), theirs.predict(X))
    assert abs(ours.relative_gap_) <= 1e-6
    assert ours.primal_ - ours.dual_ == ours.dual_gap_
    assert set(ours.support_) == set(theirs.support_)
    assert ours.dual_coef_.shape == (1, len(ours.support_))


def test_the_linear_kernel_has_coefficients_dense_and_sparse() -> None:
    dense = WeightedSVC(kernel="linear").fit(X, LABELS)
    thin = WeightedSVC(kernel="linear").fit(sparse.csr_array(X), LABELS)
    np.testing.assert_allclose(
        dense.decision_function(X), X @ dense.coef_[0] + dense.intercept_[0], atol=1e-12
    )
    np.testing.assert_allclose(thin.coef_, dense.coef_, atol=1e-8)
    with pytest.raises(AttributeError, match="no weights of single features"):
        _ = WeightedSVC().fit(X, LABELS).coef_


def test_a_precomputed_kernel_is_the_kernel() -> None:
    by_name = WeightedSVC(gamma=0.3).fit(X, LABELS)
    given = WeightedSVC(kernel="precomputed").fit(rbf(X), LABELS)
    np.testing.assert_allclose(
        given.decision_function(rbf(X[:9], X)), by_name.decision_function(X[:9]), atol=1e-8
    )


def test_svm_plus_is_its_function_and_gives_its_weights() -> None:
    model = SVMPlusClassifier(2.0, 0.5, gamma=0.3, privileged_gamma=0.3).fit(X, LABELS, PRIVILEGED)
    result = solve_svm_plus(rbf(X), rbf(PRIVILEGED), Y, 2.0, 0.5)
    np.testing.assert_allclose(model.decision_function(X), result.scores, atol=1e-5)
    np.testing.assert_allclose(model.correction_, result.correction, atol=1e-5)
    again = WeightedSVC(gamma=0.3).fit(X, LABELS, model.instance_weights_)
    ours, theirs = (m.decision_function(X) - m.intercept_[0] for m in (model, again))
    np.testing.assert_allclose(ours, theirs, atol=1e-5)
    kernel = SVMPlusClassifier(2.0, 0.5, kernel=RBFKernel(0.3), privileged_kernel=RBFKernel(0.3))
    np.testing.assert_array_equal(kernel.fit(X, LABELS, PRIVILEGED).dual_coef_, model.dual_coef_)


def test_cross_validation_passes_privileged_features_by_row() -> None:
    features, y, told, _ = told_of_slack(0, 60)
    with sklearn.config_context(enable_metadata_routing=True):
        model = SVMPlusClassifier(0.1, kernel="linear", privileged_kernel="linear")
        model.set_fit_request(X_privileged=True)
        scores = cross_val_score(model, features, y, cv=3, params={"X_privileged": told})
    assert scores.shape == (3,)
    assert scores.mean() > 0.6


@pytest.mark.parametrize(
    ("model", "privileged", "message"),
    [
        (SVMPlusClassifier(), None, "no privileged features; give X_privileged"),
        (SVMPlusClassifier(), PRIVILEGED[:-1], "X_privileged has 59 rows and X 60"),
        (SVMPlusClassifier(privileged_penalty=-1.0), PRIVILEGED, "SVM-, which is unbounded below"),
        (
            SVMPlusClassifier(privileged_kernel=RBFKernel(1.0), privileged_gamma=1.0),
            PRIVILEGED,
            "is complete",
        ),
    ],
)
def test_refusals_of_svm_plus(model, privileged, message) -> None:
    with pytest.raises(InvalidProblemError, match=message):
        model.fit(X, LABELS, privileged)


def test_three_classes_are_refused() -> None:
    with pytest.raises(InvalidProblemError, match=r"Only binary.*OneVsRestClassifier"):
        WeightedSVC().fit(X, np.arange(len(X)) % 3)


def test_a_short_budget_warns_with_the_gap() -> None:
    with pytest.warns(ConvergenceWarning, match="relative gap of"):
        model = WeightedSVC(max_iter=2).fit(X, LABELS)
    assert model.relative_gap_ > 1e-6
    with pytest.raises(InvalidProblemError, match="max_iter is 0; give a whole number of at least 1"):
        WeightedSVC(max_iter=0).fit(X, LABELS)


def test_learned_weights_are_the_function_of_the_split() -> None:
    model = LearnedWeightsSVC(gamma=0.3, delta=0.3, max_iter=10, validation_fraction=0.5).fit(X, LABELS)
    rows, aside = model.training_rows_, model.validation_rows_
    np.testing.assert_array_equal(np.sort(np.concatenate([rows, aside])), np.arange(len(X)))
    assert abs((Y[aside] > 0).sum() - 0.5 * (Y > 0).sum()) <= 1
    learnt = learn_weights(
        rbf(X[rows]), Y[rows], rbf(X[aside], X[rows]), Y[aside], TwiceSmoothHinge(0.3), 1.0, max_steps=10
    )
    np.testing.assert_allclose(model.weights_[rows], learnt.c, rtol=1e-4, atol=1e-6)
    assert (model.weights_[aside] == 0).all()
    scores = rbf(X, X[rows]) @ learnt.solution.a + learnt.solution.b
    np.testing.assert_allclose(model.decision_function(X), scores, atol=1e-4)
    # Validation examples of one's own are the same as those that were set aside.
    given = LearnedWeightsSVC(gamma=0.3, delta=0.3, max_iter=10).fit(
        X[rows], LABELS[rows], X[aside], LABELS[aside]
    )
    np.testing.assert_allclose(given.decision_function(X), model.decision_function(X), atol=1e-6)
    assert given.validation_losses_[-1] < given.validation_losses_[0]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((X[:5], None), "belong together"),
        ((X[:5], LABELS[:4]), "a label for each"),
        ((X[:5, :2], LABELS[:5]), "rows of 4 features"),
        ((X[:2], np.array(["no", "maybe"])), "maybe is not there in training"),
    ],
)
def test_refusals_of_validation_examples(arguments, message) -> None:
    with pytest.raises(InvalidProblemError, match=message):
        LearnedWeightsSVC().fit(X, LABELS, *arguments)


def test_a_class_of_one_example_cannot_be_split() -> None:
    with pytest.raises(InvalidProblemError, match="has 1 example"):
        LearnedWeightsSVC().fit(X[:5], ["a", "a", "a", "a", "b"])
