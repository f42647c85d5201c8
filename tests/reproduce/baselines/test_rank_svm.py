"""RankSVM against a general QP solver on its pairs, and NumPy twins of its kernels."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import sparse

from tests.reference.qp import minimise_qp
from tests.reproduce.baselines import solve_rank_svm
from tests.reproduce.baselines.rank_svm import pair_losses, signed_sums, visit_pairs
from topline import InvalidProblemError, NonFiniteError


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
def test_refusals(change, message) -> None:
    arguments = {"X": np.eye(4), "labels": np.eye(4)[:, :2], "C": 1.0, **change}
    with pytest.raises(InvalidProblemError, match=message):
        solve_rank_svm(**arguments)


def test_what_is_no_number_is_refused() -> None:
    with pytest.raises(NonFiniteError, match="row 2 of the features holds NaN or infinity"):
        solve_rank_svm(np.diag([1.0, 1.0, np.nan, 1.0]), np.eye(4)[:, :2], 1.0)
