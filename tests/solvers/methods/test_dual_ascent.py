"""Dual block ascent: the optimum of a general solver, exact sums, and one answer for every arrangement."""

from __future__ import annotations

import tracemalloc
from itertools import pairwise

import numpy as np
import pytest
from scipy import sparse

from tests.reference import losses as reference
from tests.reference.envelopes import column_updates
from tests.solvers.problems import M, examples, loss_name
from topline import (
    MaxHinge,
    OneVsAll,
    PolyhedralTopK,
    SerialExecutor,
    Softmax,
    Status,
    StoppingCriteria,
    TopKEntropy,
    TopKHinge,
    TopKOthersHinge,
    UsunierHinge,
    solve,
)
from topline.solvers.blocks.ascent import rows as ascent_rows
from topline.solvers.blocks.ascent.rounds import BlockAscent
from topline.solvers.blocks.block import Block, RunSpec
from topline.solvers.core import rows
from topline.solvers.core.problem import Problem
from topline.solvers.core.rows import RowRange
from topline.solvers.crew import ALONE
from topline.solvers.methods import dual_ascent
from topline.solvers.methods.shared_work import MORE, SharedWork, fastest
from topline.solvers.operations import Ascend
from topline.solvers.run.loop import iterate


def run(X, y, loss, lam_n, smoothing=0.0, **options):
    options = {"method": "dual_ascent", "tol": 1e-6, "max_passes": 3000, "m": M, **options}
    return solve(X, y, loss, lam_n / len(y), smoothing, **options)


def test_the_step_is_the_best_point_of_the_segment(monkeypatch) -> None:
    """Careless blocks overshoot together; what the line search makes of it is checked on a grid of D."""
    monkeypatch.setattr(dual_ascent, "_SAFETY_POWER", 0.0)
    X, y = examples()
    lam, loss = 0.3 / len(y), TopKHinge(3)
    seen = []

    class Watched(SerialExecutor):
        """Notes every step that was taken, and A after it."""

        def run(self, operation):
            if isinstance(operation, Ascend) and operation.pending_step is not None:
                A = np.concatenate([rows.copy() for _, _, rows in self.duals(operation.pending_step)])
                seen.append((operation.pending_step.step, A))
            return super().run(operation)

    run(X, y, loss, 0.3, tol=1e-9, max_passes=12, executor=Watched(blocks=20))
    before = np.zeros_like(seen[0][1])
    inner_steps = 0
    for step, after in seen:
        if 0.0 < step < 1.0:
            inner_steps += 1
            values = [
                reference.dual(X, y, loss, lam, 0.0, before + factor * (after - before))
                for factor in (0.99, 1.0, 1.01)
            ]
            assert values[1] >= max(values) - 1e-13
        before = after
    assert inner_steps


def test_rows_that_count_for_nothing_take_no_turns() -> None:
    """What is held out costs several blocks no request: the run is that of the other rows, but for orders."""
    moving = []

    class Watched(SerialExecutor):
        def run(self, operation):
            answer = super().run(operation)
            if isinstance(operation, Ascend) and operation.turn.ends_sweep:
                moving.append(answer.moving)
            return answer

    X, y = examples(n=400)
    counts = np.where(np.arange(400) % 2 == 0, 1.0, 0.0)
    run(X, y, MaxHinge(), 1.0, sample_weight=counts, tol=1e-4, executor=Watched(blocks=4))
    assert moving
    assert max(moving) <= counts.sum()


def test_a_round_of_several_blocks_ends_with_the_time_of_the_run() -> None:
    now, asked = [0.0], []

    class Slow(SerialExecutor):
        def run(self, operation):
            if isinstance(operation, Ascend):
                asked.append(operation.turn.part)
                now[0] += 1.0
            return super().run(operation)

    X, y = examples(n=400)
    problem = Problem(MaxHinge(), len(y), X.shape[1], M, 1.0 / len(y))
    with Slow(blocks=4) as executor:
        executor.bind(problem, X, y.astype(np.int32), keep_duals=True)
        criteria = StoppingCriteria(1e-9, 100, time_limit=3.5)
        method = dual_ascent.DualAscent(4)
        ended = iterate(problem, executor, method, criteria, clock=lambda: now[0])
    assert ended.status is Status.TIME_LIMIT
    # The last one finds that there is no time.
    assert asked == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("method", ["dual_ascent", "sdca"])
