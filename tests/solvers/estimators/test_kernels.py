"""TopKClassifier with kernels keeps scikit-learn's contract and says the same as `solve`."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
from scipy import sparse
from sklearn.base import clone
from sklearn.datasets import load_digits
from sklearn.exceptions import NotFittedError
from sklearn.kernel_approximation import Nystroem
from sklearn.metrics.pairwise import rbf_kernel
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import MaxAbsScaler

from tests.solvers.problems import M, examples
from topline import (
    InvalidProblemError,
    MaxHinge,
    RBFKernel,
    Status,
    TopKClassifier,
    TopKHinge,
    UnsupportedCombinationError,
    solve,
)
from topline.solvers.kernels import WithConstant

X, Y = examples()
NEW = examples(n=25, seed=5)[0]
C = 0.3
LAM = 1.0 / (len(Y) * C)


def fitted(**parameters):
    return TopKClassifier(
        **{"loss": "topk_hinge", "k": 2, "tol": 1e-6, "C": C, "kernel": "rbf", **parameters}
    ).fit(X, Y)


# ---------------------------------------------------------------- the same as solve


@pytest.mark.parametrize("fit_intercept", [False, True])
@pytest.mark.parametrize("smoothing", [0.0, 0.5])
def test_it_is_solve_with_lam_from_C(fit_intercept, smoothing) -> None:
    model = fitted(gamma=0.3, smoothing=smoothing, fit_intercept=fit_intercept)
    kernel = WithConstant(RBFKernel(0.3)) if fit_intercept else RBFKernel(0.3)
    result = solve(X, Y, TopKHinge(2), LAM, smoothing, tol=1e-6, kernel=kernel)
    np.testing.assert_array_equal(model.decision_function(NEW), result.decision_function(NEW))
    assert (model.primal_, model.dual_, model.dual_gap_) == (result.primal, result.dual, result.gap)
    assert model.status_ is Status.SOLVED
    assert model.kernel_ == RBFKernel(0.3)
    scores = rbf_kernel(NEW, X[model.support_], gamma=0.3) @ model.dual_coef_.T + model.intercept_
    np.testing.assert_allclose(model.decision_function(NEW), scores, rtol=1e-9, atol=1e-12)
    assert model.dual_coef_.shape == (M, len(model.support_))
    assert model.intercept_.any() == fit_intercept


@pytest.mark.parametrize("fit_intercept", [False, True])
@pytest.mark.parametrize("form", [np.asarray, sparse.csr_matrix])
def test_the_linear_kernel_is_the_linear_classifier(fit_intercept, form) -> None:
    inner = fitted(kernel="linear", smoothing=0.5, fit_intercept=fit_intercept, tol=1e-8).fit(form(X), Y)
    plain = clone(inner).set_params(kernel=None).fit(form(X), Y)
    assert inner.primal_ == pytest.approx(plain.primal_, rel=1e-7)
    np.testing.assert_allclose(inner.coef_, plain.coef_, atol=1e-3)
    np.testing.assert_allclose(inner.intercept_, plain.intercept_, atol=1e-3)
    np.testing.assert_allclose(
        inner.decision_function(form(NEW)), NEW @ inner.coef_.T + inner.intercept_, rtol=1e-9, atol=1e-12
    )


def test_a_precomputed_matrix_is_the_named_kernel() -> None:
    named, given = fitted(gamma=0.3), TopKClassifier("topk_hinge", k=2, tol=1e-6, C=C, kernel="precomputed")
    given.fit(rbf_kernel(X, gamma=0.3), Y)
    assert given.n_features_in_ == len(X)
    assert given.primal_ == pytest.approx(named.primal_, rel=1e-6)
    scores = given.decision_function(rbf_kernel(NEW, X, gamma=0.3))
    np.testing.assert_allclose(scores, named.decision_function(NEW), atol=1e-2)
    assert given.__sklearn_tags__().input_tags.pairwise
    assert not named.__sklearn_tags__().input_tags.pairwise


@pytest.mark.parametrize("kernel", ["rbf", "precomputed"])
def test_weights_of_examples_and_classes_count(kernel) -> None:
    rows = X if kernel == "rbf" else rbf_kernel(X, gamma=0.3)
    weights = np.random.default_rng(0).uniform(0.1, 2.0, len(Y))
    model = TopKClassifier(
        "topk_hinge",
        k=2,
        C=C,
        kernel=kernel,
        gamma=0.3 if kernel == "rbf" else None,
        class_weight={2: 3.0},
        tol=1e-6,
    ).fit(rows, Y, sample_weight=weights)
    total = weights * np.where(Y == 2, 3.0, 1.0)
    result = solve(
        X, Y, TopKHinge(2), LAM, sample_weight=total, kernel=WithConstant(RBFKernel(0.3)), tol=1e-6
    )
    assert model.primal_ == pytest.approx(result.primal, rel=2e-6)
    assert model.dual_ <= result.primal * (1 + 1e-12)
    plain = fitted(gamma=0.3)
    assert abs(model.primal_ - plain.primal_) > 0.01


def test_gamma_comes_from_the_training_rows() -> None:
    model = fitted(loss="max_hinge")
    assert model.kernel_.gamma == pytest.approx(1.0 / (4 * X.var()))
    assert fitted(gamma="auto").kernel_.gamma == 0.25
    value = fitted(kernel=RBFKernel("auto"), loss=MaxHinge())
    assert value.kernel_.gamma == 0.25


def test_two_classes_score_by_one_number() -> None:
    y = np.array(["no", "yes"])[(Y > 1).astype(int)]
    model = TopKClassifier(loss="max_hinge", C=C, tol=1e-6, kernel="rbf", gamma=0.3).fit(X, y)
    scores = model.decision_function(NEW)
    assert scores.shape == (len(NEW),)
    assert model.dual_coef_.shape == (1, len(model.support_))
    again = rbf_kernel(NEW, X[model.support_], gamma=0.3) @ model.dual_coef_[0] + model.intercept_[0]
    np.testing.assert_allclose(scores, again, rtol=1e-9, atol=1e-12)
    np.testing.assert_array_equal(model.predict(NEW), np.where(scores > 0, "yes", "no"))
    np.testing.assert_array_equal(model.predict_top_k(NEW)[:, 0], model.predict(NEW))


# ---------------------------------------------------------------- attributes


def test_a_nonlinear_kernel_has_no_coefficients_of_features() -> None:
    model = fitted()
    with pytest.raises(
        AttributeError, match="the kernel rbf has no weights of single features; use dual_coef_"
    ):
        model.coef_  # noqa: B018
    with pytest.raises(AttributeError, match="has no attribute 'classes'"):
        model.classes  # noqa: B018
    with pytest.raises(NotFittedError):
        clone(model).predict(X)


def test_a_new_fit_leaves_nothing_of_the_old_one() -> None:
    model = fitted()
    model.set_params(kernel=None).fit(X, Y)
    assert model.coef_.shape == (M, 4)
    assert not any(hasattr(model, name) for name in ("kernel_", "support_", "dual_coef_"))
    np.testing.assert_array_equal(model.decision_function(NEW), fitted(kernel=None).decision_function(NEW))
    model.set_params(kernel="rbf").fit(X, Y)
    assert not hasattr(model, "coef_")


def test_clones_and_pickles() -> None:
    model = fitted(kernel=RBFKernel("auto"))
    assert clone(model).get_params() == model.get_params()
    again = pickle.loads(pickle.dumps(model))
    np.testing.assert_array_equal(again.decision_function(NEW), model.decision_function(NEW))


# ---------------------------------------------------------------- warm starts, pipelines, refusals


def test_a_warm_start_goes_on_from_the_last_duals_whatever_the_kernel() -> None:
    model = fitted(tol=1e-4, smoothing=0.5, warm_start=True)
    first = model.n_iter_
    model.fit(X, Y)
    assert model.n_iter_ == 2 < first  # a pass for W(A), and one that finds it solved
    model.set_params(gamma=0.5).fit(X, Y)
    cold = fitted(tol=1e-4, smoothing=0.5, gamma=0.5)
    assert model.history_[0].dual > cold.history_[0].dual == 0.0
    assert model.primal_ == pytest.approx(cold.primal_, rel=1e-4)


@pytest.mark.slow
def test_grids_and_folds_cut_the_gram_matrix_both_ways() -> None:
    digits, labels = load_digits(return_X_y=True)
    digits, labels = MaxAbsScaler().fit_transform(digits[:300]), labels[:300]
    named = TopKClassifier(kernel="rbf", gamma=0.1, C=10.0)
    given = clone(named).set_params(kernel="precomputed", gamma=None)
    by_name = cross_val_score(named, digits, labels, cv=3)
    by_matrix = cross_val_score(given, rbf_kernel(digits, gamma=0.1), labels, cv=3)
    np.testing.assert_allclose(by_name, by_matrix, atol=0.02)
    assert by_name.mean() > 0.9
    search = GridSearchCV(named, {"gamma": [1e-4, 0.1], "kernel": ["rbf", "chi2"]}, cv=3).fit(digits, labels)
    assert search.best_params_["gamma"] == 0.1


def test_nystroem_of_scikit_learn_goes_before_it_in_a_pipeline() -> None:
    digits, labels = load_digits(return_X_y=True)
    digits, labels = digits[:300], labels[:300]
    near = make_pipeline(
        MaxAbsScaler(),
        Nystroem(gamma=0.1, n_components=300, random_state=0),
        TopKClassifier(C=10.0, tol=1e-5),
    ).fit(digits, labels)
    exact = make_pipeline(MaxAbsScaler(), TopKClassifier(C=10.0, kernel="rbf", gamma=0.1, tol=1e-5))
    exact.fit(digits, labels)
    # Every row is a landmark: the same problem.
    assert near[-1].primal_ == pytest.approx(exact[-1].primal_, rel=1e-4)
    few = clone(near).set_params(nystroem__n_components=100)
    assert cross_val_score(few, digits, labels, cv=3).mean() > 0.9


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"kernel": None, "gamma": 1.0}, "there is no kernel, and gamma is 1.0"),
        ({"kernel": RBFKernel(), "gamma": 1.0}, "is complete, and gamma is 1.0"),
        ({"kernel": "gauss"}, "there is no kernel named 'gauss'"),
        ({"kernel": 3}, "the kernel is 3"),
        ({"degree": 2}, "the kernel rbf takes no degree"),
        ({"gamma": -1.0}, "gamma of the kernel rbf is -1.0"),
        ({"kernel": "precomputed"}, "give the square matrix of all training rows"),
    ],
)
def test_kernels_that_cannot_be_are_refused(parameters, message) -> None:
    with pytest.raises(InvalidProblemError, match=message):
        fitted(**parameters)


def test_what_does_not_go_with_a_kernel() -> None:
    with pytest.raises(UnsupportedCombinationError, match="chi2 takes no sparse features"):
        TopKClassifier(kernel="chi2").fit(sparse.csr_matrix(np.abs(X)), Y)
