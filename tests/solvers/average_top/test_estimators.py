"""The estimators of the average top-k loss keep scikit-learn's contract and say the same as the solvers."""

from __future__ import annotations

import pickle
import warnings

import numpy as np
import pytest
from scipy import sparse
from sklearn.datasets import load_iris
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import Ridge
from sklearn.metrics.pairwise import rbf_kernel
from sklearn.model_selection import GridSearchCV
from sklearn.svm import LinearSVC

from tests.solvers.average_top.problems import examples
from topline import (
    AverageTopK,
    AverageTopKClassifier,
    AverageTopKRegressor,
    InvalidProblemError,
    MaxHinge,
    Softmax,
    Status,
    TopKHinge,
    UnsupportedCombinationError,
    solve,
)
from topline.solvers.average_top import INDIVIDUAL_LOSSES, minimise, minimise_with_kernel
from topline.solvers.average_top.estimators import CollapsedWarning
from topline.solvers.kernels import RBFKernel, WithConstant

NAMES = np.array(["no", "yes"])
BINARY_X, SIGNS = examples("hinge", seed=3, noise=0.4)
BINARY_X, LABELS = BINARY_X[:, :-1], NAMES[(SIGNS > 0).astype(int)]
NUMERIC_X, TARGETS = examples("square")
NUMERIC_X = NUMERIC_X[:, :-1]


def with_ones(X):
    return np.column_stack([X, np.ones(len(X))])


@pytest.mark.parametrize("loss", ["hinge", "logistic", INDIVIDUAL_LOSSES["hinge"]])
@pytest.mark.parametrize("fit_intercept", [True, False])
def test_two_classes_are_the_problem_of_signs(loss, fit_intercept) -> None:
    model = AverageTopKClassifier(loss, k=22.5, C=7.0, fit_intercept=fit_intercept, tol=1e-8)
    model.fit(BINARY_X, LABELS)
    rows = with_ones(BINARY_X) if fit_intercept else BINARY_X
    result = minimise(rows, SIGNS, loss, 22.5, 7.0, tol=1e-8)
    w = np.append(model.coef_[0], model.intercept_) if fit_intercept else model.coef_[0]
    np.testing.assert_allclose(w, result.w, rtol=1e-12)
    assert model.coef_.shape == (1, 3)
    assert fit_intercept or not model.intercept_.any()
    assert (model.primal_, model.dual_, model.n_iter_) == (result.primal, result.dual, result.iterations)
    assert model.dual_gap_ == result.gap
    assert model.relative_gap_ == result.relative_gap <= 1e-8
    assert (model.k_, model.collapsed_, model.status_) == (22.5, False, Status.SOLVED)
    scores = rows @ w
    np.testing.assert_allclose(model.decision_function(BINARY_X), scores, rtol=1e-9, atol=1e-12)
    np.testing.assert_array_equal(model.predict(BINARY_X), NAMES[(scores > 0).astype(int)])


@pytest.mark.parametrize("loss", ["square", "absolute", INDIVIDUAL_LOSSES["absolute"]])
@pytest.mark.parametrize("fit_intercept", [True, False])
def test_regression_is_the_problem_of_numbers(loss, fit_intercept) -> None:
    model = AverageTopKRegressor(loss, k=22.5, C=7.0, fit_intercept=fit_intercept, tol=1e-8)
    model.fit(NUMERIC_X, TARGETS)
    rows = with_ones(NUMERIC_X) if fit_intercept else NUMERIC_X
    result = minimise(rows, TARGETS, loss, 22.5, 7.0, tol=1e-8)
    w = np.append(model.coef_, model.intercept_) if fit_intercept else model.coef_
    np.testing.assert_allclose(w, result.w, rtol=1e-12)
    assert model.coef_.shape == (3,)
    assert isinstance(model.intercept_, float)
    assert model.relative_gap_ == result.relative_gap <= 1e-8
    np.testing.assert_allclose(model.predict(NUMERIC_X), rows @ w, rtol=1e-9, atol=1e-12)


