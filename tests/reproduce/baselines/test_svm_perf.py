"""SVM^Perf against a general QP solver with a constraint for every set, and against brute force."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
from scipy import sparse

from tests.reference.qp import minimise_qp
from tests.reproduce.baselines import solve_svm_perf
from tests.reproduce.baselines.svm_perf import worst_set
from topline import InvalidProblemError, NonFiniteError


def ranked(seed=0, n=11, d=3):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, d))
    return X, X[:, 0] + 0.6 * rng.normal(size=n) > 0.2


def loss_of(chosen, positive, measure):
    """1 - precision or recall of the set that is called positive."""
    hits = np.count_nonzero(chosen & positive)
    return 1.0 - hits / (chosen.sum() if measure == "precision" else positive.sum())


def every_set(n, k):
    for places in combinations(range(n), k):
        chosen = np.zeros(n, dtype=bool)
        chosen[list(places)] = True
        yield chosen


def risk(scores, positive, k, measure):
    """The maximum over all sets of k, from its definition."""
    p = positive.sum()
    own = scores[positive].sum()
    sets = every_set(len(scores), k)
    return max(0.0, *(loss_of(Q, positive, measure) + (scores[Q].sum() - own) / p for Q in sets))


@pytest.mark.parametrize("measure", ["precision", "recall"])
@pytest.mark.parametrize(("k", "lam"), [(2, 0.1), (5, 0.01), (5, 1.0), (8, 0.1)])
def test_it_is_the_quadratic_program_with_every_set(measure, k, lam) -> None:
    """min lam/2 |w|^2 + xi over w and xi >= 0 with a constraint for each of up to 462 sets."""
    X, positive = ranked()
    ours = solve_svm_perf(X, positive, lam, k=k, measure=measure, tol=1e-7)
    n, d = X.shape
    p = positive.sum()
    rows, right = [np.append(np.zeros(d), -1.0)], [0.0]
    for chosen in every_set(n, k):
        change = X.T @ (chosen.astype(float) - positive) / p
        rows.append(np.append(change, -1.0))
        right.append(-loss_of(chosen, positive, measure))
    P = np.diag(np.append(np.full(d, lam), 0.0))
    q = np.append(np.zeros(d), 1.0)
    x = minimise_qp(P, q, np.array(rows), np.array(right))
    best = 0.5 * x @ P @ x + q @ x
    assert ours.relative_gap <= 1e-7
    assert ours.primal == pytest.approx(best, rel=1e-6)
    assert ours.dual <= best * (1.0 + 1e-6)
    w = ours.W[:, 0]
    assert ours.primal == pytest.approx(0.5 * lam * w @ w + risk(X @ w, positive, k, measure), rel=1e-10)


@pytest.mark.parametrize("measure", ["precision", "recall"])
def test_the_worst_set_is_the_worst_of_all(measure) -> None:
    rng = np.random.default_rng(1)
    for _ in range(60):
        n = int(rng.integers(3, 9))
        positive = rng.permutation(np.arange(n) < rng.integers(1, n))
        k = int(rng.integers(1, n + 1))
        scores = np.round(rng.normal(size=n), int(rng.integers(0, 3)))
        called = k if measure == "precision" else None
        chosen, hits = worst_set(scores[:, None], positive[:, None], k, called)
        assert chosen.sum() == k
        assert hits == np.count_nonzero(chosen[:, 0] & positive)
        p = positive.sum()
        value = loss_of(chosen[:, 0], positive, measure) + (scores[chosen[:, 0]].sum()) / p
        sets = every_set(n, k)
        best = max(loss_of(Q, positive, measure) + scores[Q].sum() / p for Q in sets)
        assert value == pytest.approx(best, abs=1e-12)


def test_the_bound_of_one_slack_holds_where_as_many_are_called_as_there_are_positives() -> None:
    """Then the set of the highest scores has no lower sum than the positives, and P is above its loss."""
    rng = np.random.default_rng(2)
    for seed in range(20):
        X, positive = ranked(seed, n=9)
        scores = X @ rng.normal(size=3)
        p = int(positive.sum())
        called = np.zeros(9, dtype=bool)
        called[np.argsort(-scores)[:p]] = True
        assert risk(scores, positive, p, "precision") >= loss_of(called, positive, "precision") - 1e-12


def test_precision_and_recall_agree_where_as_many_are_called_as_there_are_positives() -> None:
    X, positive = ranked(3, n=40)
    k = int(positive.sum())
    precision, recall = (
        solve_svm_perf(X, positive, 0.1, k=k, measure=measure, tol=1e-6)
        for measure in ("precision", "recall")
    )
    np.testing.assert_array_equal(precision.W, recall.W)


def test_the_multiclass_reduction_is_the_binary_problem_in_its_own_features() -> None:
    """Phi_y(x) puts x in the place of class y (thesis 5.2.3): n m examples of m d features."""
    rng = np.random.default_rng(2)
    X, y, m = rng.normal(size=(25, 4)), rng.integers(0, 3, 25), 3
    mask = y[:, None] == np.arange(m)
    whole = solve_svm_perf(X, mask, 0.1, k=50, measure="recall", tol=1e-8)
    embedded = np.concatenate([np.kron(np.eye(m)[j], X) for j in range(m)])
    binary = solve_svm_perf(embedded, mask.T.ravel(), 0.1, k=50, measure="recall", tol=1e-8)
    assert whole.primal == pytest.approx(binary.primal, rel=1e-7)
    np.testing.assert_allclose(whole.W.T.ravel(), binary.W[:, 0], atol=1e-3 * np.abs(whole.W).max())


def test_sparse_features_give_the_same_and_few_cuts_a_larger_gap() -> None:
    X, positive = ranked(4, n=60)
    dense, thin = (solve_svm_perf(x, positive, 0.05, k=20, tol=1e-6) for x in (X, sparse.csr_array(X)))
    np.testing.assert_allclose(thin.W, dense.W, atol=1e-6)
    few = solve_svm_perf(X, positive, 0.05, k=20, tol=1e-6, max_cuts=3)
    assert few.cuts == 3
    assert few.relative_gap > 1e-6
    assert few.dual <= dense.primal <= few.primal


def test_what_it_refuses() -> None:
    X, positive = ranked()
    with pytest.raises(InvalidProblemError, match="use the precision or the recall at 1 to 11"):
        solve_svm_perf(X, positive, 0.1, k=12)
    with pytest.raises(InvalidProblemError, match="'f1' at 3"):
        solve_svm_perf(X, positive, 0.1, k=3, measure="f1")
    with pytest.raises(InvalidProblemError, match="with positives and negatives"):
        solve_svm_perf(X, np.ones(11), 0.1, k=3)
    with pytest.raises(NonFiniteError):
        solve_svm_perf(np.where(X > 0, np.nan, X), positive, 0.1, k=3)
