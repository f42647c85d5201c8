"""TopKClassifier keeps scikit-learn's contract and says the same as `solve`."""

from __future__ import annotations

import itertools
import pickle
import subprocess
import sys
import warnings
from dataclasses import replace

import numpy as np
import pytest
from scipy import sparse
from sklearn.base import clone
from sklearn.datasets import load_digits, load_iris
from sklearn.exceptions import ConvergenceWarning, NotFittedError
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import top_k_accuracy_score
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import MaxAbsScaler, StandardScaler
from sklearn.svm import LinearSVC
from sklearn.utils.class_weight import compute_sample_weight
from sklearn.utils.estimator_checks import (
    check_sample_weight_equivalence_on_dense_data,
    check_sample_weight_equivalence_on_sparse_data,
)

from tests.reference import losses as reference
from tests.solvers.problems import M, examples, random_margins
from topline import (
    LDRKL,
    InvalidProblemError,
    MaxHinge,
    NonFiniteError,
    Softmax,
    Status,
    StructuredHinge,
    TopKClassifier,
    TopKHinge,
    UnsupportedCombinationError,
    UsunierHinge,
    WeightedTopKHinge,
    WeightedUsunierHinge,
    linear,
    solve,
)
from topline.solvers.estimators.base import CollapsedWarning

# Losses of three guesses among five classes are tried for what they are, whatever they trade away.
pytestmark = pytest.mark.filterwarnings("ignore:the loss .* gives up top-1 accuracy:UserWarning")

X, Y = examples()
NAMES = np.array(["ash", "birch", "cedar", "elm", "fir"])


def fitted(**parameters):
    return TopKClassifier(**{"loss": "topk_hinge", "k": 3, "tol": 1e-6, **parameters}).fit(X, Y)


def lam_of(C):
    return 1.0 / (len(Y) * C)


# ---------------------------------------------------------------- the same as solve


@pytest.mark.parametrize(
    ("parameters", "loss"),
    [
        ({}, TopKHinge(3)),
        ({"loss": "max_hinge"}, MaxHinge()),
        ({"loss": "usunier_hinge", "k": 2}, UsunierHinge(2)),
        ({"loss": "weighted_topk_hinge", "weights": "linear"}, WeightedTopKHinge(linear(3))),
        ({"loss": "weighted_usunier_hinge", "weights": [0.7, 0.3]}, WeightedUsunierHinge([0.7, 0.3])),
        ({"loss": "structured_hinge", "margins": random_margins()}, StructuredHinge(random_margins())),
        ({"loss": WeightedTopKHinge(linear(4))}, WeightedTopKHinge(linear(4))),
    ],
    ids=lambda value: value.name if hasattr(value, "name") else None,
)
@pytest.mark.parametrize("smoothing", [0.0, 0.5])
def test_it_is_solve_with_lam_from_C(parameters, loss, smoothing) -> None:
    C = 0.3
    model = fitted(C=C, smoothing=smoothing, fit_intercept=False, random_state=4, **parameters)
    result = solve(X, Y, loss, lam_of(C), smoothing, tol=1e-6, seed=4)
    np.testing.assert_array_equal(model.coef_, result.W.T)
    np.testing.assert_array_equal(model.intercept_, np.zeros(M))
    assert model.coef_.shape == (M, X.shape[1])
    assert (model.primal_, model.dual_, model.dual_gap_) == (result.primal, result.dual, result.gap)
    assert model.relative_gap_ == result.relative_gap <= 1e-6
    assert model.n_iter_ == result.passes
    assert model.status_ is Status.SOLVED
    assert [r.dual for r in model.history_] == [r.dual for r in result.history]


def test_the_reported_primal_is_that_of_the_coefficients() -> None:
    """The bias is one more weight: the objective regularises it."""
    model = fitted(C=0.3)
    W = np.column_stack([model.coef_, model.intercept_]).T
    extended = np.column_stack([X, np.ones(len(X))])
    assert model.primal_ == pytest.approx(
        reference.primal(extended, Y, TopKHinge(3), lam_of(0.3), 0.0, W), rel=1e-12
    )
    assert np.abs(model.intercept_).max() > 0.01


