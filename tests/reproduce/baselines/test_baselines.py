"""Baselines of the papers against general QP solvers, brute force, distributions and steps by hand."""

from __future__ import annotations

from functools import partial
from itertools import combinations

import numpy as np
import pytest
from scipy import sparse

from tests.reference.qp import minimise_qp
from tests.reproduce.baselines import (
    fit_one_vs_all,
    fit_wsabie,
    solve_rank_svm,
    solve_svm_perf,
    solve_top_push,
)
from tests.reproduce.baselines.rank_svm import pair_losses, signed_sums, visit_pairs
from tests.reproduce.baselines.svm_perf import worst_set
from tests.reproduce.baselines.top_push import balance
from tests.reproduce.baselines.wsabie import draw_violator, rank_weight, shortened
from tests.solvers.problems import examples
from topline import InvalidProblemError, NonFiniteError, TopKClassifier


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


@pytest.mark.parametrize(
    ("fit", "rounding"),
    [
        (partial(solve_svm_perf, k=50, measure="recall", tol=1e-8), 1e-7),
        (partial(solve_top_push, tol=1e-7), 1e-6),
    ],
    ids=["svm_perf", "top_push"],
)
def test_the_multiclass_reduction_is_the_binary_problem_in_its_own_features(fit, rounding) -> None:
    """Phi_y(x) puts x in the place of class y (thesis 5.2.3): n m examples of m d features."""
    rng = np.random.default_rng(2)
    X, y, m = rng.normal(size=(25, 4)), rng.integers(0, 3, 25), 3
    mask = y[:, None] == np.arange(m)
    whole = fit(X, mask, 0.1)
    embedded = np.concatenate([np.kron(np.eye(m)[j], X) for j in range(m)])
    binary = fit(embedded, mask.T.ravel(), 0.1)
    assert whole.primal == pytest.approx(binary.primal, rel=rounding)
    np.testing.assert_allclose(whole.W.T.ravel(), binary.W[:, 0], atol=1e-3 * np.abs(whole.W).max())
    if fit.func is solve_top_push:
        assert whole.primal == pytest.approx(primal(X, mask, 0.1, whole.W), rel=1e-12)


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


X, Y = examples()


@pytest.mark.parametrize("loss", ["hinge", "logistic"])
@pytest.mark.parametrize("C", [0.05, 1.0])
def test_it_is_the_certified_one_vs_all_of_this_package(loss, C) -> None:
    """Another solver, another objective's sum over classes: the same minimiser, to LIBLINEAR's tolerance."""
    theirs = fit_one_vs_all(X, Y, loss, C, tol=1e-7, max_iter=100_000)
    ours = TopKClassifier(loss=f"one_vs_all_{loss}", C=C, tol=1e-8, max_passes=20_000).fit(X, Y)
    assert theirs.converged
    assert ours.relative_gap_ <= 1e-8
    scores = theirs.scores(X)
    assert scores.shape == (len(X), len(np.unique(Y)))
    np.testing.assert_allclose(scores, ours.decision_function(X), atol=2e-3 * np.abs(scores).max())


def test_sparse_rows_and_labels_by_name() -> None:
    names = np.array(["ash", "birch", "cedar", "elm", "fir"])[Y]
    dense = fit_one_vs_all(X, Y, "logistic", tol=1e-8)
    thin = fit_one_vs_all(sparse.csr_matrix(X), names, "logistic", tol=1e-8)
    np.testing.assert_array_equal(thin.classes, np.unique(names))
    np.testing.assert_allclose(thin.scores(sparse.csr_matrix(X)), dense.scores(X), atol=1e-5)


def test_two_classes_have_two_columns_of_opposite_sign() -> None:
    model = fit_one_vs_all(X, Y > 1, "logistic", tol=1e-8)
    scores = model.scores(X)
    np.testing.assert_allclose(scores[:, 0], -scores[:, 1], atol=1e-4)


