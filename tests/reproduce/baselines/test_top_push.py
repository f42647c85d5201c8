"""TopPush against a general QP solver, brute force and its own certificate."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import sparse

from tests.reference.qp import minimise_qp
from tests.reproduce.baselines import solve_top_push
from tests.reproduce.baselines.top_push import balance
from topline import InvalidProblemError, NonFiniteError


def ranked(seed=0, n=60, d=5):
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
    X, positive = ranked()
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
    X, positive = ranked(1)
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


def test_the_multiclass_reduction_is_the_binary_problem_in_its_own_features() -> None:
    """Phi_y(x) puts x in the place of class y (thesis 5.2.3): n m examples of m d features."""
    rng = np.random.default_rng(2)
    X, y, m = rng.normal(size=(25, 4)), rng.integers(0, 3, 25), 3
    mask = y[:, None] == np.arange(m)
    whole = solve_top_push(X, mask, 0.1, tol=1e-7)
    embedded = np.concatenate([np.kron(np.eye(m)[j], X) for j in range(m)])
    binary = solve_top_push(embedded, mask.T.ravel(), 0.1, tol=1e-7)
    assert whole.primal == pytest.approx(binary.primal, rel=1e-6)
    np.testing.assert_allclose(whole.W.T.ravel(), binary.W[:, 0], atol=1e-3 * np.abs(whole.W).max())
    assert whole.primal == pytest.approx(primal(X, mask, 0.1, whole.W), rel=1e-12)


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
def test_refusals(change, message) -> None:
    arguments = {"X": np.eye(4), "positive": np.arange(4) < 2, "lam": 1.0, **change}
    with pytest.raises(InvalidProblemError, match=message):
        solve_top_push(**arguments)


@pytest.mark.parametrize("values", [np.full((4, 4), np.nan), np.diag([1.0, np.inf, 1.0, 1.0])])
def test_what_is_no_number_is_refused(values) -> None:
    for X in (values, sparse.csr_matrix(values)):
        with pytest.raises(NonFiniteError, match=r"row \d of the features holds NaN or infinity"):
            solve_top_push(X, np.arange(4) < 2, 1.0)


def test_features_whose_squares_overflow_come_to_an_end() -> None:
    with np.errstate(all="ignore"):
        result = solve_top_push(1e200 * np.eye(4), np.arange(4) < 2, 1.0, max_rounds=3)
    assert not result.relative_gap < 1.0