# LIBLINEAR of scikit-learn 1.6 warns whatever the budget; whether it came to the optimum is what is asked.
@pytest.mark.filterwarnings("ignore:Liblinear failed to converge")
@pytest.mark.parametrize("C", [0.01, 0.3, 3.0])
def test_max_hinge_agrees_with_liblinear(C) -> None:
    """LinearSVC minimises 1/2 |W|^2 + C sum_i Phi, which is n C times our primal."""
    peer = LinearSVC(
        multi_class="crammer_singer", fit_intercept=False, C=C, tol=1e-6, max_iter=200000, random_state=0
    ).fit(X, Y)
    ours = fitted(loss="max_hinge", C=C, fit_intercept=False, max_passes=5000)
    theirs = reference.primal(X, Y, MaxHinge(), lam_of(C), 0.0, peer.coef_.T)
    assert ours.dual_ <= theirs * (1 + 1e-9)
    assert ours.primal_ == pytest.approx(theirs, rel=1e-5)


# ---------------------------------------------------------------- scores and labels


def test_predictions_follow_the_scores() -> None:
    model = TopKClassifier(loss="topk_hinge", k=3).fit(X, NAMES[Y])
    scores = X @ model.coef_.T + model.intercept_
    np.testing.assert_array_equal(model.classes_, NAMES)
    np.testing.assert_allclose(model.decision_function(X), scores, rtol=1e-12)
    np.testing.assert_array_equal(model.predict(X), NAMES[scores.argmax(axis=1)])
    best_first = NAMES[np.argsort(-scores, axis=1)]
    np.testing.assert_array_equal(model.predict_top_k(X), best_first[:, :3])
    np.testing.assert_array_equal(model.predict_top_k(X, 5), best_first)
    np.testing.assert_array_equal(model.predict_top_k(X, k=1)[:, 0], model.predict(X))


def test_top_k_score_is_the_share_of_labels_among_the_guesses() -> None:
    y = NAMES[Y]
    model = TopKClassifier(loss="topk_hinge", k=2).fit(X, y)
    for k in range(1, M + 1):
        among = (model.predict_top_k(X, k) == y[:, None]).any(axis=1).mean()
        assert model.top_k_score(X, y, k) == among
        if k < M:  # where k = m the peer warns that the score says nothing
            assert among == top_k_accuracy_score(y, model.decision_function(X), k=k)
    assert model.top_k_score(X, y) == model.top_k_score(X, y, 2) < model.top_k_score(X, y, 3)
    assert model.top_k_score(X, y, 1) == model.score(X, y)


def test_ties_count_against_the_model_and_unknown_labels_are_misses() -> None:
    model = fitted()
    nothing = np.zeros_like(X[:4])
    flat = clone(model).set_params(fit_intercept=False).fit(X, Y)
    assert flat.top_k_score(nothing, Y[:4], 4) == 0.0
    assert flat.top_k_score(nothing, Y[:4], 5) == 1.0
    np.testing.assert_array_equal(flat.predict_top_k(nothing, 2), [[0, 1]] * 4)
    assert model.top_k_score(X[:4], [7, -1, 99, 5], 5) == 0.0


@pytest.mark.filterwarnings("ignore::topline.solvers.estimators.base.CollapsedWarning")
def test_the_lower_of_equal_classes_comes_first() -> None:
    """Forty classes: up to sixteen values every sort of NumPy happens to keep equals in order."""
    y = np.arange(40)
    model = TopKClassifier(fit_intercept=False).fit(np.zeros((120, 1)), np.tile(y, 3))
    model.coef_ = (y % 2.0)[:, None]
    one = np.ones((1, 1))
    np.testing.assert_array_equal(model.predict_top_k(one, 40), [[*range(1, 40, 2), *range(0, 40, 2)]])
    assert model.predict(one) == [1]


def test_two_classes_score_by_one_number() -> None:
    y = np.array(["no", "yes"])[(Y > 1).astype(int)]
    model = TopKClassifier(loss="max_hinge", C=0.3, tol=1e-6).fit(X, y)
    scores = model.decision_function(X)
    assert scores.shape == (len(X),)
    assert model.coef_.shape == (1, X.shape[1])
    assert model.intercept_.shape == (1,)
    np.testing.assert_allclose(scores, X @ model.coef_[0] + model.intercept_[0], rtol=1e-12)
    np.testing.assert_array_equal(model.predict(X), np.where(scores > 0, "yes", "no"))
    top = model.predict_top_k(X)
    np.testing.assert_array_equal(top[:, 0], model.predict(X))
    assert (np.sort(top, axis=1) == ["no", "yes"]).all()
    assert model.top_k_score(X, y, 1) == model.score(X, y)
    assert model.top_k_score(X, y, 2) == 1.0