def test_a_run_that_goes_on_in_one_block_measures_its_own_weights(method) -> None:
    """Not the mean that several blocks left: P of a round is at most that of the W it began with."""
    X, y = examples()
    options = {"method": method, "tol": 1e-4}
    short = {**options, "callbacks": [lambda record, _: record.round < 2]}
    first = run(X, y, TopKHinge(3), 0.3, executor=SerialExecutor(blocks=7), **short)
    seen, duals = [], [(0, len(y), first.A)]
    options["callbacks"] = [lambda record, state: seen.append((record.primal, state.W))]
    rest = run(X, y, TopKHinge(3), 0.3, executor=SerialExecutor(), state=first.state, duals=duals, **options)
    assert rest.status is Status.SOLVED
    assert len(seen) > 2
    for (_, W), (primal, _) in pairwise(seen[:-1]):
        at_W = reference.primal(X, y, TopKHinge(3), 0.3 / len(y), 0.0, W)
        assert primal <= at_W * (1.0 + 1e-9)


def test_the_seed_fixes_the_run_and_no_seed_changes_the_answer() -> None:
    X, y = examples(n=600)
    first, again, other = (run(X, y, MaxHinge(), 1.0, tol=1e-4, seed=seed) for seed in (1, 1, 2))
    np.testing.assert_array_equal(first.A, again.A)
    assert not np.array_equal(first.A, other.A)
    assert first.primal == pytest.approx(other.primal, rel=2e-4)


@pytest.mark.parametrize("slab_rows", [40, 400])
@pytest.mark.parametrize("held_bytes", [0, 1 << 21])
def test_sparse_features_and_features_read_from_disk_reach_the_same_optimum(
    tmp_path, slab_rows, held_bytes, monkeypatch
) -> None:
    """In one read or several, with the rows that still move held in memory or read again."""
    monkeypatch.setattr(rows, "_SLAB_BYTES", slab_rows * 30 * 4)
    monkeypatch.setattr(ascent_rows, "_GATHERED_ROWS", 20)
    monkeypatch.setattr(ascent_rows, "_HELD_BYTES", held_bytes)
    X, y = examples(n=400, d=30)
    X = np.where(np.abs(X) > 0.8, X, 0.0).astype(np.float32)
    np.save(tmp_path / "X.npy", X)
    dense = run(X, y, TopKHinge(2), 1.0, tol=1e-4)
    csr = run(sparse.csr_matrix(X), y, TopKHinge(2), 1.0, tol=1e-4)
    mapped = run(np.load(tmp_path / "X.npy", mmap_mode="r"), y, TopKHinge(2), 1.0, tol=1e-4)
    for result in (dense, csr, mapped):
        assert result.status is Status.SOLVED
        assert result.primal == pytest.approx(dense.primal, rel=2e-4)


@pytest.mark.parametrize("smoothing", [0.5, 5.0])
def test_single_precision_features_get_as_far_as_double_precision(smoothing) -> None:
    """A begins in float32; what rounding left outside the domain must neither stall nor deceive the run.

    With much smoothing the float32 gap falls below zero before the true one is small enough: the run goes on
    from there instead of measuring the same iterate for ever.
    """
    X, y = examples(n=300, d=8, spread=2.0)

    def no_more(record, _) -> None:
        assert record.passes < 3000

    result = run(X.astype(np.float32), y, TopKHinge(2), 1.0, smoothing, tol=1e-8, callbacks=[no_more])
    assert result.status is Status.SOLVED
    assert result.A.dtype == np.float64
    np.testing.assert_allclose(result.A.sum(axis=1), 0.0, atol=1e-14)
    own = result.A[np.arange(len(y)), y]
    assert own.max() <= 1.0 + 1e-14
    assert -result.A.min() <= 0.5 + 1e-14


