"""The scikit-learn face of learning with several labels."""

from __future__ import annotations

import pickle
import warnings
from itertools import permutations
from typing import Any

import numpy as np
import pytest
from scipy import sparse
from sklearn import metrics
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import accuracy_score, f1_score, hamming_loss
from sklearn.model_selection import GridSearchCV, KFold
from sklearn.multiclass import OneVsRestClassifier
from sklearn.preprocessing import MultiLabelBinarizer
from sklearn.svm import LinearSVC

from tests.solvers.problems import M, examples, several_labels
from topline import (
    InvalidProblemError,
    MultilabelClassifier,
    MultilabelHinge,
    UnsupportedCombinationError,
    solve,
)
from topline.solvers.errors import NonFiniteError
from topline.solvers.estimators.multilabel_metrics import (
    PARTITION_METRICS,
    mean_average_precision,
    partition_metrics,
    ranking_metrics,
    tuned_thresholds,
)

X, CLASSES = examples(n=60)
TABLE, CODES = several_labels(CLASSES)
Y = TABLE.indicator(CODES).astype(int)
Y[59] = 0
NAMES = np.array(["ash", "birch", "cedar", "elm", "fir"])
SETS = [set(NAMES[row == 1]) for row in Y]


def fitted(y=Y, **parameters):
    return MultilabelClassifier(**{"C": 0.5, "tol": 1e-6, **parameters}).fit(X, y)


def with_bias(rows):
    return np.column_stack([rows, np.ones(len(rows))])


def test_it_is_solve_with_lam_from_C() -> None:
    model = fitted(cv=None, threshold=0.25)
    result = solve(with_bias(X), Y, MultilabelHinge(), 1.0 / (60 * 0.5), 1.0, tol=1e-6)
    np.testing.assert_array_equal(model.coef_, result.W[:-1].T)
    np.testing.assert_array_equal(model.intercept_, result.W[-1])
    assert (model.primal_, model.dual_gap_, model.n_iter_) == (result.primal, result.gap, result.passes)
    np.testing.assert_allclose(model.decision_function(X), with_bias(X) @ result.W - 0.25, atol=1e-12)


@pytest.mark.parametrize(
    ("loss", "scikit_learn"),
    [
        ("one_vs_all_hinge", LinearSVC(loss="hinge", C=0.5, tol=1e-8, max_iter=200_000)),
        ("one_vs_all_logistic", LogisticRegression(C=0.5, solver="liblinear", tol=1e-10)),
    ],
)
def test_binary_relevance_is_that_of_scikit_learn(loss, scikit_learn) -> None:
    """One LIBLINEAR model a label; its bias is one more weight, as it is here."""
    theirs = OneVsRestClassifier(scikit_learn).fit(X, Y)
    ours = fitted(loss=loss, smoothing=0.0, threshold=0.0, tol=1e-9, max_passes=20_000)
    np.testing.assert_allclose(ours.coef_, np.vstack([each.coef_ for each in theirs.estimators_]), atol=2e-4)
    biases = np.hstack([each.intercept_ for each in theirs.estimators_])
    np.testing.assert_allclose(ours.intercept_, biases, atol=2e-4)
    np.testing.assert_array_equal(ours.predict(X), theirs.predict(X))


def test_every_form_of_the_labels_is_the_same_model() -> None:
    model = fitted()
    assert model.multilabel_
    np.testing.assert_array_equal(model.classes_, np.arange(M))
    for matrix in (sparse.csr_matrix(Y), Y.astype(float), Y.astype(bool), Y.tolist()):
        again = fitted(matrix)
        np.testing.assert_array_equal(again.coef_, model.coef_)
        assert again.threshold_ == model.threshold_
    for sets in (SETS, [frozenset(labels) for labels in SETS], np.array([*SETS, None], dtype=object)[:-1]):
        named = fitted(sets)
        np.testing.assert_array_equal(named.coef_, model.coef_)
        np.testing.assert_array_equal(named.classes_, NAMES)
        assert named.score(X, named.predict(X)) == 1.0
        predicted = MultiLabelBinarizer(classes=NAMES).fit_transform(named.predict(X))
        np.testing.assert_array_equal(predicted, model.predict(X))
        assert named.score(X, sets) == model.score(X, Y) == accuracy_score(Y, model.predict(X))


