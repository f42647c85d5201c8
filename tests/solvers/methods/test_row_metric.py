"""The metric of the rows against dense linear algebra, and what it saves L-BFGS and costs it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from scipy import sparse
from sklearn.datasets import load_digits
from sklearn.preprocessing import scale

from tests.solvers.problems import stored
from topline import SerialExecutor, Softmax, Status, regularisation_path, solve
from topline.solvers.core.problem import Problem
from topline.solvers.methods.quasi_newton import metrics
from topline.solvers.methods.quasi_newton.metrics import RowMetric, arrays_of_metric, open_rows
from topline.solvers.operations import FindVertices, SumMoments, VertexSums

N, D, M = 60, 5, 4


def rows(n=N, d=D, m=M, seed=0):
    random = np.random.default_rng(seed)
    return random.standard_normal((n, d)), random.integers(0, m, n)


def bound(X, y, blocks=1, weights=None, m=M):
    executor = SerialExecutor(blocks=blocks)
    executor.bind(Problem(Softmax(), *X.shape, m, 1e-2), X, y, keep_duals=False, weights=weights)
    return executor


# ---------------------------------------------------------------- what the blocks sum


@pytest.mark.parametrize("make", [np.asarray, sparse.csr_matrix])
@pytest.mark.parametrize("stride", [1, 7])
def test_moments_are_those_of_the_same_rows_whatever_the_blocks(make, stride) -> None:
    X, y = rows()
    weights = np.random.default_rng(1).uniform(0.5, 2.0, N)
    taken = slice(None, None, stride)
    expected = (X[taken] * weights[taken, None]).T @ X[taken]
    for blocks in (1, 3, 7):
        stats = bound(make(X), y, blocks, weights).run(SumMoments(stride))
        assert stats.rows == len(X[taken])
        np.testing.assert_allclose(stats.total, expected, rtol=1e-12)


def test_openness_of_the_softmax_is_the_variance_of_its_classes() -> None:
    """From all rows of a tile, where these are few."""
    X, y = rows()
    W = np.random.default_rng(2).standard_normal((D, M))
    P = np.exp(X @ W)
    P /= P.sum(axis=1, keepdims=True)
    stats = bound(X, y).run(FindVertices(0, W, envelope=True))
    np.testing.assert_allclose(stats.openness, (P * (1.0 - P)).sum(axis=0), rtol=1e-12)
    of_rows = (P * (1.0 - P)).sum(axis=1)
    assert stats.openness_sq == pytest.approx(float(of_rows @ of_rows))
    problem = Problem(Softmax(), N, D, M, 1e-2)
    assert open_rows(problem, stats) == pytest.approx(of_rows.sum() ** 2 / (N * (of_rows @ of_rows)))
    assert open_rows(problem, VertexSums(product=np.zeros((D, M)))) == 0.0


# ---------------------------------------------------------------- the metric


def metric_of(balanced, lam=0.3, seed=3):
    random = np.random.default_rng(seed)
    X = random.standard_normal((9, D))
    C, a = X.T @ X / 9, random.uniform(0.1, 1.0, M)
    spectrum, basis = np.linalg.eigh(C)
    J = np.diag(a) - balanced * np.outer(a, a) / a.sum()
    return RowMetric(basis, spectrum, a, lam, balanced), C, J


@pytest.mark.parametrize("balanced", [False, True])
def test_the_inverse_is_that_of_the_whole_matrix(balanced) -> None:
    metric, C, J = metric_of(balanced)
    V = np.random.default_rng(4).standard_normal((D, M))
    H = 0.3 * np.eye(D * M) + np.kron(C, J)
    expected = np.linalg.solve(H, V.ravel()).reshape(D, M)
    np.testing.assert_allclose(metric.inverse_times(V), expected, rtol=1e-9)


@pytest.mark.parametrize("balanced", [False, True])
def test_the_scale_is_that_of_what_the_gradient_changed_by(balanced) -> None:
    metric, C, J = metric_of(balanced)
    step = np.random.default_rng(5).standard_normal((D, M))
    change = 7.0 * C @ step @ J + 0.3 * step
    assert metric.fitted(step, change).scale == pytest.approx(7.0)
    assert metric.fitted(step, -change).scale == metric.scale, "a negative curvature is none"


def test_the_first_step_of_the_softmax_is_that_of_newton(monkeypatch) -> None:
    """At W = 0 its J is (I - 1/m) / m, and the metric's 1 - 1/m times that."""
    X, y = rows(n=300)
    lam = 1e-3
    monkeypatch.setattr(metrics, "_ROWS_A_COLUMN", 300)
    problem = Problem(Softmax(), 300, D, M, lam)
    executor = bound(X, y)
    stats = executor.run(FindVertices(0, np.zeros((D, M)), envelope=True))
    metric = RowMetric.of(problem, metrics.find_moments(problem, executor.run), stats)
    gradient = -stats.product / 300
    H = np.kron(X.T @ X / 300, (np.eye(M) - 1.0 / M) / M) + lam * np.eye(D * M)
    newton = np.linalg.solve(H, gradient.ravel()).reshape(D, M)
    step = replace(metric, scale=1.0 / (1.0 - 1.0 / M)).inverse_times(gradient)
    np.testing.assert_allclose(step, newton, rtol=1e-6)


