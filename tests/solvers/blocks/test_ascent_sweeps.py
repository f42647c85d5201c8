"""Sweeps and extrapolation against the algorithm written out, and against the objective itself."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import sparse

from tests.reference import losses as reference
from tests.solvers.problems import M, examples
from topline import MaxHinge, TopKHinge, UsunierHinge
from topline.solvers.blocks.ascent.dual_changes import project_rows
from topline.solvers.blocks.ascent.extrapolation import Extrapolation, PassRows
from topline.solvers.blocks.ascent.passes import AscentPass
from topline.solvers.blocks.ascent.rounds import BlockAscent
from topline.solvers.blocks.ascent.rows import DualWindow
from topline.solvers.core.deflation import DeflatedDirection
from topline.solvers.core.dual_rows import DenseStore
from topline.solvers.core.problem import Problem
from topline.solvers.losses import OneVsAll
from topline.solvers.losses.rows import column_updates
from topline.solvers.operations import Ascend

LAM_N = 0.5


def setting(loss, *, as_sparse=False, smoothing=0.0, shared=None, weights=None, start=None):
    """A block of 40 rows at A = 0 and the work of one request."""
    X, y = examples(n=40, d=6)
    problem = Problem(loss, *X.shape, M, LAM_N / len(y), smoothing)
    weights = np.ones(len(y)) if weights is None else weights
    rows = sparse.csr_matrix(X) if as_sparse else X
    block = BlockAscent(problem, rows, y.astype(np.int32), weights, 0, np.dtype(np.float64))
    W = np.zeros((X.shape[1], M)) if start is None else start
    request = Ascend(round=0, W=W, seed=3, shared=shared)
    A, delta = (DenseStore(len(y), M, np.dtype(np.float64)) for _ in range(2))
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
@pytest.mark.parametrize("loss", [MaxHinge(), TopKHinge(2), UsunierHinge(3)])
@pytest.mark.parametrize("smoothing", [0.0, 0.3])
def test_a_sweep_is_the_algorithm_written_out(loss, as_sparse, smoothing) -> None:
    weights = np.random.default_rng(0).uniform(0.0, 2.0, 40)
    weights[7] = 0.0
    start = 0.2 * np.random.default_rng(1).standard_normal((6, M))
    X, y, problem, work, feed = setting(
        loss, as_sparse=as_sparse, smoothing=smoothing, weights=weights, start=start
    )
    portion = next(iter(feed.shuffled(np.arange(40), work.random)))
    work.sweep([portion])
    expected, W = written_out(X, y, weights, problem, start, [i for i in portion.rows if weights[i] > 0.0])
    np.testing.assert_allclose(work.duals.delta, expected, atol=1e-11)
    np.testing.assert_allclose(work.W if as_sparse else work.W.T, W, atol=1e-10)


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


@pytest.mark.parametrize("loss", [MaxHinge(), TopKHinge(2), UsunierHinge(3), OneVsAll("hinge")])
def test_projected_rows_are_the_nearest_of_the_domain(loss) -> None:
    """No point that a column update can give lies on the far side: <z - p, v - p> <= 0 for all of them."""
    form = loss.form(M)
    rng = np.random.default_rng(0)
    Z, y = rng.standard_normal((30, M)), rng.integers(M, size=30).astype(np.int32)
    nearest = Z.copy()
    project_rows(nearest, y, form)
    for _ in range(50):
        inside = column_updates(form, 5.0 * rng.standard_normal((30, M)), y, 1.0)
        assert np.sum((Z - nearest) * (inside - nearest), axis=1).max() < 1e-12
    again = nearest.copy()
    project_rows(again, y, form)
    np.testing.assert_allclose(again, nearest, atol=1e-12)


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