def test_single_labels_give_single_labels() -> None:
    model = fitted(NAMES[CLASSES])
    assert not model.multilabel_
    assert model.threshold_ == 0.0
    scores = X @ model.coef_.T + model.intercept_
    np.testing.assert_array_equal(model.predict(X), NAMES[scores.argmax(axis=1)])
    assert model.score(X, NAMES[CLASSES]) == np.mean(model.predict(X) == NAMES[CLASSES])
    # The same model as with one label in each row of a matrix.
    matrix = fitted(np.eye(M, dtype=int)[CLASSES], threshold=0.0)
    np.testing.assert_array_equal(model.coef_, matrix.coef_)
    two = fitted(CLASSES > 1)
    assert two.decision_function(X).shape == (60,)
    np.testing.assert_array_equal(two.predict(X), two.decision_function(X) > 0)


def unseen_scores(C, smoothing, folds):
    """Out-of-fold scores by `solve` and scikit-learn's folds."""
    scores = np.empty(Y.shape)
    for train, test in KFold(folds, shuffle=True, random_state=0).split(X):
        lam = 1.0 / (len(train) * C)
        W = solve(with_bias(X[train]), Y[train], MultilabelHinge(), lam, smoothing, tol=1e-6).W
        scores[test] = with_bias(X[test]) @ W
    return scores


@pytest.mark.parametrize("cv", [3, None])
@pytest.mark.parametrize(
    ("rule", "metric"),
    [
        ("f1_micro", lambda y, h: f1_score(y, h, average="micro")),
        ("hamming_loss", lambda y, h: -hamming_loss(y, h)),
        ("cardinality", lambda y, h: -abs(h.sum() - y.sum())),
    ],
)
def test_no_threshold_is_better(rule, metric, cv) -> None:
    model = fitted(threshold=rule, cv=cv)
    seen = model.decision_function(X) + model.threshold_
    scores = seen if cv is None else unseen_scores(0.5, 1.0, cv)
    chosen = metric(Y, scores > model.threshold_)
    for threshold in [scores.min() - 1.0, *np.unique(scores)[::4]]:
        assert chosen >= metric(Y, scores > threshold) - 1e-12


def test_the_k_highest_labels() -> None:
    model = fitted(threshold="top_k")
    assert model.k_ == round(Y.sum() / len(Y))
    assert model.threshold_ == 0.0
    scores = model.decision_function(X)
    order = np.argsort(-scores, axis=1, kind="stable")
    np.testing.assert_array_equal(model.predict_top_k(X, 3), order[:, :3])
    chosen = fitted(threshold="top_k", k=3).predict(X)
    np.testing.assert_array_equal(chosen.sum(axis=1), 3)
    assert all(chosen[i, order[i, :3]].all() for i in range(len(X)))
    # What is predicted is what was fitted, whatever the parameters say now.
    assert (model.set_params(threshold=0.3).predict(X).sum(axis=1) == model.k_).all()


def test_rows_of_weight_zero_have_no_say() -> None:
    weights = np.where(np.arange(60) % 4, 1.0, 0.0)
    kept = weights > 0
    for cv in (3, None):
        with_weights = MultilabelClassifier(C=0.5, tol=1e-9, cv=cv).fit(X, Y, weights)
        without = MultilabelClassifier(C=0.5, tol=1e-9, cv=cv).fit(X[kept], Y[kept])
        np.testing.assert_allclose(with_weights.coef_, without.coef_, atol=1e-4)
        assert with_weights.threshold_ == pytest.approx(without.threshold_, abs=1e-3)


def test_kernels() -> None:
    gamma = 0.2
    K = np.exp(-gamma * np.sum((X[:, None] - X[None]) ** 2, axis=2))
    by_name = fitted(kernel="rbf", gamma=gamma)
    given = MultilabelClassifier(C=0.5, tol=1e-6, kernel="precomputed").fit(K, Y)
    np.testing.assert_allclose(by_name.decision_function(X), given.decision_function(K), atol=1e-3)
    assert by_name.threshold_ == pytest.approx(given.threshold_, abs=1e-3)
    assert by_name.dual_coef_.shape[0] == M
    linear = fitted(kernel="linear", threshold=0.0)
    plain = fitted(threshold=0.0)
    np.testing.assert_allclose(linear.coef_, plain.coef_, atol=1e-3)
    # Two labels keep a score each.
    pair = fitted(Y[:, :2], kernel="rbf", gamma=gamma, threshold=0.0)
    assert pair.decision_function(X).shape == pair.predict(X).shape == (60, 2)


def test_search_and_pickle() -> None:
    search = GridSearchCV(MultilabelClassifier(tol=1e-4), {"C": [1e-3, 0.1]}, scoring="f1_samples", cv=3)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", category=UserWarning)
        search.fit(X, Y)
    again = pickle.loads(pickle.dumps(search.best_estimator_))
    np.testing.assert_array_equal(again.predict(X), search.predict(X))


def test_a_budget_that_runs_out_is_said() -> None:
    with pytest.warns(ConvergenceWarning, match="short of tol"):
        fitted(max_passes=1, threshold=0.0)


