"""No result has a gap below zero, however near to its optimum rounding brings it."""

from __future__ import annotations

import warnings

import numpy as np
import pytest

from tests.reproduce.average_top.certificates import certify
from tests.reproduce.baselines import solve_rank_svm, solve_svm_perf, solve_top_push
from topline import CertificateError, TopKHinge, solve
from topline.solvers.average_top import AverageTopProblem, minimise_with_kernel
from topline.solvers.core.state import Objective
from topline.solvers.multitask.strategies import solve_single, solve_stacked


def drawn(seed):
    """Return a few rows, their signs and a C."""
    random = np.random.default_rng(seed)
    n, d = int(random.integers(2, 20)), int(random.integers(1, 5))
    X = random.standard_normal((n, d)) * 10.0 ** random.uniform(-3, 3)
    y = np.where(random.random(n) < 0.5, 1.0, -1.0)
    y[:2] = 1.0, -1.0
    return X, y, 10.0 ** random.uniform(-4, 4)


def by_kernel(X, y, C):
    labels = (y > 0).astype(int)
    return solve(X, labels, TopKHinge(1), 1.0 / (len(y) * C), method="sdca", kernel="laplacian", tol=1e-12)


SOLVERS = {
    "kernel": by_kernel,
    "rank_svm": lambda X, y, C: solve_rank_svm(X, np.eye(3)[np.arange(len(y)) % 3], C, tol=1e-12),
    "top_push": lambda X, y, C: solve_top_push(X, y > 0, 1.0 / (len(y) * C), tol=1e-12, max_rounds=200),
    "svm_perf": lambda X, y, C: solve_svm_perf(X, y > 0, 1.0 / (len(y) * C), k=1, tol=1e-12, max_cuts=50),
    "single": lambda X, y, C: solve_single(X @ X.T, np.stack([y, -y], 1), C, tol=1e-12, max_passes=50),
    "stacked": lambda X, y, C: solve_stacked(X @ X.T, np.stack([y, -y], 1), C, tol=1e-12, max_passes=50),
}


@pytest.mark.parametrize("name", SOLVERS)
def test_rounding_leaves_no_gap_below_zero(name) -> None:
    results = [SOLVERS[name](*drawn(seed)) for seed in range(60)]
    assert min(result.gap for result in results) >= 0.0
    assert any(result.relative_gap < 1e-12 for result in results), "none comes near its optimum"


def test_a_dual_value_above_the_primal_one_is_rounding_or_a_mistake() -> None:
    assert Objective.checked(1.0, 1.0 + 1e-12, 2.0).dual == 1.0
    assert Objective.checked(1.0, 0.5, 2.0).dual == 0.5
    with pytest.raises(CertificateError, match=r"the dual value 1\.5 exceeds the primal value 1"):
        Objective.checked(1.0, 1.5, 2.0)


def test_weights_are_certified_by_no_bound_above_their_value() -> None:
    X, y, _ = drawn(1)
    problem = AverageTopProblem.of(X, y, "hinge", 2, 1.0)
    assert certify(problem, np.zeros(X.shape[1]), 1.0 + 1e-9).gap == 0.0
    with pytest.raises(CertificateError):
        certify(problem, np.zeros(X.shape[1]), 1.1)


def test_a_regression_on_zeros_ends_at_zero_and_warns_of_nothing() -> None:
    X, y, C = drawn(1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        result = minimise_with_kernel("rbf", X, 0.0 * y, "square", len(y), C)
    assert (result.primal, result.gap) == (0.0, 0.0)
    assert not result.coefficients.any()
