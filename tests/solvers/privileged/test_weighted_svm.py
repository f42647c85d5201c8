"""The weighted SVM against LIBSVM, a general QP solver and its own optimality conditions."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.svm import SVC

from tests.reference.qp import minimise_qp
from tests.solvers.privileged.problems import linear, noisy_examples, rbf
from topline import InvalidProblemError, NonFiniteError
from topline.solvers.privileged import solve_weighted_svm
from topline.solvers.privileged.weighted_svm import best_bias


def weights(seed, n, C):
    rng = np.random.default_rng(100 + seed)
    return C * (0.1 + rng.random(n))


@pytest.mark.parametrize("kernel", [linear, rbf])
@pytest.mark.parametrize("C", [1e-2, 1.0, 100.0])
def test_it_is_libsvm_with_sample_weights(kernel, C) -> None:
    for seed in range(3):
        X, y, _ = noisy_examples(seed)
        K, c = kernel(X), weights(seed, len(y), C)
        ours = solve_weighted_svm(K, y, c)
        theirs = SVC(C=1.0, kernel="precomputed", tol=1e-9).fit(K, y, sample_weight=c)
        assert ours.relative_gap <= 1e-8
        coefficients = np.zeros(len(y))
        coefficients[theirs.support_] = theirs.dual_coef_[0]
        scores = K @ coefficients
        # LIBSVM adds alpha up in small steps: five digits of its scores are sure, whatever its tolerance.
        scale = max(1.0, np.abs(scores).max())
        np.testing.assert_allclose(ours.scores - ours.bias, scores, atol=2e-5 * scale)
        np.testing.assert_allclose(ours.bias, theirs.intercept_[0], atol=2e-5 * scale)


@pytest.mark.parametrize("C", [0.03, 3.0, 300.0])
def test_it_is_the_quadratic_program(C) -> None:
    X, y, _ = noisy_examples(7, n=40)
    K, c = rbf(X), weights(7, 40, C)
    ours = solve_weighted_svm(K, y, c)
    n = len(y)
    box = np.vstack([np.eye(n), -np.eye(n)])
    Q = y[:, None] * K * y
    alpha = minimise_qp(Q, -np.ones(n), box, np.concatenate([c, np.zeros(n)]), y[None, :], [0.0])
    value = alpha.sum() - 0.5 * alpha @ Q @ alpha
    assert ours.dual == pytest.approx(value, rel=1e-8)
    assert ours.primal == pytest.approx(value, rel=1e-8)
    # The dual is quadratic: a point that is 1e-8 below the top is no farther than that in |w - w*|^2 / 2.
    change = ours.alpha - alpha
    assert 0.5 * change @ Q @ change <= 1e-8 * max(value, 1.0)


@pytest.mark.parametrize("kernel", [linear, rbf])
@pytest.mark.parametrize("C", [1e-3, 1.0, 1e4])
def test_the_optimality_conditions_hold(kernel, C) -> None:
    """(A.5), from the result's own numbers: what the reported gap of 1e-8 promises."""
    X, y, _ = noisy_examples(3, n=80)
    K, c = kernel(X), weights(3, 80, C)
    c[::7] = 0.0
    result = solve_weighted_svm(K, y, c)
    assert abs(result.relative_gap) <= 1e-8
    assert (result.alpha >= 0).all()
    assert (result.alpha <= c).all()
    assert abs(y @ result.alpha) <= 1e-12 * c.sum()
    np.testing.assert_array_equal(result.beta, c - result.alpha)
    scores = K @ (result.alpha * y) + result.bias
    np.testing.assert_allclose(result.scores, scores, rtol=0, atol=1e-12 * np.abs(scores).max())
    slack = np.maximum(0.0, 1.0 - y * scores)
    primal = 0.5 * (result.alpha * y) @ K @ (result.alpha * y) + c @ slack
    assert result.primal == pytest.approx(primal, rel=1e-12)
    loose = 1e-5 * c.max()
    assert (result.alpha[y * scores > 1.0 + 1e-5] <= loose).all()
    assert (result.beta[slack > 1e-5] <= loose).all()


def test_a_weight_of_zero_leaves_the_example_out() -> None:
    X, y, _ = noisy_examples(5)
    c = weights(5, len(y), 2.0)
    c[::3] = 0.0
    kept = c > 0
    whole = solve_weighted_svm(rbf(X), y, c)
    part = solve_weighted_svm(rbf(X[kept]), y[kept], c[kept])
    np.testing.assert_allclose(whole.scores[kept], part.scores, atol=1e-9)
    assert (whole.alpha[~kept] == 0).all()


def test_the_best_bias_is_best_and_amid_its_equals() -> None:
    rng = np.random.default_rng(0)
    for _ in range(200):
        n = rng.integers(2, 9)
        # Whole numbers make ties of bends and of slopes common.
        scores, c = rng.integers(-3, 4, n).astype(float), rng.integers(0, 4, n).astype(float)
        y = np.where(np.arange(n) % 2 == 0, 1.0, -1.0)
        if c[y > 0].sum() == 0 or c[y < 0].sum() == 0:
            continue
        bends = np.unique(y - scores)
        values = [c @ np.maximum(0.0, 1.0 - y * (scores + b)) for b in bends]
        best = bends[np.isclose(values, np.min(values), atol=1e-12)]
        assert best_bias(scores, y, c) == pytest.approx(0.5 * (best[0] + best[-1]), abs=1e-12)


def test_a_budget_of_few_rounds_is_told_by_the_gap() -> None:
    X, y, _ = noisy_examples(2)
    short = solve_weighted_svm(rbf(X), y, np.ones(len(y)), max_rounds=3)
    best = solve_weighted_svm(rbf(X), y, np.ones(len(y)))
    assert short.rounds <= 3
    assert short.relative_gap > 1e-3
    assert short.dual < best.dual < best.primal * (1 + 1e-12)
    assert best.primal < short.primal


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"y": [1, 0, -1, 1]}, "not all -1 or \\+1"),
        ({"y": [1, 1, 1, 1]}, "all labels are equal"),
        ({"c": [1, 1, -1, 1]}, "at least 0"),
        ({"c": [1, 0, 1, 0]}, "only one class"),
        ({"c": [1, 1, 1]}, "one number for each of 4"),
        ({"K": np.eye(3)}, "kernel of 4 examples"),
        ({"tol": 0.0}, "tol is 0.0"),
        ({"max_rounds": 0}, "max_rounds is 0; give a whole number"),
    ],
)
def test_refusals(change, message) -> None:
    arguments = {"K": np.eye(4), "y": [1, -1, 1, -1], "c": np.ones(4), **change}
    with pytest.raises(InvalidProblemError, match=message):
        solve_weighted_svm(**arguments)


def test_nan_in_the_kernel_is_refused() -> None:
    with pytest.raises(NonFiniteError, match="NaN or infinity"):
        solve_weighted_svm(np.full((2, 2), np.nan), [1, -1], [1, 1])


def test_a_matrix_that_is_no_kernel_is_refused() -> None:
    with pytest.raises(InvalidProblemError, match="not symmetric"):
        solve_weighted_svm(np.triu(np.ones((4, 4))), [1, -1, 1, -1], np.ones(4))
