"""What goes to workers and comes back: weights sent once, sums merged in a tree, blocks that change hands."""

from __future__ import annotations

import itertools
import pickle
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from distributed import Client

from tests.pipeline.small_data import make_features
from topline.pipeline.cluster import DaskExecutor, open_cluster, worker_blocks
from topline.pipeline.cluster.calls import ROOTS, Call, by_tree, this_worker
from topline.pipeline.cluster.messages import Span, Sums, WorkerCost
from topline.pipeline.cluster.placement import BlockPlacement, Bound
from topline.pipeline.cluster.sent_weights import WeightsReceiver, WeightsSender
from topline.pipeline.options.train import ClusterConfig
from topline.solvers.core.answers import TreeMerger, VectorSums, tree_total
from topline.solvers.core.problem import Problem
from topline.solvers.core.state import SolveResult
from topline.solvers.errors import StateLostError
from topline.solvers.executors import Executor, SerialExecutor
from topline.solvers.losses import TopKHinge
from topline.solvers.operations import (
    Ascend,
    Evaluate,
    FindLargestLosses,
    FindVertices,
    MultiplyCurvature,
    Rebuild,
    RunSpec,
)
from topline.solvers.run import solve

FLOAT32 = np.dtype(np.float32)
LARGE = np.random.default_rng(0).standard_normal((100, 100))
SMALL = LARGE[:10, :10].copy()


@pytest.mark.parametrize(
    "request_",
    [
        Evaluate(LARGE, exact=False),
        Evaluate(LARGE, exact=True),
        Ascend(3, LARGE, sweeps=2, apart=np.ones(100)),
        Ascend(3, SMALL),
        FindVertices(1, SMALL, envelope=True),
        MultiplyCurvature(2, LARGE, V=-LARGE, last_step=0.5),
        FindLargestLosses(LARGE, most=3),
        Rebuild(),
    ],
    ids=lambda request: f"{type(request).__name__}-{getattr(request, 'exact', '')}",
)
def test_what_arrives_is_what_the_blocks_would_multiply_with(request_) -> None:
    sender, receiver = WeightsSender(FLOAT32), WeightsReceiver()
    arrived = receiver.received(pickle.loads(pickle.dumps(sender.message(request_, epoch=1))))
    assert type(arrived) is type(request_)
    for name in (field.name for field in fields(request_)):
        before, after = getattr(request_, name), getattr(arrived, name)
        if isinstance(before, np.ndarray):
            narrow = name in ("W", "V") and before.size > SMALL.size and not request_.exact
            dtype = FLOAT32 if narrow else np.dtype(np.float64)
            assert np.array_equal(np.asarray(after, dtype), np.asarray(before, dtype))
        else:
            assert after == before


def test_the_same_weights_go_once_an_epoch_and_once_in_each_type() -> None:
    sender, receiver = WeightsSender(FLOAT32), WeightsReceiver()
    for request, epoch, goes in (
        (Evaluate(LARGE, exact=False), 1, True),
        (Ascend(0, LARGE), 1, False),
        (Ascend(1, LARGE, exact=True), 1, True),
        (Evaluate(LARGE, exact=True), 1, False),
        (Evaluate(LARGE.copy(), exact=True), 1, True),
        (Rebuild(), 1, False),
        (Evaluate(LARGE, exact=False), 1, True),
        (Ascend(0, LARGE), 2, True),
    ):
        message = sender.message(request, epoch)
        assert ("W" in message.weights) == goes
        arrived = receiver.received(message)
        if isinstance(request, Evaluate | Ascend):
            assert np.array_equal(arrived.W.astype(np.float32), LARGE.astype(np.float32))
        sender.answered(request, epoch)


def test_weights_whose_request_got_no_answer_go_again() -> None:
    sender = WeightsSender(FLOAT32)
    assert "W" in sender.message(Evaluate(LARGE), 1).weights
    assert "W" in sender.message(Evaluate(LARGE), 1).weights
    sender.answered(Evaluate(LARGE), 1)
    message = sender.message(Ascend(0, LARGE, exact=True), 1)
    with pytest.raises(StateLostError, match="not here"):
        WeightsReceiver().received(message)