def test_documented_equivalents() -> None:
    """LinearSVC's C is n times smaller, Ridge's alpha n / (2 C)."""
    n = len(SIGNS)
    svm = LinearSVC(loss="hinge", C=0.3, tol=1e-10, max_iter=100_000).fit(BINARY_X, LABELS)
    ours = AverageTopKClassifier(k=None, C=0.3 * n, tol=1e-9).fit(BINARY_X, LABELS)
    np.testing.assert_allclose(ours.coef_, svm.coef_, atol=1e-4)
    ridge = Ridge(alpha=3.0, fit_intercept=False).fit(NUMERIC_X, TARGETS)
    model = AverageTopKRegressor(k=None, C=n / 6.0, fit_intercept=False, tol=1e-11).fit(NUMERIC_X, TARGETS)
    np.testing.assert_allclose(model.coef_, ridge.coef_, atol=1e-5)


@pytest.mark.parametrize(
    ("loss", "value"),
    [("hinge", MaxHinge()), ("logistic", Softmax()), ("max_hinge", MaxHinge()), (TopKHinge(2), TopKHinge(2))],
)
@pytest.mark.parametrize("kernel", [None, "rbf"])
def test_more_classes_go_to_solve(loss, value, kernel) -> None:
    X, y = load_iris(return_X_y=True)
    X, y = X[::3], y[::3]
    k, C = 30.0, 20.0
    chosen = {} if kernel is None else {"gamma": 0.5}
    model = AverageTopKClassifier(loss, k=k, C=C, kernel=kernel, tol=1e-3, **chosen).fit(X, NAMES_OF_THREE[y])
    rows = with_ones(X) if kernel is None else X
    used = None if kernel is None else WithConstant(RBFKernel(0.5))
    result = solve(rows, y, value, 1.0 / C, kernel=used, risk=AverageTopK(k), tol=1e-3, max_passes=1000)
    scores = result.decision_function(rows)
    np.testing.assert_allclose(model.decision_function(X), scores, atol=1e-9)
    np.testing.assert_array_equal(model.predict(X), NAMES_OF_THREE[scores.argmax(axis=1)])
    assert (model.primal_, model.dual_, model.n_iter_) == (result.primal, result.dual, result.passes)
    assert (model.k_, model.collapsed_) == (k, False)


NAMES_OF_THREE = np.array(["ash", "birch", "cedar"])


def test_losses_of_classes_serve_two_as_well() -> None:
    """Of W only the difference of the columns means anything, and it has half of |w|^2: C doubles."""
    pair = AverageTopKClassifier(MaxHinge(), k=30, C=4.0, tol=1e-4).fit(BINARY_X, LABELS)
    one = AverageTopKClassifier("hinge", k=30, C=8.0, tol=1e-8).fit(BINARY_X, LABELS)
    assert pair.primal_ == pytest.approx(one.primal_, rel=2e-4)
    assert pair.coef_.shape == one.coef_.shape
    np.testing.assert_array_equal(pair.predict(BINARY_X), one.predict(BINARY_X))