# ---------------------------------------------------------------- runs


def long_tail():
    """Rows behind a ReLU, of unit norm, in classes of very different sizes that hardly come apart."""
    random = np.random.default_rng(6)
    n, d, m = 6_000, 40, 60
    y = np.minimum(random.exponential(m / 5, n).astype(int), m - 1)
    X = random.standard_normal((n, d)) + 0.2 * random.standard_normal((m, d))[y] - 0.5
    X = np.maximum(X, 0.0).astype(np.float32)
    return X / np.linalg.norm(X, axis=1, keepdims=True), y, m


def without_metric(monkeypatch) -> None:
    monkeypatch.setattr(metrics, "_WORTH_IT", 0.0)
    without_classes(monkeypatch)


def without_classes(monkeypatch) -> None:
    monkeypatch.setattr(metrics, "_MOST_NUMBERS", 0)


def test_it_saves_passes_where_rows_stay_open(monkeypatch) -> None:
    X, y, m = long_tail()
    without_classes(monkeypatch)
    found = solve(X, y, Softmax(), 1.0 / len(y), method="lbfgs", m=m)
    without_metric(monkeypatch)
    plain = solve(X, y, Softmax(), 1.0 / len(y), method="lbfgs", m=m)
    assert (found.status, plain.status) == (Status.SOLVED, Status.SOLVED)
    assert found.passes <= 0.6 * plain.passes
    assert found.primal == pytest.approx(plain.primal, rel=1e-3)


def test_a_step_that_led_astray_is_taken_back(monkeypatch) -> None:
    """Digits come apart: a step by the metric leaves few rows open.  It costs its pass and that of C."""
    X, y = load_digits(return_X_y=True)
    X = scale(X).astype(np.float32)
    without_classes(monkeypatch)
    monkeypatch.setattr(metrics, "_WORTH_IT", 1.0)
    found = solve(X, y, Softmax(), 0.1 / len(y), method="lbfgs")
    monkeypatch.setattr(metrics, "_ASTRAY", 0.0)
    monkeypatch.setattr(metrics, "_SPREAD", 0.0)
    held_on = solve(X, y, Softmax(), 0.1 / len(y), method="lbfgs")
    without_metric(monkeypatch)
    plain = solve(X, y, Softmax(), 0.1 / len(y), method="lbfgs")
    assert found.passes == plain.passes + 2 < held_on.passes


@pytest.mark.parametrize("max_passes", [1, 2, 3])
def test_it_is_found_within_the_budget(max_passes) -> None:
    X, y, m = long_tail()
    result = solve(X, y, Softmax(), 1e-3 / len(y), method="lbfgs", m=m, max_passes=max_passes)
    assert result.passes <= max_passes


def test_squares_that_overflow_are_no_metric() -> None:
    X, y, m = long_tail()
    huge = solve(1e25 * X, y, Softmax(), 1e49, method="lbfgs", m=m)
    assert (huge.state.memory.rows.misled, huge.state.memory.rows.basis) == (True, None)
    assert huge.status is Status.SOLVED


def test_its_arrays_are_counted() -> None:
    assert arrays_of_metric(Problem(Softmax(), 1_000_000, 2_048, 1_000, 1e-6)) == 9
    assert arrays_of_metric(Problem(Softmax(), 1_000, 2_048, 10, 1e-3)) == 0, "it is never made there"


def test_a_path_decomposes_once(monkeypatch) -> None:
    X, y, m = long_tail()
    calls = []
    original = metrics.find_moments
    monkeypatch.setattr(
        "topline.solvers.methods.quasi_newton.lbfgs.find_moments",
        lambda *given: calls.append(1) or original(*given),
    )
    results = regularisation_path(X, y, Softmax(), [0.01, 0.1, 1.0], method="lbfgs", m=m)
    assert calls == [1]
    assert all(result.status is Status.SOLVED for result in results)


def test_a_run_goes_on_to_the_same_bits() -> None:
    """From arrays laid out as a checkpoint gives them back, wherever the run was cut."""
    X, y, m = long_tail()
    options = {"method": "lbfgs", "m": m, "tol": 1e-12}
    whole = solve(X, y, Softmax(), 1.0 / len(y), max_passes=9, **options)
    for cut in (2, 5, 8):
        state = solve(X, y, Softmax(), 1.0 / len(y), max_passes=cut, **options).state
        assert state.memory.rows.basis is not None
        resumed = solve(X, y, Softmax(), 1.0 / len(y), max_passes=9, state=stored(state), **options)
        assert resumed.passes == whole.passes
        np.testing.assert_array_equal(resumed.W, whole.W)
