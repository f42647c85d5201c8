"""Models with a kernel on fewer rows: what they promise, and how few the fewest rows are."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
from sklearn.metrics.pairwise import rbf_kernel

from tests.reference.training_qp import optimum
from tests.solvers.problems import M, examples, loss_name
from tests.solvers.run.test_kernel_blocks import psd_root
from topline import (
    InvalidProblemError,
    MaxHinge,
    RBFKernel,
    Softmax,
    TopKHinge,
    UnsupportedCombinationError,
    solve,
)
from topline.solvers.run import compress, compression

X, Y = examples(n=120)
LAM = 0.02
RBF = RBFKernel(0.3)


def objective(few, loss, weights=1.0) -> float:
    """P of a compressed model, from scikit-learn's kernel values."""
    C, rows = few.expansion.coefficients, few.expansion.rows
    S = rbf_kernel(X, rows, gamma=0.3) @ C
    own = S[np.arange(len(Y)), Y][:, None]
    if isinstance(loss, Softmax):
        losses = np.log(np.exp(S - own).sum(axis=1))
    else:
        margins = S - own + (np.arange(M) != Y[:, None])
        losses = np.maximum(np.sort(margins, axis=1)[:, -getattr(loss, "k", 1) :].mean(axis=1), 0.0)
    return 0.5 * LAM * np.sum(C * (rbf_kernel(rows, gamma=0.3) @ C)) + np.mean(weights * losses)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("loss", [MaxHinge(), TopKHinge(2), Softmax()], ids=loss_name)
@pytest.mark.covering(1)
def test_the_objective_is_what_it_says_and_within_the_share(loss, weighted) -> None:
    weights = np.random.default_rng(0).uniform(0.5, 1.5, len(Y)) if weighted else None
    result = solve(X, Y, loss, LAM, kernel=RBF, tol=1e-4, sample_weight=weights)
    sizes = []
    for share in (0.1, 0.01):
        few = compress(result.expansion, X, Y, result.problem, share, weights)
        assert few.primal == pytest.approx(
            objective(few, loss, 1.0 if weights is None else weights), rel=1e-8
        )
        assert few.of_model == pytest.approx(result.primal, rel=1e-6)
        assert result.dual <= few.primal <= (1 + share) * few.of_model
        np.testing.assert_array_equal(few.expansion.rows, X[few.expansion.support])
        assert set(few.expansion.support) <= set(result.expansion.support)
        sizes.append(len(few.expansion.support))
    assert sizes[0] < sizes[1] < len(result.expansion.support)


def test_hardly_more_rows_than_the_fewest_there_are() -> None:
    """Every subset of eight rows, each with the best coefficients that a general solver finds for it."""
    rows, labels = X[:8], np.arange(8) % 3
    result = solve(rows, labels, MaxHinge(), LAM, kernel=RBF, tol=1e-6)
    root = psd_root(rbf_kernel(rows, gamma=0.3))

    def best(chosen) -> float:
        basis = np.linalg.qr(root[list(chosen)].T)[0]
        return optimum(root @ basis, labels, MaxHinge(), LAM, m=3)

    share, few = 0.1, 1
    while min(best(chosen) for chosen in combinations(range(8), few)) > (1 + share) * result.primal:
        few += 1
    found = compress(result.expansion, rows, labels, result.problem, share)
    assert few <= len(found.expansion.support) <= few + 1


def test_no_loss_to_speak_of_is_the_model_itself() -> None:
    result = solve(X, Y, MaxHinge(), LAM, kernel=RBF, tol=1e-6)
    few = compress(result.expansion, X, Y, result.problem, 1e-9)
    assert few.loss <= 1e-9
    np.testing.assert_allclose(few.expansion.scores(X), result.decision_function(X), atol=1e-3)


def test_what_cannot_be_compressed_is_refused() -> None:
    result = solve(X, Y, MaxHinge(), LAM, kernel=RBF)
    for share in (0.0, 1.0):
        with pytest.raises(InvalidProblemError, match="give a share of the objective"):
            compress(result.expansion, X, Y, result.problem, share)
    with pytest.raises(InvalidProblemError, match="give the 120 rows"):
        compress(result.expansion, X[:50], Y[:50], result.problem, 0.1)
    K = rbf_kernel(X, gamma=0.3)
    values = solve(K, Y, MaxHinge(), LAM, kernel="precomputed")
    with pytest.raises(UnsupportedCombinationError, match="tells no values with single rows"):
        compress(values.expansion, K, Y, values.problem, 0.1)


def test_more_rows_than_memory_holds_are_refused_before_they_are_picked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    result = solve(X, Y, MaxHinge(), LAM, kernel=RBF)
    monkeypatch.setattr(compression, "MEMORY_BYTES", 50 * 16 * len(Y))
    with pytest.raises(InvalidProblemError, match="allow a larger loss"):
        compress(result.expansion, X, Y, result.problem, 1e-6)
