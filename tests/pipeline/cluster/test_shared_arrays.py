"""Arrays that processes of one machine hand over in memory: same bits, no bytes in messages, no leftovers."""

from __future__ import annotations

import errno
import os
import pickle
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from distributed import Client
from distributed.core import clean_exception
from distributed.protocol.serialize import to_serialize

from tests.pipeline.small_data import make_features
from topline import TopKHinge
from topline.pipeline.cluster import Call, DaskExecutor, WorkersLost, calls, open_cluster, worker_blocks
from topline.pipeline.cluster.calls import nbytes
from topline.pipeline.cluster.messages import Sums, WorkerCost
from topline.pipeline.cluster.sent_weights import WeightsSender
from topline.pipeline.cluster.shared_arrays import ArrayFile, SharedArray, can_share_memory, on_this_machine
from topline.pipeline.options.train import ClusterConfig
from topline.solvers.core.answers import Answer, VectorSums
from topline.solvers.core.state import SolveResult
from topline.solvers.errors import StateLostError
from topline.solvers.executors import Executor, SerialExecutor
from topline.solvers.run import solve
from topline.solvers.typing import FloatArray

pytestmark = pytest.mark.skipif(not can_share_memory(), reason="the system has no memory to share")

LARGE = np.random.default_rng(0).standard_normal((200, 100))
X, Y = make_features(400, 300, 60)


def shared(memory: ArrayFile, array: FloatArray) -> SharedArray:
    """The place of an array in memory."""
    (there,) = memory.shared({"W": array}).values()
    assert isinstance(there, SharedArray)
    return there


def refuse(*_: Any, **__: Any) -> Any:
    raise OSError(errno.EFBIG, os.strerror(errno.EFBIG))


def files_in_memory() -> int:
    """How many files for arrays this process has."""
    names = [str(each.readlink()) for each in Path("/proc/self/fd").iterdir() if each.is_symlink()]
    return sum("topline-arrays" in name for name in names)


def test_arrays_arrive_with_their_bits_and_their_layout() -> None:
    memory = ArrayFile()
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
        assert array.nbytes == arrays[name].nbytes
        arrived = array.taken()
        assert arrived.dtype == arrays[name].dtype
        assert np.array_equal(arrived, arrays[name])
        assert arrived.flags.f_contiguous == (name == "columns")


def test_an_array_of_a_process_that_is_gone_is_lost_with_it() -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        process.wait()
    memory = ArrayFile()
    (array,) = memory.shared({"W": LARGE}).values()
    assert isinstance(array, SharedArray)
    gone = replace(array, pid=process.pid)
    with pytest.raises(StateLostError, match="is gone"):
        gone.taken()
    with pytest.raises(StateLostError, match="no longer"):
        replace(array, shape=(2 * len(LARGE), 100)).taken()


def test_memory_ends_with_who_shares_it() -> None:
    memory = ArrayFile()
    (array,) = memory.shared({"W": LARGE}).values()
    assert isinstance(array, SharedArray)
    del memory
    with pytest.raises(StateLostError):
        array.taken()


