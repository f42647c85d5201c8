"""Checkpoints of a run: how often, written and read by who holds the rows, the last whole one in force."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from distributed import Client

from tests.pipeline.small_data import make_features
from topline import SerialExecutor, ThreadExecutor, TopKHinge
from topline.pipeline.cluster import DaskExecutor, open_cluster
from topline.pipeline.options.train import ClusterConfig
from topline.pipeline.training.checkpointing import (
    SAVING_SHARE,
    Pace,
    RunPlace,
    find_checkpoint,
    save_state,
    written_where_held,
)
from topline.solvers.core.dual_points import PendingStep
from topline.solvers.core.problem import Problem
from topline.solvers.core.state import Point, SolverState
from topline.solvers.executors import Executor
from topline.solvers.operations import FindVertices
from topline.storage.arrays import duals
from topline.storage.errors import DiskFullError
from topline.storage.runs import Checkpoint, RunLock, create_run
from topline.storage.runs.checkpoints import checkpoint_rounds
from topline.storage.stores import open_store
from topline.storage.verification import verify_store

N, D, M = 300, 10, 5
X, Y = make_features(N, D, M)
W = np.random.default_rng(0).standard_normal((D, M))
CUTS = (0, 1, 120, 200, N)


@pytest.fixture(scope="module")
def workers() -> Iterator[Client]:
    with open_cluster(ClusterConfig(workers=2), data_bytes=0) as client:
        assert client is not None
        yield client


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunPlace:
    monkeypatch.setattr(duals, "PART_BYTES", 50 * M * 4)
    store = open_store(tmp_path, create=True)
    return RunPlace(store, create_run(store, {}), {"C": 1.0}, {}, keep_duals=True)


def bound(executor: Executor) -> Executor:
    executor.bind(Problem(TopKHinge(2), N, D, M, 0.05, 0.5), X, Y, keep_duals=True)
    return executor


def saved(
    place: RunPlace, executor: Executor, round_: int, pending_step: PendingStep | None = None
) -> Checkpoint:
    save_state(place, SolverState(Point(round_, W)), written_where_held(executor, pending_step), RunLock())
    found = find_checkpoint(place)
    assert found is not None
    return found


def test_saving_takes_a_twentieth_of_a_run_at_most() -> None:
    """Rounds of 1 s and saves of 0 to 30 s: after each but the first, 5 % of the time at most."""
    for cost in (0.0, 1.0, 5.0, 30.0):
        pace, now, spent, saves = Pace(60.0, began=100.0), 100.0, 0.0, []
        while now < 20_000.0:
            now += 1.0
            if pace.is_due(now):
                pace = pace.after(now, now + cost)
                now, spent = now + cost, spent + cost
                saves.append(now)
                assert len(saves) == 1 or spent <= SAVING_SHARE * (now - 100.0) + 1e-9
        assert saves[0] == 160.0 + cost, "the first one is not put off"
        assert min(np.diff(saves)) >= 60.0
        assert len(saves) >= (300 if cost <= 1.0 else 0.8 * SAVING_SHARE * 20_000.0 / cost)


def test_every_executor_stores_and_loads_the_same_rows(workers: Client, place: RunPlace) -> None:
    """Each saves in its own cut, with the step that waits applied; each goes on from what another saved."""
    pending_step = PendingStep(0, 0.5)
    with SerialExecutor(blocks=1) as serial:
        bound(serial).run(FindVertices(0, W))
        (_, _, A), *_ = list(serial.duals(pending_step))
        assert 0 < np.count_nonzero(A) < A.size
    executors: list[Executor] = [
        SerialExecutor(blocks=3),
        ThreadExecutor(2, bounds=CUTS),
        DaskExecutor(workers, blocks=7),
    ]
    for number, executor in enumerate(executors):
        bound(executor).run(FindVertices(0, W))
        found = saved(place, executor, number + 1, pending_step)
        np.testing.assert_array_equal(found.dual_blocks().rows(0, N), A)
        assert len(list(found.dual_blocks())) >= 6
        for other in executors:
            bound(other).load_duals(found.dual_blocks())
            np.testing.assert_array_equal(np.concatenate([rows for _, _, rows in other.duals()]), A)
    for executor in executors:
        executor.close()


def test_a_disk_that_fills_under_one_worker_leaves_the_checkpoint_before(
    workers: Client, place: RunPlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the other worker goes on to write is nobody's, and the next save clears it away."""
    from topline.storage.stores.local import LocalStore

    write = LocalStore.write_bytes

    def full(store: LocalStore, path: str, data: bytes) -> None:
        if "/duals/0000000002" in path:
            raise DiskFullError("no room is left")
        write(store, path, data)

    with DaskExecutor(workers, blocks=7) as executor:
        bound(executor)
        saved(place, executor, 1)
        with monkeypatch.context() as patch:
            patch.setattr(LocalStore, "write_bytes", full)
            with pytest.raises(DiskFullError):
                saved(place, executor, 2)
        found = find_checkpoint(place)
        assert found is not None
        assert (found.round, found.skipped) == (1, ())
        assert all(finding.harmless for finding in verify_store(place.store))
        saved(place, executor, 3)
        assert checkpoint_rounds(place.store, "r0001") == [1, 3]
        assert verify_store(place.store) == []
