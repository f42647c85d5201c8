"""A path of C: every point is the solution for its C, for fewer passes than from zero."""

from __future__ import annotations

import numpy as np
import pytest

from tests.reference import losses as reference
from tests.solvers.problems import M, examples
from topline import (
    InvalidProblemError,
    MaxHinge,
    SerialExecutor,
    Softmax,
    Status,
    TopKHinge,
    UnsupportedCombinationError,
    regularisation_path,
    solve,
)

X, Y = examples(n=120, d=12, spread=1.5)
CS = list(np.logspace(-2.0, 1.0, 13))


def cold(C, loss, smoothing=0.0, method="dual_ascent", **options):
    return solve(X, Y, loss, 1.0 / (len(Y) * C), smoothing, method, **options)


@pytest.mark.parametrize(
    ("loss", "smoothing", "method"),
    [
        (TopKHinge(2), 0.0, "dual_ascent"),
        pytest.param(TopKHinge(2), 0.5, "dual_ascent", marks=pytest.mark.slow),
        pytest.param(Softmax(), 0.0, "dual_ascent", marks=pytest.mark.slow),
        pytest.param(MaxHinge(), 0.5, "sdca", marks=pytest.mark.slow),
        (Softmax(), 0.0, "lbfgs"),
        pytest.param(TopKHinge(2), 0.5, "lbfgs", marks=pytest.mark.slow),
    ],
    ids=lambda value: getattr(value, "name", str(value)),
)
def test_every_point_is_solved_and_all_take_fewer_passes_than_from_zero(loss, smoothing, method) -> None:
    tol = 1e-3 if smoothing or loss == Softmax() else 1e-2
    options = {"tol": tol, "max_passes": 5000}
    path = regularisation_path(X, Y, loss, CS, smoothing, method, **options)
    starts = [cold(C, loss, smoothing, method, **options) for C in CS]
    for C, point, start in zip(CS, path, starts, strict=True):
        lam = 1.0 / (len(Y) * C)
        assert point.problem.lam == lam
        assert point.status is Status.SOLVED
        assert point.relative_gap <= tol
        assert point.A is None
        assert point.primal == pytest.approx(reference.primal(X, Y, loss, lam, smoothing, point.W), rel=1e-12)
        assert start.dual <= point.primal * (1 + 1e-12)
        assert point.dual <= start.primal * (1 + 1e-12)
    assert sum(point.passes for point in path) < 0.9 * sum(start.passes for start in starts)


def test_results_come_in_the_order_that_was_asked_for() -> None:
    path = regularisation_path(X, Y, MaxHinge(), [1.0, 0.01, 0.1, 0.01], keep_duals=True)
    assert [1.0 / (len(Y) * point.problem.lam) for point in path] == pytest.approx([1.0, 0.01, 0.1, 0.01])
    assert path[1] is path[3]
    for point in path:
        D = reference.dual(X, Y, MaxHinge(), point.problem.lam, 0.0, point.A)
        assert point.dual == pytest.approx(D, rel=1e-12)


def test_the_options_of_solve_reach_every_point() -> None:
    weights = np.random.default_rng(0).uniform(0.0, 2.0, len(Y))
    options = {
        "sample_weight": weights,
        "tol": 1e-6,
        "max_passes": 5000,
        "m": M + 1,
        "executor": SerialExecutor(blocks=2),
    }
    path = regularisation_path(X, Y, TopKHinge(2), [0.1, 1.0], 0.5, smoothing_kind="others", **options)
    for C, point in zip([0.1, 1.0], path, strict=True):
        best = cold(C, TopKHinge(2), 0.5, smoothing_kind="others", **options)
        assert point.primal == pytest.approx(best.primal, rel=1e-5)
        assert point.W.shape == (X.shape[1], M + 1)


def test_duals_alone_start_from_their_best_multiple() -> None:
    """With a hundred times the C all of A is worse than nothing; what is taken beats any multiple of it."""
    A = cold(0.1, MaxHinge(), tol=1e-6).A
    lam = 1.0 / (len(Y) * 10.0)
    first = cold(10.0, MaxHinge(), max_passes=1, duals=[(0, len(Y), A)]).history[0]
    values = [reference.dual(X, Y, MaxHinge(), lam, 0.0, s * A) for s in np.linspace(0.0, 1.0, 1001)]
    assert values[-1] < 0.0 < max(values)
    assert first.dual == pytest.approx(max(values), rel=1e-3)
    same = cold(0.1, MaxHinge(), tol=1e-5, duals=[(0, len(Y), A)])
    assert same.passes == 2  # one for W(A), one that finds it solved


def test_a_run_that_left_its_duals_for_weights_starts_the_next() -> None:
    """Rows of positive features, few for their features: `auto` begins with dual ascent and leaves it."""
    rows, labels = np.abs(np.random.default_rng(0).normal(size=(260, 430))) * 0.1, np.arange(260) % 10
    path = regularisation_path(rows, labels, Softmax(), [1000.0, 3000.0], tol=1e-3)
    assert path[0].method.startswith("dual_ascent, ")
    for point in path:
        alone = solve(rows, labels, Softmax(), point.problem.lam, method="lbfgs", tol=1e-4)
        assert point.status is Status.SOLVED
        assert point.primal == pytest.approx(alone.primal, rel=1.1e-3)


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"Cs": []}, InvalidProblemError, "there is no C"),
        ({"Cs": 1.0}, InvalidProblemError, "Cs is 1.0; give a sequence of positive numbers"),
        ({"y": 3}, InvalidProblemError, "the labels have the shape"),
        ({"Cs": [1.0, 0.0]}, InvalidProblemError, "C is 0.0; give a positive number"),
        ({"Cs": [np.nan]}, InvalidProblemError, "C is nan"),
        ({"method": "fw"}, UnsupportedCombinationError, "the method fw starts from no earlier solution"),
        ({"method": "oldton"}, InvalidProblemError, "no method named"),
    ],
)
def test_what_is_refused(changes, error, message) -> None:
    with pytest.raises(error, match=message):
        regularisation_path(**{"X": X, "y": Y, "loss": MaxHinge(), "Cs": [1.0], **changes})
