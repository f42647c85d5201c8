"""Weights that go to workers once, in the type of the products, and change no answer by that."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from dataclasses import fields

import numpy as np
import pytest
from distributed import Client

from tests.pipeline.small_data import make_features
from topline.pipeline.cluster import DaskExecutor, open_cluster
from topline.pipeline.cluster.sent_weights import WeightsReceiver, WeightsSender
from topline.pipeline.options.train import ClusterConfig
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
)
from topline.solvers.run import solve

FLOAT32 = np.dtype(np.float32)
LARGE = np.random.default_rng(0).standard_normal((100, 100))
SMALL = LARGE[:10, :10].copy()


@pytest.fixture(scope="module")
def threads() -> Iterator[Client]:
    with open_cluster(ClusterConfig(workers=2), data_bytes=0) as client:
        assert client is not None
        yield client


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
