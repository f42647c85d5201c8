"""The truncated top-k entropy and its descent in `letter-causes`, beside the library's and its own slope."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.optimize import approx_fprime

from tests.reproduce.multiclass.letter_causes import Tried, down, truncated
from topline.solvers.core.state import SolverState
from topline.solvers.losses import TruncatedTopKEntropy
from topline.solvers.run import solve

N, D, M = 40, 4, 6


@pytest.fixture
def examples() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(3)
    y = np.concatenate([np.arange(M), rng.integers(M, size=N - M)])
    return rng.normal(size=(N, D)), y, rng.normal(size=(D, M))


@pytest.mark.parametrize("k", [1, 3, 5])
def test_the_value_is_the_librarys_and_the_slope_is_its_slope(examples, k: int) -> None:
    X, y, W = examples
    C = 0.7
    value, slope = truncated(X, y, W, k, C)
    numeric = approx_fprime(W.ravel(), lambda w: truncated(X, y, w.reshape(D, M), k, C)[0], 1e-7)
    np.testing.assert_allclose(slope.ravel(), numeric, rtol=1e-4, atol=1e-4)
    # A run without a pass reports the objective of where it starts, per example and over C.
    loss = TruncatedTopKEntropy(k)
    start = SolverState.at(W)
    here = solve(X, y, loss, 1.0 / (C * N), method="lbfgs", m=M, max_passes=1, state=start)
    assert here.history[0].primal * C * N == pytest.approx(value, rel=1e-9)


@pytest.mark.parametrize("k", [1, 3])
def test_every_step_goes_down_and_many_come_to_where_the_library_stands_still(examples, k: int) -> None:
    X, y, W = examples
    values = [truncated(X, y, down(X, y, W, k, 1.0, steps), k, 1.0)[0] for steps in range(6)]
    assert values == sorted(values, reverse=True)
    assert values[-1] < 0.9 * values[0]
    end = down(X, y, W, k, 1.0, 3000)
    assert np.abs(truncated(X, y, end, k, 1.0)[1]).max() < 1e-3
    if k == 1:  # the softmax, whose minimum is one
        result = solve(X, y, TruncatedTopKEntropy(1), 1.0 / N, method="lbfgs", m=M, tol=1e-8)
        np.testing.assert_allclose(end, result.W, atol=1e-3)


def test_C_is_chosen_for_each_column_or_for_all() -> None:
    tried = Tried(
        [[60.0, 80.0, 90.0, 95.0], [50.0, 85.0, 90.0, 99.0]], [[1.0, 2.0, 3.0, 4.0], [5.0, 6.0, 7.0, 8.0]]
    )
    assert tried.by_column() == [1.0, 6.0, 3.0, 8.0]
    assert tried.by_one(10) == [5.0, 6.0, 7.0, 8.0]
