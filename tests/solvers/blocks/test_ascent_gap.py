"""The gap of the rows that sweeps visit, against P and D of the whole problem, and where stages end by it."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import sparse

from tests.solvers.problems import examples
from topline import MaxHinge, OneVsAll, SerialExecutor, Softmax, TopKHinge
from topline.solvers.blocks.ascent.passes import AscentPass
from topline.solvers.blocks.ascent.rounds import BlockAscent
from topline.solvers.blocks.ascent.rows import DualWindow
from topline.solvers.core.dual_rows import DenseStore
from topline.solvers.core.problem import Problem
from topline.solvers.operations import Ascend, Evaluate, Rebuild

N, D, M = 60, 8, 5
X, Y = examples(n=N, d=D, spread=1.5)
Y = Y.astype(np.int32)
WEIGHTS = np.random.default_rng(1).uniform(0.5, 2.0, N)


def swept(problem: Problem, rows) -> tuple[AscentPass, BlockAscent, DenseStore]:
    """A block after three sweeps from A = 0, in float64."""
    block = BlockAscent(problem, rows, Y, WEIGHTS, 0, np.dtype(np.float64))
    A, delta = (DenseStore(N, M, np.dtype(np.float64)) for _ in range(2))
    request = Ascend(round=0, W=np.zeros((D, M)), seed=3, exact=True)
    work = AscentPass(block, request, DualWindow(A, delta))
    for _ in range(3):
        work.sweep(block.feed_for(A).shuffled(np.arange(N), work.random))
    return work, block, delta


@pytest.mark.parametrize("layout", [np.asarray, sparse.csr_matrix], ids=["dense", "sparse"])
@pytest.mark.parametrize("smoothing", [0.0, 0.4])
@pytest.mark.parametrize("loss", [MaxHinge(), TopKHinge(3), Softmax(), OneVsAll("hinge")], ids=str)
def test_the_gaps_of_all_rows_sum_to_n_times_the_gap(loss, smoothing, layout) -> None:
    """P and D come from the sums of other requests; no row takes from what the others add."""
    if smoothing and loss == Softmax():
        smoothing = 0.0
    problem = Problem(loss, N, D, M, 0.05, smoothing)
    work, block, delta = swept(problem, layout(X))
    executor = SerialExecutor()
    executor.bind(problem, layout(X), Y, keep_duals=True, weights=WEIGHTS)
    executor.load_duals([(0, N, WEIGHTS[:, None] * delta.read(0, N))])
    sums = executor.run(Rebuild())
    W = problem.scale * sums.product
    loss_sum = executor.run(Evaluate(W, exact=True)).loss
    gap = problem.primal(W, loss_sum / N) - problem.dual(W, sums.conjugate / N, sums.alpha_sq / N)
    feed = block.feed_for(work.duals._A)
    assert work.gap(feed, np.arange(N)) == pytest.approx(N * gap, rel=1e-9)
    parts = [work.gap(feed, np.arange(low, N, 3)) for low in range(3)]
    assert min(parts) > 0.0
    assert sum(parts) == pytest.approx(N * gap, rel=1e-9)


@pytest.mark.parametrize("warm", [False, True])
def test_stages_end_where_the_gap_of_the_rows_is_small_enough(warm) -> None:
    problem = Problem(MaxHinge(), N, D, M, 0.001)
    block = BlockAscent(problem, X, Y, WEIGHTS, 0, np.dtype(np.float64))
    A, delta = (DenseStore(N, M, np.dtype(np.float64)) for _ in range(2))
    request = Ascend(round=0, W=np.zeros((D, M)), seed=3, exact=True, sweeps=6, warm=warm)
    visited = []
    for enough in (1e2, 1e-1, 1e-4):
        stats = block.run(Ascend(**{**vars(request), "enough": enough}), A, delta)
        visited.append(stats.visited)
    assert visited == sorted(visited)
    assert visited[0] < visited[-1]


def test_the_support_alone_is_visited() -> None:
    problem = Problem(MaxHinge(), N, D, M, 0.05)
    _, block, delta = swept(problem, X)
    A = DenseStore(N, M, np.dtype(np.float64))
    half = np.arange(N) < N // 2
    A.write(0, N, np.where(half[:, None], delta.read(0, N), 0.0))
    W = problem.scale * X.T @ (WEIGHTS[:, None] * A.read(0, N))
    with_mass = int(A.read(0, N).any(axis=1).sum())
    assert 0 < with_mass <= N // 2
    stats = block.run(Ascend(round=1, W=W, support=True, exact=True), A, delta)
    assert stats.visited == with_mass
    assert not delta.read(0, N)[~half].any()
    assert delta.read(0, N)[half].any()
