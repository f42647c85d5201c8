"""Ascent tile by tile and slab by slab: the same visits as row by row, so the same changes."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from tests.reference import losses as reference
from tests.reference.training_qp import optimum
from tests.solvers.problems import LOSSES, M, examples, loss_name
from topline import SerialExecutor, Softmax, Status, TopKHinge, UsunierHinge, solve
from topline.solvers.blocks.ascent import passes, shared_tiles
from topline.solvers.blocks.ascent.rounds import BlockAscent
from topline.solvers.core.deflation import DeflatedDirection
from topline.solvers.core.dual_rows import DenseStore
from topline.solvers.core.problem import Problem
from topline.solvers.crew import Helpers
from topline.solvers.operations import Ascend


def change(problem, X, y, weights, request, start, monkeypatch, *, by_tiles, threads=1):
    """Give what one order brings from dual rows `start`, in tiles of 8 rows or row by row."""
    monkeypatch.setattr(passes, "_LARGE_W", 0 if by_tiles else 1 << 40)
    monkeypatch.setattr(shared_tiles, "_TILE_ROWS", (8, 8))
    monkeypatch.setattr(shared_tiles, "_SHARED", 0)
    A, delta = (DenseStore(len(y), problem.m, np.dtype(np.float64)) for _ in range(2))
    A.dense[:] = start
    block = BlockAscent(problem, X, y.astype(np.int32), weights, 0, np.dtype(np.float64))
    return block.run(request, A, delta, threads), delta.dense


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
    A, delta = (DenseStore(50, classes, np.dtype(np.float32)) for _ in range(2))
    block = BlockAscent(problem, X, y.astype(np.int32), np.ones(50), 0, np.dtype(np.float32))
    W = random.standard_normal((12, classes))
    stats = block.run(Ascend(round=0, W=W), A, delta)
    share = np.count_nonzero(delta.dense) / delta.dense.size
    assert (share < 1 / 12) == (classes == 60)
    np.testing.assert_allclose(stats.product, X.T.astype(float) @ delta.dense, rtol=1e-5, atol=1e-6)


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
        A, delta = (DenseStore(300, M, np.dtype(np.float32)) for _ in range(2))
        block = BlockAscent(problem, X, y.astype(np.int32), np.ones(300), 0, np.dtype(np.float32))
        found.append(block.run(Ascend(round=0, W=np.zeros((40, M)), sweeps=3), A, delta, threads))
        assert np.array_equal(found[-1].product, found[0].product)
    assert np.abs(found[0].product).max() > 0.1


def test_no_helper_waits_for_a_sweep_that_was_interrupted(monkeypatch) -> None:
    """Between the first helper and the sweep itself, where Ctrl-C may come as well."""
    monkeypatch.setattr(passes, "_LARGE_W", 0)
    monkeypatch.setattr(shared_tiles, "_SHARED", 0)
    X, y = examples(n=300, d=40)
    problem = Problem(TopKHinge(2), n=300, d=40, m=M, lam=0.01)
    A, delta = (DenseStore(300, M, np.dtype(np.float64)) for _ in range(2))
    block = BlockAscent(problem, X, y.astype(np.int32), np.ones(300), 0, np.dtype(np.float64))
    begun, counters = [], []

    class Interrupted(ThreadPoolExecutor):
        def submit(self, work, part, shared):
            if begun:
                raise KeyboardInterrupt
            counters.append(shared.counters)
            begun.append(super().submit(work, part, shared))
            return begun[0]

    with Interrupted(1) as pool:
        monkeypatch.setattr(Helpers, "pool", lambda _self, _threads: pool)
        with pytest.raises(KeyboardInterrupt):
            block.run(Ascend(round=0, W=np.zeros((40, M))), A, delta, 3)
        ended = begun[0].done()
        counters[0][:] = 1 << 40  # the pool would wait for it for ever
    assert ended
