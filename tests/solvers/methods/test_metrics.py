"""Metrics of classes and rows against dense linear algebra, and what they save L-BFGS and cost it."""

from __future__ import annotations

import tracemalloc
from dataclasses import replace

import numpy as np
import pytest
from scipy import sparse
from sklearn.datasets import load_digits, load_iris
from sklearn.preprocessing import scale

from tests.solvers.problems import stored
from topline import (
    MaxHinge,
    OneVsAll,
    SerialExecutor,
    Softmax,
    Status,
    TopKEntropy,
    regularisation_path,
    solve,
)
from topline.solvers.blocks.vertices import open_sizes
from topline.solvers.core.problem import Problem
from topline.solvers.core.state import Objective, Point, SolverState
from topline.solvers.losses import TruncatedTopKEntropy
from topline.solvers.losses.ranking import N_SUMS
from topline.solvers.losses.rows import gradient_rows
from topline.solvers.methods.base import Measurement
from topline.solvers.methods.quasi_newton import metrics, numbers_in_classes
from topline.solvers.methods.quasi_newton.memory import LbfgsMemory, Pairs, RowMoments
from topline.solvers.methods.quasi_newton.metrics import (
    ClassMetric,
    RowMetric,
    arrays_of_classes,
    arrays_of_metric,
    find_moments,
    open_rows,
    with_asked,
    with_classes,
    with_openness,
)
from topline.solvers.operations import FindVertices, SumMoments, VertexSums

N, D, M = 60, 5, 4


def drawn_rows(seed=0):
    random = np.random.default_rng(seed)
    return random.standard_normal((N, D)), random.integers(0, M, N)


def bound(X, y, blocks=1, weights=None):
    executor = SerialExecutor(blocks=blocks)
    executor.bind(Problem(Softmax(), N, D, M, 1e-2), X, y, keep_duals=False, weights=weights)
    return executor


def openness_at(X, W):
    P = np.exp(X @ W)
    P /= P.sum(axis=1, keepdims=True)
    return P * (1.0 - P)


