"""The executors of this process, and what they have in common with any other: cuts, trees, orders."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator

import numpy as np
import pytest

from tests.contracts.executor_contract import BOUNDS, ExecutorContract
from tests.solvers.problems import Forgetful, M, examples
from topline import (
    InvalidProblemError,
    MaxHinge,
    NonFiniteError,
    SerialExecutor,
    ThreadExecutor,
    TopKHinge,
    solve,
)
from topline.solvers.blocks.block import Block, RunSpec
from topline.solvers.core.answers import TreeMerger, VectorSums, tree_total
from topline.solvers.core.dual_points import PendingStep
from topline.solvers.core.problem import Problem
from topline.solvers.core.state import SolverState, Status
from topline.solvers.crew import ALONE
from topline.solvers.errors import StateLostError
from topline.solvers.executors import Executor, block_bounds
from topline.solvers.methods import METHODS
from topline.solvers.operations import FindVertices


def tree_merge(parts, blocks):
    """Merge as far as the given parts reach, as a worker does with the blocks that it holds."""
    merger = TreeMerger(blocks)
    for node, stats in parts:
        merger.add(node, stats)
    return merger.parts()


class TestSerialExecutor(ExecutorContract):
    @pytest.fixture
    def executor(self) -> Iterator[Executor]:
        with SerialExecutor(bounds=BOUNDS) as executor:
            yield executor


class TestThreadExecutor(ExecutorContract):
    @pytest.fixture
    def executor(self) -> Iterator[Executor]:
        with ThreadExecutor(3, bounds=BOUNDS) as executor:
            yield executor


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("smoothing", [0.0, 0.5])
@pytest.mark.parametrize("method", [name for name in METHODS if name.startswith(("fw", "projected"))])
@pytest.mark.covering(1)
def test_the_objective_does_not_depend_on_the_blocks(method, smoothing, dtype) -> None:
    """1, 2, 7 and n blocks: float32 scores may differ in the last bit, so a vertex may at a tie."""
    X, y = examples(n=90, d=6)
    X = X.astype(dtype)
    options = {"method": method, "tol": 1e-9, "max_passes": 30, "m": M}
    whole = solve(X, y, TopKHinge(2), 0.05, smoothing, executor=SerialExecutor(), **options)
    for blocks in (2, 7, 90):
        cut = solve(X, y, TopKHinge(2), 0.05, smoothing, executor=SerialExecutor(blocks=blocks), **options)
        assert cut.passes == whole.passes
        assert cut.primal == pytest.approx(whole.primal, rel=1e-6)
        assert cut.dual == pytest.approx(whole.dual, rel=1e-9 if dtype == np.float64 else 1e-6)


@pytest.mark.parametrize("blocks", [2, 7, 20])
@pytest.mark.parametrize("smoothing", [0.0, 0.5])
@pytest.mark.parametrize("method", ["dual_ascent", "sdca"])
@pytest.mark.covering(2)
def test_the_dual_never_falls_for_any_number_of_blocks(method, smoothing, blocks) -> None:
    X, y = examples()
    executor = SerialExecutor(blocks=blocks)
    result = solve(
        X, y, TopKHinge(3), 0.005, smoothing, method, tol=1e-3, max_passes=3000, m=M, executor=executor
    )
    duals = np.array([record.dual for record in result.history])
    assert result.status is Status.SOLVED
    assert np.diff(duals).min() > -1e-12 * duals.max()


def test_after_an_error_no_thread_goes_on() -> None:
    """Whoever catches an error reads duals that nobody changes any more."""
    X, y = examples(n=64)
    X[5] = np.nan
    with ThreadExecutor(2, blocks=64) as executor:
        executor.bind(Problem(MaxHinge(), *X.shape, M, 0.1), X, y, keep_duals=True)
        with pytest.raises(NonFiniteError):
            executor.run(FindVertices(0, np.zeros((X.shape[1], M))))
        executor.close()
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("topline-block")]


def test_rows_are_cut_as_asked() -> None:
    assert block_bounds(10, 3) == (0, 3, 6, 10)
    assert block_bounds(4, bounds=[0, 1, 4]) == (0, 1, 4)
    for wrong in ([0, 4, 4], [1, 4], [0, 3], [0], [0, 3, 2, 4]):
        with pytest.raises(InvalidProblemError, match="block bounds must rise from 0 to 4"):
            block_bounds(4, bounds=wrong)
    for blocks in (0, 11):
        with pytest.raises(InvalidProblemError, match=f"cannot be cut into {blocks} blocks"):
            block_bounds(10, blocks)
    with pytest.raises(InvalidProblemError, match="workers is 0"):
        ThreadExecutor(0)


def numbers(blocks):
    """Sums whose floating-point sum depends on the order of addition."""
    draw = np.random.default_rng(blocks)
    return [
        VectorSums(rows=1, loss=float(10.0 ** draw.integers(-12, 12)), product=draw.standard_normal((2, 3)))
        for _ in range(blocks)
    ]


@pytest.mark.parametrize("blocks", [1, 2, 3, 5, 8, 13, 31])
def test_the_tree_adds_the_same_bits_in_every_order_and_on_every_worker(blocks) -> None:
    stats = numbers(blocks)
    leaves = [((0, i), part) for i, part in enumerate(stats)]
    expected = tree_total(leaves, blocks)
    assert expected.rows == blocks
    assert expected.loss == pytest.approx(sum(part.loss for part in stats), rel=1e-12)
    shuffler = random.Random(0)
    for workers in (1, 2, 3, 7):
        shuffler.shuffle(leaves)
        parts = [part for w in range(workers) for part in tree_merge(leaves[w::workers], blocks)]
        total = tree_total(parts, blocks)
        assert total.loss == expected.loss
        np.testing.assert_array_equal(total.product, expected.product)


def test_an_aligned_run_of_blocks_becomes_one_part() -> None:
    stats = numbers(16)
    parts = tree_merge([((0, i), stats[i]) for i in range(4, 8)], 16)
    assert [node for node, _ in parts] == [(2, 1)]


def test_a_missing_block_is_noticed() -> None:
    stats = numbers(6)
    with pytest.raises(StateLostError, match="6 blocks is not complete"):
        tree_total([((0, i), stats[i]) for i in range(5)], 6)


def test_a_run_in_order_holds_few_parts() -> None:
    merger, stats, most = TreeMerger(64), numbers(64), 0
    for i in range(64):
        merger.add((0, i), stats[i])
        most = max(most, len(merger.parts()))
    assert most <= 7


def test_a_block_names_the_rows_of_the_whole_problem() -> None:
    X, y = examples(n=40)
    X[[7, 23], 1] = np.inf
    block = Block(RunSpec(Problem(MaxHinge(), 500, 4, M, 0.1), X, y, first=100), 2)
    with pytest.raises(NonFiniteError, match="rows 107, 123 hold NaN or infinity"):
        FindVertices(0, np.zeros((4, M))).answer(block, ALONE)


def test_a_block_without_duals_says_so() -> None:
    X, y = examples(n=40)
    block = Block(RunSpec(Problem(MaxHinge(), 40, 4, M, 0.1), X, y))
    with pytest.raises(StateLostError, match="keeps no dual variables"):
        block.dual_rows(PendingStep(0, 1.0))
    with pytest.raises(StateLostError, match="keeps no dual variables"):
        block.load_duals(0, np.zeros((40, M)))


@pytest.mark.parametrize("at_request", [1, 6, 7])
@pytest.mark.parametrize(
    ("method", "smoothing"),
    [
        ("dual_ascent", 0.0),
        ("dual_ascent", 0.5),
        ("sdca", 0.5),
        ("fw", 0.5),
        ("fw_pairwise_columns", 0.0),
        ("lbfgs", 0.5),
    ],
)
@pytest.mark.sampled(8)
def test_a_run_goes_on_to_the_same_answer(method: str, smoothing: float, at_request: int) -> None:
    X, y = examples(n=80)
    options = {"method": method, "tol": 1e-3, "max_passes": 5000, "keep_duals": True, "m": M}
    expected = solve(X, y, TopKHinge(2), 0.05, smoothing, executor=SerialExecutor(blocks=4), **options)
    with Forgetful(at_request, blocks=4) as executor:
        result = solve(X, y, TopKHinge(2), 0.05, smoothing, executor=executor, **options)
        assert executor.requests > at_request
    assert result.status is expected.status is Status.SOLVED
    assert result.primal == pytest.approx(expected.primal, rel=2e-3)
    assert [record.round for record in result.history] == list(range(len(result.history)))


def test_settled_blocks_have_the_step_however_far_they_had_come() -> None:
    contract, pending_step = ExecutorContract(), PendingStep(0, 0.5)
    with SerialExecutor(bounds=BOUNDS) as plain, SerialExecutor(bounds=BOUNDS) as settled:
        for executor in (contract.bound(plain), contract.bound(settled)):
            executor.run(FindVertices(0, contract.weights(0)))
        request = FindVertices(1, contract.weights(1), pending_step)
        settled._held[2].run(request, 1)
        for block in settled._held:
            block.finish_step(pending_step)
            block.finish_step(pending_step)
        expected = contract.all_duals(plain, pending_step)
        assert np.abs(expected).max() > 0
        np.testing.assert_array_equal(contract.all_duals(settled), expected)
        contract.assert_same(settled.run(request), plain.run(request))


@pytest.mark.parametrize("at_request", range(2, 9))
def test_W_stays_that_of_the_dual_variables_wherever_a_round_was_cut(at_request: int) -> None:
    """A round of several blocks is begun again with steps of the same numbers as before."""
    X, y = examples(n=80)
    with Forgetful(at_request, blocks=4) as executor:

        def check(_: object, state: SolverState) -> None:
            A = np.concatenate([rows for _, _, rows in executor.duals(state.pending_step)])
            np.testing.assert_allclose(state.W, X.T @ A / (0.05 * len(y)), atol=1e-9)

        options = {"method": "dual_ascent", "tol": 1e-6, "m": M, "executor": executor}
        solve(X, y, TopKHinge(2), 0.05, callbacks=[check], **options)
        assert executor.requests > at_request
