"""Which rows and classes a sweep visits, in which order and on how many threads."""

from __future__ import annotations

import numpy as np
import pytest

from tests.benchmarks.datasets import relu_features
from tests.benchmarks.scale.gap_curve import features
from tests.reference.envelopes import column_updates
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
from topline.solvers.blocks.ascent import passes
from topline.solvers.blocks.ascent import rows as ascent_rows
from topline.solvers.blocks.ascent.dual_changes import project_rows
from topline.solvers.blocks.ascent.passes import (
    AscentPass,
    choose_classes,
    count_classes,
    is_tiled,
    room_for_lists,
    spare_classes,
)
from topline.solvers.blocks.ascent.rounds import BlockAscent
from topline.solvers.blocks.ascent.rows import DualWindow, RowFeed
from topline.solvers.blocks.ascent.shared_tiles import _RETRY, ThreadChoice
from topline.solvers.blocks.block import Block, RunSpec
from topline.solvers.core import rows
from topline.solvers.core.dual_rows import ByteBudget, PackedStore
from topline.solvers.core.problem import Problem
from topline.solvers.losses import OneVsAll
from topline.solvers.operations import Ascend

N, D, M = 60, 5, 30
LAM_N = 0.5
HINGES = [MaxHinge(), TopKHinge(3), TopKOthersHinge(2), UsunierHinge(2)]


def swept(loss, smoothing: float = 0.0, budget: ByteBudget | None = None):
    """A block after some sweeps over all rows from A = 0, whose dual rows are packed under a budget."""
    rng = np.random.default_rng(0)
    X, y = rng.standard_normal((N, D)), rng.integers(M, size=N).astype(np.int32)
    problem = Problem(loss, N, D, M, LAM_N / N, smoothing)
    block = BlockAscent(Block(RunSpec(problem, X, y, rng.uniform(0.5, 2.0, N))))
    A, delta = (
        np.zeros((N, M)) if budget is None else PackedStore([0, 25, N], M, np.dtype(np.float64), budget)
        for _ in range(2)
    )
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
        A = np.tile(np.arange(M) < with_mass, (N, 1)).astype(np.float64)
        return room_for_lists(np.arange(N), block, DualWindow(A, np.zeros_like(A)), tiled=tiled)

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
        monkeypatch.setattr(passes, "_FEW_OF_TILES", 0.6)
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
    monkeypatch.setattr(passes, "_FEW_OF_TILES", 0.2)

    def solved(threads: int = 1):
        executor = SerialExecutor(threads=threads, dual_bytes=dual_bytes)
        return solve(X, y, TopKHinge(3), lam=0.1 / len(y), method="dual_ascent", executor=executor, m=120)

    few, shared = solved(), solved(threads=2)
    assert few.status is Status.SOLVED
    np.testing.assert_array_equal(few.W, shared.W)
    monkeypatch.setattr(passes, "spare_classes", lambda _: 0)
    every = solved()
    assert every.status is Status.SOLVED
    assert few.passes < every.passes
    # Both certificates allow a thousandth.
    assert few.primal == pytest.approx(every.primal, rel=2e-3)


