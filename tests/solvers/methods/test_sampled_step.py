"""A step by a sample's Hessian away from weights of other rows, against fits anew."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from scipy.special import logsumexp
from sklearn.preprocessing import normalize

from tests.solvers.problems import Requests
from topline import Softmax, solve
from topline.solvers.core.state import SolverState, Status
from topline.solvers.operations import FindSelectedVertices, FindVertices

N, D, M = 4800, 12, 4
_rng = np.random.default_rng(3)
Y = _rng.integers(M, size=N)
X = normalize(_rng.normal(size=(N, D)) + 1.5 * np.eye(M, D)[Y])
KEPT = np.arange(N) % 300 != 7
LAM, TOL = 1.0 / N, 3e-4


class StoredRows:
    """Rows that each slice reads."""

    shape, dtype = (int(KEPT.sum()), D), X.dtype

    def __getitem__(self, rows: slice):
        return X[KEPT][rows]


def without_rows(method: str, tol: float, W, rows=X[KEPT], **options):
    executor = Requests()
    result = solve(
        rows, Y[KEPT], Softmax(), LAM * N / KEPT.sum(), method=method, tol=tol, executor=executor,
        state=replace(SolverState.at(W), left_behind=True), **options,
    )  # fmt: skip
    return result, executor.seen


def objective(W) -> float:
    """Return P of the rows that are kept, by SciPy's log-sum-exp."""
    scores = X[KEPT] @ W
    losses = logsumexp(scores, axis=1) - scores[np.arange(KEPT.sum()), Y[KEPT]]
    return 0.5 * LAM * N / KEPT.sum() * np.sum(W**2) + losses.mean()


@pytest.mark.parametrize("method", ["newton", "lbfgs"])
def test_rows_leave_after_one_measurement_and_a_certificate_for_the_optimum_of_the_others(method) -> None:
    before = solve(X, Y, Softmax(), LAM, method=method, tol=1e-5)
    exact = solve(X[KEPT], Y[KEPT], Softmax(), LAM * N / KEPT.sum(), method="lbfgs", tol=1e-9)
    result, seen = without_rows(method, TOL, before.W)
    assert result.status is Status.SOLVED
    assert result.relative_gap <= TOL
    assert exact.primal <= result.primal <= exact.primal / (1.0 - TOL)
    assert result.primal < objective(before.W)
    # One round: of all rows it asks for the gradient at the start, and the certificate for that in the end.
    assert len(result.history) == 1
    assert result.history[0].relative_gap <= TOL
    samples = [request for request in seen if isinstance(request, FindSelectedVertices)]
    assert len(samples) >= 2
    assert all(len(request.rows) <= KEPT.sum() // 4 + 1 for request in samples)
    assert sum(isinstance(request, FindVertices) for request in seen) <= 2


def test_no_sample_is_taken_of_rows_that_have_to_be_read() -> None:
    """To read the sample is to read all rows, once for each product."""
    before = solve(X, Y, Softmax(), LAM, method="lbfgs", tol=1e-5)
    result, seen = without_rows("lbfgs", TOL, before.W, rows=StoredRows())
    assert result.status is Status.SOLVED
    assert not any(isinstance(request, FindSelectedVertices) for request in seen)


def test_weights_of_examples_count_in_the_sample() -> None:
    """A weight of 2 is the same example twice."""
    weights = np.where(np.arange(N) % 2, 2.0, 1.0)
    before = solve(X, Y, Softmax(), LAM, method="lbfgs", tol=1e-5, sample_weight=weights)
    exact = solve(X[KEPT], Y[KEPT], Softmax(), LAM * N / KEPT.sum(), tol=1e-9, sample_weight=weights[KEPT])
    result, _ = without_rows("lbfgs", TOL, before.W, sample_weight=weights[KEPT])
    assert len(result.history) == 1
    assert exact.primal <= result.primal <= exact.primal / (1.0 - TOL)


def test_weights_that_are_far_from_the_optimum_are_left_to_the_method() -> None:
    far = solve(X, Y, Softmax(), LAM, method="lbfgs", tol=0.2).W
    result, seen = without_rows("lbfgs", 1e-4, 0.3 * far)
    assert result.status is Status.SOLVED
    assert not any(isinstance(request, FindSelectedVertices) for request in seen)


def test_a_step_that_the_certificate_refutes_is_gone_on_from() -> None:
    """Half of the rows are others, by a sign that the rows of the sample do not show."""
    X_other, n = X.copy(), KEPT.sum()
    taken = np.zeros(N, dtype=bool)
    taken[np.flatnonzero(KEPT)[::16]] = taken[np.flatnonzero(KEPT)[8::16]] = True
    X_other[KEPT & ~taken] *= 2.0
    lam = LAM * N / n
    before = solve(X_other, Y, Softmax(), LAM, method="lbfgs", tol=1e-3)
    start = replace(SolverState.at(before.W), left_behind=True)
    result = solve(X_other[KEPT], Y[KEPT], Softmax(), lam, method="lbfgs", tol=1e-3, state=start)
    exact = solve(X_other[KEPT], Y[KEPT], Softmax(), lam, method="lbfgs", tol=1e-9)
    assert result.status is Status.SOLVED
    assert len(result.history) > 1
    assert exact.primal <= result.primal <= exact.primal / (1.0 - 1e-3)


def test_no_pass_beyond_the_budget_is_begun() -> None:
    before = solve(X, Y, Softmax(), LAM, method="lbfgs", tol=1e-5)
    result, seen = without_rows("lbfgs", TOL, before.W, max_passes=1)
    assert not any(isinstance(request, FindSelectedVertices) for request in seen)
    assert result.passes <= 1