def test_two_classes_are_one_binary_hinge() -> None:
    """With w = w_1 - w_0 = 2 w_1, lam/2 |W|^2 is lam/4 |w|^2: the binary machine has half the C of ours."""
    y = (Y > 1).astype(int)
    ours = TopKClassifier(loss="max_hinge", C=0.3, tol=1e-7, fit_intercept=False).fit(X, y)
    peer = LinearSVC(loss="hinge", C=0.6, tol=1e-9, max_iter=200000, fit_intercept=False, random_state=0)
    np.testing.assert_allclose(ours.coef_, peer.fit(X, y).coef_, atol=2e-3)


@pytest.mark.parametrize(("classes", "guesses"), [(2, 1), (3, 1), (5, 2)])
def test_half_of_the_classes_are_guessed_at_most_where_nobody_says(classes, guesses) -> None:
    few = classes > Y
    model = TopKClassifier(loss="topk_hinge", fit_intercept=False).fit(X[few], Y[few])
    same = clone(model).set_params(k=guesses).fit(X[few], Y[few])
    assert model.k_ == guesses
    assert model.k is None
    assert TopKClassifier().fit(X[few], Y[few]).k_ == classes
    np.testing.assert_array_equal(model.coef_, same.coef_)
    assert model.predict_top_k(X).shape == (len(X), guesses)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("loss", ["topk_hinge", TopKHinge(3), "topk_entropy"])
def test_guesses_that_are_most_classes_are_said_to_trade_top_1_away(loss) -> None:
    with pytest.warns(UserWarning, match="k = 3 of 5 classes gives up top-1 accuracy .* k of 2 or less"):
        TopKClassifier(loss=loss, k=3).fit(X, Y)
    TopKClassifier(loss="topk_hinge", k=2).fit(X, Y)
    TopKClassifier(k=3).fit(X, Y)


# ---------------------------------------------------------------- what people feed it


@pytest.mark.parametrize("form", [sparse.csr_matrix, sparse.csr_array, sparse.csc_matrix, sparse.coo_array])
@pytest.mark.parametrize("fit_intercept", [True, False])
def test_sparse_says_what_dense_says(form, fit_intercept) -> None:
    holed = np.where(np.random.default_rng(0).random(X.shape) < 0.5, 0.0, X)
    dense = TopKClassifier(loss="topk_hinge", k=2, tol=1e-7, fit_intercept=fit_intercept, smoothing=0.5).fit(
        holed, Y
    )
    thin = clone(dense).fit(form(holed), Y)
    # Smoothing makes the optimum unique in W, and P strongly convex: |W - W*| <= sqrt(2 gap / lam).
    bound = 2 * np.sqrt(2 * dense.primal_ * 1e-7 / lam_of(1.0))
    assert np.linalg.norm(thin.coef_ - dense.coef_) <= bound
    np.testing.assert_allclose(
        thin.decision_function(form(holed)), thin.decision_function(holed), rtol=1e-9, atol=1e-12
    )
    assert thin.top_k_score(form(holed), Y) == thin.top_k_score(holed, Y)


def test_float32_and_float64_agree() -> None:
    double = fitted(tol=1e-4)
    single = TopKClassifier(loss="topk_hinge", k=3, tol=1e-4).fit(X.astype(np.float32), Y)
    assert single.coef_.dtype == double.coef_.dtype == np.float64
    assert single.status_ is Status.SOLVED
    assert single.primal_ == pytest.approx(double.primal_, rel=2e-4)
    assert single.decision_function(X.astype(np.float32)).dtype == np.float64


def test_lists_integers_and_fortran_order_will_do() -> None:
    whole = np.round(X).astype(int)
    model = TopKClassifier(loss="topk_hinge", k=3).fit(whole, Y)
    for same in (whole.tolist(), np.asfortranarray(whole.astype(float))):
        np.testing.assert_array_equal(clone(model).fit(same, Y.tolist()).coef_, model.coef_)


