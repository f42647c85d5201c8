"""Weights that many workers hand on to each other: all have the same, from few copies of the coordinator."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from distributed import Client, get_worker

from tests.pipeline.cluster.many_workers import many_workers
from tests.pipeline.small_data import make_features
from topline.pipeline.cluster import DaskExecutor, tree_weights
from topline.pipeline.cluster.calls import AnswerOf, Call
from topline.pipeline.cluster.sent_weights import SentOperation
from topline.pipeline.cluster.tree_weights import FAN, MOST_COPIES, requested
from topline.solvers.executors import SerialExecutor
from topline.solvers.losses import TopKHinge
from topline.solvers.operations import Rebuild
from topline.solvers.run import solve

WORKERS, BLOCKS = 14, 28
N, D, M = 400, 120, 80


# Of the workers, which are threads of this process.
rounds: list[int] = []
died: list[str] = []


def dying(message: SentOperation) -> SentOperation:
    """Hand a message on; once a round is over, the first to do so dies with it."""
    if rounds and not died:
        worker = get_worker()
        died.append(worker.address)
        worker.loop.add_callback(worker.close, executor_wait=False)
    return message


@pytest.fixture
def many() -> Iterator[Client]:
    with many_workers(WORKERS) as client:
        yield client


@pytest.mark.parametrize("workers", [1, MOST_COPIES, MOST_COPIES + 1, 20, 21, 64, 257])
def test_everybody_gets_the_message_over_few_copies_of_each(workers: int) -> None:
    message = SentOperation(Rebuild(), {"W": np.zeros((1024, 1025))})
    owners = [f"w{number}" for number in range(workers)]
    relays, requests = requested(owners, int, ("run", 1), message)
    assert [call.worker for call in requests] == owners
    arrived: dict[Call, Any] = {}
    copies: Counter[str] = Counter()
    levels = dict.fromkeys(owners, 1)
    for call in [*relays, *requests]:
        source = call.arguments[-1]
        sender = source.call.worker if isinstance(source, AnswerOf) else "coordinator"
        arrived[call] = arrived[source.call] if isinstance(source, AnswerOf) else source
        if sender != call.worker:
            copies[sender] += 1
            levels[call.worker] = levels.get(sender, 0) + 1
    assert all(arrived[call] is message for call in requests)
    # Nobody is sent the message twice: a worker that hands it on takes it from itself.
    assert copies.total() == workers
    if workers <= MOST_COPIES:
        assert copies == {"coordinator": workers}
    else:
        assert max(copies.values()) == FAN == copies["coordinator"]
        assert sum(FAN**level for level in range(1, max(levels.values()))) < workers


def test_small_messages_come_from_the_coordinator() -> None:
    message = SentOperation(Rebuild(), {"W": np.zeros((10, 10))})
    relays, requests = requested([f"w{number}" for number in range(64)], int, (), message)
    assert not relays
    assert all(call.arguments == (message,) for call in requests)


@pytest.mark.slow
def test_rounds_with_handed_on_weights_are_the_same_and_survive_who_hands_them_on(
    many: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same W bit for bit; the worker that dies as it hands on the weights is replaced by the others."""
    X, y = make_features(N, D, M)
    options: Any = {"method": "fw", "tol": 1e-12, "max_passes": 4, "m": M}
    expected = solve(X, y, TopKHinge(2), lam=1.0 / N, executor=SerialExecutor(blocks=BLOCKS), **options)
    monkeypatch.setattr(tree_weights, "DIRECT_BYTES", 0)
    with DaskExecutor(many, blocks=BLOCKS) as executor:
        result = solve(X, y, TopKHinge(2), lam=1.0 / N, executor=executor, **options)
        assert len(executor.owners) == WORKERS
    assert np.array_equal(result.W, expected.W)
    assert all(record.bytes_sent <= FAN * 8 * D * M for record in result.history)

    monkeypatch.setattr(tree_weights, "handed_on", dying)
    monkeypatch.setattr("topline.pipeline.cluster.watchdog.REPLACEMENT_SECONDS", 0.5)
    rounds.clear()
    died.clear()
    options["callbacks"] = [lambda record, _: rounds.append(record.round)]
    with DaskExecutor(many, blocks=BLOCKS) as executor:
        result = solve(X, y, TopKHinge(2), lam=1.0 / N, executor=executor, **options)
        assert len(died) == 1
        assert len(executor.owners) == WORKERS - 1
        assert executor.epoch == 2
    assert np.array_equal(result.W, expected.W)