@pytest.mark.parametrize("loss", [UsunierHinge(3), PolyhedralTopK(2)], ids=loss_name)
def test_duals_that_are_tiny_keep_their_digits(loss) -> None:
    """Features of 1e4 with C = 1e6: the alphas are about 1e-15, far below the margins."""
    X = (1e4 * np.random.default_rng(0).standard_normal((1, 3))).astype(np.float32)
    result = run(X, np.array([1]), loss, 1e-6, m=5)
    assert result.status is Status.SOLVED


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_features_in_memory_are_not_copied_whole(dtype) -> None:
    """float64 products, and float16 features, are a matter of one tile at a time."""
    X = np.zeros((60_000, 50), dtype=dtype)
    y = (np.arange(len(X)) % 2).astype(np.int32)
    block = Block(RunSpec(Problem(MaxHinge(), *X.shape, 2, 1.0), X, y, keep_duals=True))
    request = Ascend(round=0, W=np.zeros((50, 2)), exact=dtype == np.float32)
    request.answer(block, ALONE)
    tracemalloc.start()
    try:
        request.answer(block, ALONE)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 0.75 * X.size * 4


def test_the_weights_of_several_blocks_stay_those_of_their_duals() -> None:
    """In float32 the change of W in a part is the way that W went: it must be that of A."""
    random = np.random.default_rng(3)
    X = np.maximum(random.normal(size=(600, 80)), 0.0).astype(np.float32)
    y, executor = random.integers(0, 60, len(X)), SerialExecutor(blocks=3)
    X[np.arange(len(X)), y] += 2.0
    apart = []

    def compare(_, state) -> None:
        A = np.concatenate([rows for _, _, rows in executor.duals(state.pending_step)])
        W = X.astype(np.float64).T @ A.astype(np.float64)
        apart.append(np.linalg.norm(state.W - W) / max(np.linalg.norm(W), 1e-300))

    with executor:
        solve(
            X, y, TopKHinge(3), 1.0 / len(X), method="dual_ascent", tol=1e-6, max_passes=12,
            executor=executor, callbacks=[compare],
        )  # fmt: skip
    assert len(apart) > 1
    assert max(apart) < 1e-5


def test_it_needs_far_fewer_passes_than_frank_wolfe() -> None:
    X, y = examples(n=300, d=40, spread=3.0)
    ascent = run(X, y, TopKHinge(2), 1.0, tol=1e-3)
    frank_wolfe = run(X, y, TopKHinge(2), 1.0, tol=1e-3, method="fw", max_passes=20 * ascent.passes)
    assert ascent.status is Status.SOLVED
    assert frank_wolfe.status is Status.MAX_PASSES


@pytest.mark.parametrize("blocks", [2, 8])
def test_several_blocks_need_hardly_more_passes_than_one(blocks: int) -> None:
    """Where features are correlated, rows that hardly moved must be swept again with those that did."""
    random = np.random.default_rng(0)
    centres, y = random.normal(size=(10, 20)), random.integers(10, size=600)
    X = (centres[y] + 2.0 * random.normal(size=(600, 20))) @ random.normal(size=(20, 20))
    X = ((X - X.mean(axis=0)) / X.std(axis=0)).astype(np.float32)
    alone = run(X, y, MaxHinge(), 1.0, tol=1e-3, m=10)
    shared = run(X, y, MaxHinge(), 1.0, tol=1e-3, m=10, executor=SerialExecutor(blocks=blocks))
    assert alone.status is shared.status is Status.SOLVED
    assert shared.passes <= 1.5 * alone.passes