@pytest.mark.parametrize("fit_intercept", [True, False])
def test_kernels(fit_intercept) -> None:
    model = AverageTopKClassifier(
        k=25, C=5.0, kernel="rbf", gamma=0.7, fit_intercept=fit_intercept, tol=1e-8
    ).fit(BINARY_X, LABELS)
    kernel = WithConstant(RBFKernel(0.7)) if fit_intercept else RBFKernel(0.7)
    result = minimise_with_kernel(kernel, BINARY_X, SIGNS, "hinge", 25, 5.0, tol=1e-8)
    assert (model.primal_, model.dual_) == (result.primal, result.dual)
    np.testing.assert_allclose(
        model.decision_function(BINARY_X), result.expansion.scores(BINARY_X)[:, 0], atol=1e-12
    )
    scores = model.dual_coef_ @ rbf_kernel(BINARY_X[model.support_], NUMERIC_X, gamma=0.7) + model.intercept_
    np.testing.assert_allclose(model.decision_function(NUMERIC_X), scores[0], atol=1e-12)
    assert not hasattr(model, "coef_")
    K = rbf_kernel(BINARY_X, gamma=0.7)
    given = AverageTopKClassifier(k=25, C=5.0, kernel="precomputed", fit_intercept=fit_intercept, tol=1e-8)
    given.fit(K, LABELS)
    np.testing.assert_allclose(given.decision_function(K), model.decision_function(BINARY_X), atol=1e-4)
    # A further fit without a kernel leaves nothing of this one.
    model.set_params(kernel=None, gamma=None).fit(BINARY_X, LABELS)
    assert model.coef_.shape == (1, 3)
    assert not hasattr(model, "dual_coef_")


def test_regression_with_a_kernel() -> None:
    model = AverageTopKRegressor("absolute", k=20, C=50.0, kernel="rbf", gamma=0.5, tol=1e-8)
    model.fit(NUMERIC_X, TARGETS)
    kernel = WithConstant(RBFKernel(0.5))
    result = minimise_with_kernel(kernel, NUMERIC_X, TARGETS, "absolute", 20, 50.0, tol=1e-8)
    np.testing.assert_allclose(
        model.predict(NUMERIC_X), kernel.matrix(NUMERIC_X, NUMERIC_X) @ result.coefficients
    )
    expected = rbf_kernel(NUMERIC_X, NUMERIC_X[model.support_], gamma=0.5) @ model.dual_coef_[0]
    np.testing.assert_allclose(model.predict(NUMERIC_X), expected + model.intercept_, atol=1e-12)
    assert isinstance(model.intercept_, float)


def test_k_is_a_number_a_share_or_all() -> None:
    n = len(SIGNS)
    for k, used in ((None, n), (0.25, 10.0), (1e-9, 1.0), (1, 1.0), (12.5, 12.5), (10**6, n)):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", CollapsedWarning)
            assert AverageTopKClassifier(k=k).fit(BINARY_X, LABELS).k_ == used


def test_a_collapse_is_said_and_predicts_one_class() -> None:
    X, y = np.vstack([BINARY_X, BINARY_X]), np.concatenate([SIGNS, -SIGNS])
    with pytest.warns(CollapsedWarning, match=r"the optimum is w = 0 for k = 5.*raise k"):
        model = AverageTopKClassifier(k=5).fit(X, y)
    assert model.collapsed_
    assert model.status_ is Status.SOLVED
    assert not model.coef_.any()
    assert not model.intercept_.any()
    assert (model.predict(X) == model.classes_[0]).all()
    with pytest.warns(CollapsedWarning):
        assert not AverageTopKClassifier(k=5, kernel="rbf").fit(X, y).decision_function(X).any()
    with pytest.warns(CollapsedWarning):
        regressor = AverageTopKRegressor(k=5).fit(X, y)
    assert regressor.collapsed_
    assert not regressor.predict(X).any()


def test_a_collapse_of_three_classes_is_said() -> None:
    X = np.repeat(np.random.default_rng(0).standard_normal((8, 2)), 3, axis=0)
    with pytest.warns(CollapsedWarning):
        model = AverageTopKClassifier(k=2).fit(X, np.tile(NAMES_OF_THREE, 8))
    assert model.collapsed_
    assert not model.coef_.any()
    assert (model.predict(X) == model.classes_[0]).all()
    assert model.primal_ == pytest.approx(1.0, rel=1e-12)
    with pytest.warns(CollapsedWarning):
        kernel = AverageTopKClassifier(k=2, kernel="rbf").fit(X, np.tile(NAMES_OF_THREE, 8))
    assert not kernel.decision_function(X).any()