def test_weights_of_before_go_again_once_others_were_sent_and_not_answered_by_all() -> None:
    sender, first = WeightsSender(FLOAT32), Evaluate(LARGE)
    sender.message(first, 1)
    sender.answered(first, 1)
    assert "W" not in sender.message(first, 1).weights
    assert "W" in sender.message(Evaluate(-LARGE), 1).weights
    assert "W" in sender.message(first, 1).weights


@pytest.mark.parametrize("method", ["dual_ascent", "fw", "newton"])
def test_workers_give_what_one_process_gives_with_large_weights(threads: Client, method: str) -> None:
    X, y = make_features(400, 300, 40)

    def run(executor: Executor) -> SolveResult:
        with executor:
            return solve(
                X, y, TopKHinge(2), 1.0 / len(y), method=method, tol=1e-12, max_passes=20,
                executor=executor, m=40,
            )  # fmt: skip

    alone, spread = run(SerialExecutor(blocks=3)), run(DaskExecutor(threads, blocks=3))
    assert len(spread.history) > 2
    if method == "newton":
        # The last bit of its float32 products depends on where arrays lie, and line searches carry that on.
        np.testing.assert_allclose(spread.W, alone.W, atol=1e-4 * abs(alone.W).max())
        assert (spread.primal, spread.dual) == pytest.approx((alone.primal, alone.dual), rel=1e-4)
    else:
        assert np.array_equal(alone.W, spread.W)
        assert (alone.primal, alone.dual) == (spread.primal, spread.dual)
        # W goes to both workers in half of the bytes of the float64 sums that each of them sends back.
        # The mean of W, which a round of dual ascent measures, goes besides: the last round has little else.
        sent, received = (
            sum(getattr(record, name) for record in spread.history[1:])
            for name in ("bytes_sent", "bytes_received")
        )
        assert sent < 0.75 * received


N, D, M = 400, 30, 4
X, Y = make_features(N, D, M)
WORKERS, BLOCKS = 20, 45


@pytest.fixture
def many() -> Iterator[Client]:
    with many_workers(WORKERS) as client:
        yield client


def solved(executor: Executor, **more: Any) -> SolveResult:
    options: Any = {"method": "fw", "tol": 1e-12, "max_passes": 4, "m": M, **more}
    return solve(X, Y, TopKHinge(2), lam=1.0 / N, executor=executor, **options)


def assigned(workers: int, blocks: int, random: np.random.Generator) -> dict[str, tuple[Span, ...]]:
    """Blocks in runs of random lengths."""
    cuts = sorted(random.choice(np.arange(1, blocks), workers - 1, replace=False).tolist())
    spans = [Span(i, i, i + 1) for i in range(blocks)]
    runs = itertools.pairwise([0, *cuts, blocks])
    return {f"w{number}": tuple(spans[a:b]) for number, (a, b) in enumerate(runs)}


@pytest.mark.parametrize(
    ("workers", "blocks"), [(1, 3), (8, 64), (9, 9), (17, 17), (20, 45), (64, 64), (150, 1024)]
)
def test_any_deal_gives_the_same_total_over_few_copies(workers: int, blocks: int) -> None:
    """Carried out here, call after call."""
    random = np.random.default_rng((workers, blocks))
    owned = assigned(workers, blocks, random)
    leaves = [VectorSums(rows=1, product=10.0 ** random.uniform(-8, 8, (1, 1))) for _ in range(blocks)]
    expected = tree_total((((0, i), stats) for i, stats in enumerate(leaves)), blocks)

    def answer(call: Call) -> Sums:
        merger: TreeMerger[Any] = TreeMerger(blocks)
        for span in owned[call.worker]:
            merger.add((0, span.index), leaves[span.index])
        own = Sums(blocks, merger.parts(), {call.worker: WorkerCost(1.0, 0, 0)})
        return call.join(own, *map(answer, call.below)) if call.below else own

    calls = by_tree([*owned], int, ("message",), Sums.joined)
    assert sorted(worker for call in calls for worker in call.workers()) == sorted(owned)
    assert len(calls) == min(workers, ROOTS)
    assert max(len(call.below) for call in calls) <= min(workers / ROOTS, ROOTS)
    first, *others = map(answer, calls)
    sums = first.joined(*others)
    assert set(sums.costs) == set(owned)
    total: Any = tree_total(sums.parts, blocks)
    assert total.rows == blocks
    assert total.product.tobytes() == expected.product.tobytes()


