"""SVM+ against a general QP solver, its optimality conditions, and its purpose."""

from __future__ import annotations

import numpy as np
import pytest

from tests.reference.qp import minimise_qp
from tests.solvers.privileged.problems import linear, noisy_examples, rbf, told_of_slack
from topline import InvalidProblemError
from topline.solvers.privileged import solve_svm_plus, solve_weighted_svm

PARAMETERS = [(1.0, 1.0), (0.1, 10.0), (10.0, 0.1), (30.0, 100.0)]


@pytest.mark.parametrize("kernel", [linear, rbf])
@pytest.mark.parametrize(("C", "gamma"), PARAMETERS)
def test_it_is_the_primal_quadratic_program(kernel, C, gamma) -> None:
    """(A.7) over w, b, w~, b~ in the features of Cholesky factors: another problem than the one solved."""
    X, y, privileged = noisy_examples(1, n=30)
    K, K_privileged = kernel(X), kernel(privileged)
    ours = solve_svm_plus(K, K_privileged, y, C, gamma)
    n = len(y)
    F, G = (np.linalg.cholesky(matrix + 1e-12 * np.eye(n)) for matrix in (K, K_privileged))
    one = np.ones((n, 1))
    # Variables (w, b, w~, b~); slack = G w~ + b~.
    P = np.diag(np.concatenate([np.ones(n), [0.0], gamma * np.ones(n), [0.0]]))
    q = np.concatenate([np.zeros(n + 1), C * G.sum(axis=0), [C * n]])
    margins = np.hstack([-y[:, None] * F, -y[:, None], -G, -one])
    positive = np.hstack([np.zeros((n, n + 1)), -G, -one])
    x = minimise_qp(P, q, np.vstack([margins, positive]), np.concatenate([-np.ones(n), np.zeros(n)]))
    value = 0.5 * x @ P @ x + q @ x
    assert ours.relative_gap <= 1e-8
    assert ours.primal == pytest.approx(value, rel=1e-6)
    scale = max(1.0, np.abs(ours.scores).max())
    np.testing.assert_allclose(ours.scores, F @ x[:n] + x[n], atol=2e-4 * scale)


@pytest.mark.parametrize(("C", "gamma"), PARAMETERS)
def test_the_optimality_conditions_hold(C, gamma) -> None:
    """(A.8) and P = D, from the result's own numbers."""
    X, y, privileged = noisy_examples(2)
    K, K_privileged = rbf(X), rbf(privileged)
    result = solve_svm_plus(K, K_privileged, y, C, gamma)
    n = len(y)
    assert (result.alpha >= 0).all()
    assert (result.beta >= 0).all()
    assert abs(y @ result.alpha) <= 1e-12 * n * C
    assert result.alpha.sum() + result.beta.sum() == pytest.approx(n * C, rel=1e-12)
    coefficients = result.privileged_coefficients
    np.testing.assert_allclose(coefficients * gamma, result.alpha + result.beta - C, atol=1e-12 * C)
    scores = K @ (result.alpha * y) + result.bias
    correction = K_privileged @ coefficients + result.privileged_bias
    scale = np.abs(correction).max()
    np.testing.assert_allclose(result.correction, correction, atol=1e-12 * scale)
    # Feasible: the modelled slack is not negative and covers the hinge.
    assert (correction >= np.maximum(0.0, 1.0 - y * scores) - 1e-12 * scale).all()
    primal = 0.5 * (result.alpha * y) @ K @ (result.alpha * y) + C * correction.sum()
    primal += 0.5 * gamma * coefficients @ K_privileged @ coefficients
    assert result.primal == pytest.approx(primal, rel=1e-10)
    assert abs(result.alpha @ (correction - 1.0 + y * scores)) <= 1e-7 * primal
    assert abs(result.beta @ correction) <= 1e-7 * primal


def test_svm_minus_is_refused_by_name_and_is_unbounded() -> None:
    X, y, privileged = noisy_examples(0, n=20)
    with pytest.raises(InvalidProblemError, match="SVM-, which is unbounded below"):
        solve_svm_plus(linear(X), linear(privileged), y, 1.0, -0.5)
    # (3.15) along the ray w = 0, b = 0, w~ = s w1, b~ = 1 + s max |<w1, x~>|: feasible, and without a bound.
    steps = np.array([1e2, 1e4, 1e6])
    slope = privileged[:, 0]
    xi = 1.0 + steps[:, None] * (slope + np.abs(slope).max())
    assert (xi >= 1.0).all()
    values = -0.5 * 0.5 * steps**2 + xi.sum(axis=1)
    assert values[0] > values[1] > values[2]
    assert values[-1] < -1e11


@pytest.mark.parametrize("gamma", [0.0, np.nan, -np.inf, True, "1"])
def test_other_gammas_that_are_no_positive_numbers(gamma) -> None:
    with pytest.raises(InvalidProblemError, match=r"gamma is .*; give a positive number"):
        solve_svm_plus(np.eye(2), np.eye(2), [1, -1], 1.0, gamma)


def test_free_slacks_make_it_the_svm() -> None:
    """As gamma -> 0 with a full-rank kernel any slacks cost nothing: the soft margin SVM (Prop. 3.3)."""
    X, y, privileged = noisy_examples(4, n=40)
    K = rbf(X)
    plus = solve_svm_plus(K, rbf(privileged) + np.eye(40), y, 2.0, 1e-5)
    svm = solve_weighted_svm(K, y, np.full(40, 2.0))
    np.testing.assert_allclose(plus.scores, svm.scores, atol=2e-3)


def errors_of_a_seed(seed):
    """Errors on right labels of the SVM, of SVM+, and of SVM+ with privileged features of other examples.

    Hyperparameters are chosen for each on the same validation examples; all train on the same 40.
    """
    X, y, told, _ = told_of_slack(seed, 40)
    validation, test = told_of_slack(1000 + seed, 1000), told_of_slack(2000 + seed, 4000)
    mixed = told[np.random.default_rng(seed).permutation(len(told))]
    K = linear(X)

    def errors(result):
        w = X.T @ (result.alpha * y)
        return tuple(np.mean(np.sign(Z[0] @ w + result.bias) != Z[3]) for Z in (validation, test))

    costs, gammas = (0.01, 0.1, 1.0), (0.1, 1.0)
    plain = [errors(solve_weighted_svm(K, y, np.full(len(y), C))) for C in (*costs, 10.0)]
    plus = [errors(solve_svm_plus(K, linear(told), y, C, g)) for C in costs for g in gammas]
    misled = [errors(solve_svm_plus(K, linear(mixed), y, C, g)) for C in costs for g in gammas]
    return [min(tried)[1] for tried in (plain, plus, misled)]


def test_it_beats_the_svm_where_privileged_features_inform() -> None:
    """Ten seeds, paired: by at least 5 points on average and 3 standard errors; not when rows are mixed."""
    plain, plus, misled = np.array([errors_of_a_seed(seed) for seed in range(10)]).T
    gain = plain - plus
    assert gain.mean() >= 0.05
    assert gain.mean() >= 3.0 * gain.std(ddof=1) / np.sqrt(len(gain))
    assert (gain > 0).sum() >= 9
    assert (plain - misled).mean() < 0.0
