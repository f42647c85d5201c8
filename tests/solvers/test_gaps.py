"""No result has a gap below zero, however near to its optimum rounding brings it."""

from __future__ import annotations

import warnings

import numpy as np
import pytest

from tests.reproduce.average_top.certificates import certify
from tests.reproduce.baselines import solve_rank_svm, solve_svm_perf, solve_top_push
from topline import CertificateError, TopKHinge, solve
from topline.solvers.average_top import AverageTopProblem, minimise_with_kernel
from topline.solvers.core.answers import Scratch
from topline.solvers.core.state import Objective
from topline.solvers.counts import how_many
from topline.solvers.crew import ALONE, is_narrow, multiply_rows
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


rng = np.random.default_rng(0)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("m", [1, 4, 5, 8, 10])
@pytest.mark.parametrize("rows", [4, 5, 7, 8, 19])
def test_products_are_those_of_numpy(rows, m, dtype):
    """Rows and columns beside the groups of four and five count as those within."""
    X, W = rng.normal(size=(rows, 131)).astype(dtype), rng.normal(size=(131, m)).astype(dtype)
    U, out = rng.normal(size=(rows, m)).astype(dtype), np.full((rows, m), np.nan, dtype)
    few = 200.0 * np.finfo(dtype).eps
    multiply_rows(X, np.ascontiguousarray(W.T), out)
    np.testing.assert_allclose(out, X.astype(np.float64) @ W.astype(np.float64), rtol=few, atol=few)
    product = np.full((m, 131), 2.0)
    ALONE.add_product(U, X, product)
    expected = 2.0 + U.T.astype(np.float64) @ X.astype(np.float64)
    np.testing.assert_allclose(product, expected, rtol=few, atol=few)


def test_a_row_has_one_score_whichever_rows_are_beside_it():
    """What the last group shares with the one before is written twice, to the same bits."""
    X, W = rng.normal(size=(40, 256)).astype(np.float32), rng.normal(size=(7, 256)).astype(np.float32)
    whole, part = np.empty((40, 7), np.float32), np.empty((23, 7), np.float32)
    multiply_rows(X, W, whole)
    multiply_rows(X[:23], W, part)
    np.testing.assert_array_equal(part, whole[:23])


def test_tiles_take_them_where_they_are_quicker():
    """Scores and sums of a tile are right for narrow weights, for others, and after the weights changed."""
    assert is_narrow(np.empty((4, 128)), 10)
    assert not is_narrow(np.empty((3, 128)), 10)
    assert not is_narrow(np.empty((512, 64)), 10)
    assert not is_narrow(np.empty((512, 1024)), 100)
    X = rng.normal(size=(50, 128))
    for m in (10, 100):
        scratch, product = Scratch(64, m, np.dtype(np.float64)), np.zeros((m, 128))
        for W in rng.normal(size=(2, 128, m)):
            np.testing.assert_allclose(scratch.scores_of(X, W), X @ W, rtol=1e-12, atol=1e-12)
        U = rng.normal(size=(50, m))
        ALONE.add_product(U, X, product)
        np.testing.assert_allclose(product, U.T @ X, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(
    ("number", "what", "said"),
    [
        (1, "passes", "1 pass"),
        (1, "classes", "1 class"),
        (1, "val rows", "1 val row"),
        (1, "images", "1 image"),
        (0, "passes", "0 passes"),
        (21_000, "rounds", "21,000 rounds"),
    ],
)
def test_one_is_singular(number: int, what: str, said: str) -> None:
    assert how_many(number, what) == said


def test_what_is_shown_of_a_fraction_decides() -> None:
    assert how_many(1.0, "passes", ".5g") == "1 pass"
    assert how_many(1.5, "passes", ".5g") == "1.5 passes"