def test_pipelines_grids_and_folds() -> None:
    digits, labels = load_digits(return_X_y=True)
    digits, labels = digits[:300], labels[:300]
    pipeline = make_pipeline(MaxAbsScaler(), TopKClassifier())
    search = GridSearchCV(
        pipeline,
        {
            "topkclassifier__k": [1, 5],
            "topkclassifier__C": [0.1, 1.0],
            "topkclassifier__loss": ["topk_hinge", MaxHinge()],
        },
        scoring={
            "top1": "accuracy",
            "top2": top_2,
            "own": lambda model, X, y: model[-1].top_k_score(X, y, 2),
        },
        refit="top1",
        cv=3,
    ).fit(digits, labels)
    assert search.best_score_ > 0.85
    assert (search.cv_results_["mean_test_top2"] >= search.cv_results_["mean_test_top1"]).all()
    assert search.best_estimator_[-1].history_


def top_2(model, X, y):
    return top_k_accuracy_score(y, model.decision_function(X), k=2, labels=model.classes_)


def test_the_default_learns_iris() -> None:
    model = make_pipeline(StandardScaler(), TopKClassifier())
    assert cross_val_score(model, *load_iris(return_X_y=True)).mean() > 0.9


def test_clones_and_pickles() -> None:
    model = fitted(loss=WeightedTopKHinge(linear(4)), warm_start=True)
    copy = clone(model)
    assert copy.get_params() == model.get_params()
    assert not hasattr(copy, "coef_")
    with pytest.raises(NotFittedError):
        copy.predict(X)
    again = pickle.loads(pickle.dumps(model))
    np.testing.assert_array_equal(again.decision_function(X), model.decision_function(X))
    assert again.status_ is Status.SOLVED
    assert [r.to_dict() for r in again.history_] == [r.to_dict() for r in model.history_]


# ---------------------------------------------------------------- weights of examples and classes


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")  # rounding may come before tol
@pytest.mark.covering(2)
@pytest.mark.parametrize(
    "check",
    [check_sample_weight_equivalence_on_dense_data, check_sample_weight_equivalence_on_sparse_data],
    ids=["dense", "sparse"],
)
@pytest.mark.parametrize("method", ["auto", "newton"])
@pytest.mark.parametrize("loss", ["topk_hinge", "max_hinge"])
def test_weights_are_repeated_rows_to_the_last_digit(loss, method, check) -> None:
    """The check of scikit-learn, with a tolerance that leaves the methods no freedom.

    C = 0.1 for dual ascent: objective values that are equal to 1e-16 leave W open by the root of it times
    sqrt(C), and at C = 1 that is as much as the check allows.
    """
    C = 1.0 if method == "newton" else 0.1
    check("TopKClassifier", TopKClassifier(loss, C=C, tol=1e-12, method=method))


@pytest.mark.parametrize(
    "parameters",
    [
        {"loss": "softmax"},
        {"loss": "softmax", "method": "lbfgs"},
        {"smoothing": 0.5},
        {"smoothing": 0.5, "smoothing_kind": "others"},
        {"smoothing": 0.5, "method": "sdca"},
        {"loss": "one_vs_all_logistic"},
        {"kernel": "rbf", "gamma": 0.5, "smoothing": 0.5},
    ],
    ids=str,
)
def test_weights_are_repeated_rows(parameters) -> None:
    """Rows of weight 0 are left out, and C stays as it is: 1/2 |W|^2 + C sum_i w_i Phi_i knows no n."""
    weights = np.random.default_rng(3).integers(0, 4, len(Y))
    model = TopKClassifier(**{"loss": "topk_hinge", **parameters}, k=2, C=0.3, tol=1e-9, max_passes=5000)
    weighted = clone(model).fit(X, NAMES[Y], sample_weight=weights)
    repeated = clone(model).fit(X.repeat(weights, axis=0), NAMES[Y].repeat(weights))
    assert weighted.status_ is repeated.status_ is Status.SOLVED
    np.testing.assert_allclose(weighted.decision_function(X), repeated.decision_function(X), atol=1e-3)
    assert weighted.primal_ * len(Y) == pytest.approx(repeated.primal_ * weights.sum(), rel=1e-7)


