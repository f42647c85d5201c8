"""Ascent by rows and by tiles against the algorithm written out, and the gap of rows that sweeps visit."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from functools import cache
from itertools import pairwise

import numpy as np
import pytest
from scipy import sparse

from tests.reference import losses as reference
from tests.reference.envelopes import column_updates
from tests.reference.training_qp import optimum
from tests.solvers.problems import LOSSES, M, examples, loss_name
from topline import MaxHinge, SerialExecutor, Softmax, Status, TopKHinge, UsunierHinge, solve
from topline.solvers.blocks.ascent import passes, shared_tiles
from topline.solvers.blocks.ascent.alike_rows import find_groups
from topline.solvers.blocks.ascent.extrapolation import Extrapolation, PassRows
from topline.solvers.blocks.ascent.passes import AscentPass
from topline.solvers.blocks.ascent.rounds import BlockAscent
from topline.solvers.blocks.ascent.rows import DualWindow, RowFeed
from topline.solvers.blocks.ascent.sweeps import STILL, draw_moving
from topline.solvers.blocks.block import Block, RunSpec
from topline.solvers.core.deflation import DeflatedDirection
from topline.solvers.core.problem import Problem
from topline.solvers.crew import Crew
from topline.solvers.losses import OneVsAll
from topline.solvers.methods import dual_ascent
from topline.solvers.methods.dual_ascent import DualAscent
from topline.solvers.operations import Ascend, Evaluate, Rebuild

LAM_N = 0.5


def setting(loss, *, as_sparse=False, smoothing=0.0, shared=None, weights=None, start=None):
    """A block of 40 rows at A = 0 and the work of one request."""
    X, y = examples(n=40, d=6)
    problem = Problem(loss, *X.shape, M, LAM_N / len(y), smoothing)
    weights = np.ones(len(y)) if weights is None else weights
    rows = sparse.csr_matrix(X) if as_sparse else X
    block = BlockAscent(Block(RunSpec(problem, rows, y, weights)))
    W = np.zeros((X.shape[1], M)) if start is None else start
    request = Ascend(round=0, W=W, seed=3, shared=shared)
    A, delta = (np.zeros((len(y), M)) for _ in range(2))
    work = AscentPass(block, request, DualWindow(A, delta))
    work.duals.open((0, len(y)))
    return X, y, problem, work, block.feed_for(A)


def written_out(X, y, weights, problem, W, order):
    """One exact column update after the other, by the projection kernels for whole arrays."""
    A = np.zeros((len(y), problem.m))
    W = W.copy()
    for i in order:
        own = problem.scale * weights[i] * (X[i] @ X[i])
        q = X[i] @ W - own * A[i]
        alpha = column_updates(problem.form, q[None], y[i : i + 1], own + problem.smoothing)[0]
        W += problem.scale * weights[i] * np.outer(X[i], alpha - A[i])
        A[i] = alpha
    return A, W


@pytest.mark.parametrize("as_sparse", [False, True])
def test_a_direction_kept_apart_is_a_sweep_over_shrunk_rows(as_sparse) -> None:
    """The rows are never shrunk in memory; what comes out is what shrunk rows would give."""
    u = np.random.default_rng(2).standard_normal(6)
    shared = DeflatedDirection(u / np.linalg.norm(u), kappa=0.2)
    start = 0.2 * np.random.default_rng(1).standard_normal((6, M))
    X, y, problem, work, feed = setting(MaxHinge(), as_sparse=as_sparse, shared=shared, start=start)
    portion = next(iter(feed.shuffled(np.arange(40), work.random)))
    work.sweep([portion])
    M_u = np.eye(6) - (1.0 - np.sqrt(shared.kappa)) * np.outer(shared.u, shared.u)
    unshrunk = np.linalg.solve(M_u, start)
    expected, _ = written_out(X @ M_u, y, np.ones(40), problem, unshrunk, portion.rows)
    np.testing.assert_allclose(work.duals.delta, expected, atol=1e-11)
    product = work.stats(feed).product
    np.testing.assert_allclose(product, X.T @ expected, atol=1e-10)


@pytest.mark.parametrize("as_sparse", [False, True])
@pytest.mark.parametrize("smoothing", [0.0, 0.3])
@pytest.mark.parametrize("loss", [MaxHinge(), TopKHinge(2)])
def test_extrapolation_raises_the_dual_by_what_it_says(loss, smoothing, as_sparse) -> None:
    X, y, problem, work, feed = setting(loss, smoothing=smoothing, as_sparse=as_sparse)
    work.sweep(feed.shuffled(np.arange(40), work.random))
    everything = np.arange(40)
    extrapolation = Extrapolation(PassRows(work, feed, everything))
    rises = []
    for _ in range(6):
        swept = work.sweep(feed.shuffled(everything, work.random)).last
        before = reference.dual(X, y, loss, problem.lam, smoothing, work.duals.A + work.duals.delta)
        rises.append(extrapolation.step(swept))
        after = reference.dual(X, y, loss, problem.lam, smoothing, work.duals.A + work.duals.delta)
        assert (after - before) * len(y) == pytest.approx(rises[-1], abs=1e-10)
        W = reference.weights_of(X, problem.lam, work.duals.A + work.duals.delta)
        np.testing.assert_allclose(work.W if as_sparse else work.W.T, W, atol=1e-10)
    assert max(rises) > 0.0


N = 60


def test_rows_that_move_are_drawn_with_their_places_in_any_order_alike() -> None:
    """Each of the six orders of three rows comes up about as often as the others."""
    rows, places = np.array([4, 5, 7, 9]), np.array([40, 50, 70, 90])
    rises = np.zeros(10)
    rises[[4, 7, 9]] = 1.0
    rises[5] = 0.5
    random, drawn, drawn_places = np.array([3]), np.empty(4, np.int64), np.empty(4, np.int64)
    orders: dict[tuple[int, ...], int] = {}
    for _ in range(3000):
        assert draw_moving(rows, places, rises, 0.5, random, drawn, drawn_places) == 3
        assert drawn_places[:3].tolist() == (10 * drawn[:3]).tolist()
        order = tuple(drawn[:3].tolist())
        orders[order] = orders.get(order, 0) + 1
    assert len(orders) == 6
    assert min(orders.values()) > 400
    assert max(orders.values()) < 600


@pytest.mark.parametrize("few", [False, True])
@pytest.mark.parametrize("as_sparse", [False, True])
def test_sweeps_raise_the_dual_by_what_they_say_and_visit_what_moves(as_sparse, few) -> None:
    """In one call or in one a sweep, W stays W(A) and D what the objective is by its definition."""
    X, y = examples(n=N, d=6)
    loss = TopKHinge(2)
    problem = Problem(loss, *X.shape, M, 0.5 / N)
    block = BlockAscent(Block(RunSpec(problem, sparse.csr_matrix(X) if as_sparse else X, y)))
    A, delta = (np.zeros((N, M)) for _ in range(2))
    work = AscentPass(block, Ascend(round=0, W=np.zeros((6, M)), seed=1), DualWindow(A, delta))
    feed, rows = block.feed_for(A), np.arange(N)

    def dual() -> float:
        return reference.dual(X, y, loss, problem.lam, 0.0, work.duals.A + work.duals.delta)

    first = work.sweep(feed.shuffled(rows, work.random)).last
    work.duals.open_whole()
    assert dual() * N >= first * (1.0 - 1e-9)
    if few:
        work.restrict_classes(feed, rows)
    before, visited = dual(), work.visited
    risen, last, cost = work.sweeps(feed, rows, 5, np.inf)
    work.duals.open_whole()
    assert 0.0 < last < risen
    assert (dual() - before) * N >= risen * (1.0 - 1e-9)
    assert cost == pytest.approx(work.visited - visited)
    assert cost < 5 * N  # some rows rest
    W = reference.weights_of(X, problem.lam, work.duals.A + work.duals.delta)
    np.testing.assert_allclose(work.W if as_sparse else work.W.T, W, atol=1e-10)
    still = work._still
    assert 0.0 < still <= STILL * last
    # No sweep is begun once so many visits are made.
    _, _, cost = work.sweeps(feed, rows, 5, 0.5)
    assert cost <= N


ROWS, D, CLASSES = 60, 8, 5
X, Y = examples(n=ROWS, d=D, spread=1.5)
Y = Y.astype(np.int32)
WEIGHTS = np.random.default_rng(1).uniform(0.5, 2.0, ROWS)


def swept(problem: Problem, rows) -> tuple[AscentPass, BlockAscent, np.ndarray]:
    """A block after three sweeps from A = 0, in float64."""
    block = BlockAscent(Block(RunSpec(problem, rows, Y, WEIGHTS)))
    A, delta = (np.zeros((ROWS, CLASSES)) for _ in range(2))
    request = Ascend(round=0, W=np.zeros((D, CLASSES)), seed=3, exact=True)
    work = AscentPass(block, request, DualWindow(A, delta))
    for _ in range(3):
        work.sweep(block.feed_for(A).shuffled(np.arange(ROWS), work.random))
    return work, block, delta


@pytest.mark.parametrize("layout", [np.asarray, sparse.csr_matrix], ids=["dense", "sparse"])
@pytest.mark.parametrize("smoothing", [0.0, 0.4])
@pytest.mark.parametrize("loss", [MaxHinge(), TopKHinge(3), Softmax(), OneVsAll("hinge")], ids=str)
def test_the_gaps_of_all_rows_sum_to_n_times_the_gap(loss, smoothing, layout) -> None:
    """P and D come from the sums of other requests; no row takes from what the others add."""
    if smoothing and loss == Softmax():
        smoothing = 0.0
    problem = Problem(loss, ROWS, D, CLASSES, 0.05, smoothing)
    work, block, delta = swept(problem, layout(X))
    executor = SerialExecutor()
    executor.bind(problem, layout(X), Y, keep_duals=True, weights=WEIGHTS)
    executor.load_duals([(0, ROWS, WEIGHTS[:, None] * delta)])
    sums = executor.run(Rebuild())
    W = problem.scale * sums.product
    loss_sum = executor.run(Evaluate(W, exact=True)).loss
    gap = problem.primal(W, loss_sum / ROWS) - problem.dual(W, sums.conjugate / ROWS, sums.alpha_sq / ROWS)
    feed = block.feed_for(work.duals._A)
    assert work.gap(feed, np.arange(ROWS)) == pytest.approx(ROWS * gap, rel=1e-9)
    parts = [work.gap(feed, np.arange(low, ROWS, 3)) for low in range(3)]
    assert min(parts) > 0.0
    assert sum(parts) == pytest.approx(ROWS * gap, rel=1e-9)


@pytest.mark.parametrize("warm", [False, True])
def test_stages_end_where_the_gap_of_the_rows_is_small_enough(warm) -> None:
    problem = Problem(MaxHinge(), ROWS, D, CLASSES, 0.001)
    block = BlockAscent(Block(RunSpec(problem, X, Y, WEIGHTS)))
    A = np.zeros((ROWS, CLASSES))
    request = Ascend(round=0, W=np.zeros((D, CLASSES)), seed=3, exact=True, sweeps=6, warm=warm)
    visited = []
    for enough in (1e2, 1e-1, 1e-4):
        stats = block.run(Ascend(**{**vars(request), "enough": enough}), A, np.zeros_like(A))
        visited.append(stats.visited)
    assert visited == sorted(visited)
    assert visited[0] < visited[-1]


def test_the_support_alone_is_visited() -> None:
    problem = Problem(MaxHinge(), ROWS, D, CLASSES, 0.05)
    _, block, found = swept(problem, X)
    A = np.zeros((ROWS, CLASSES))
    half = np.arange(ROWS) < ROWS // 2
    A[half] = found[half]
    W = problem.scale * X.T @ (WEIGHTS[:, None] * A)
    with_mass = int(A.any(axis=1).sum())
    assert 0 < with_mass <= ROWS // 2
    delta = np.zeros_like(A)
    stats = block.run(Ascend(round=1, W=W, support=True, exact=True), A, delta)
    assert stats.visited == with_mass
    assert not delta[~half].any()
    assert delta[half].any()


def change(problem, X, y, weights, request, start, monkeypatch, *, by_tiles, threads=1):
    """Give what one order brings from dual rows `start`, in tiles of 8 rows or row by row."""
    monkeypatch.setattr(passes, "_LARGE_W", 0 if by_tiles else 1 << 40)
    monkeypatch.setattr(shared_tiles, "_TILE_ROWS", (8, 8))
    monkeypatch.setattr(shared_tiles, "_SHARED", 0)
    A, delta = (np.zeros((len(y), problem.m)) for _ in range(2))
    A[:] = start
    block = BlockAscent(Block(RunSpec(problem, X, y, weights)))
    return block.run(request, A, delta, Crew(threads)), delta


@pytest.mark.parametrize("loss", [*LOSSES, Softmax()], ids=loss_name)
@pytest.mark.parametrize("sweeps", [1, 2, 4])
@pytest.mark.parametrize("apart", [False, True])
@pytest.mark.sampled(3)
def test_tiles_change_what_single_rows_change(loss, sweeps, apart, monkeypatch) -> None:
    X, y = examples(n=60, d=9)
    smoothing = 0.0 if loss.name == "softmax" else 0.3
    problem = Problem(loss, n=60, d=9, m=M, lam=0.05, smoothing=smoothing)
    random = np.random.default_rng(5)
    weights = random.choice([0.0, 0.5, 1.0, 2.0], 60)
    u = np.abs(X.mean(axis=0)) / np.linalg.norm(X.mean(axis=0))
    shared = DeflatedDirection(u, 0.4) if apart else None
    request = Ascend(round=1, W=np.zeros((9, M)), sweeps=sweeps, safety_factor=1.5, exact=True, shared=shared)
    arguments = problem, X, y, weights, request, 0.0, monkeypatch
    rows, by_row = change(*arguments, by_tiles=False)
    tiles, by_tile = change(*arguments, by_tiles=True)
    assert np.abs(by_row).max() > 0.1
    # The same sums in another order.
    np.testing.assert_allclose(by_tile, by_row, atol=1e-9)
    np.testing.assert_allclose(tiles.product, rows.product, atol=1e-9)
    for name in ("conjugate_u", "alpha_u", "u_sq", "active", "visited"):
        assert getattr(tiles, name) == pytest.approx(getattr(rows, name), rel=1e-9, abs=1e-9), name
    for threads in (2, 5):
        _, by_threads = change(*arguments, by_tiles=True, threads=threads)
        # Which thread does what changes no bit.
        assert np.array_equal(by_threads, by_tile)


@pytest.mark.parametrize("classes", [3, 60], ids=["most", "few"])
def test_weights_move_by_the_product_of_features_and_changes(classes, monkeypatch) -> None:
    """In float32 as well, whether few or most classes of a row change."""
    random = np.random.default_rng(2)
    y = random.integers(0, classes, 50)
    X = (random.standard_normal((classes, 12))[y] + random.standard_normal((50, 12))).astype(np.float32)
    problem = Problem(TopKHinge(1), n=50, d=12, m=classes, lam=0.1)
    monkeypatch.setattr(passes, "_LARGE_W", 0)
    A, delta = (np.zeros((50, classes), np.float32) for _ in range(2))
    block = BlockAscent(Block(RunSpec(problem, X, y)))
    W = random.standard_normal((12, classes))
    stats = block.run(Ascend(round=0, W=W), A, delta)
    share = np.count_nonzero(delta) / delta.size
    assert (share < 1 / 12) == (classes == 60)
    np.testing.assert_allclose(stats.product, X.T.astype(float) @ delta, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("loss", [TopKHinge(2), UsunierHinge(2), Softmax()], ids=loss_name)
@pytest.mark.parametrize("blocks", [1, 3])
# Kernels for float32 features and float64 duals take seconds to compile; the tests around use other pairs.
@pytest.mark.parametrize("dtype", [pytest.param(np.float32, marks=pytest.mark.slow), np.float64])
def test_whole_runs_end_at_the_optimum(loss, blocks, dtype, monkeypatch) -> None:
    monkeypatch.setattr(passes, "_LARGE_W", 0)
    X, y = examples(n=40, d=4)
    X = X.astype(dtype)
    with SerialExecutor(blocks=blocks) as executor:
        result = solve(
            X, y, loss, 0.02, method="dual_ascent", tol=1e-5, max_passes=5000, m=M, executor=executor
        )
    assert result.status is Status.SOLVED
    assert result.dual == pytest.approx(reference.dual(X, y, loss, 0.02, 0.0, result.A), rel=1e-9)
    duals = np.array([record.dual for record in result.history])
    # Where a run goes over from float32 W is summed anew, from A as float32 holds it.
    slack = np.finfo(np.float32).eps if dtype == np.float32 else 1e-12
    assert np.diff(duals).min() >= -slack * duals.max()
    if loss.name != "softmax":
        best = optimum(X, y, loss, 0.02, 0.0, M)
        assert result.dual - 1e-6 <= best <= result.primal + 1e-6


def test_threads_finish_every_chunk_once(monkeypatch) -> None:
    """Many more threads than cores, on tiles of a few rows, over and over: no number differs."""
    monkeypatch.setattr(passes, "_LARGE_W", 0)
    monkeypatch.setattr(shared_tiles, "_SHARED", 0)
    X, y = examples(n=300, d=40)
    X = X.astype(np.float32)
    problem = Problem(TopKHinge(2), n=300, d=40, m=M, lam=0.01)
    found = []
    for threads in (1, 2, 3, 8, 8):
        A, delta = (np.zeros((300, M), np.float32) for _ in range(2))
        block = BlockAscent(Block(RunSpec(problem, X, y)))
        found.append(block.run(Ascend(round=0, W=np.zeros((40, M)), sweeps=3), A, delta, Crew(threads)))
        assert np.array_equal(found[-1].product, found[0].product)
    assert np.abs(found[0].product).max() > 0.1


def test_no_helper_waits_for_a_sweep_that_was_interrupted(monkeypatch) -> None:
    """Between the first helper and the sweep itself, where Ctrl-C may come as well."""
    monkeypatch.setattr(passes, "_LARGE_W", 0)
    monkeypatch.setattr(shared_tiles, "_SHARED", 0)
    X, y = examples(n=300, d=40)
    problem = Problem(TopKHinge(2), n=300, d=40, m=M, lam=0.01)
    A, delta = (np.zeros((300, M)) for _ in range(2))
    block = BlockAscent(Block(RunSpec(problem, X, y)))
    begun, counters = [], []

    class Interrupted(ThreadPoolExecutor):
        def submit(self, work, part, shared):
            if begun:
                raise KeyboardInterrupt
            counters.append(shared.counters)
            begun.append(super().submit(work, part, shared))
            return begun[0]

    with Interrupted(1) as pool:
        with pytest.raises(KeyboardInterrupt):
            block.run(Ascend(round=0, W=np.zeros((40, M))), A, delta, Crew(3, pool))
        ended = begun[0].done()
        counters[0][:] = 1 << 40  # the pool would wait for it for ever
    assert ended


LAYOUTS = pytest.mark.parametrize("layout", [np.asarray, sparse.csr_matrix], ids=["dense", "sparse"])


def with_twins(n, d, m, twins, labels, apart=0.0, scale=1.0, seed=0):
    """Random rows, of which the first `twins` come under so many labels each, nearly the same."""
    random = np.random.default_rng(seed)
    X = random.normal(size=(n, d))
    y = np.append(np.arange(m), random.integers(0, m, n - m))
    first = np.tile(np.arange(twins), labels - 1)
    shifts = np.repeat(np.arange(1, labels), twins)
    X = np.concatenate([X, X[first] + apart * random.normal(size=(len(first), d))])
    y = np.concatenate([y, (y[first] + shifts) % m])
    order = random.permutation(len(y))
    original = np.append(np.arange(n), first)[order]
    return (scale * X[order]).astype(np.float32), y[order], original


@LAYOUTS
@pytest.mark.parametrize("apart", [0.0, 0.05])
def test_rows_under_several_labels_are_found_and_no_others(layout, apart) -> None:
    X, y, original = with_twins(3000, 200, 6, 100, 3, apart)
    groups = find_groups(RowFeed(layout(X), X.dtype), np.arange(len(y)), y.astype(np.int32), X.shape[1])
    assert groups is not None
    assert set(original[groups.rows]) <= set(range(100))
    assert len(groups.rows) >= (300 if apart == 0.0 else 285)
    at = 0
    for low, high in pairwise(groups.starts):
        assert len(set(original[groups.rows[low:high]])) == 1
        rows = X[groups.rows[low:high]].astype(np.float64)
        size = len(rows) ** 2
        np.testing.assert_allclose(groups.grams[at : at + size], (rows @ rows.T).ravel(), rtol=1e-6)
        at += size


def test_the_same_row_under_one_label_is_no_group() -> None:
    X, y, _ = with_twins(500, 100, 6, 50, 2)
    assert find_groups(RowFeed(X, X.dtype), np.arange(len(y)), np.zeros_like(y), X.shape[1]) is None


@cache
def optimum_with_twins(loss, labels):
    """Give rows of which five come under so many labels, and the optimum of a general solver."""
    X, y, _ = with_twins(100, 120, 6, 5, labels, scale=10.0)
    return X, y, optimum(X, y, loss, 1.0 / len(y))


@LAYOUTS
@pytest.mark.parametrize("blocks", [1, 2])
@pytest.mark.parametrize(("loss", "labels"), [(MaxHinge(), 2), (TopKHinge(3), 5)], ids=str)
@pytest.mark.covering(2)
def test_twins_are_moved_to_the_optimum(loss, labels, blocks, layout, monkeypatch) -> None:
    """Their dual variables end at their bounds, 1, which visits of single rows reach by steps of 1e-4."""
    X, y, best = optimum_with_twins(loss, labels)
    lam = 1.0 / len(y)

    def run(joins):
        monkeypatch.setattr(DualAscent, "joins", joins)
        executor = SerialExecutor(blocks=blocks)
        return solve(
            layout(X), y, loss, lam, method="dual_ascent", tol=1e-4, max_passes=150, executor=executor
        )

    result = run(True)
    assert result.dual <= best * (1 + 1e-9)
    assert result.primal >= best * (1 - 1e-9)
    duals = [record.dual for record in result.history]
    assert all(after >= before - 1e-6 * best for before, after in pairwise(duals))
    without = run(False)
    assert without.status is Status.MAX_PASSES
    if blocks == 1:
        assert result.status is Status.SOLVED
        assert result.dual == pytest.approx(best, rel=1e-4)
    else:
        # Twins in two blocks are not moved together.
        assert result.dual > 2.0 * without.dual


@LAYOUTS
def test_twins_of_large_features_are_moved_too(layout, monkeypatch) -> None:
    """Beside a Gram matrix of 1e20 the penalties are rounding, and that of equal rows is singular."""
    monkeypatch.setattr(dual_ascent, "_SLOW", 0)
    X, y, _ = with_twins(100, 120, 6, 5, 2, scale=1e9)
    result = solve(layout(X), y, MaxHinge(), 1.0 / len(y), method="dual_ascent", tol=1e-4, max_passes=60)
    assert 0.0 <= result.dual <= result.primal <= 1.0
