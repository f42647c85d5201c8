"""L-BFGS against general solvers, its certificate against definitions, and its parts on their own."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.optimize import approx_fprime, minimize
from sklearn.datasets import load_digits
from sklearn.preprocessing import scale

from tests.benchmarks.datasets import relu_features
from tests.reference import losses as reference
from tests.solvers.problems import M, examples
from topline import (
    MaxHinge,
    OneVsAll,
    Softmax,
    Status,
    TopKEntropy,
    TopKHinge,
    TopKOthersHinge,
    TruncatedTopKEntropy,
    UsunierHinge,
    WeightedTopKHinge,
    linear,
    solve,
)
from topline.solvers.core.problem import Problem
from topline.solvers.methods.quasi_newton.lbfgs import arrays_of_lbfgs
from topline.solvers.methods.quasi_newton.memory import BestPoint, Pairs, gradient_step, most_pairs
from topline.solvers.methods.quasi_newton.metrics import arrays_of_classes, arrays_of_metric
from topline.solvers.run import loop as iteration

SMOOTH = [(loss, 0.0, "moreau") for loss in (Softmax(), TopKEntropy(2), OneVsAll("logistic"))]
SMOOTHED = [
    (MaxHinge(), 0.5, "moreau"),
    (TopKHinge(3), 0.5, "moreau"),
    (TopKHinge(3), 0.5, "others"),
    (WeightedTopKHinge(linear(3)), 0.1, "moreau"),
    (UsunierHinge(2), 0.5, "others"),
    (TopKOthersHinge(2), 0.5, "moreau"),
    (OneVsAll("hinge"), 0.5, "moreau"),
]


def name_of(value):
    return getattr(value, "name", str(value))


def run(X, y, loss, lam_n, smoothing=0.0, kind="moreau", **options):
    options = {"method": "lbfgs", "tol": 1e-8, "m": M, "smoothing_kind": kind, **options}
    return solve(X, y, loss, lam_n / len(y), smoothing, **options)


def some_weights(n):
    weights = np.random.default_rng(8).uniform(0.0, 3.0, n)
    weights[2] = 0.0
    return weights


# ---------------------------------------------------------------- the optimum and its certificate


@pytest.mark.parametrize(("loss", "smoothing", "kind"), SMOOTH + SMOOTHED, ids=name_of)
def test_the_gap_is_the_square_of_the_gradient(loss, smoothing, kind) -> None:
    """Lam (V - W_dual) is the gradient where U was found, V, and P(V) - D is |gradient|^2 / (2 lam)."""
    X, y = examples(n=30)
    lam, weights = 3.0 / len(y), some_weights(len(y))
    result = run(X, y, loss, 3.0, smoothing, kind, tol=1e-12, max_passes=8, sample_weight=weights)
    assert result.found_at.share == 1.0
    V = result.found_at.W

    def value(flat):
        return reference.primal(X, y, loss, lam, smoothing, flat.reshape(result.W.shape), kind, weights)

    gradient = lam * (V - result.W_dual)
    slopes = approx_fprime(V.ravel(), value, 1e-6).reshape(V.shape)
    np.testing.assert_allclose(gradient, slopes, atol=1e-5)
    assert value(V.ravel()) - result.dual == pytest.approx(
        np.sum(gradient**2) / (2 * lam), rel=1e-6, abs=1e-13
    )


@pytest.mark.parametrize(("loss", "smoothing", "kind"), SMOOTH + SMOOTHED[:2], ids=name_of)
def test_single_precision_takes_no_more_passes_than_double(loss, smoothing, kind) -> None:
    """It goes over to float64 products where float32 ones begin to stall."""
    X, y = examples(n=200)
    X = X.astype(np.float32)
    single, double = (
        run(features, y, loss, 0.01, smoothing, kind, tol=1e-11) for features in (X, X.astype(np.float64))
    )
    assert single.status is double.status is Status.SOLVED
    assert single.state.exact
    assert single.passes <= 1.3 * double.passes
    np.testing.assert_allclose(single.W, double.W, atol=1e-5 * np.abs(double.W).max())


@pytest.mark.parametrize("seed", [0, 3, 4])
def test_float32_gives_up_a_line_along_which_it_sees_nothing(seed) -> None:
    """Labels that say little, and features of a size at which rounding hides what is left of the slope."""
    random = np.random.default_rng(seed)
    X, y = random.standard_normal((271, 4)), random.integers(0, 3, 271)
    X = (3e3 * X / np.linalg.norm(X, axis=1, keepdims=True)).astype(np.float32)
    trials = []

    def note(_, state):
        if state.memory.line is not None and not state.exact:
            trials.append(state.memory.line.search.trials)

    result = solve(X, y, Softmax(), 1e-3 / len(y), method="lbfgs", callbacks=[note])
    assert (result.status, result.state.exact) == (Status.SOLVED, True)
    assert max(trials) < 10


def test_no_pass_is_counted_twice_where_float64_begins() -> None:
    """A P of float32 that is too low makes no claim to refute by one more pass, in one run or in two."""
    X, y = load_digits(return_X_y=True)
    X = np.c_[X / np.linalg.norm(X, axis=1, keepdims=True), np.ones(len(y))].astype(np.float32)
    seen = []

    def solved(max_passes, state=None):
        return solve(
            X, y, Softmax(), 1.0 / len(y), method="lbfgs", tol=3e-10, max_passes=max_passes, state=state,
            callbacks=[lambda record, after: seen.append((record.round, after.exact))],
        )  # fmt: skip

    whole = solved(500)
    rounds = [number for number, _ in seen]
    assert whole.status is Status.SOLVED
    assert len(set(rounds)) == len(rounds)
    begins = rounds[[exact for _, exact in seen].index(True)]
    for cut in range(begins, whole.passes):
        resumed = solved(500, solved(cut).state)
        assert (resumed.status, resumed.passes) == (Status.SOLVED, whole.passes)
        np.testing.assert_array_equal(resumed.W, whole.W)


def test_keeping_the_duals_changes_nothing_but_that_they_are_there(monkeypatch) -> None:
    """W is not rebuilt from an A that is not yet there: not from time to time, and not as float64 begins."""
    monkeypatch.setattr(iteration, "REBUILD_EVERY", 10)
    X, y = examples(n=200)
    plain, kept = (
        run(X.astype(np.float32), y, Softmax(), 0.01, tol=1e-9, keep_duals=keep) for keep in (False, True)
    )
    assert plain.state.exact
    assert plain.passes == kept.passes > 10
    np.testing.assert_array_equal(plain.W, kept.W)
    np.testing.assert_allclose(plain.W_dual, kept.W_dual, atol=1e-12)


@pytest.mark.parametrize("scale", [1e-4, 1e4])
def test_the_scale_of_the_features_costs_a_few_rounds_at_most(scale) -> None:
    """Where X is c times as large and lam c^2 times, scores and P are the same."""
    X, y = examples(n=200)
    plain = run(X, y, Softmax(), 1.0)
    scaled = run(scale * X, y, Softmax(), scale**2)
    assert scaled.status is Status.SOLVED
    assert scaled.primal == pytest.approx(plain.primal, rel=1e-8)
    assert scaled.passes <= plain.passes + 5


# ---------------------------------------------------------------- the loss that is not convex


def test_the_truncated_entropy_claims_no_gap() -> None:
    X, y = examples(n=80)
    lam, loss = 0.3 / 80, TruncatedTopKEntropy(2)
    result = run(X, y, loss, 0.3, tol=1e-6)
    assert result.status is Status.SOLVED
    assert result.gap_kind == "none"
    assert result.W_dual is None
    for value in (result.dual, result.gap, result.relative_gap, result.smoothed_gap, result.conjugate_mean):
        assert math.isnan(value)
    for record in result.history:
        assert record.gap_kind == "none"
        assert all(math.isnan(v) for v in (record.gap, record.relative_gap, record.dual))

    def value(flat):
        return reference.primal(X, y, loss, lam, 0.0, flat.reshape(result.W.shape))

    assert result.primal == pytest.approx(value(result.W.ravel()), rel=1e-12)
    start = np.linalg.norm(approx_fprime(np.zeros(result.W.size), value, 1e-7))
    end = np.linalg.norm(approx_fprime(result.W.ravel(), value, 1e-7))
    assert end <= 1e-5 * start  # what differences can show
    assert result.stationarity <= 1e-6
    assert result.history[-1].stationarity == pytest.approx(result.stationarity, rel=1e-3)


def test_the_truncated_entropy_is_as_low_as_scipy_finds_it() -> None:
    X, y = examples(n=80)
    lam, loss = 0.3 / 80, TruncatedTopKEntropy(2)

    def value(flat):
        W = flat.reshape(X.shape[1], M)
        U = np.array([reference.gradient(loss, s, label) for s, label in zip(X @ W, y, strict=True)])
        P = reference.primal(X, y, loss, lam, 0.0, W)
        return P, (lam * W - X.T @ U / len(y)).ravel()

    ours = run(X, y, loss, 0.3, tol=1e-6)
    peer = minimize(value, np.zeros(X.shape[1] * M), jac=True, method="L-BFGS-B", options={"maxiter": 2000})
    assert ours.primal <= peer.fun * 1.02
    again = minimize(value, ours.W.ravel(), jac=True, method="L-BFGS-B")
    assert again.fun == pytest.approx(ours.primal, rel=1e-9)


def test_a_start_elsewhere_is_measured_against_the_gradient_at_zero() -> None:
    X, y = examples(n=80)
    start = run(X, y, Softmax(), 0.3)
    cold = run(X, y, TruncatedTopKEntropy(2), 0.3, tol=1e-6, max_passes=1)
    warm = run(X, y, TruncatedTopKEntropy(2), 0.3, tol=1e-6, state=_at(start.W))
    assert warm.status is Status.SOLVED
    assert warm.state.memory.first == pytest.approx(cold.state.memory.first, rel=1e-12)
    assert warm.history[0].passes == 2
    assert warm.history[0].primal < cold.primal


def _at(W):
    from topline.solvers.core.state import SolverState

    return SolverState.at(W)


# ---------------------------------------------------------------- the parts


@pytest.mark.parametrize("lam", [1e-8, 1e-3, 1.0, 1e3])
@pytest.mark.parametrize(("loss", "classes"), [(Softmax(), 7), (OneVsAll("logistic"), 2)])
def test_the_first_step_is_to_the_least_value_of_its_model(loss, classes, lam) -> None:
    """Brute force finds no lower point, and the model has the value and the slope that it is given."""
    problem = Problem(loss, n=20, d=3, m=7, lam=lam)
    for value, fall in ((0.3, 2.0), (math.log(classes), 1e-3), (40.0, 5.0)):
        step = gradient_step(problem, value, fall)
        c = value / math.log(classes)
        a = fall / c * classes / (classes - 1)

        def model(t, c=c, a=a, fall=fall):
            return c * np.log1p((classes - 1) * np.exp(-a * t)) + 0.5 * lam * fall * t**2

        assert model(0.0) == pytest.approx(value)
        assert (model(1e-6 * step) - model(0.0)) / (1e-6 * step) == pytest.approx(-fall, rel=1e-3)
        assert model(step) <= model(step * np.linspace(0.0, 3.0, 3_001)).min() * (1.0 + 1e-12)


def test_the_first_step_of_a_hinge_is_to_where_its_tangent_is_zero() -> None:
    """Without a slope, or without a loss, it is 1; lam bounds it."""
    problem = Problem(MaxHinge(), n=20, d=3, m=7, lam=0.1, smoothing=0.5)
    found = [gradient_step(problem, *pair) for pair in ((1.0, 2.0), (3.0, 0.2), (1.0, 0.0), (0.0, 1.0))]
    assert found == [0.5, 10.0, 1.0, 1.0]


def test_rows_that_come_apart_take_few_passes() -> None:
    """A first step to where the tangent of P is zero is a little too short, and there are 18 of them."""
    X, y = relu_features(3_000, 1_024, 300)
    X = scale(X.astype(np.float64)).astype(np.float32)
    result = solve(X, y, Softmax(), lam=1.0 / len(y), method="lbfgs")
    assert result.status is Status.SOLVED
    assert result.passes <= 13


def test_more_steps_are_remembered_where_W_is_small() -> None:
    """Up to 80, within 4 Mi numbers and one for 64 examples; never fewer than 10; and the metric."""
    shapes = {
        (100_000, 50, 10): 80,
        (20_000, 1_024, 100): 20,
        (1_000_000, 2_048, 1_000): 10,
        (1_920, 64, 10): 30,
    }
    for (n, d, m), pairs in shapes.items():
        problem = Problem(Softmax(), n, d, m, 1.0 / n)
        found = (
            most_pairs(problem),
            arrays_of_lbfgs(problem) - max(arrays_of_metric(problem), arrays_of_classes(problem)),
        )
        assert found == (pairs, 2 * pairs + 4)


def test_steps_that_are_remembered_save_passes(monkeypatch) -> None:
    """To a fine tolerance and over several lam, since rounding alone moves a single run by a few passes."""
    X, y = load_digits(return_X_y=True)
    features = scale(X).astype(np.float32)

    def passes() -> int:
        results = [
            solve(features, y, Softmax(), share / len(y), method="lbfgs", tol=1e-5) for share in (0.1, 0.003)
        ]
        assert all(result.status is Status.SOLVED for result in results)
        return sum(result.passes for result in results)

    # Without a metric, which needs fewer.
    monkeypatch.setattr("topline.solvers.methods.quasi_newton.metrics._MOST_NUMBERS", 0)
    many = passes()
    monkeypatch.setattr("topline.solvers.methods.quasi_newton.memory._PAIRS", (10, 10))
    assert many < passes()


def test_pairs_are_the_inverse_hessian_of_BFGS() -> None:
    """The two loops against the update of the matrix, for as many pairs as are kept."""
    random = np.random.default_rng(4)
    root = random.standard_normal((6, 6))
    hessian = root @ root.T + np.eye(6)
    pairs, kept = Pairs(), []
    for _ in range(5):
        s = random.standard_normal((3, 2))
        y = (hessian @ s.ravel()).reshape(3, 2)
        pairs = pairs.with_pair(s, y, 4)
        kept = [*kept, (s.ravel(), y.ravel())][-4:]
    s, y = kept[-1]
    H = np.eye(6) * (s @ y) / (y @ y)
    for s, y in kept:
        left = np.eye(6) - np.outer(s, y) / (s @ y)
        H = left @ H @ left.T + np.outer(s, s) / (s @ y)
    g = random.standard_normal((3, 2))
    np.testing.assert_allclose(pairs.times(g).ravel(), H @ g.ravel(), rtol=1e-10)
    assert pairs.with_pair(g, -g, 4) is pairs  # a pair of negative curvature


@pytest.mark.parametrize("size", [0.3, 7.0])
def test_a_point_is_better_by_its_value_or_where_values_are_equal_by_its_gradient(size) -> None:
    """Values are equal within 1e-7 of the lowest; drifting by less from point to point does not add up."""
    first, other = np.zeros((2, 3)), np.ones((2, 3))
    best = BestPoint(first, size, steepness=1.0, lowest=size)
    for value, steepness, better in (
        (1.5, 0.5, False), (1.0 + 5e-8, 0.5, True), (1.0 + 5e-8, 2.0, False),
        (1.0 - 5e-8, 2.0, False), (1.0 - 5e-8, 0.5, True), (1.0 - 2e-7, 2.0, True),
    ):  # fmt: skip
        found = best.or_better(other, value * size, steepness)
        assert (found.W is other) == better, (value, steepness)
        assert found.lowest == (min(value, 1.0) * size if better else size)