def test_class_weights_multiply_sample_weights() -> None:
    weights = np.random.default_rng(4).uniform(0.5, 2.0, len(Y))
    by_class = {"birch": 3.0, "fir": 0.25}
    product = weights * np.array([by_class.get(name, 1.0) for name in NAMES[Y]])
    model = TopKClassifier(loss="topk_hinge", k=2, C=0.3, smoothing=0.5, class_weight=by_class)
    both = model.fit(X, NAMES[Y], sample_weight=weights)
    plain = clone(model).set_params(class_weight=None).fit(X, NAMES[Y], sample_weight=product)
    np.testing.assert_array_equal(both.coef_, plain.coef_)
    other = clone(plain).fit(X, NAMES[Y])
    assert np.abs(other.coef_ - plain.coef_).max() > 0.01


def test_balanced_gives_every_class_the_same_total() -> None:
    weights = np.random.default_rng(5).uniform(0.5, 2.0, len(Y))
    totals = np.bincount(Y, weights=weights)
    product = weights * (weights.sum() / (M * totals))[Y]
    np.testing.assert_allclose(np.bincount(Y, weights=product), weights.sum() / M)
    model = TopKClassifier(loss="topk_hinge", k=2, C=0.3, smoothing=0.5)
    balanced = clone(model).set_params(class_weight="balanced").fit(X, Y, sample_weight=weights)
    plain = clone(model).fit(X, Y, sample_weight=product)
    np.testing.assert_allclose(balanced.coef_, plain.coef_, rtol=1e-12)


def test_balanced_is_scikit_learns_without_sample_weights() -> None:
    y = np.where(Y == 0, 1, Y)
    peer = compute_sample_weight("balanced", y)
    model = TopKClassifier(loss="topk_hinge", k=2, C=0.3, smoothing=0.5)
    balanced = clone(model).set_params(class_weight="balanced").fit(X, y)
    np.testing.assert_allclose(balanced.coef_, clone(model).fit(X, y, sample_weight=peer).coef_, rtol=1e-12)


def test_softmax_with_weights_is_logistic_regression() -> None:
    weights = np.random.default_rng(6).uniform(0.0, 3.0, len(Y))
    peer = LogisticRegression(C=0.3, fit_intercept=False, tol=1e-10, max_iter=5000)
    peer.fit(X, Y, sample_weight=weights)
    ours = TopKClassifier("softmax", C=0.3, method="lbfgs", tol=1e-12, fit_intercept=False)
    ours.fit(X, Y, sample_weight=weights)
    np.testing.assert_allclose(ours.coef_, peer.coef_, atol=1e-5)


def test_other_weights_start_afresh() -> None:
    model = TopKClassifier(loss="topk_hinge", k=3, tol=1e-4, warm_start=True).fit(X, Y)
    weights = np.random.default_rng(7).uniform(0.0, 3.0, len(Y))
    for sample_weight in (weights, weights[::-1], None):
        model.fit(X, Y, sample_weight=sample_weight)
        fresh = clone(model).fit(X, Y, sample_weight=sample_weight)
        np.testing.assert_array_equal(model.coef_, fresh.coef_)
    passes = model.n_iter_
    assert model.fit(X, Y).n_iter_ == 2 < passes


@pytest.mark.parametrize("classes", [2, M])
def test_softmax_has_the_probabilities_of_logistic_regression(classes) -> None:
    X_, y = X[classes > Y], NAMES[Y[classes > Y]]
    peer = LogisticRegression(C=0.3 if classes > 2 else 0.6, fit_intercept=False, tol=1e-10).fit(X_, y)
    ours = TopKClassifier(Softmax(), C=0.3, tol=1e-10, fit_intercept=False).fit(X_, y)
    np.testing.assert_allclose(ours.predict_proba(X), peer.predict_proba(X), atol=1e-5)
    np.testing.assert_allclose(ours.predict_log_proba(X), np.log(ours.predict_proba(X)), rtol=1e-12)
    np.testing.assert_array_equal(ours.predict(X), ours.classes_[ours.predict_proba(X).argmax(axis=1)])


@pytest.mark.parametrize("loss", ["max_hinge", "topk_entropy", "one_vs_all_logistic"])
def test_other_scores_are_no_probabilities(loss) -> None:
    model = fitted(loss=loss)
    assert not hasattr(model, "predict_proba")
    assert not hasattr(model, "predict_log_proba")
    with pytest.raises(AttributeError, match=rf"scores of the loss {loss} are not probabilities: fit them"):
        model.predict_proba(X)


