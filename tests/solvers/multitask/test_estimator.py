"""MultitaskClassifier keeps scikit-learn's contract and says the same as the solvers behind it."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
from scipy import sparse
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning
from sklearn.metrics.pairwise import rbf_kernel
from sklearn.model_selection import GridSearchCV
from sklearn.svm import LinearSVC

from tests.solvers.problems import M, examples
from topline import InvalidProblemError, MultitaskClassifier, OneVsAll, RBFKernel, Status, TopKClassifier
from topline.solvers.multitask import solve_multi, solve_single

X, Y = examples()
NEW = examples(n=25, seed=5)[0]
SIGNS = np.where(Y[:, None] == np.arange(M), 1.0, -1.0)


def fitted(strategy="multi", labels=Y, **parameters):
    return MultitaskClassifier(strategy, **{"smoothing": 0.5, **parameters}).fit(X, labels)


def test_single_tasks_are_scikit_learns_linear_svms_with_a_regularised_intercept() -> None:
    ours = fitted("single", C=0.3, smoothing=0.0, tol=1e-9, max_passes=100_000)
    theirs = LinearSVC(loss="hinge", C=0.3, tol=1e-10, max_iter=1_000_000).fit(X, Y)
    np.testing.assert_allclose(ours.coef_, theirs.coef_, atol=1e-4)
    np.testing.assert_allclose(ours.intercept_, theirs.intercept_, atol=1e-4)
    np.testing.assert_array_equal(ours.predict(NEW), theirs.predict(NEW))


def test_single_tasks_are_one_vs_all_of_the_top_k_classifier() -> None:
    ours = fitted("single", C=0.3, kernel="rbf", gamma=0.2, tol=1e-7, max_passes=20_000)
    theirs = TopKClassifier(OneVsAll("hinge"), C=0.3, smoothing=0.5, kernel="rbf", gamma=0.2, tol=1e-7)
    theirs.fit(X, Y)
    # The objective there is the sum over classes.
    assert ours.primal_ * M == pytest.approx(theirs.primal_, rel=1e-6)
    np.testing.assert_allclose(ours.decision_function(NEW), theirs.decision_function(NEW), atol=2e-3)


@pytest.mark.parametrize("kernel", ["linear", "rbf"])
def test_it_is_solve_multi(kernel) -> None:
    model = fitted(C=0.3, C_shared=0.6, kernel=kernel, gamma=None if kernel == "linear" else 0.2)
    gram = lambda A, B: (A @ B.T if kernel == "linear" else rbf_kernel(A, B, gamma=0.2)) + 1.0  # noqa: E731
    result = solve_multi(gram(X, X), SIGNS, 0.3, None, 0.6, smoothing=0.5)
    scores = gram(NEW, X) @ result.coefficients
    np.testing.assert_allclose(model.decision_function(NEW), scores, atol=1e-6)
    np.testing.assert_array_equal(model.predict(NEW), scores.argmax(axis=1))
    assert (model.primal_, model.dual_) == pytest.approx((result.primal, result.dual), rel=1e-6)
    assert model.relative_gap_ == pytest.approx((model.primal_ - model.dual_) / model.primal_)
    assert len(model.alternations_) == len(result.alternations)
    np.testing.assert_allclose(model.represent(NEW) @ result.shared.W, scores, atol=1e-5)


def test_weights_of_the_linear_kernel_have_the_rank_of_few_factors() -> None:
    """The trace norm makes low rank, and more so the less the losses weigh."""
    model = fitted(C=0.01, tol=1e-6, change_tol=1e-6, max_passes=20_000, max_alternations=200)
    np.testing.assert_allclose(
        model.decision_function(NEW), NEW @ model.coef_.T + model.intercept_, atol=1e-10
    )
    extended = np.column_stack([model.coef_, model.intercept_])
    shares = np.linalg.svd(extended, compute_uv=False)
    assert (shares > 1e-2 * shares[0]).sum() < min(extended.shape)


@pytest.mark.parametrize("strategy", ["single", "stacked", "multi"])
def test_two_classes_are_one_task(strategy) -> None:
    labels = np.where(Y < 2, "no", "yes")
    model = fitted(strategy, labels)
    scores = model.decision_function(NEW)
    assert scores.shape == (len(NEW),)
    assert model.coef_.shape == (1, X.shape[1])
    np.testing.assert_allclose(scores, NEW @ model.coef_[0] + model.intercept_[0], atol=1e-10)
    np.testing.assert_array_equal(model.predict(NEW), np.where(scores > 0, "yes", "no"))
    swapped = fitted(strategy, np.where(Y < 2, "yes", "no"))
    np.testing.assert_allclose(swapped.decision_function(NEW), -scores, atol=1e-9)


@pytest.mark.parametrize("strategy", ["single", "multi"])
def test_precomputed_and_sparse_are_the_same(strategy) -> None:
    parameters = {"C": 0.5, "fit_intercept": False}
    plain = fitted(strategy, **parameters).decision_function(NEW)
    gram = MultitaskClassifier(strategy, kernel="precomputed", smoothing=0.5, **parameters).fit(X @ X.T, Y)
    np.testing.assert_allclose(gram.decision_function(NEW @ X.T), plain, atol=1e-8)
    rows = MultitaskClassifier(strategy, smoothing=0.5, **parameters).fit(sparse.csr_matrix(X), Y)
    np.testing.assert_allclose(rows.decision_function(sparse.csr_matrix(NEW)), plain, atol=1e-8)


def test_without_a_kernel_it_is_linear_and_copies_predict_the_same() -> None:
    model = fitted("stacked", kernel=None, C_tasks=0.1)
    again = pickle.loads(pickle.dumps(clone(model).fit(X, Y)))
    np.testing.assert_array_equal(again.decision_function(NEW), model.decision_function(NEW))
    assert model.kernel_.name == "linear"
    with pytest.raises(AttributeError):
        model.represent(NEW)
    value = MultitaskClassifier("single", kernel=RBFKernel(0.2)).fit(X, Y)
    named = MultitaskClassifier("single", kernel="rbf", gamma=0.2).fit(X, Y)
    np.testing.assert_array_equal(value.decision_function(NEW), named.decision_function(NEW))


def test_a_search_over_strategies() -> None:
    grid = {"strategy": ["single", "multi"], "C": [0.01, 0.3]}
    search = GridSearchCV(MultitaskClassifier(smoothing=0.5), grid, cv=2).fit(X, Y)
    assert search.best_score_ > 1.5 / M


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"strategy": "many"}, "no strategy 'many'; use one of single, stacked, multi"),
        ({"strategy": "single", "C_tasks": 1.0}, "the strategy single has no C_tasks, which is 1.0"),
        ({"strategy": "stacked", "max_alternations": 3}, "the strategy stacked has no max_alternations"),
        ({"C": "big"}, "C is 'big'"),
        ({"C_tasks": -1.0}, "C_tasks is -1.0"),
        ({"max_alternations": 0}, "max_alternations is 0"),
        ({"change_tol": -1.0}, "change_tol is -1.0"),
        ({"smoothing": None}, "smoothing is None"),
        ({"kernel": "cubic"}, "no kernel named 'cubic'"),
        ({"kernel": "precomputed"}, "square matrix"),
    ],
)
def test_what_cannot_be_is_refused(parameters, message) -> None:
    with pytest.raises(InvalidProblemError, match=message):
        MultitaskClassifier(**parameters).fit(X, Y)


def test_an_indefinite_matrix_is_refused() -> None:
    gram = X @ X.T
    gram[0, 1] = gram[1, 0] = 1e3
    with pytest.raises(InvalidProblemError, match="not positive semi-definite"):
        MultitaskClassifier(kernel="precomputed").fit(gram, Y)


@pytest.mark.parametrize("strategy", ["single", "stacked", "multi"])
def test_a_budget_that_runs_out_is_told(strategy) -> None:
    with pytest.warns(ConvergenceWarning, match="training ended after"):
        model = MultitaskClassifier(strategy, C=10.0, max_passes=2).fit(X, Y)
    assert model.subproblem_gap_ > 1e-3
    if strategy == "single":
        assert model.status_ is Status.MAX_PASSES
        short = solve_single(X @ X.T + 1.0, SIGNS, 10.0, max_passes=2)
        assert model.subproblem_gap_ == pytest.approx(short.subproblem_gap, rel=1e-3)