def test_binary_relevance_is_a_problem_for_each_label() -> None:
    rng = np.random.default_rng(0)
    has = np.column_stack([rng.random((len(X), 2)) < 0.4, np.ones(len(X)), np.zeros(len(X))])
    model = fit_one_vs_all(X, has, "logistic", tol=1e-8)
    scores = model.scores(X)
    for j in range(2):
        alone = fit_one_vs_all(X, has[:, j] > 0, "logistic", tol=1e-8)
        np.testing.assert_allclose(scores[:, j], alone.scores(X)[:, 1], atol=1e-5)
    again = fit_one_vs_all(X.tolist(), sparse.csr_matrix(has), "logistic", tol=1e-8).scores(X)
    np.testing.assert_array_equal(again, scores)
    # A label that tells nobody apart.
    np.testing.assert_array_equal(scores[:, 2:], np.tile([1.0, -1.0], (len(X), 1)))


def test_a_short_budget_is_told() -> None:
    assert not fit_one_vs_all(X, Y, "hinge", 100.0, tol=1e-12, max_iter=2).converged


@pytest.mark.parametrize(("loss", "y"), [("squared", Y), ("hinge", np.zeros(len(X)))])
def test_refusals(loss, y) -> None:
    with pytest.raises(InvalidProblemError, match="use hinge or logistic, and examples of at least two"):
        fit_one_vs_all(X, y, loss)


def several_labels(seed=0, n=12, d=3, m=4):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, d))
    has = X @ rng.normal(size=(d, m)) + 0.5 * rng.normal(size=(n, m)) > 0.3
    has[0], has[1] = False, True  # no pairs
    return X, has


def pairs_of(has):
    return [(i, y, z) for i, row in enumerate(has) for y in np.flatnonzero(row) for z in np.flatnonzero(~row)]


@pytest.mark.parametrize("C", [0.1, 3.0])
def test_it_is_the_binary_reduction(C) -> None:
    """One slack a pair, in the features Phi_y(x) - Phi_z(x)."""
    X, has = several_labels()
    ours = solve_rank_svm(X, has, C, tol=1e-8, max_passes=20_000)
    d, m, pairs = X.shape[1], has.shape[1], pairs_of(has)
    rows = np.zeros((len(pairs), d * m))
    costs = np.zeros(len(pairs))
    for place, (i, y, z) in enumerate(pairs):
        difference = np.zeros((d, m))
        difference[:, y], difference[:, z] = X[i], -X[i]
        rows[place] = difference.ravel()
        costs[place] = C / (has[i].sum() * (~has[i]).sum())
    p = len(pairs)
    P = np.diag(np.concatenate([np.ones(d * m), np.zeros(p)]))
    q = np.concatenate([np.zeros(d * m), costs])
    G = np.vstack([np.hstack([-rows, -np.eye(p)]), np.hstack([np.zeros((p, d * m)), -np.eye(p)])])
    x = minimise_qp(P, q, G, np.concatenate([-np.ones(p), np.zeros(p)]))
    assert abs(ours.relative_gap) <= 1e-8
    assert ours.primal == pytest.approx(0.5 * x @ P @ x + q @ x, rel=1e-6)
    np.testing.assert_allclose(ours.W.ravel(), x[: d * m], atol=1e-3 * np.abs(x[: d * m]).max())


def test_kernels_are_their_definitions() -> None:
    _, has = several_labels(1)
    pairs = pairs_of(has)
    counts = has.sum(axis=1) * (~has).sum(axis=1)
    starts = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
    rng = np.random.default_rng(0)
    a, scores = rng.random(len(pairs)), rng.normal(size=has.shape)
    sums, losses = np.zeros(has.shape), np.zeros(len(has))
    for place, (i, y, z) in enumerate(pairs):
        sums[i, y] += a[place]
        sums[i, z] -= a[place]
        losses[i] += max(0.0, 1.0 - scores[i, y] + scores[i, z])
    np.testing.assert_allclose(signed_sums(has, starts, a), sums, atol=1e-12)
    np.testing.assert_allclose(pair_losses(scores, has), losses, atol=1e-12)


def test_a_visit_never_lowers_the_dual_and_carries_w() -> None:
    X, has = several_labels(2)
    counts = has.sum(axis=1) * (~has).sum(axis=1)
    starts = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
    caps, a, W = 2.0 / np.maximum(counts, 1), np.zeros(starts[-1]), np.zeros((X.shape[1], has.shape[1]))
    before = 0.0
    for i in np.flatnonzero(counts):
        visit_pairs(X, has, caps, starts, np.array([i]), a, W)
        np.testing.assert_allclose(W, X.T @ signed_sums(has, starts, a), atol=1e-12)
        now = a.sum() - 0.5 * np.sum(W**2)
        assert now >= before - 1e-12
        before = now
    assert (a >= 0).all()
    assert (a <= np.repeat(caps, counts)).all()


