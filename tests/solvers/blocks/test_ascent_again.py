"""Several sweeps in one call against the same sweeps one after the other."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import sparse

from tests.reference import losses as reference
from tests.solvers.problems import M, examples
from topline import TopKHinge
from topline.solvers.blocks.ascent.passes import AscentPass
from topline.solvers.blocks.ascent.rounds import BlockAscent
from topline.solvers.blocks.ascent.rows import DualWindow
from topline.solvers.blocks.ascent.sweeps import STILL, draw_moving
from topline.solvers.core.dual_rows import DenseStore
from topline.solvers.core.problem import Problem
from topline.solvers.operations import Ascend

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
    block = BlockAscent(
        problem, sparse.csr_matrix(X) if as_sparse else X, y.astype(np.int32), np.ones(N), 0,
        np.dtype(np.float64),
    )  # fmt: skip
    A, delta = (DenseStore(N, M, np.dtype(np.float64)) for _ in range(2))
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