@pytest.mark.parametrize("make", [np.asarray, sparse.csr_matrix])
@pytest.mark.parametrize("blocks", [1, 3, 7])
def test_moments_are_those_of_the_rows_that_are_open_enough(make, blocks) -> None:
    X, y = drawn_rows()
    random = np.random.default_rng(1)
    W, weights = 2.0 * random.standard_normal((D, M)), random.uniform(0.5, 2.0, N)
    sizes = openness_at(X, W)
    least = np.array([0.0, 0.05, 0.1, 0.3])
    counted = np.where(sizes > least, sizes, 0.0)
    assert 0 < (counted > 0).sum() < sizes.size
    executor = bound(make(X), y, blocks, weights)
    stats = executor.run(FindVertices(0, W, envelope=True, least_openness=least))
    expected = np.einsum("i,ij,ik,il->jkl", weights, counted, X, X)
    np.testing.assert_allclose(stats.moments, expected, rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(stats.openness, weights @ sizes, rtol=1e-10)
    plain = executor.run(FindVertices(0, W, envelope=True))
    assert plain.moments is None
    np.testing.assert_array_equal(plain.product, stats.product)


@pytest.mark.parametrize("k", [2, 4, 5])
def test_openness_of_the_topk_entropy_is_the_diagonal_of_its_curvature(k) -> None:
    """Also where k classes of k others share alike, and none has a say of its own."""
    random = np.random.default_rng(4)
    m, step = 6, 1e-6
    form = TopKEntropy(k).form(m)
    scores, y = 3.0 * random.standard_normal((40, m)), random.integers(0, m, 40)

    def u_at(scores):
        U, ones = np.empty_like(scores), np.ones(len(y))
        gradient_rows(form, scores, y, ones, (0.0, 0.0), U, np.zeros(N_SUMS))
        return U

    moved = [u_at(scores - step * unit)[:, j] - u_at(scores + step * unit)[:, j]
             for j, unit in enumerate(np.eye(m))]  # fmt: skip
    expected = np.stack(moved, axis=1) / (2.0 * step)
    U = u_at(scores)
    assert np.isclose(-U.min(axis=1), U.max(axis=1) / k).any(), "some classes are at the cap"
    np.testing.assert_allclose(open_sizes(form, U), expected, atol=1e-8)


def measured(problem, stats, W, memory, passes, gap=0.5):
    """Return the measurement of a point with a relative gap, after some passes."""
    state = SolverState(Point(9, W), passes=passes, memory=memory)
    return Measurement(Objective(1.0, 1.0 - gap), state, stats, passes=1, tol=1e-3)


def class_metric_of(W, executor, problem):
    """Return the metric at W of all rows that are open enough, what is remembered, and what was asked for."""
    first = executor.run(FindVertices(0, W, envelope=True))
    memory = LbfgsMemory(rows=find_moments(problem, executor.run))
    memory = with_openness(problem, measured(problem, first, W, memory, 1)).before.memory
    later = measured(problem, first, W, memory, 99, gap=0.2)
    memory = replace(memory, classes=with_asked(problem, memory, later))
    least = memory.classes.asked
    stats = executor.run(FindVertices(9, W, envelope=True, least_openness=least))
    seen = with_openness(problem, measured(problem, stats, W, memory, 99, gap=0.2))
    assert seen.before.memory.classes.asked is not None, "asked for until a point is stepped to"
    memory = replace(memory, classes=with_classes(problem, seen.before.memory, seen))
    assert memory.classes.asked is None
    return ClassMetric.of(problem, memory.classes), memory, least


def test_it_is_the_hessian_of_each_class_with_C_for_the_rows_that_are_left_out() -> None:
    X, y = drawn_rows()
    lam, W = 0.03, np.random.default_rng(2).standard_normal((D, M))
    problem, executor = Problem(Softmax(), N, D, M, lam), bound(X, y)
    metric, _, least = class_metric_of(W, executor, problem)
    sizes = openness_at(X, W)
    np.testing.assert_allclose(least, 0.4 * sizes.mean(axis=0), rtol=1e-10)
    counted = np.where(sizes > least, sizes, 0.0)
    C = X.T @ X / N
    for j, inverse in enumerate(metric.inverses):
        H = (X * counted[:, j : j + 1]).T @ X / N + least[j] * C + lam * np.eye(D)
        np.testing.assert_allclose(inverse @ H, np.eye(D), atol=1e-9)
        # What is left out lies below what stands for it.
        left = (X * (sizes - counted)[:, j : j + 1]).T @ X / N
        assert np.linalg.eigvalsh(least[j] * C - left).min() > -1e-12


@pytest.mark.parametrize("balanced", [False, True])
def test_what_no_row_has_a_say_in_is_left_to_lam(balanced) -> None:
    random = np.random.default_rng(3)
    roots = random.standard_normal((M, D, D))
    inverses = roots @ roots.transpose(0, 2, 1)
    metric = ClassMetric(inverses, 0.3, balanced)
    V = random.standard_normal((D, M))
    plain = np.stack([inverses[j] @ V[:, j] for j in range(M)], axis=1)
    together = np.outer(V.mean(axis=1), np.ones(M)) / 0.3
    expected = plain - plain.mean(axis=1, keepdims=True) + together if balanced else plain
    np.testing.assert_allclose(metric.inverse_times(V), expected, rtol=1e-12)
    U = random.standard_normal((D, M))
    if balanced:
        U, V = U - U.mean(axis=1, keepdims=True), V - V.mean(axis=1, keepdims=True)
    assert np.vdot(U, metric.inverse_times(V)) == pytest.approx(np.vdot(V, metric.inverse_times(U)))
    assert np.vdot(V, metric.inverse_times(V)) > 0.0


@pytest.mark.parametrize(("times", "scale"), [(1.9, 1.0), (0.6, 1.0), (6.0, 3.0), (0.1, 0.2)])
def test_a_step_scales_it_as_far_as_it_is_beyond_trust(times, scale) -> None:
    random = np.random.default_rng(5)
    roots = random.standard_normal((M, D, D))
    metric = ClassMetric(roots @ roots.transpose(0, 2, 1), 0.3, balanced=True)
    change = random.standard_normal((D, M))
    fitted = metric.fitted(times * metric.inverse_times(change), change)
    np.testing.assert_allclose(fitted.inverse_times(change), scale * metric.inverse_times(change), rtol=1e-12)


def test_pairs_go_whose_curvature_has_fallen_since_but_the_last_stays() -> None:
    random = np.random.default_rng(6)
    metric = ClassMetric(np.stack([np.eye(D)] * M), 0.3, balanced=False)
    steps, pairs = random.standard_normal((4, D, M)), Pairs()
    for step, curvature in zip(steps, (3.0, 5.0, 0.1, 7.0), strict=True):
        pairs = pairs.with_pair(step, curvature * step, most=10)
    kept = pairs.consistent_with(metric)
    np.testing.assert_array_equal(np.stack(kept.steps), steps[[0, 2, 3]])
    assert kept.curvatures == tuple(pairs.curvatures[i] for i in (0, 2, 3))


def test_it_is_found_anew_after_twice_as_many_passes_and_what_it_costs() -> None:
    X, y = drawn_rows()
    problem, executor = Problem(Softmax(), N, D, M, 0.03), bound(X, y)
    W = np.zeros((D, M))
    stats = executor.run(FindVertices(0, W, envelope=True))
    _, memory, _ = class_metric_of(W, executor, problem)
    known = memory.classes.openness
    share, found = known.rows, known.passes
    assert (share, found, known.gap) == (pytest.approx(1.0), 99, pytest.approx(0.2))
    cost = 0.1 * share * D + 2.0 * D**2 / N
    after = int(np.ceil(2 * 99 + 4 + cost))

    def asked(passes, gap=0.1, then=1.0, rows=memory.rows):
        classes = replace(memory.classes, openness=replace(known, total=then * known.total))
        held = replace(memory, classes=classes, rows=rows)
        return with_asked(problem, held, measured(problem, stats, W, held, passes, gap)).asked is not None

    assert [asked(passes) for passes in (1, after - 1, after)] == [False, False, True]
    # Rows that are half as open, or twice, wait for what it costs alone.
    paid = int(np.ceil(found + cost))
    assert [asked(paid - 1, then=2.1), asked(paid, then=2.1), asked(paid, then=0.4)] == [False, True, True]
    assert not asked(paid, then=1.9)
    assert not asked(after, rows=RowMoments()), "nothing stands for the rows that are left out"
    # As many passes are to come as it costs, if the gap goes on falling as it did since, or never falls.
    since, tol = after - found, 1e-3
    fall = (cost / since) * np.log(0.2 / tol) / (1.0 + cost / since)
    gap = tol * np.exp(fall)
    assert [asked(after, 1.05 * gap), asked(after, 0.95 * gap), asked(after, 0.3)] == [True, False, True]


def test_rounding_that_leaves_no_metric_keeps_the_one_before() -> None:
    X, y = drawn_rows()
    problem, executor = Problem(Softmax(), N, D, M, 0.03), bound(X, y)
    W = np.zeros((D, M))
    _, memory, least = class_metric_of(W, executor, problem)
    stats = executor.run(FindVertices(9, W, envelope=True, least_openness=least))
    broken = replace(stats, moments=-stats.moments)
    after = with_classes(problem, memory, measured(problem, broken, W, memory, 300))
    assert after.inverses is memory.classes.inverses
    assert after.openness.passes == 300


def digits():
    X, y = load_digits(return_X_y=True)
    return (X / 16.0).astype(np.float32), y


@pytest.mark.parametrize(
    "loss", [Softmax(), OneVsAll("logistic"), TopKEntropy(2)], ids=lambda loss: loss.name
)
def test_it_saves_passes_where_few_rows_stay_open(loss, monkeypatch) -> None:
    X, y = digits()
    found = solve(X, y, loss, 0.1 / len(y), method="lbfgs")
    monkeypatch.setattr(metrics, "_MOST_NUMBERS", 0)
    plain = solve(X, y, loss, 0.1 / len(y), method="lbfgs")
    assert (found.status, plain.status) == (Status.SOLVED, Status.SOLVED)
    assert found.state.memory.classes.inverses is not None
    assert plain.state.memory.classes.inverses is None
    assert found.passes <= 0.75 * plain.passes
    assert found.primal == pytest.approx(plain.primal, rel=1e-3)


@pytest.mark.parametrize("loss", [Softmax(), TopKEntropy(3)], ids=lambda loss: loss.name)
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_it_costs_none_where_classes_come_apart_at_once(loss, seed, monkeypatch) -> None:
    """The loss and its Hessian fall by half and more in every pass, and what was found early is of no use."""
    random = np.random.default_rng(seed)
    n, d, m = 200, 15, 4
    y = np.arange(n) % m
    X = 1e3 * (random.standard_normal((m, d))[y] + 0.6 * random.standard_normal((n, d)))
    found = solve(X, y, loss, 1.0 / n, method="lbfgs")
    monkeypatch.setattr(metrics, "_MOST_NUMBERS", 0)
    monkeypatch.setattr(metrics, "_WORTH_IT", 0.0)
    plain = solve(X, y, loss, 1.0 / n, method="lbfgs")
    assert (found.status, plain.status) == (Status.SOLVED, Status.SOLVED)
    assert found.state.memory.classes.inverses is not None
    assert found.passes <= plain.passes + 4


def test_a_restart_keeps_the_metric_of_few_open_rows() -> None:
    """Iris at a large C: where float32 ends no step has been remembered, and few rows are open."""
    X, y = load_iris(return_X_y=True)
    X = np.c_[X, np.ones(len(y))].astype(np.float32)
    result = solve(X, y, Softmax(), 1.0 / (len(y) * 1e5), method="lbfgs", tol=1e-6, max_passes=500)
    assert (result.status, result.state.exact) == (Status.SOLVED, True)


def test_several_blocks_take_as_many_passes() -> None:
    X, y = digits()
    one, many = (
        solve(X, y, Softmax(), 0.1 / len(y), method="lbfgs", executor=SerialExecutor(blocks=blocks))
        for blocks in (1, 7)
    )
    # Other last bits, and a gap that a round more or less brings below the tolerance.
    assert abs(one.passes - many.passes) <= 0.15 * one.passes
    assert one.primal == pytest.approx(many.primal, rel=1e-3)


@pytest.mark.parametrize("max_passes", [1, 2, 8, 9, 10])
def test_it_takes_no_pass_of_its_own_but_that_of_C(max_passes) -> None:
    X, y = digits()
    result = solve(X, y, Softmax(), 0.1 / len(y), method="lbfgs", tol=1e-12, max_passes=max_passes)
    assert result.passes <= max_passes


def test_finding_them_takes_no_more_than_is_counted() -> None:
    """Two classes are the fewest, beside whose H_j what one block takes on the way is the most."""
    n, d, m = 4_000, 200, 2
    problem = Problem(Softmax(), n, d, m, 1e-4)
    C = np.eye(d)
    moments = np.broadcast_to(C, (m, d, d)) + np.zeros((m, 1, 1))
    tracemalloc.start()
    inverses = metrics.inverses_of(problem, C, np.full(m, 0.3), moments, 0.4)
    taken = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert inverses is not None
    np.testing.assert_allclose(inverses, moments / ((1.0 + 0.4 * 0.3) / n + 1e-4), rtol=1e-12)
    # Those that were found before are still there, and C; the sums are counted by themselves.
    assert inverses.nbytes + C.nbytes + taken <= 8 * arrays_of_classes(problem) * d * m


def test_its_numbers_are_counted_where_it_is_made() -> None:
    made = Problem(Softmax(), 20_000, 64, 10, 1e-5)
    assert (arrays_of_classes(made), numbers_in_classes(made)) == (4 * 64, 10 * 64**2)
    for loss, smoothing, n, d, m in (
        (Softmax(), 0.0, 1_000_000, 2_048, 1_000),
        (Softmax(), 0.0, 1_000, 200, 10),
        (MaxHinge(), 1.0, 20_000, 64, 10),
        (TruncatedTopKEntropy(2), 0.0, 20_000, 64, 10),
    ):
        never = Problem(loss, n, d, m, 1e-5, smoothing)
        assert (arrays_of_classes(never), numbers_in_classes(never)) == (0, 0)
    assert metrics.wants_classes(made)


def rows(n=N, d=D, m=M, seed=0):
    random = np.random.default_rng(seed)
    return random.standard_normal((n, d)), random.integers(0, m, n)


def bound_to(X, y, blocks=1, weights=None, m=M):
    executor = SerialExecutor(blocks=blocks)
    executor.bind(Problem(Softmax(), *X.shape, m, 1e-2), X, y, keep_duals=False, weights=weights)
    return executor


@pytest.mark.parametrize("make", [np.asarray, sparse.csr_matrix])
@pytest.mark.parametrize("stride", [1, 7])
def test_moments_are_those_of_the_same_rows_whatever_the_blocks(make, stride) -> None:
    X, y = rows()
    weights = np.random.default_rng(1).uniform(0.5, 2.0, N)
    taken = slice(None, None, stride)
    expected = (X[taken] * weights[taken, None]).T @ X[taken]
    for blocks in (1, 3, 7):
        stats = bound_to(make(X), y, blocks, weights).run(SumMoments(stride))
        assert stats.rows == len(X[taken])
        np.testing.assert_allclose(stats.total, expected, rtol=1e-12)


def test_openness_of_the_softmax_is_the_variance_of_its_classes() -> None:
    """From all rows of a tile, where these are few."""
    X, y = rows()
    W = np.random.default_rng(2).standard_normal((D, M))
    P = np.exp(X @ W)
    P /= P.sum(axis=1, keepdims=True)
    stats = bound_to(X, y).run(FindVertices(0, W, envelope=True))
    np.testing.assert_allclose(stats.openness, (P * (1.0 - P)).sum(axis=0), rtol=1e-12)
    of_rows = (P * (1.0 - P)).sum(axis=1)
    assert stats.openness_sq == pytest.approx(float(of_rows @ of_rows))
    problem = Problem(Softmax(), N, D, M, 1e-2)
    assert open_rows(problem, stats) == pytest.approx(of_rows.sum() ** 2 / (N * (of_rows @ of_rows)))
    assert open_rows(problem, VertexSums(product=np.zeros((D, M)))) == 0.0


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
    executor = bound_to(X, y)
    stats = executor.run(FindVertices(0, np.zeros((D, M)), envelope=True))
    metric = RowMetric.of(problem, metrics.find_moments(problem, executor.run), stats)
    gradient = -stats.product / 300
    H = np.kron(X.T @ X / 300, (np.eye(M) - 1.0 / M) / M) + lam * np.eye(D * M)
    newton = np.linalg.solve(H, gradient.ravel()).reshape(D, M)
    step = replace(metric, scale=1.0 / (1.0 - 1.0 / M)).inverse_times(gradient)
    np.testing.assert_allclose(step, newton, rtol=1e-6)


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


@pytest.mark.parametrize("metric", ["classes", "rows"])
def test_a_run_goes_on_to_the_same_bits(metric) -> None:
    """From arrays laid out as a checkpoint gives them back, before the metric is found and after."""
    X, y, m = (*digits(), 10) if metric == "classes" else long_tail()
    lam, passes, cuts = (
        (0.1 / len(y), 25, (3, 9, 20)) if metric == "classes" else (1.0 / len(y), 9, (2, 5, 8))
    )
    options = {"method": "lbfgs", "m": m, "tol": 1e-12}
    whole = solve(X, y, Softmax(), lam, max_passes=passes, **options)
    for cut in cuts:
        state = solve(X, y, Softmax(), lam, max_passes=cut, **options).state
        assert metric == "classes" or state.memory.rows.basis is not None
        resumed = solve(X, y, Softmax(), lam, max_passes=passes, state=stored(state), **options)
        assert resumed.passes == whole.passes
        np.testing.assert_array_equal(resumed.W, whole.W)
