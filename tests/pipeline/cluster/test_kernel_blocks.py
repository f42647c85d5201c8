"""Exact kernels on Dask workers: what one process gives, and the same optimum after a worker dies."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from distributed import Client

from tests.pipeline.cluster.test_executor import KillOnce
from tests.pipeline.small_data import make_features
from tests.solvers.problems import solved_on_blocks
from topline import RBFKernel, SerialExecutor, SolveResult, Status, TopKHinge
from topline.pipeline.cluster import DaskExecutor, open_cluster
from topline.pipeline.options.train import ClusterConfig
from topline.solvers.core.problem import Problem
from topline.solvers.executors import Executor
from topline.solvers.run import ProblemSpec

X, Y = make_features(300, 10, 5)
PROBLEM = Problem(TopKHinge(2), 300, 10, 5, 1.0 / 300)


#: Methods with the gap that they reach in a moment.
METHODS = {"dual_ascent": 1e-6, "fw": 0.05, "fw_fully_corrective": 0.05}


def run(executor: Executor, method: str = "dual_ascent", callbacks: Any = ()) -> SolveResult:
    spec = ProblemSpec(TopKHinge(2), C=1.0, method=method, kernel=RBFKernel(0.1))
    return solved_on_blocks(spec, X, Y, executor, tol=METHODS[method], max_passes=1000, callbacks=callbacks)


@pytest.fixture(scope="module")
def threads() -> Iterator[Client]:
    with open_cluster(ClusterConfig(workers=2), data_bytes=0) as client:
        assert client is not None
        yield client


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("blocks", [1, 7])
def test_workers_give_bitwise_what_one_process_gives(threads: Client, blocks: int, method: str) -> None:
    with SerialExecutor(blocks=blocks) as executor:
        alone = run(executor, method)
    with DaskExecutor(threads, blocks=blocks) as executor:
        together = run(executor, method)
        A = np.concatenate([rows for _, _, rows in executor.duals()])
    assert np.array_equal(A, alone.A)
    assert (together.primal, together.dual, together.passes) == (alone.primal, alone.dual, alone.passes)


@pytest.mark.slow
@pytest.mark.cluster
@pytest.mark.parametrize("method", METHODS)
def test_a_killed_worker_leaves_the_same_certified_optimum(method: str) -> None:
    with SerialExecutor(blocks=7) as executor:
        expected = run(executor)
    with open_cluster(ClusterConfig(workers=2)) as client:
        assert client is not None
        client.wait_for_workers(2, timeout=240)
        kill = KillOnce(client, at_round=2)
        with DaskExecutor(client, blocks=7) as executor:
            result = run(executor, method, callbacks=(kill,))
            assert executor.epoch > 1
    assert kill.killed is not None
    assert result.status is Status.SOLVED
    assert result.dual <= expected.primal <= result.primal * (1 + 1e-6)
