"""Many workers hand requests on and merge their sums: the same total bit for bit, from few copies of each."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from distributed import Client

from tests.pipeline.cluster.many_workers import many_workers
from tests.pipeline.small_data import make_features
from topline.pipeline.cluster import DaskExecutor, worker_blocks
from topline.pipeline.cluster.calls import ROOTS, Call, by_tree, this_worker
from topline.pipeline.cluster.messages import Span, Sums, WorkerCost
from topline.solvers.core.answers import TreeMerger, VectorSums, leaf, tree_total
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


@pytest.mark.parametrize(
    ("workers", "blocks"), [(1, 3), (8, 64), (9, 9), (17, 17), (20, 45), (64, 64), (150, 1024)]
)
def test_any_deal_gives_the_same_total_over_few_copies(workers: int, blocks: int) -> None:
    """Carried out here, call after call."""
    random = np.random.default_rng((workers, blocks))
    owned = assigned(workers, blocks, random)
    leaves = [VectorSums(rows=1, product=10.0 ** random.uniform(-8, 8, (1, 1))) for _ in range(blocks)]
    expected = tree_total(((leaf(i), stats) for i, stats in enumerate(leaves)), blocks)

    def answer(call: Call) -> Sums:
        merger: TreeMerger[Any] = TreeMerger(blocks)
        for span in owned[call.worker]:
            merger.add(leaf(span.index), leaves[span.index])
        own = Sums(blocks, merger.parts(), {call.worker: WorkerCost(1.0, 0, 0)})
        return call.join(own, *map(answer, call.below)) if call.below else own

    calls = by_tree([*owned], int, ("message",), Sums.joined)
    assert sorted(worker for call in calls for worker in call.workers()) == sorted(owned)
    assert len(calls) == min(workers, ROOTS)
    assert max(len(call.below) for call in calls) <= np.log2(max(workers / ROOTS, 1)) + 1
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
