"""Arrays that processes of one machine hand over in memory: same bits, no bytes in messages, no leftovers."""

from __future__ import annotations

import pickle
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest

from tests.pipeline.small_data import make_features
from topline import TopKHinge
from topline.pipeline.cluster import DaskExecutor, open_cluster
from topline.pipeline.cluster.calls import nbytes
from topline.pipeline.cluster.messages import Sums
from topline.pipeline.cluster.shared_arrays import SharedArray, SharedMemory, on_this_machine, readable
from topline.pipeline.options.train import ClusterConfig
from topline.solvers.core.answers import Answer, VectorSums
from topline.solvers.core.state import SolveResult
from topline.solvers.errors import StateLostError
from topline.solvers.executors import Executor, SerialExecutor
from topline.solvers.run import solve
from topline.solvers.typing import FloatArray

LARGE = np.random.default_rng(0).standard_normal((200, 100))


def test_arrays_arrive_with_their_bits_and_their_layout() -> None:
    memory = SharedMemory()
    arrays = {
        "rows": LARGE,
        "columns": np.asfortranarray(LARGE.astype(np.float32)),
        "strided": np.repeat(LARGE, 2, axis=1)[:, ::2],
        "small": LARGE[:2],
    }
    there = pickle.loads(pickle.dumps(memory.shared(arrays)))
    assert np.array_equal(there.pop("small"), arrays["small"])
    for name, array in there.items():
        assert isinstance(array, SharedArray)
        assert readable(array)
        assert array.nbytes == arrays[name].nbytes
        arrived = array.taken()
        assert arrived.dtype == arrays[name].dtype
        assert np.array_equal(arrived, arrays[name])
        assert arrived.flags.f_contiguous == (name == "columns")


def test_an_array_of_a_process_that_is_gone_is_lost_with_it() -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        process.wait()
    memory = SharedMemory()
    (array,) = memory.shared({"W": LARGE}).values()
    assert isinstance(array, SharedArray)
    gone = replace(array, pid=process.pid)
    assert not readable(gone)
    with pytest.raises(StateLostError, match="is gone"):
        gone.taken()
    with pytest.raises(StateLostError, match="no longer"):
        replace(array, shape=(2 * len(LARGE), 100)).taken()


def test_memory_ends_with_who_shares_it() -> None:
    memory = SharedMemory()
    (array,) = memory.shared({"W": LARGE}).values()
    assert isinstance(array, SharedArray)
    del memory
    assert not readable(array)


def test_sums_leave_large_products_in_memory_and_merge_to_the_same() -> None:
    parts: list[tuple[tuple[int, int], Answer]] = [
        ((0, 0), VectorSums(product=LARGE, alpha_u=1.0)),
        ((0, 1), VectorSums(product=-2.0 * LARGE, alpha_u=2.0)),
        ((0, 2), Answer(seconds_products=1.0)),
    ]
    here = Sums(4, parts, {})
    memory = SharedMemory()
    there = pickle.loads(pickle.dumps(here.shared(memory)))
    assert there.parts[0][1].product is None
    assert nbytes(there) == nbytes(here) == 2 * LARGE.nbytes
    for (node, mine), (other, theirs) in zip(here.joined().parts, there.joined().parts, strict=True):
        assert node == other
        assert (mine.seconds_products, type(mine)) == (
            theirs.seconds_products,
            type(theirs),
        )
        if isinstance(mine, VectorSums) and isinstance(theirs, VectorSums):
            assert np.array_equal(mine.product, theirs.product)
            assert mine.alpha_u == theirs.alpha_u


def test_threads_of_this_process_and_workers_elsewhere_get_messages() -> None:
    with open_cluster(ClusterConfig(workers=1, dashboard=False), data_bytes=0) as client:
        assert client is not None
        assert not on_this_machine(client)


@pytest.mark.cluster
def test_weights_and_products_of_worker_processes_lie_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    X, y = make_features(400, 300, 60)
    read: list[int] = []
    genuine = SharedArray.taken

    def counted(array: SharedArray) -> FloatArray:
        read.append(array.nbytes)
        return genuine(array)

    def run(executor: Executor) -> SolveResult:
        with executor:
            return solve(
                X, y, TopKHinge(2), 1.0 / len(y), method="fw", tol=1e-12, max_passes=5, executor=executor
            )

    monkeypatch.setattr(SharedArray, "taken", counted)
    with open_cluster(ClusterConfig(workers=2, dashboard=False)) as client:
        assert client is not None
        assert on_this_machine(client)
        alone, spread = run(SerialExecutor(blocks=2)), run(DaskExecutor(client, blocks=2))
    # Every round brings a product of each worker, and all are counted as sent.
    assert len(read) >= 2 * len(spread.history) - 2
    assert spread.history[1].bytes_received >= 2 * spread.W.nbytes
    # Last bits of a product depend on where its rows lie in memory.
    np.testing.assert_allclose(spread.W, alone.W, rtol=1e-6, atol=1e-8)