def test_an_array_is_gone_once_its_place_has_other_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also for a reader that finds them while they are written, or that began before."""
    memory, genuine = ArrayFile(), os.pwrite
    first = shared(memory, LARGE)
    assert np.array_equal(first.taken(), LARGE)
    refused: list[int] = []

    def read_meanwhile(file: int, data: bytes, place: int) -> int:
        written = genuine(file, data, place)
        with pytest.raises(StateLostError, match="no longer"):
            first.taken()
        refused.append(place)
        return written

    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", read_meanwhile)
        second = shared(memory, -LARGE)
    assert len(refused) == 3
    assert np.array_equal(second.taken(), -LARGE)

    looked: list[bytes] = []
    look = os.pread

    def replaced_after(file: int, count: int, place: int) -> bytes:
        looked.append(look(file, count, place))
        if len(looked) == 1:
            memory.shared({"W": LARGE})
        return looked[-1]

    monkeypatch.setattr(os, "pread", replaced_after)
    with pytest.raises(StateLostError, match="no longer"):
        second.taken()
    assert len(looked) == 2


def test_another_file_under_the_same_number_is_not_taken() -> None:
    memory, other = ArrayFile(), ArrayFile()
    mine, theirs = shared(memory, LARGE), shared(other, -LARGE)
    with pytest.raises(StateLostError, match="no longer"):
        replace(mine, file=theirs.file).taken()


@pytest.mark.parametrize("function", ["memfd_create", "pwrite"])
def test_arrays_stay_in_the_message_where_the_system_refuses_memory(
    monkeypatch: pytest.MonkeyPatch, function: str
) -> None:
    memory, fresh = ArrayFile(), ArrayFile()
    before = shared(memory, LARGE)
    with monkeypatch.context() as patch:
        patch.setattr(os, function, refuse)
        assert fresh.shared({"W": LARGE})["W"] is LARGE
        if function == "pwrite":
            assert memory.shared({"W": LARGE})["W"] is LARGE
            with pytest.raises(StateLostError, match="no longer"):
                before.taken()
    # Nor is it asked again.
    assert fresh.shared({"W": LARGE})["W"] is LARGE


def test_products_that_cannot_be_read_name_the_worker_whose_they_are() -> None:
    """And not the one that merges them."""
    memory = ArrayFile()
    child, parent = (
        Sums(2, [((0, number), VectorSums(product=LARGE))], {worker: WorkerCost(1.0, 0, 0)})
        for number, worker in enumerate(("child", "parent"))
    )
    there = child.shared(memory)
    assert list(worker_blocks.joined(parent, there).costs) == ["parent", "child"]
    memory.shared({})
    with pytest.raises(WorkersLost, match="lost its sums") as caught:
        worker_blocks.joined(parent, there)
    assert caught.value.workers == ("child",)


def test_sums_leave_large_products_in_memory_and_merge_to_the_same() -> None:
    parts: list[tuple[tuple[int, int], Answer]] = [
        ((0, 0), VectorSums(product=LARGE, alpha_u=1.0)),
        ((0, 1), VectorSums(product=-2.0 * LARGE, alpha_u=2.0)),
        ((0, 2), Answer(seconds_products=1.0)),
    ]
    here = Sums(4, parts, {})
    memory = ArrayFile()
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


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[SharedArray]:
    """The arrays that this process reads in memory."""
    found: list[SharedArray] = []
    genuine = SharedArray.taken

    def counted(array: SharedArray) -> FloatArray:
        found.append(array)
        return genuine(array)

    monkeypatch.setattr(SharedArray, "taken", counted)
    return found


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Weights in the messages to workers."""
    found: list[Any] = []
    genuine = WeightsSender.message

    def noted(sender: WeightsSender, operation: Any, epoch: int) -> Any:
        message = genuine(sender, operation, epoch)
        found.extend(message.weights.values())
        return message

    monkeypatch.setattr(WeightsSender, "message", noted)
    return found


def solved(executor: Executor) -> SolveResult:
    with executor:
        return solve(
            X, Y, TopKHinge(2), 1.0 / len(Y), method="fw", tol=1e-12, max_passes=5, executor=executor
        )


@contextmanager
def refused_there(client: Client, worker: str, owner: Any, name: str) -> Iterator[None]:
    """While within, a function of the system is refused on a worker."""

    def take_away() -> None:
        def refused(*_: Any, **__: Any) -> Any:
            raise OSError(errno.EFBIG, "refused")

        setattr(owner, f"kept_{name}", getattr(owner, name))
        setattr(owner, name, refused)

    def put_back() -> None:
        setattr(owner, name, getattr(owner, f"kept_{name}"))

    client.run(take_away, workers=[worker])
    try:
        yield
    finally:
        client.run(put_back, workers=[worker])


def assert_as_alone(result: SolveResult) -> None:
    """Last bits of a product depend on where its rows lie in memory."""
    np.testing.assert_allclose(result.W, solved(SerialExecutor(blocks=2)).W, rtol=1e-6, atol=1e-8)


@pytest.mark.cluster
def test_weights_and_products_of_worker_processes_lie_in_memory(
    processes: Client, read: list[SharedArray]
) -> None:
    assert on_this_machine(processes)
    before = files_in_memory()
    executor = DaskExecutor(processes, blocks=2)
    spread = solved(executor)
    # Every round brings a product of each worker, and all are counted as sent.
    assert len(read) >= 2 * len(spread.history) - 2
    assert spread.history[1].bytes_received >= 2 * spread.W.nbytes
    assert_as_alone(spread)
    assert files_in_memory() == before


@pytest.mark.cluster
@pytest.mark.parametrize("function", ["memfd_create", "pwrite"])
def test_a_coordinator_without_such_memory_sends_messages(
    processes: Client,
    read: list[SharedArray],
    sent: list[Any],
    monkeypatch: pytest.MonkeyPatch,
    function: str,
) -> None:
    monkeypatch.setattr(os, function, refuse)
    assert_as_alone(solved(DaskExecutor(processes, blocks=2)))
    assert sent
    assert not any(isinstance(array, SharedArray) for array in sent)
    # The workers have it.
    assert {array.pid for array in read} == {*processes.run(os.getpid).values()}