def test_weights_that_a_small_C_keeps_near_zero_are_no_collapse() -> None:
    """P(0) is within tol of the optimum, and yet the weights are better than none."""
    X = np.repeat(np.eye(3), 8, axis=0) + 0.1 * np.random.default_rng(0).standard_normal((24, 3))
    y = np.repeat(NAMES_OF_THREE, 8)
    model = AverageTopKClassifier("logistic", k=None, C=1e-3, tol=1e-2).fit(X, y)
    assert 1.0 - model.dual_ / np.log(3.0) < model.tol
    assert not model.collapsed_
    assert model.score(X, y) == 1.0


def test_a_budget_that_ran_out_is_said() -> None:
    with pytest.warns(ConvergenceWarning, match=r"training ended after 2 rounds \(max_passes\)"):
        model = AverageTopKClassifier(tol=1e-10, max_iterations=2).fit(BINARY_X, LABELS)
    assert model.status_ is Status.MAX_PASSES


@pytest.mark.parametrize("model", [AverageTopKClassifier(k=20), AverageTopKRegressor(k=20)])
def test_sparse_rows_and_pickles_predict_the_same(model) -> None:
    y = LABELS if isinstance(model, AverageTopKClassifier) else TARGETS
    model.fit(sparse.csr_matrix(BINARY_X), y)
    again = pickle.loads(pickle.dumps(model))
    np.testing.assert_array_equal(again.predict(BINARY_X), model.predict(BINARY_X))
    dense = type(model)(k=20).fit(BINARY_X, y)
    np.testing.assert_allclose(model.coef_, dense.coef_, atol=1e-9)


def test_a_search_over_k_and_C() -> None:
    X, y = load_iris(return_X_y=True)
    search = GridSearchCV(AverageTopKClassifier(), {"k": [0.5, None], "C": [1.0, 100.0]}, cv=3)
    assert search.fit(X[50:], y[50:]).best_score_ > 0.9


@pytest.mark.parametrize(
    ("parameters", "error", "message"),
    [
        ({"k": 0}, InvalidProblemError, "k is 0; give a number from 1 on, a share between 0 and 1, or None"),
        ({"k": "all"}, InvalidProblemError, "k is 'all'"),
        ({"C": -1.0}, InvalidProblemError, "C is -1.0; give a positive number"),
        (
            {"k": 1.0},
            InvalidProblemError,
            "k is 1.0, which is one loss as a number and all of them as a share",
        ),
        ({"loss": "square"}, InvalidProblemError, "there is no loss named 'square'; use hinge or logistic"),
        ({"loss": "topk_hinge"}, InvalidProblemError, "give it as a value, such as TopKHinge"),
        ({"loss": "truncated_topk_entropy"}, InvalidProblemError, "give it as a value"),
        ({"loss": MaxHinge(), "method": "bundle"}, InvalidProblemError, "use auto"),
        ({"method": "newton"}, InvalidProblemError, "there is no method 'newton'"),
        ({"gamma": 1.0}, InvalidProblemError, "there is no kernel, and gamma is 1.0"),
        ({"kernel": "sigmoid"}, InvalidProblemError, "sigmoid"),
    ],
)
def test_what_does_not_fit_is_refused(parameters, error, message) -> None:
    with pytest.raises(error, match=message):
        AverageTopKClassifier(**parameters).fit(BINARY_X, LABELS)


def test_losses_that_belong_to_the_other_estimator_are_refused() -> None:
    with pytest.raises(
        InvalidProblemError, match="the loss hinge needs targets -1 and 1; use square or absolute"
    ):
        AverageTopKRegressor("hinge").fit(BINARY_X, TARGETS)
    with pytest.raises(InvalidProblemError, match="every label is yes, which is one class"):
        AverageTopKClassifier().fit(BINARY_X, np.full(40, "yes"))
    assert issubclass(UnsupportedCombinationError, ValueError)