def test_no_part_of_a_round_is_without_rows(monkeypatch) -> None:
    """Packed dual rows are opened slab by slab, of which a block has fewer than there may be parts."""
    X, y = examples(n=600, d=3)
    monkeypatch.setattr(ascent_rows, "_OPENED_BYTES", 1 << 12)
    visited, executor = [], SerialExecutor(blocks=2, dual_bytes=2000)
    genuine = executor.run

    def noted(operation):
        answer = genuine(operation)
        if isinstance(operation, Ascend):
            visited.append(answer.visited)
        return answer

    monkeypatch.setattr(executor, "run", noted)
    result = run(X, y, TopKHinge(2), 1.0, tol=1e-3, executor=executor)
    assert result.status is Status.SOLVED
    # A sweep of a single share needs one more part to end.
    assert visited.count(0) < 0.05 * len(visited)


@pytest.mark.parametrize(("blocks", "work", "exchange"), [(2, 1.0, 0.02), (8, 0.1, 0.002), (32, 5.0, 1e-4)])
def test_the_number_of_parts_is_that_of_the_least_time(blocks: int, work: float, exchange: float) -> None:
    def seconds(parts: int) -> float:
        return (1.0 + MORE * (blocks - 1) / parts) * (work / blocks + parts * exchange)

    shared = SharedWork(blocks, work, exchange)
    assert seconds(shared.parts) <= 1.01 * min(map(seconds, range(1, 65)))
    assert shared.seconds == pytest.approx(seconds(shared.parts))
    assert SharedWork(blocks, work).parts == 64
    alone = SharedWork(1, work)
    assert fastest(alone, SharedWork(blocks, work, 1e-9)).blocks == blocks
    assert fastest(alone, SharedWork(blocks, work, work)).blocks == 1


LOSSES = [MaxHinge(), TopKHinge(3), TopKOthersHinge(2), UsunierHinge(2), OneVsAll("hinge")]
SMOOTH = [Softmax(), TopKEntropy(2), OneVsAll("logistic")]


def one_pass(problem, X, y, weights, W, B, order, safety_factor):
    """Give W and the dual rows after a pass, line by line as in the thesis."""
    W, B = W.copy(), B.copy()
    scale = problem.scale * safety_factor
    for i in order:
        own = scale * weights[i] * X[i] @ X[i]
        q = X[i] @ W - own * B[i]
        c, c_own = own + problem.smoothing, own + problem.smoothing_own
        row = column_updates(problem.form, q[None], y[i : i + 1], c, c_own=c_own)[0]
        W += scale * weights[i] * np.outer(X[i], row - B[i])
        B[i] = row
    return W, B


@pytest.mark.parametrize(
    ("loss", "smoothing", "kind"),
    [(loss, 0.0, "moreau") for loss in LOSSES + SMOOTH]
    + [(loss, 0.7, "moreau") for loss in LOSSES]
    + [(loss, 0.7, "others") for loss in LOSSES[:4]],
    ids=lambda value: getattr(value, "name", str(value)),
)
@pytest.mark.parametrize("make", [np.asarray, sparse.csr_array])
@pytest.mark.covering(2)
def test_a_pass_is_the_algorithm_written_out(loss, smoothing, kind, make) -> None:
    X, y = examples(n=40)
    X[3] = 0.0
    random = np.random.default_rng(1)
    weights = random.uniform(0.0, 3.0, len(y))
    weights[5] = 0.0
    problem = Problem(loss, *X.shape, M, 0.3 / len(y), smoothing, kind)
    A = column_updates(problem.form, random.standard_normal((len(y), M)), y, 2.0)
    W = X.T @ (weights[:, None] * A) * problem.scale
    change = np.zeros_like(A)
    block = BlockAscent(Block(RunSpec(problem, RowRange(make(X), 0, len(y)), y, weights), 7))
    stats = block.run(Ascend(round=4, W=W, safety_factor=1.5, seed=2), A.copy(), change)
    random = np.random.default_rng((2, 4, 7))
    # What counts for nothing is left alone.
    visits = random.permutation(np.flatnonzero(weights))
    end, B = one_pass(problem, X, y, weights, W, A, visits, 1.5)
    assert np.abs(B - A).max() > 0.1
    assert not change[5].any()
    np.testing.assert_allclose(A + change, B, atol=1e-11)
    np.testing.assert_allclose(W + 1.5 * problem.scale * stats.product, end, atol=1e-11)