def test_a_loss_without_a_dual_says_so_in_its_attributes() -> None:
    model = TopKClassifier("truncated_topk_entropy", k=2, method="lbfgs", tol=1e-5).fit(X, Y)
    assert model.status_ is Status.SOLVED
    assert np.isnan([model.dual_, model.dual_gap_, model.relative_gap_]).all()
    with pytest.warns(ConvergenceWarning, match="of the first gradient left, short of tol = 1e-05"):
        model.set_params(max_passes=3).fit(X, Y)


@pytest.mark.parametrize(
    ("parameters", "weights", "message"),
    [
        ({}, -np.ones(len(Y)), "Negative values in data passed to `sample_weight`"),
        ({}, np.ones(3), "sample_weight.shape"),
        ({}, np.full(len(Y), np.nan), "sample_weight contains NaN"),
        ({}, (Y == 2).astype(float), "every example of positive weight is of the class 2"),
        ({"class_weight": "even"}, None, "class_weight is 'even'; give None, 'balanced' or a dict"),
        ({"class_weight": {0: -1.0}}, None, "sample_weight of row .* is -1.0"),
    ],
)
def test_weights_are_refused(parameters, weights, message) -> None:
    with pytest.raises(ValueError, match=message):
        TopKClassifier(k=2, **parameters).fit(X, Y, sample_weight=weights)


# ---------------------------------------------------------------- seeds, warm starts, budgets


def test_the_seed_decides() -> None:
    first = fitted(tol=1e-3)
    assert np.array_equal(first.coef_, fitted(tol=1e-3).coef_)
    assert not np.array_equal(first.coef_, fitted(tol=1e-3, random_state=1).coef_)
    drawn = [fitted(tol=1e-3, random_state=np.random.RandomState(3)).coef_ for _ in range(2)]
    np.testing.assert_array_equal(*drawn)
    with pytest.raises(ValueError, match="Seed must be between 0"):
        fitted(random_state=-1)


@pytest.mark.parametrize("smoothing", [0.0, 0.5])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_warm_start_goes_on_from_the_last_duals(smoothing, dtype) -> None:
    features = X.astype(dtype)
    model = TopKClassifier(loss="topk_hinge", k=3, C=0.3, tol=1e-4, smoothing=smoothing, warm_start=True).fit(
        features, Y
    )
    first = model.n_iter_
    model.fit(features, Y)
    assert model.n_iter_ == 2 < first  # a pass for W(A), and one that finds it solved
    assert model.history_[0].relative_gap <= 1e-4
    # D at another C follows from the A that is there: the first round must start from its best multiple.
    A = model._warm.A.astype(float)
    model.set_params(C=0.6).fit(features, Y)
    extended = np.column_stack([features, np.ones(len(X))])
    shares = np.linspace(0.0, 1.0, 401)
    expected = [reference.dual(extended, Y, TopKHinge(3), lam_of(0.6), smoothing, s * A) for s in shares]
    assert model.history_[0].dual == pytest.approx(max(expected), rel=1e-5)
    assert model.status_ is Status.SOLVED


def test_a_warm_start_holds_for_other_features_of_the_same_labels() -> None:
    model = TopKClassifier(loss="topk_hinge", k=3, tol=1e-5, warm_start=True).fit(X, Y)
    model.fit(X[:, :2], Y)
    cold = TopKClassifier(loss="topk_hinge", k=3, tol=1e-5).fit(X[:, :2], Y)
    assert model.history_[0].dual != cold.history_[0].dual
    assert model.primal_ == pytest.approx(cold.primal_, rel=1e-5)


@pytest.mark.parametrize("changes", [{"k": 2}, {"loss": "max_hinge"}, {"warm_start": False}])
def test_another_problem_starts_afresh(changes) -> None:
    model = TopKClassifier(loss="topk_hinge", k=3, tol=1e-4, warm_start=True).fit(X, Y)
    model.set_params(**changes).fit(X, Y)
    np.testing.assert_array_equal(model.coef_, clone(model).fit(X, Y).coef_)


