"""Sums of many workers are merged between them: the same total bit for bit, and few of them to fetch."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from distributed import Client, get_worker

from tests.pipeline.cluster.many_workers import many_workers
from tests.pipeline.small_data import make_features
from topline.pipeline.cluster import DaskExecutor
from topline.pipeline.cluster.calls import AnswerOf, Call
from topline.pipeline.cluster.messages import Span, WorkerAnswer
from topline.pipeline.cluster.tree_sums import (
    MOST_SUMS,
    joined,
    merged,
    part_starts,
    plan_merges,
    with_merges,
)
from topline.solvers.core.answers import Answer, TreeMerger, VectorSums, leaf, tree_total
from topline.solvers.core.state import SolveResult
from topline.solvers.executors import Executor, SerialExecutor
from topline.solvers.losses import TopKHinge
from topline.solvers.run import solve

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


def test_parts_begin_where_sums_do() -> None:
    for blocks in (1, 2, 5, 8, 13, 16, 45):
        for first, stop in itertools.combinations(range(blocks + 1), 2):
            merger = TreeMerger(blocks)
            for block in range(first, stop):
                merger.add(leaf(block), Answer())
            assert part_starts(first, stop, blocks) == [n.place << n.level for n, _ in merger.parts()]


@pytest.mark.parametrize(("workers", "blocks"), [(17, 17), (20, 45), (33, 64), (100, 333), (150, 1024)])
def test_any_deal_gives_the_same_total_from_few_sums(workers: int, blocks: int) -> None:
    """Carried out here, call after call; with a block a worker none adds more than two sums at once."""
    random = np.random.default_rng((workers, blocks))
    owned = assigned(workers, blocks, random)
    leaves = [VectorSums(rows=1, product=10.0 ** random.uniform(-8, 8, (1, 1))) for _ in range(blocks)]
    expected = tree_total(((leaf(i), stats) for i, stats in enumerate(leaves)), blocks)
    done: dict[Call, Any] = {}
    for worker, spans in owned.items():
        merger = TreeMerger(blocks)
        for span in spans:
            merger.add(leaf(span.index), leaves[span.index])
        done[Call(worker, int, ())] = WorkerAnswer(merger.parts(), 1.0, 0, 0)
    calls, wanted = with_merges([*done], owned, blocks)
    for call in calls[workers:]:
        arguments = [done[item.call] if isinstance(item, AnswerOf) else item for item in call.arguments]
        done[call] = merged(*arguments)
        if blocks == workers:
            assert sum(isinstance(item, AnswerOf) for item in call.arguments) <= 2
    sums = joined([call.worker for call in wanted], [done[call] for call in wanted])
    assert len(sums.parts) <= MOST_SUMS
    assert set(sums.answers) == set(owned)
    total = tree_total(sums.parts, blocks)
    assert total.rows == blocks
    assert total.product is not None
    assert expected.product is not None
    assert total.product.tobytes() == expected.product.tobytes()


def test_few_workers_send_their_sums_themselves() -> None:
    assert plan_merges(assigned(MOST_SUMS, 64, np.random.default_rng(0)), 64) is None


@pytest.mark.slow
def test_twenty_workers_merge_their_sums(many: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same W bit for bit, from fewer sums than workers; one that dies while it merges changes nothing."""
    with DaskExecutor(many, blocks=BLOCKS) as executor:
        result = solved(executor, smoothing=0.5)
        assert np.array_equal(result.W, solved(SerialExecutor(blocks=BLOCKS), smoothing=0.5).W)
        assert len(executor.owners) == WORKERS
    for record in result.history:
        assert record.bytes_received <= MOST_SUMS * 8 * D * M
        assert len(record.activity) == WORKERS
        assert all(worker.seconds_busy > 0.0 for worker in record.activity)

    died: list[str] = []

    class Dying(TreeMerger):
        def __init__(self, blocks: int) -> None:
            super().__init__(blocks)
            if rounds and not died:
                worker = get_worker()
                died.append(worker.address)
                worker.loop.add_callback(worker.close, executor_wait=False)

    rounds: list[int] = []
    monkeypatch.setattr("topline.pipeline.cluster.tree_sums.TreeMerger", Dying)
    monkeypatch.setattr("topline.pipeline.cluster.watchdog.REPLACEMENT_SECONDS", 0.5)
    with DaskExecutor(many, blocks=BLOCKS) as executor:
        result = solved(executor, callbacks=[lambda record, _: rounds.append(record.round)])
        assert died
        assert len(executor.owners) == WORKERS - 1
        assert executor.epoch == 2
    monkeypatch.undo()
    assert np.array_equal(result.W, solved(SerialExecutor(blocks=BLOCKS)).W)
