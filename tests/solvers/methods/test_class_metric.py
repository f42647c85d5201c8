"""The metric of the classes against dense linear algebra, and what it saves L-BFGS."""

from __future__ import annotations

import tracemalloc
from dataclasses import replace

import numpy as np
import pytest
from scipy import sparse
from sklearn.datasets import load_digits, load_iris

from tests.solvers.problems import stored
from topline import MaxHinge, OneVsAll, SerialExecutor, Softmax, Status, TopKEntropy, solve
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
    arrays_of_classes,
    find_moments,
    with_asked,
    with_classes,
    with_openness,
)
from topline.solvers.operations import FindVertices

N, D, M = 60, 5, 4


def rows(seed=0):
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


# ---------------------------------------------------------------- what the blocks sum


@pytest.mark.parametrize("make", [np.asarray, sparse.csr_matrix])
@pytest.mark.parametrize("blocks", [1, 3, 7])
def test_moments_are_those_of_the_rows_that_are_open_enough(make, blocks) -> None:
    X, y = rows()
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


# ---------------------------------------------------------------- the metric


def measured(problem, stats, W, memory, passes, gap=0.5):
    """Return the measurement of a point with a relative gap, after some passes."""
    state = SolverState(Point(9, W), passes=passes, memory=memory)
    return Measurement(Objective(1.0, 1.0 - gap), state, stats, passes=1, tol=1e-3)


def metric_of(W, executor, problem):
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
    X, y = rows()
    lam, W = 0.03, np.random.default_rng(2).standard_normal((D, M))
    problem, executor = Problem(Softmax(), N, D, M, lam), bound(X, y)
    metric, _, least = metric_of(W, executor, problem)
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
    X, y = rows()
    problem, executor = Problem(Softmax(), N, D, M, 0.03), bound(X, y)
    W = np.zeros((D, M))
    stats = executor.run(FindVertices(0, W, envelope=True))
    _, memory, _ = metric_of(W, executor, problem)
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
    X, y = rows()
    problem, executor = Problem(Softmax(), N, D, M, 0.03), bound(X, y)
    W = np.zeros((D, M))
    _, memory, least = metric_of(W, executor, problem)
    stats = executor.run(FindVertices(9, W, envelope=True, least_openness=least))
    broken = replace(stats, moments=-stats.moments)
    after = with_classes(problem, memory, measured(problem, broken, W, memory, 300))
    assert after.inverses is memory.classes.inverses
    assert after.openness.passes == 300


# ---------------------------------------------------------------- runs


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


def test_a_run_goes_on_to_the_same_bits() -> None:
    """From arrays laid out as a checkpoint gives them back, before the metric is found and after."""
    X, y = digits()
    options = {"method": "lbfgs", "tol": 1e-12}
    whole = solve(X, y, Softmax(), 0.1 / len(y), max_passes=25, **options)
    for cut in (3, 9, 20):
        state = solve(X, y, Softmax(), 0.1 / len(y), max_passes=cut, **options).state
        resumed = solve(X, y, Softmax(), 0.1 / len(y), max_passes=25, state=stored(state), **options)
        assert resumed.passes == whole.passes
        np.testing.assert_array_equal(resumed.W, whole.W)


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