@pytest.mark.cluster
@pytest.mark.parametrize("function", ["memfd_create", "pwrite"])
def test_a_worker_without_such_memory_answers_by_messages(
    processes: Client, read: list[SharedArray], sent: list[Any], function: str
) -> None:
    poor, rich = sorted(processes.scheduler_info()["workers"])
    with refused_there(processes, poor, os, function):
        assert_as_alone(solved(DaskExecutor(processes, blocks=2)))
    assert all(isinstance(array, SharedArray) for array in sent)
    assert {array.pid for array in read} == {*processes.run(os.getpid, workers=[rich]).values()}


@pytest.mark.cluster
@pytest.mark.parametrize("reader", ["coordinator", "worker"])
def test_all_is_sent_where_one_cannot_read_what_others_share(
    processes: Client, sent: list[Any], monkeypatch: pytest.MonkeyPatch, reader: str
) -> None:
    last = max(processes.scheduler_info()["workers"])
    with ExitStack() as stack:
        if reader == "worker":
            stack.enter_context(refused_there(processes, last, Path, "open"))
        else:
            monkeypatch.setattr(Path, "open", refuse)
        assert_as_alone(solved(DaskExecutor(processes, blocks=2)))
    assert sent
    assert not any(isinstance(array, SharedArray) for array in sent)


@pytest.mark.cluster
def test_all_is_sent_once_a_worker_cannot_read_after_a_loss(
    processes: Client, sent: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a worker that joins later may be unable to: whoever has blocks now is asked again."""
    last, refused, epochs = max(processes.scheduler_info()["workers"]), ExitStack(), []
    executor = DaskExecutor(processes, blocks=2)

    def refuse_later(record: Any, _: Any) -> None:
        epochs.append(executor.epoch)
        if len(epochs) == 2:
            refused.enter_context(refused_there(processes, last, Path, "open"))
            sent.clear()

    with refused, executor:
        result = solve(
            X, Y, TopKHinge(2), 1.0 / len(Y), method="fw", tol=1e-12, max_passes=5, executor=executor,
            callbacks=[refuse_later],
        )  # fmt: skip
    assert sorted(set(epochs)) == [1, 2]
    lies = [isinstance(array, SharedArray) for array in sent]
    # The first message is of the epoch in which all could read.
    assert lies[0]
    assert not any(lies[1:])
    assert len(lies) > 1
    assert_as_alone(result)


@pytest.mark.cluster
def test_a_round_is_repeated_when_a_product_is_gone(
    processes: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    genuine, read, epochs = SharedArray.taken, [0], []

    def gone_once(array: SharedArray) -> FloatArray:
        read[0] += 1
        if read[0] == 9:
            raise StateLostError(f"process {array.pid} is gone")
        return genuine(array)

    monkeypatch.setattr(SharedArray, "taken", gone_once)
    with DaskExecutor(processes, blocks=2) as executor:
        result = solve(
            X, Y, TopKHinge(2), 1.0 / len(Y), method="fw", tol=1e-12, max_passes=5, executor=executor,
            callbacks=[lambda record, _: epochs.append(executor.epoch)],
        )  # fmt: skip
    assert read[0] > 9
    assert sorted(set(epochs)) == [1, 2]
    assert_as_alone(result)


@pytest.mark.cluster
def test_a_repeated_request_is_answered_and_a_late_one_refused(
    processes: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The connection is cut after a request; later it arrives once more, when W is another."""
    genuine = calls._to_worker
    asked: list[Call] = []
    cut: list[Call] = []
    late: list[Any] = []

    async def send(node: Any, worker: str, message: dict[str, Any]) -> Any:
        call = message["call"].data if "call" in message else None
        if call is None or call.function is not worker_blocks.run_request:
            return await genuine(node, worker, message)
        asked.append(call)
        weights = call.arguments[2].weights
        if cut and not late and weights and call.arguments[2] is not cut[0].arguments[2]:
            again = {"op": message["op"], "call": to_serialize(cut[0]), "key": "late"}
            late.append(await genuine(node, cut[0].worker, again))
        answer = await genuine(node, worker, message)
        if not cut and len(asked) > 5 and isinstance(weights.get("W"), SharedArray):
            cut.append(call)
            raise OSError("cut")
        return answer

    monkeypatch.setattr(calls, "_to_worker", send)
    executor = DaskExecutor(processes, blocks=2)
    epochs: list[int] = []
    with executor:
        result = solve(
            X, Y, TopKHinge(2), 1.0 / len(Y), method="fw", tol=1e-12, max_passes=5, executor=executor,
            callbacks=[lambda record, _: epochs.append(executor.epoch)],
        )  # fmt: skip
    assert sum(call is cut[0] for call in asked) == 2
    with pytest.raises(StateLostError, match="no longer"):
        raise clean_exception(**late[0])[1]
    assert set(epochs) == {1}
    assert_as_alone(result)