def test_a_row_of_zeros_is_no_division() -> None:
    X, has = several_labels(3)
    X[5] = 0.0
    result = solve_rank_svm(X, has, 1.0, tol=1e-6, max_passes=5000)
    assert np.isfinite(result.W).all()
    assert result.relative_gap <= 1e-6


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"labels": np.ones((4, 2))}, "no example has one label and lacks another"),
        ({"labels": np.ones((3, 2))}, "give a row of each for every example"),
        ({"X": sparse.csr_matrix(np.eye(4))}, "give X.toarray"),
        ({"X": np.ones(4)}, "give one row per example"),
        ({"C": 0.0}, "C is 0.0"),
        ({"max_passes": True}, "max_passes is True"),
        ({"tol": np.nan}, "tol is nan"),
    ],
)
def test_what_rank_svm_refuses(change, message) -> None:
    arguments = {"X": np.eye(4), "labels": np.eye(4)[:, :2], "C": 1.0, **change}
    with pytest.raises(InvalidProblemError, match=message):
        solve_rank_svm(**arguments)


def test_what_is_no_number_is_refused() -> None:
    with pytest.raises(NonFiniteError, match="row 2 of the features holds NaN or infinity"):
        solve_rank_svm(np.diag([1.0, 1.0, np.nan, 1.0]), np.eye(4)[:, :2], 1.0)


def labelled_scores(seed=0, n=60, d=5):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, d))
    return X, X[:, 0] + 0.6 * rng.normal(size=n) > 0.5


def primal(X, mask, lam, W):
    """P from its definition, one positive at a time."""
    S = X @ W
    top = max(S[i, j] for i, j in zip(*np.nonzero(~mask), strict=True))
    losses = [max(0.0, 1.0 + top - S[i, j]) ** 2 for i, j in zip(*np.nonzero(mask), strict=True)]
    return 0.5 * lam * np.sum(W**2) + np.mean(losses)


@pytest.mark.parametrize("lam", [0.02, 0.3, 10.0])
def test_it_is_the_primal_quadratic_program(lam) -> None:
    """min over (w, t, slacks) with t >= s_j for negatives and xi_i >= 1 + t - s_i, xi >= 0."""
    X, positive = labelled_scores()
    ours = solve_top_push(X, positive, lam, tol=1e-7)
    p, q, d = int(positive.sum()), int((~positive).sum()), X.shape[1]
    P = np.diag(np.concatenate([lam * np.ones(d), [0.0], np.full(p, 2.0 / p)]))
    top = np.hstack([X[~positive], -np.ones((q, 1)), np.zeros((q, p))])
    over = np.hstack([-X[positive], np.ones((p, 1)), -np.eye(p)])
    slack = np.hstack([np.zeros((p, d + 1)), -np.eye(p)])
    right = np.concatenate([np.zeros(q), -np.ones(p), np.zeros(p)])
    x = minimise_qp(P, np.zeros(d + 1 + p), np.vstack([top, over, slack]), right)
    assert ours.relative_gap <= 1e-7
    assert ours.primal == pytest.approx(0.5 * x @ P @ x, rel=1e-6)
    np.testing.assert_allclose(ours.W[:, 0], x[:d], atol=2e-3 * np.abs(x[:d]).max())


def test_the_certificate_says_what_it_measured() -> None:
    X, positive = labelled_scores(1)
    lam = 0.05
    result = solve_top_push(X, positive, lam, tol=1e-4)
    a, b = result.A[positive, 0], -result.A[~positive, 0]
    assert (a >= 0).all()
    assert (b >= 0).all()
    assert a.sum() == pytest.approx(b.sum(), rel=1e-12)
    w = (X[positive].T @ a - X[~positive].T @ b) / (lam * len(a))
    np.testing.assert_allclose(result.W[:, 0], w, rtol=1e-10)
    assert result.primal == pytest.approx(primal(X, positive[:, None], lam, result.W), rel=1e-12)
    assert result.dual == pytest.approx(np.mean(a - a**2 / 4) - 0.5 * lam * w @ w, rel=1e-12)
    assert 0.0 <= result.relative_gap <= 1e-4


