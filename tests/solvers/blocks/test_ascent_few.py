"""Sweeps that touch a few classes: the classes by sorting, the updates against those of all classes."""

from __future__ import annotations

import numpy as np
import pytest

from tests.benchmarks.datasets import relu_features
from topline import (
    MaxHinge,
    SerialExecutor,
    Status,
    StructuredHinge,
    TopKHinge,
    TopKOthersHinge,
    UsunierHinge,
    solve,
)
from topline.solvers.blocks.ascent import class_subset, passes
from topline.solvers.blocks.ascent import rows as ascent_rows
from topline.solvers.blocks.ascent.class_subset import (
    choose_classes,
    count_classes,
    room_for_lists,
    spare_classes,
)
from topline.solvers.blocks.ascent.dual_changes import project_rows
from topline.solvers.blocks.ascent.passes import AscentPass, is_tiled
from topline.solvers.blocks.ascent.rounds import BlockAscent
from topline.solvers.blocks.ascent.rows import DualWindow
from topline.solvers.core.dual_rows import ByteBudget, make_store
from topline.solvers.core.problem import Problem
from topline.solvers.losses import OneVsAll
from topline.solvers.losses.rows import column_updates
from topline.solvers.operations import Ascend

N, D, M = 60, 5, 30
LAM_N = 0.5
HINGES = [MaxHinge(), TopKHinge(3), TopKOthersHinge(2), UsunierHinge(2)]


def swept(loss, smoothing: float = 0.0, budget: ByteBudget | None = None):
    """A block after some sweeps over all rows from A = 0, whose dual rows are packed under a budget."""
    rng = np.random.default_rng(0)
    X, y = rng.standard_normal((N, D)), rng.integers(M, size=N).astype(np.int32)
    problem = Problem(loss, N, D, M, LAM_N / N, smoothing)
    block = BlockAscent(problem, X, y, rng.uniform(0.5, 2.0, N), 0, np.dtype(np.float64))
    A, delta = (make_store([0, 25, N], M, np.dtype(np.float64), budget) for _ in range(2))
    work = AscentPass(block, Ascend(round=0, W=np.zeros((D, M)), seed=3), DualWindow(A, delta))
    feed = block.feed_for(A)
    for _ in range(10):
        work.sweep(feed.shuffled(np.arange(N), work.random))
    work.duals.open_whole()
    return X, y, problem, block, work, feed


def test_the_classes_are_the_own_one_those_with_mass_and_the_next_by_score() -> None:
    rng = np.random.default_rng(1)
    y = rng.integers(M, size=N).astype(np.int32)
    A, delta = np.zeros((N, M)), np.where(rng.random((N, M)) < 0.2, rng.standard_normal((N, M)), 0.0)
    A[0], delta[0] = 1.0, 0.0  # mass everywhere
    A[1], delta[1] = 1.0, -1.0  # a change that takes all of it away
    rows, scores = np.arange(0, N, 2), rng.standard_normal((N, M))
    starts = np.zeros(len(rows) + 1, dtype=np.int64)
    count_classes(rows, y, A, delta, 3, starts)
    np.cumsum(starts, out=starts)
    classes = np.empty(starts[-1], dtype=np.int32)
    choose_classes(scores[rows], rows, y, A, delta, starts, classes)
    for t, i in enumerate(rows):
        held = [j for j in range(M) if j != y[i] and A[i, j] + delta[i, j] != 0.0]
        rest = [j for j in np.argsort(-scores[i]) if j != y[i] and j not in held]
        assert classes[starts[t] : starts[t + 1]].tolist() == [y[i], *held, *rest[:3]]