def test_other_labels_start_afresh() -> None:
    model = TopKClassifier(loss="topk_hinge", k=3, tol=1e-4, warm_start=True).fit(X, Y)
    model.fit(X, Y[::-1])
    np.testing.assert_array_equal(model.coef_, clone(model).fit(X, Y[::-1]).coef_)
    model.fit(X[:40], Y[:40])
    np.testing.assert_array_equal(model.coef_, clone(model).fit(X[:40], Y[:40]).coef_)


def test_a_callback_that_stops_a_fit_is_told_as_the_cause() -> None:
    with pytest.warns(ConvergenceWarning, match=r"^a callback stopped the training after") as told:
        model = fitted(C=100.0, tol=1e-8, callbacks=[lambda record, state: False])
    assert model.status_ is Status.INTERRUPTED
    assert "max_passes" not in str(told[0].message)


def test_a_budget_that_runs_out_warns_and_still_certifies() -> None:
    with pytest.warns(ConvergenceWarning, match=r"ended after 4 passes \(max_passes\).*short of tol = 1e-08"):
        model = fitted(C=100.0, tol=1e-8, max_passes=4)
    assert model.status_ is Status.MAX_PASSES
    assert model.relative_gap_ > 1e-8
    assert model.dual_gap_ == pytest.approx(model.primal_ - model.dual_)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fitted(k=2, tol=1e-3)


# ---------------------------------------------------------------- refusals


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"C": 0.0}, "C is 0.0; give a positive number"),
        ({"C": np.inf}, "C is inf"),
        ({"C": "1"}, "C is '1'"),
        ({"k": 0}, "k of TopKClassifier is 0; give a whole number"),
        ({"k": 2.0}, "k of TopKClassifier is 2.0"),
        ({"k": 6}, "k is 6 and there are 5 classes in y; use a k of 5 or less"),
        ({"loss": "softmax", "k": 6}, "k is 6 and there are 5 classes in y"),
        ({"loss": "topk_entropy", "k": 5}, "each of 5 classes has 4 others; use k <= 4"),
        ({"loss": "hinge"}, "there is no loss named 'hinge': did you mean 'max_hinge'"),
        (
            {"loss": "softmax", "temperature": 0.1},
            "the loss softmax takes no temperature; leave it out, or use ldr_kl",
        ),
        ({"loss": LDRKL(0.1), "temperature": 0.1}, "is complete; leave temperature out"),
        ({"loss": TopKHinge}, "give one of the losses of topline, such as TopKHinge"),
        ({"loss": TopKHinge(6)}, "there are only 5 classes; use k <= 5"),
        ({"loss": "weighted_topk_hinge"}, "weighted_topk_hinge needs weights"),
        ({"loss": "topk_hinge", "weights": "flat"}, "topk_hinge takes no weights"),
        ({"loss": "structured_hinge"}, "structured_hinge needs margins"),
        ({"loss": TopKHinge(2), "weights": "flat"}, "is complete; leave weights out"),
        ({"method": "simplex"}, "there is no method named 'simplex'"),
        ({"smoothing": -1.0}, "smoothing is -1.0"),
        ({"tol": 0.0}, "tol is 0.0"),
        ({"max_passes": 0}, "max_passes is 0"),
    ],
)
def test_parameters_are_refused_by_name(parameters, message) -> None:
    with pytest.raises(InvalidProblemError, match=message):
        fitted(**parameters)


def test_a_temperature_makes_its_loss() -> None:
    assert fitted(loss="ldr_kl", temperature=0.1).loss_ == LDRKL(0.1)
    assert fitted(loss="ldr_kl").loss_ == LDRKL()


def test_what_does_not_go_together() -> None:
    with pytest.raises(UnsupportedCombinationError, match="the method fw has no warm_start"):
        fitted(method="fw", warm_start=True)
    with pytest.raises(UnsupportedCombinationError, match="no dual problem"):
        fitted(loss="truncated_topk_entropy", k=2, method="dual_ascent")


def test_one_class_is_refused() -> None:
    with pytest.raises(
        InvalidProblemError, match="every label is elm, which is one class; give examples of at"
    ):
        TopKClassifier().fit(X, np.repeat(["elm"], len(X)))


def test_more_guesses_than_classes_are_refused() -> None:
    model = fitted()
    for call in (lambda: model.predict_top_k(X, 6), lambda: model.top_k_score(X, Y, 6)):
        with pytest.raises(InvalidProblemError, match="k is 6 but there are 5 classes; use k <= 5"):
            call()