def test_sparse_features_give_the_same() -> None:
    rng = np.random.default_rng(3)
    X, positive = rng.normal(size=(40, 4)), rng.integers(0, 3, 40) == 1
    dense, thin = (solve_top_push(rows, positive, 0.1, tol=1e-6) for rows in (X, sparse.csr_array(X)))
    assert thin.relative_gap <= 1e-6
    np.testing.assert_allclose(thin.W, dense.W, atol=2e-3)


def test_the_projection_is_the_nearest_balanced_point() -> None:
    rng = np.random.default_rng(0)
    for _ in range(50):
        n = int(rng.integers(2, 9))
        positive = np.arange(n) < rng.integers(1, n)
        A = np.round(3.0 * rng.normal(size=n), int(rng.integers(0, 3)))
        ours = balance(A, positive)
        signs = np.where(positive, 1.0, -1.0)
        expected = minimise_qp(np.eye(n), -A, -np.diag(signs), np.zeros(n), np.ones((1, n)), [0.0])
        # Feasible to the last digit, and not farther from A than what the general solver found.
        assert abs(ours.sum()) <= 1e-12 * max(1.0, np.abs(A).sum())
        assert (signs * ours >= 0).all()
        assert np.sum((ours - A) ** 2) <= np.sum((expected - A) ** 2) + 1e-9


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"positive": np.ones(4, dtype=bool)}, "4 positives; give a row for each of 4"),
        ({"positive": np.array([True, False])}, "give a row for each of 4"),
        ({"lam": 0.0}, "lam is 0.0"),
        ({"max_rounds": -1}, "max_rounds is -1"),
        ({"tol": -1.0}, "tol is -1.0"),
    ],
)
def test_what_top_push_refuses(change, message) -> None:
    arguments = {"X": np.eye(4), "positive": np.arange(4) < 2, "lam": 1.0, **change}
    with pytest.raises(InvalidProblemError, match=message):
        solve_top_push(**arguments)


@pytest.mark.parametrize("values", [np.full((4, 4), np.nan), np.diag([1.0, np.inf, 1.0, 1.0])])
def test_top_push_refuses_what_is_no_number(values) -> None:
    for X in (values, sparse.csr_matrix(values)):
        with pytest.raises(NonFiniteError, match=r"row \d of the features holds NaN or infinity"):
            solve_top_push(X, np.arange(4) < 2, 1.0)


def test_features_whose_squares_overflow_come_to_an_end() -> None:
    with np.errstate(all="ignore"):
        result = solve_top_push(1e200 * np.eye(4), np.arange(4) < 2, 1.0, max_rounds=3)
    assert not result.relative_gap < 1.0


def harmonic(r):
    return sum(1.0 / (i + 1) for i in range(r))


def drawn(scores, y, recent=(), seed=0, times=4000):
    state = np.array([seed + 12345], dtype=np.uint64)
    memory = len(recent)
    held = np.array([*recent, -1], dtype=np.int64)
    return [draw_violator(np.asarray(scores, dtype=float), y, held, memory, state) for _ in range(times)]


def test_draws_have_the_distribution_of_sampling_until_a_violation() -> None:
    """Of 5 others 2 violate: N is geometric with chance 2/5, cut at 5 draws."""
    scores = [0.5, 0.0, -3.0, 0.9, -2.0, -4.0]
    found = drawn(scores, 1)
    others = np.array([j for j, _ in found])
    counts = np.array([n for j, n in found if j >= 0])
    assert set(others) == {0, 3, -1}
    chance = [0.4 * 0.6**n for n in range(5)]
    seen = np.bincount(counts, minlength=6)[1:] / len(found)
    # 4,000 draws: five standard deviations of a share of 0.4 are 0.039.
    np.testing.assert_allclose(seen, chance, atol=0.04)
    assert np.mean(others == -1) == pytest.approx(0.6**5, abs=0.03)
    assert np.mean(others == 0) == pytest.approx(np.mean(others == 3), abs=0.05)