@pytest.mark.parametrize(
    ("parameters", "y", "message"),
    [
        ({"threshold": "best"}, Y, "no threshold rule named 'best'; use one of f1_micro"),
        ({"threshold": True}, Y, "threshold is True; give a number or a rule's name"),
        ({"cv": 0}, Y, "k of cv is 0; give a whole number of at least 1"),
        ({"k": 9}, Y, "k is 9 but there are 5 classes"),
        ({}, 2 * Y + CLASSES[:, None] % 2, "y is a matrix of the type multiclass-multioutput"),
        ({}, [sorted(labels) for labels in SETS], "lists of different lengths; give a set of labels per row"),
        ({}, [tuple(labels) for labels in SETS], "lists of different lengths; give a set of labels per row"),
        ({}, [set()] * 60, "no example has a label; give examples of at least two classes"),
        ({}, [{"a"}] * 60, "every label is a, which is one class"),
        ({"loss": "multilabel_softmax"}, Y, "row 59 has no label"),
        ({"loss": "no_loss"}, Y, "there is no loss named 'no_loss'"),
        ({"C": -1.0}, Y, "C is -1.0; give a positive number"),
    ],
)
def test_refusals(parameters, y, message) -> None:
    with pytest.raises(InvalidProblemError, match=message):
        fitted(y, **parameters)


def test_a_loss_of_single_labels_is_refused() -> None:
    with pytest.raises(
        UnsupportedCombinationError, match="the loss softmax is for examples with one label each"
    ):
        fitted(loss="softmax")


def test_labels_that_were_not_there_are_misses() -> None:
    model = fitted(SETS)
    unknown = [labels | {"yew"} for labels in SETS]
    assert model.score(X, SETS) > 0.0
    assert model.score(X, unknown) == 0.0


def rows(seed: int, n: int = 30, m: int = 6, *, ties: bool) -> tuple[Any, Any]:
    """Labels (n, m) with an empty and a full row and a class without rows; scores in halves if `ties`."""
    rng = np.random.default_rng(seed)
    relevant = rng.random((n, m)) < 0.35
    relevant[0], relevant[1] = False, True
    relevant[:, m - 1] = False
    relevant[1, : m - 1] = True
    scores = rng.standard_normal((n, m)) + relevant
    return relevant, np.round(2.0 * scores) / 2.0 if ties else scores


def f1(tp: int, fp: int, fn: int, of_nothing: float) -> float:
    return 2 * tp / (2 * tp + fp + fn) if tp + fp + fn else of_nothing


def by_definition(relevant: Any, predicted: Any) -> dict[str, float]:
    """Section 6.2.1 of the thesis, counted in sets."""
    n, m = relevant.shape
    sets = [({*np.flatnonzero(y)}, {*np.flatnonzero(h)}) for y, h in zip(relevant, predicted, strict=True)]
    columns = [({*np.flatnonzero(relevant[:, j])}, {*np.flatnonzero(predicted[:, j])}) for j in range(m)]

    def counts(y: set[Any], h: set[Any]) -> tuple[int, int, int]:
        return len(y & h), len(h - y), len(y - h)

    total = np.sum([counts(y, h) for y, h in sets], axis=0).tolist()
    return {
        "f1_micro": f1(*total, 0.0),
        "f1_macro": float(np.mean([f1(*counts(y, h), 0.0) for y, h in columns])),
        "f1_instance": float(np.mean([f1(*counts(y, h), 1.0) for y, h in sets])),
        "accuracy": float(np.mean([len(y & h) / len(y | h) if y | h else 1.0 for y, h in sets])),
        "subset_accuracy": float(np.mean([y == h for y, h in sets])),
        "hamming_loss": sum(len(y ^ h) for y, h in sets) / (m * n),
    }


@pytest.mark.parametrize("ties", [False, True])
def test_the_rank_loss_counts_pairs_in_the_wrong_order_and_ties(ties: bool) -> None:
    relevant, scores = rows(0, ties=ties)
    expected = 0.0
    for y, f in zip(relevant, scores, strict=True):
        wrong = sum(f[a] <= f[b] for a in np.flatnonzero(y) for b in np.flatnonzero(~y))
        expected += wrong / max(1, int(y.sum()) * int((~y).sum()))
    found = ranking_metrics(relevant, scores, [1]).rank_loss
    assert found == pytest.approx(expected / len(scores), abs=1e-14)
    assert found == pytest.approx(metrics.label_ranking_loss(relevant, scores), abs=1e-14)