def test_slabs_are_visited_in_turns_with_others_in_every_sweep(monkeypatch) -> None:
    n, window = 12 * 512, 512
    monkeypatch.setattr(ascent_rows, "_PART_ROWS", 64)
    monkeypatch.setattr(ascent_rows, "_OPENED_BYTES", 2 * window * 4 * 3)
    feed = RowFeed(np.ones((n, 8), dtype=np.float32), np.dtype(np.float32), opened=3)
    random, together = np.random.default_rng(0), []
    for _ in range(2):
        portions = list(feed.shuffled(np.arange(n), random))
        assert np.array_equal(np.sort(np.concatenate([portion.rows for portion in portions])), np.arange(n))
        assert all(np.array_equal(portion.places + portion.slab[0], portion.rows) for portion in portions)
        assert {len(portion.rows) for portion in portions} == {window // 8}
        # A slab that is done is replaced; the first and the last ones have fewer beside them.
        turns = [{portion.slab for portion in portions[i : i + 5]} for i in range(6, len(portions) - 14)]
        assert all(len(turn) in (3, 4) for turn in turns)
        together.append({frozenset(turn) for turn in turns})
    assert together[0] != together[1]


def test_the_next_slab_is_asked_for_after_parts_of_the_others(monkeypatch) -> None:
    """So that there is time to read it: three at once would come one after the other."""
    n, window = 12 * 512, 512
    monkeypatch.setattr(ascent_rows, "_PART_ROWS", 64)
    monkeypatch.setattr(ascent_rows, "_OPENED_BYTES", 2 * window * 4 * 3)
    asked: list[int] = []
    visited = 0

    def told(*given):
        for slab in read_slabs(*given):
            asked.append(visited)
            yield slab

    read_slabs = ascent_rows.read_slabs
    monkeypatch.setattr(ascent_rows, "read_slabs", told)
    feed = RowFeed(np.ones((n, 8), dtype=np.float32), np.dtype(np.float32), opened=3)
    for _ in feed.shuffled(np.arange(n), np.random.default_rng(0)):
        visited += 1
    assert (len(asked), asked[0], visited) == (12, 0, 12 * 8)
    assert min(np.diff(asked)) >= 2
    # Three at a time: the last one is asked for when the parts of nine have been visited.
    assert asked[-1] >= 9 * 8


def test_no_rows_are_no_portions() -> None:
    feed = RowFeed(np.ones((5, 8), dtype=np.float32), np.dtype(np.float32), opened=3)
    assert not list(feed.shuffled(np.arange(0), np.random.default_rng(0)))


def test_blocks_without_rows_that_count_are_swept() -> None:
    X, y = features(60, 128, 20)
    weights = np.repeat([1.0, 0.0], 30)
    with SerialExecutor(blocks=2, dual_bytes=100) as executor:
        packed = solve(X, y, TopKHinge(3), 0.1, executor=executor, sample_weight=weights, m=20)
    whole = solve(X, y, TopKHinge(3), 0.1, sample_weight=weights, m=20)
    assert packed.status is whole.status is Status.SOLVED
    assert abs(packed.primal - whole.primal) <= 2e-3 * whole.primal


def test_packed_dual_variables_cost_few_passes_where_rows_share_a_direction(monkeypatch) -> None:
    """Slabs that were visited one after the other took three times as many."""
    X, y = features(6_000, 128, 30)
    monkeypatch.setattr(ascent_rows, "_OPENED_BYTES", 2 * 2_048 * 4 * 30)
    monkeypatch.setattr(ascent_rows, "_PART_ROWS", 256)
    passes = []
    for dual_bytes in (None, 100_000):
        with SerialExecutor(dual_bytes=dual_bytes) as executor:
            result = solve(X, y, TopKHinge(5), 1 / len(y), executor=executor, method="dual_ascent")
        passes.append(result.passes)
    assert passes[1] <= 1.5 * passes[0]


def test_rows_that_are_read_cost_few_passes_as_well(monkeypatch, tmp_path) -> None:
    X, y = features(6_000, 128, 30)
    np.save(tmp_path / "X.npy", X)
    monkeypatch.setattr(rows, "_SLAB_BYTES", X.nbytes // 4)
    monkeypatch.setattr(ascent_rows, "_HELD_BYTES", 0)
    monkeypatch.setattr(ascent_rows, "_PART_ROWS", 128)
    passes = [
        solve(source, y, TopKHinge(5), 1 / len(y), method="dual_ascent").passes
        for source in (X, np.load(tmp_path / "X.npy", mmap_mode="r"))
    ]
    assert passes[1] <= 1.5 * passes[0]


@pytest.mark.parametrize(("two", "one", "taken"), [(1.0, 1.6, 2), (1.6, 1.0, 1)])
def test_both_are_tried_and_the_faster_is_taken(two: float, one: float, taken: int) -> None:
    choice, seconds, chosen = ThreadChoice(), {2: two, 1: one}, []
    for _ in range(3 + _RETRY):
        chosen.append(choice.of(2))
        choice.note(chosen[-1], seconds[chosen[-1]])
    again = chosen.index(3 - taken, 2)
    assert chosen[:2] == [2, 1]
    assert chosen[2:again] == [taken] * (again - 2)
    assert _RETRY <= again <= _RETRY + 2


def test_one_thread_is_all_there_is() -> None:
    assert ThreadChoice().of(1) == 1
