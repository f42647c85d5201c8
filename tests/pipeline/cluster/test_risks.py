"""The average top-k risk on Dask workers: one global choice of rows, whoever holds them and whoever dies."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from distributed import Client

from tests.pipeline.small_data import make_features, small_dataset
from topline.pipeline.cluster import DaskExecutor, MemoryPlan, open_cluster
from topline.pipeline.options.train import ClusterConfig
from topline.pipeline.rows.partition import TrainingRows
from topline.solvers.core.problem import AverageTopK
from topline.solvers.core.state import SolveResult, Status
from topline.solvers.executors import Executor, SerialExecutor
from topline.solvers.losses import TopKHinge
from topline.solvers.operations import FindSelectedVertices
from topline.solvers.run import solve

N, D, M, K = 300, 6, 5, 40.5
X, Y = make_features(N, D, M)
TOL = 1e-4


def run(executor: Executor) -> SolveResult:
    lam = 1.0 / (0.05 * N)
    return solve(X, Y, TopKHinge(2), lam, tol=TOL, executor=executor, risk=AverageTopK(K), m=M)


@pytest.fixture(scope="module")
def threads() -> Iterator[Client]:
    with open_cluster(ClusterConfig(workers=2), data_bytes=0) as client:
        assert client is not None
        yield client


def test_any_number_of_blocks_ends_at_the_same_objective(threads: Client) -> None:
    """Bit for bit what the same blocks give in one process; other blocks within the tolerance of the gap."""
    results = []
    for blocks in (1, 2, 7):
        with DaskExecutor(threads, blocks=blocks) as executor:
            results.append(run(executor))
        serial = run(SerialExecutor(blocks=blocks))
        assert np.array_equal(results[-1].W, serial.W)
        assert (results[-1].primal, results[-1].dual) == (serial.primal, serial.dual)
    for result in results:
        assert result.status is Status.SOLVED
        assert result.primal == pytest.approx(results[0].primal, rel=TOL)


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.sampled(2)
def test_stored_rows_are_read_by_the_workers(threads: Client, tmp_path: Path, sparse: bool) -> None:
    """Whatever of them is held in memory; the rows that were chosen are read again from the store.

    After a few rounds: they are multiplied in tiles of other sizes, whose rounding many rounds may amplify.
    """
    rows = TrainingRows(small_dataset(tmp_path, n=400, d=D, m=M, sparse=sparse))
    lam, options = 1.0 / (0.05 * len(rows)), {"max_passes": 6, "tol": 1e-9, "risk": AverageTopK(K), "m": M}
    in_memory = rows[0 : len(rows)]
    in_memory = in_memory if sparse else np.array(in_memory)
    serial = SerialExecutor(bounds=rows.block_bounds())
    expected = solve(in_memory, rows.labels(), TopKHinge(2), lam, executor=serial, **options)
    for budget in (0, 5_000, 1 << 30):
        with DaskExecutor(threads, memory=MemoryPlan(None, budget, None)) as executor:
            result = solve(rows, rows.labels(), TopKHinge(2), lam, executor=executor, **options)
        np.testing.assert_allclose(result.W, expected.W, rtol=1e-7, atol=1e-9)


class KillsBetween(DaskExecutor):
    """Kills a worker after the rows of a round were chosen, before their vertices are found."""

    def __init__(self, client: Client, **options: Any) -> None:
        super().__init__(client, **options)
        self.pids = dict(client.run(os.getpid))
        self.choices = 0

    def run(self, request: Any) -> Any:
        self.choices += isinstance(request, FindSelectedVertices)
        if self.choices == 5 and self.pids:
            os.kill(self.pids[min(self.pids)], signal.SIGKILL)
            self.pids = {}
        return super().run(request)


@pytest.mark.slow
@pytest.mark.cluster
def test_a_worker_killed_between_the_choice_and_its_vertices_changes_nothing() -> None:
    expected = run(SerialExecutor(blocks=7))
    assert len(expected.history) > 6
    with open_cluster(ClusterConfig(workers=2)) as client:
        assert client is not None
        with KillsBetween(client, blocks=7) as executor:
            result = run(executor)
            assert executor.epoch > 1
    assert np.array_equal(result.W, expected.W)
    assert (result.primal, result.dual) == (expected.primal, expected.dual)