def test_precision_and_recall_at_k_take_the_worst_order_of_ties() -> None:
    relevant, scores = rows(1, n=25, m=5, ties=True)
    ks = [1, 2, 3, 5]
    hits = {k: [] for k in ks}
    for y, f in zip(relevant, scores, strict=True):
        orders = [list(order) for order in permutations(range(5)) if (np.diff(f[list(order)]) <= 0).all()]
        for k in ks:
            hits[k].append(min(int(y[order[:k]].sum()) for order in orders))
    found = ranking_metrics(relevant, scores, ks)
    sizes = relevant.sum(axis=1)
    for k in ks:
        assert found.precision[k] == pytest.approx(np.mean(hits[k]) / k, abs=1e-14)
        shares = [hit / size for hit, size in zip(hits[k], sizes, strict=True) if size]
        assert found.recall[k] == pytest.approx(np.mean(shares), abs=1e-14)


def test_recall_at_k_of_single_labels_is_the_topk_accuracy() -> None:
    rng = np.random.default_rng(2)
    y, scores = rng.integers(0, 7, 40), rng.standard_normal((40, 7))
    found = ranking_metrics(np.eye(7, dtype=bool)[y], scores, [1, 3])
    for k in (1, 3):
        assert found.recall[k] == pytest.approx(
            metrics.top_k_accuracy_score(y, scores, k=k, labels=range(7)), abs=1e-14
        )


def test_the_mean_average_precision_is_that_of_the_classes_that_occur() -> None:
    relevant, scores = rows(3, ties=False)
    expected = []
    for j in range(relevant.shape[1] - 1):
        ranked = relevant[np.argsort(-scores[:, j]), j]
        precisions = np.cumsum(ranked) / np.arange(1, len(ranked) + 1)
        expected.append(precisions[ranked].mean())
    assert mean_average_precision(relevant, scores) == pytest.approx(np.mean(expected), abs=1e-14)
    assert mean_average_precision(np.zeros((3, 2), dtype=bool), scores[:3, :2]) == 0.0


def test_metrics_of_a_prediction_are_those_of_the_thesis() -> None:
    relevant, scores = rows(4, ties=True)
    for threshold in (-9.0, 0.0, 0.5, 9.0):
        expected = by_definition(relevant, scores > threshold)
        found = partition_metrics(relevant, scores > threshold)
        assert tuple(found) == PARTITION_METRICS
        assert found == pytest.approx(expected, abs=1e-14)


@pytest.mark.parametrize("ties", [pytest.param(False, marks=pytest.mark.slow), True])
def test_no_other_threshold_is_better_than_the_tuned_one(ties: bool) -> None:
    relevant, scores = rows(5, ties=ties)
    values = np.unique(scores)
    every = [values[0] - 1.0, *(0.5 * (values[1:] + values[:-1])), values[-1]]
    tuned = tuned_thresholds(relevant, scores, cardinality=1.7)
    table = [partition_metrics(relevant, scores > threshold) for threshold in every]
    for name in PARTITION_METRICS:
        best = min if name == "hamming_loss" else max
        found = partition_metrics(relevant, scores > tuned[name])[name]
        assert found == pytest.approx(best(row[name] for row in table), abs=1e-12)
    sizes = [abs((scores > threshold).sum() - 1.7 * len(scores)) for threshold in every]
    assert abs((scores > tuned["cardinality"]).sum() - 1.7 * len(scores)) == min(sizes)


def test_a_threshold_may_predict_nothing_or_everything() -> None:
    scores = np.array([[2.0, 1.0], [0.0, -1.0]])
    nothing = tuned_thresholds(np.zeros((2, 2), dtype=bool), scores, cardinality=0.0)
    everything = tuned_thresholds(np.ones((2, 2), dtype=bool), scores, cardinality=2.0)
    for rule in (*PARTITION_METRICS[2:], "cardinality"):
        assert not (scores > nothing[rule]).any()
        assert (scores > everything[rule]).all()


def test_neighbouring_scores_are_told_apart() -> None:
    high = np.nextafter(1.0, 2.0)
    tuned = tuned_thresholds(np.array([[True, False]]), np.array([[high, 1.0]]), cardinality=1.0)
    assert 1.0 <= tuned["f1_micro"] < high


def test_scores_that_cannot_be_ranked_are_refused() -> None:
    relevant, scores = rows(6, ties=False)
    with pytest.raises(InvalidProblemError, match="give both as"):
        ranking_metrics(relevant[:, :2], scores, [1])
    with pytest.raises(InvalidProblemError, match="predictions"):
        partition_metrics(relevant, relevant[:3])
    scores[7, 2] = np.nan
    with pytest.raises(NonFiniteError, match="row 7"):
        tuned_thresholds(relevant, scores, 1.0)