@pytest.mark.slow
def test_rounds_of_many_workers_survive_one_that_hands_on(
    many: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same W bit for bit, from fewer copies and sums than workers; one dies at a request."""
    with DaskExecutor(many, blocks=BLOCKS) as executor:
        result = solved(executor, smoothing=0.5)
        assert np.array_equal(result.W, solved(SerialExecutor(blocks=BLOCKS), smoothing=0.5).W)
        assert len(executor.owners) == WORKERS
    for record in result.history:
        assert record.bytes_sent <= 2 * ROOTS * 8 * D * M
        assert record.bytes_received <= 2 * 2 * ROOTS * 8 * D * M
        assert len(record.activity) == WORKERS
        assert all(worker.seconds_busy > 0.0 for worker in record.activity)

    rounds: list[int] = []
    died: list[str] = []
    genuine = worker_blocks.run_request

    def dying(*arguments: Any) -> Sums:
        if rounds and not died:
            worker = this_worker()
            died.append(worker.address)
            worker.loop.add_callback(worker.close, executor_wait=False)
        return genuine(*arguments)

    monkeypatch.setattr(worker_blocks, "run_request", dying)
    monkeypatch.setattr("topline.pipeline.cluster.watchdog.REPLACEMENT_SECONDS", 0.5)
    with DaskExecutor(many, blocks=BLOCKS) as executor:
        result = solved(executor, callbacks=[lambda record, _: rounds.append(record.round)])
        assert died
        assert len(executor.owners) == WORKERS - 1
        assert executor.epoch == 2
    assert np.array_equal(result.W, solved(SerialExecutor(blocks=BLOCKS)).W)


class Listening:
    """Workers that agree to everything; `placed` are the placements that they were given."""

    def __init__(self) -> None:
        self.placed: dict[str, SimpleNamespace] = {}

    def run(self, calls, **_):
        for call in calls:
            if call.function.__name__ == "place":
                self.placed[call.worker] = call.arguments[0]
        return {call.worker: [] for call in calls}


def test_who_takes_over_blocks_gets_no_larger_budgets_than_workers_had_at_the_begin() -> None:
    """Its memory has not grown with its rows."""
    spans = tuple(Span(i, 10 * i, 10 * i + 10) for i in range(4))
    X, y = np.ones((40, 3), dtype=np.float32), np.zeros(40, dtype=np.int32)
    problem = Problem(TopKHinge(1), n=40, d=3, m=4, lam=0.1)
    calls = Listening()
    places = BlockPlacement(calls, Bound(RunSpec(problem, X, y, None, True, 8000), spans, 4000, 60.0))
    places.begin({"a": spans[:2], "b": spans[2:]})
    assert [(p.cache_bytes, p.spec.dual_bytes) for p in calls.placed.values()] == [(2000, 4000)] * 2
    places.move({"a": spans}, ["a"], None, lambda: None)
    assert (calls.placed["a"].cache_bytes, calls.placed["a"].spec.dual_bytes) == (2000, 4000)
    places.move({"a": spans[:1], "b": spans[1:]}, ["a", "b"], None, lambda: None)
    assert (calls.placed["a"].cache_bytes, calls.placed["b"].cache_bytes) == (1000, 2000)
    # The plan gives every worker as much memory: one with more rows has no more room for them.
    places.begin({"a": spans[:3], "b": spans[3:]})
    assert (calls.placed["a"].cache_bytes, calls.placed["b"].cache_bytes) == (2000, 1000)


@contextmanager
def many_workers(count: int) -> Iterator[Client]:
    """Yield a client of so many workers that are threads, once all of them are there."""
    with open_cluster(ClusterConfig(workers=count, dashboard=False), data_bytes=0) as client:
        client.wait_for_workers(count, timeout=240)
        yield client