def test_many_classes_are_not_few() -> None:
    """A third of them is few, but not where rows are swept in tiles."""
    block = swept(MaxHinge())[3]

    def room(with_mass: int, *, tiled: bool = False):
        A, delta = (make_store([0, N], M, np.dtype(np.float64)) for _ in range(2))
        A.write(0, N, np.tile(np.arange(M) < with_mass, (N, 1)).astype(np.float64))
        return room_for_lists(np.arange(N), block, DualWindow(A, delta), tiled=tiled)

    assert room(M) is None
    assert room(M // 3) is not None
    assert room(M // 3, tiled=True) is None


@pytest.mark.parametrize("loss", [OneVsAll("hinge"), StructuredHinge(1.0 - np.eye(M))])
def test_losses_that_are_not_those_of_fewer_classes_take_all(loss) -> None:
    assert spare_classes(loss.form(M)) == 0


@pytest.mark.parametrize("loss", HINGES, ids=str)
@pytest.mark.parametrize("smoothing", [0.0, 0.4])
@pytest.mark.parametrize("where", ["in arrays", "tiled", "packed"])
def test_a_sweep_over_few_classes_finds_the_update_of_all_where_the_others_get_no_mass(
    loss, smoothing, where, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Row after row; where the update of all goes to classes that are left out, the rows differ."""
    if where == "tiled":
        monkeypatch.setattr(passes, "_LARGE_W", 0)
        monkeypatch.setattr(class_subset, "_FEW_OF_TILES", 0.6)
    # Windows of 15 rows, which lie in three pieces that are read.
    monkeypatch.setattr(ascent_rows, "_OPENED_BYTES", 2 * 15 * 8 * M)
    X, y, problem, block, work, feed = swept(
        loss, smoothing, ByteBudget(1 << 20) if where == "packed" else None
    )
    assert (work._tiles is None, feed.whole) == (where != "tiled", where != "packed")
    rows = np.arange(0, N, 3)
    before, W = work.duals.read((0, N))[1].copy(), work.W.T.copy()
    work.restrict_classes(feed, rows)
    few = work.lists
    assert work.restricted
    visited = work.visited
    order = np.concatenate([portion.rows for portion in feed.in_order(rows)])
    work.sweep(feed.in_order(rows))
    delta = work.duals.read((0, N))[1]
    sizes = np.diff(few.starts)
    assert work.visited - visited == pytest.approx(sizes.sum() / M)
    exact = 0
    for i in order:
        c = problem.scale * block.weights[i] * (X[i] @ X[i])
        q = X[i] @ W - c * before[i]
        alpha = column_updates(problem.form, q[None], y[i : i + 1], c + smoothing)[0]
        listed = few.classes[few.starts[few.place[i]] : few.starts[few.place[i] + 1]]
        others = np.setdiff1d(np.arange(M), listed)
        found = delta[i]
        assert not found[others].any()
        if not alpha[others].any():
            np.testing.assert_allclose(found, alpha, atol=1e-10)
            exact += 1
        # The next row starts from what was found.
        W += problem.scale * block.weights[i] * np.outer(X[i], found - before[i])
    assert exact > len(rows) // 2
    np.testing.assert_allclose(work.W.T, W, atol=1e-10)


def test_lists_that_a_time_limit_cuts_short_are_not_used() -> None:
    *_, work, feed = swept(MaxHinge())
    work._until = 0.0
    work.restrict_classes(feed, np.arange(N))
    assert (work.over, work.restricted) == (True, False)


@pytest.mark.parametrize("loss", HINGES, ids=str)
def test_a_projection_in_few_classes_is_that_of_a_problem_with_as_many(loss) -> None:
    """The nearest point of all classes may have mass everywhere, which later sweeps would not see."""
    _, _, _, _, work, feed = swept(loss)
    rows = np.arange(0, N, 3)
    work.restrict_classes(feed, rows)
    few = work.lists
    assert work.restricted
    rng = np.random.default_rng(4)
    Z = np.zeros((len(rows), M))
    lists = [few.classes[few.starts[few.place[i]] : few.starts[few.place[i] + 1]] for i in rows]
    for t, listed in enumerate(lists):
        Z[t, listed] = rng.standard_normal(len(listed))
    found = Z.copy()
    work.project(found, rows)
    for t, listed in enumerate(lists):
        alone = Z[t, listed][None].copy()
        project_rows(alone, np.zeros(1, np.int32), loss.form(len(listed)))
        np.testing.assert_allclose(found[t, listed], alone[0], atol=1e-12)
        assert not np.delete(found[t], listed).any()


@pytest.mark.parametrize("loss", HINGES, ids=str)
def test_rounds_of_many_sweeps_never_lower_the_dual(loss) -> None:
    """Extrapolation comes between sweeps over few classes; rows that can be told apart show it."""
    rng = np.random.default_rng(7)
    y = np.arange(300, dtype=np.int32) % M
    X = rng.standard_normal((M, 40))[y] + 0.5 * rng.standard_normal((300, 40))
    X[:, :13] = 1.0
    result = solve(X, y, loss=loss, lam=0.02 / len(y), tol=1e-3, method="dual_ascent", max_passes=200)
    duals = np.array([record.dual for record in result.history])
    assert (np.diff(duals) >= -1e-12 * duals[1:]).all()
    assert result.status is Status.SOLVED


@pytest.mark.parametrize("dual_bytes", [None, 100_000], ids=["arrays", "packed"])
def test_weights_that_threads_share_are_swept_in_few_classes_as_well(
    dual_bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    X, y = relu_features(600, 600, 120)
    assert is_tiled(120, 600, X.dtype)
    monkeypatch.setattr(class_subset, "_FEW_OF_TILES", 0.2)

    def solved(threads: int = 1):
        executor = SerialExecutor(threads=threads, dual_bytes=dual_bytes)
        return solve(X, y, TopKHinge(3), lam=0.1 / len(y), method="dual_ascent", executor=executor, m=120)

    few, shared = solved(), solved(threads=2)
    assert few.status is Status.SOLVED
    np.testing.assert_array_equal(few.W, shared.W)
    monkeypatch.setattr(class_subset, "spare_classes", lambda _: 0)
    every = solved()
    assert every.status is Status.SOLVED
    assert few.passes < every.passes
    # Both certificates allow a thousandth.
    assert few.primal == pytest.approx(every.primal, rel=2e-3)