def test_the_weight_estimates_the_rank_of_the_label() -> None:
    for m in (2, 7, 26):
        for n in range(1, m):
            assert rank_weight(m, n) == pytest.approx(harmonic((m - 1) // n))


def test_the_last_violators_are_not_drawn_again() -> None:
    found = drawn([0.5, 0.0, -3.0, 0.9, -2.0, -4.0], 1, recent=[3])
    assert {j for j, _ in found} == {0, -1}
    assert {j for j, _ in drawn([0.5, 0.0, -3.0, 0.9, -2.0, -4.0], 1, recent=[3, 0], times=50)} == {-1}


def test_long_rows_are_shortened_and_others_are_not() -> None:
    rows = np.array([[3.0, 4.0], [0.3, 0.4]])
    np.testing.assert_allclose(shortened(rows, 1.0), [[0.6, 0.8], [0.3, 0.4]])


def test_one_example_takes_the_steps_of_adagrad() -> None:
    """m = 2: the other class is drawn at once, its weight is L(1) = 1; a first step is `step` each."""
    x, label = np.array([[2.0, -1.0], [0.0, 0.0]]), [0, 1]
    before = fit_wsabie(x, label, dimension=3, step=1e-12, epochs=1, radius=50.0)
    after = fit_wsabie(x, label, dimension=3, step=0.01, epochs=1, radius=50.0)
    z = x[0] @ before.U
    scores = z @ before.V
    assert scores[1] > scores[0] - 1.0
    # The zero example violates as well and has no gradient in z = 0.
    np.testing.assert_allclose(after.V[:, 0] - before.V[:, 0], 0.01 * np.sign(z), atol=1e-6)
    np.testing.assert_allclose(after.V[:, 1] - before.V[:, 1], -0.01 * np.sign(z), atol=1e-6)
    gradient = np.outer(x[0], before.V[:, 1] - before.V[:, 0])
    np.testing.assert_allclose(after.U - before.U, -0.01 * np.sign(gradient), atol=1e-6)


@pytest.mark.parametrize(("memory", "least"), [(0, 0.9), (2, 0.6)])
def test_it_separates_clouds_and_keeps_to_its_ball(memory, least) -> None:
    """Of 5 other classes the last 2 violators are skipped: that leaves out what would help most."""
    rng = np.random.default_rng(0)
    y = np.arange(300) % 6
    X = 4.0 * rng.normal(size=(6, 5))[y] + rng.normal(size=(300, 5))
    found = fit_wsabie(X, y + 10, dimension=4, memory=memory, radius=2.0, epochs=40)
    assert np.mean(found.classes[found.scores(X).argmax(axis=1)] == y + 10) > least
    assert found.violated[-1] < found.violated[0]
    assert np.linalg.norm(found.U, axis=1).max() <= 2.0 + 1e-9
    assert np.linalg.norm(found.V, axis=0).max() <= 2.0 + 1e-9
    np.testing.assert_allclose(found.scores(sparse.csr_array(X)), X @ found.W, atol=1e-9)
    again = fit_wsabie(X, y + 10, dimension=4, memory=memory, radius=2.0, epochs=40)
    np.testing.assert_array_equal(again.W, found.W)


def test_what_wsabie_refuses() -> None:
    X, y = np.eye(4), np.array([0, 1, 2, 0])
    with pytest.raises(InvalidProblemError, match="memory is 2 of 3 classes; give 0 to 1"):
        fit_wsabie(X, y, dimension=2, memory=2)
    for wrong in ({"memory": -1}, {"memory": 1.5}, {"seed": "a"}, {"seed": -1}):
        with pytest.raises(InvalidProblemError, match=f"{next(iter(wrong))} is .*; give"):
            fit_wsabie(X, y, dimension=2, **wrong)
    for nothing in (None, np.nan):
        with pytest.raises(InvalidProblemError, match="row 3 has no label: drop such rows"):
            fit_wsabie(X, [0, 1, 2, nothing], dimension=2)
    with pytest.raises(NonFiniteError, match="squares of the gradients overflowed; scale the features"):
        fit_wsabie(1e200 * X, y, dimension=2)
    with pytest.raises(InvalidProblemError, match="at least two classes"):
        fit_wsabie(X, np.zeros(4), dimension=2)
    with pytest.raises(InvalidProblemError, match=r"give X\.toarray"):
        fit_wsabie(sparse.csr_array(X), y, dimension=2)