def test_an_overflow_is_an_error_and_not_a_model(monkeypatch) -> None:
    def overflown(*args, **options):
        return replace(solve(*args, **options), status=Status.NONFINITE)

    monkeypatch.setattr("topline.solvers.estimators.base.solve", overflown)
    model = TopKClassifier(C=0.5)
    with pytest.raises(NonFiniteError, match=r"overflowed with C = 0\.5; scale the features"):
        model.fit(X, Y)
    with pytest.raises(NotFittedError):
        model.predict(X)


def test_scikit_learn_is_imported_only_when_asked_for() -> None:
    """It would double the time that `import topline` and a loss take."""
    code = (
        "import sys, topline; assert 'TopKClassifier' in dir(topline); topline.solve; "
        "assert 'sklearn' not in sys.modules; topline.TopKClassifier; assert 'sklearn' in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_a_name_that_is_not_there_is_an_attribute_error() -> None:
    import topline

    with pytest.raises(AttributeError, match="has no attribute 'TopFiveClassifier'"):
        _ = topline.TopFiveClassifier


def test_verbose_prints_a_falling_gap_and_changes_no_result(capsys: pytest.CaptureFixture[str]) -> None:
    X, y = load_iris(return_X_y=True)
    quiet = TopKClassifier(loss="topk_hinge", k=1, C=10.0, tol=1e-4).fit(X, y)
    assert "relative gap" not in capsys.readouterr().out
    said = TopKClassifier(loss="topk_hinge", k=1, C=10.0, tol=1e-4, verbose=True).fit(X, y)
    lines = [line for line in capsys.readouterr().out.splitlines() if "relative gap" in line]
    gaps = [float(line.rpartition(" ")[2]) for line in lines]
    assert len(gaps) > 1
    # Two digits are printed, and each gap is at most half of the one before.
    assert all(now <= 0.55 * before for before, now in itertools.pairwise(gaps))
    assert min(record.relative_gap for record in said.history_) > 0.45 * gaps[-1]
    assert np.array_equal(quiet.coef_, said.coef_)


def test_no_weights_at_all_are_said_and_seen() -> None:
    """Five columns of noise: by the hinge no W is better than 0, to any tolerance."""
    random = np.random.default_rng(0)
    X, y = random.normal(size=(200, 5)), np.arange(200) % 4
    with pytest.warns(CollapsedWarning, match="every prediction is the same: scale the columns"):
        found = TopKClassifier(loss="max_hinge", C=1e-6).fit(X, y)
    assert found.collapsed_
    assert not found.coef_.any()
    assert solve(X, y, MaxHinge(), lam_of(1e-6)).collapsed
    assert not solve(X, y, Softmax(), lam_of(1.0)).collapsed
    assert not TopKClassifier().fit(X + 3.0 * np.eye(4, 5)[y], y).collapsed_


def test_a_model_no_better_than_the_largest_class_says_so() -> None:
    """Nine of ten rows are of one class, and nothing tells the others apart."""
    random = np.random.default_rng(0)
    X, y = random.normal(size=(300, 3)), (np.arange(300) % 10 == 0).astype(int)
    with pytest.warns(
        UserWarning, match=r"right of 90\.0% of its own training rows, no better than .*90\.0%"
    ):
        TopKClassifier().fit(X, y)
    with pytest.warns(UserWarning, match="the means of the 3 features make 100.0% of the squares"):
        TopKClassifier().fit((X + 1e9).astype(np.float32), y)
    told = X + 4.0 * np.eye(2, 3)[y]
    TopKClassifier().fit(told, y)
    TopKClassifier(class_weight="balanced").fit(told, y)


def test_columns_of_other_sizes_are_said_with_the_remedy() -> None:
    random = np.random.default_rng(0)
    y = np.arange(300) % 3
    X = np.eye(3, 4)[y] * 4.0 + random.normal(size=(300, 4))
    with pytest.warns(UserWarning, match="feature 2 of 4, counted from 0, makes .*StandardScaler"):
        TopKClassifier().fit(X * [1.0, 1.0, 1e4, 1.0], y)
    TopKClassifier().fit(StandardScaler().fit_transform(X * [1.0, 1.0, 1e4, 1.0]), y)
