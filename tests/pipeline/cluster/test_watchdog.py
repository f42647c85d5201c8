"""Calls that hang are found while their workers send heartbeats; calls that are only slow are not."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from distributed import Client, get_worker

from tests.pipeline.small_data import make_features
from topline.pipeline.cluster.calls import Call, WorkerCalls, WorkersLost
from topline.pipeline.cluster.connection import open_cluster
from topline.pipeline.cluster.executor import DaskExecutor
from topline.pipeline.cluster.liveness import Liveness
from topline.pipeline.cluster.watchdog import Watchdog
from topline.pipeline.errors import ClusterError
from topline.pipeline.options.train import ClusterConfig
from topline.solvers.blocks.block import Block
from topline.solvers.executors import SerialExecutor
from topline.solvers.losses import TopKHinge
from topline.solvers.run.api import solve

N, D, M = 200, 8, 4
X, Y = make_features(N, D, M)
# What a call may be still for here; slow ones take several times as long.
TIMEOUT = 1.0
SLOW = 2.5


@pytest.fixture
def client() -> Iterator[Client]:
    with open_cluster(ClusterConfig(workers=2), data_bytes=0) as client:
        assert client is not None
        yield client


def solved(executor: Any) -> Any:
    options: Any = {"method": "fw", "tol": 1e-12, "max_passes": 12, "m": M}
    return solve(X, Y, TopKHinge(2), lam=1.0 / N, executor=executor, **options)


def test_blocks_of_a_call_that_hangs_move(
    client: Client, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    expected = solved(SerialExecutor(blocks=4))
    over, hung = threading.Event(), []
    genuine = Block.run

    def hanging(block: Block, request: Any) -> Any:
        if not hung and request.round == 5:
            hung.append(get_worker().address)
            over.wait()
        return genuine(block, request)

    monkeypatch.setattr(Block, "run", hanging)
    try:
        with (
            caplog.at_level(logging.WARNING),
            DaskExecutor(client, blocks=4, heartbeat_timeout=TIMEOUT) as executor,
        ):
            result = solved(executor)
            assert [*executor.owners] == [other for other in _workers(client) if other not in hung]
    finally:
        over.set()
    assert np.array_equal(result.W, expected.W)
    assert f"worker {hung[0]} is there, but has not computed, read or written anything" in caplog.text


def _workers(client: Client) -> list[str]:
    return sorted(client.scheduler_info(n_workers=-1)["workers"])


def compute(seconds: float) -> int:
    """Use a processor, as a compiler does."""
    end, steps = time.monotonic() + seconds, 0
    while time.monotonic() < end:
        steps += 1
    return steps


def read_slowly(path: str, seconds: float) -> int:
    """Read a few bytes, and a few more."""
    file = os.open(path, os.O_RDONLY)
    read, end = 0, time.monotonic() + seconds
    while time.monotonic() < end:
        read += len(os.read(file, 16))
        time.sleep(TIMEOUT / 10)
    os.close(file)
    return read


_over = threading.Event()


def hang() -> None:
    _over.wait()


_compiling = threading.Lock()


def compute_alone(seconds: float) -> int:
    """Compute while others of the process wait, as where kernels are compiled."""
    with _compiling:
        return compute(seconds)


def helped(seconds: float) -> int:
    """Wait for a thread of ours that does the work."""
    found: list[int] = []
    helper = threading.Thread(target=lambda: found.append(compute(seconds)), name="topline-block_0")
    helper.start()
    helper.join()
    return found[0]


@pytest.mark.parametrize("work", [read_slowly, helped])
def test_slow_work_is_waited_for(client: Client, tmp_path: Path, work: Callable[..., int]) -> None:
    (tmp_path / "file").write_bytes(bytes(100_000))
    calls, worker = WorkerCalls(client, heartbeat_timeout=TIMEOUT), _workers(client)[0]
    words = (str(tmp_path / "file"), SLOW) if work is read_slowly else (SLOW,)
    assert calls.run([Call(worker, work, words)])[worker] > 0


def test_who_waits_for_a_compiler_is_not_stuck(client: Client) -> None:
    calls = [Call(worker, compute_alone, (SLOW,)) for worker in _workers(client)]
    assert min(WorkerCalls(client, heartbeat_timeout=TIMEOUT).run(calls).values()) > 0


def test_a_worker_that_hangs_gets_no_more_work(client: Client) -> None:
    calls, worker = WorkerCalls(client, heartbeat_timeout=TIMEOUT), _workers(client)[0]
    try:
        with pytest.raises(WorkersLost, match="has not computed, read or written"):
            calls.run([Call(worker, hang, ())])
        time.sleep(2 * TIMEOUT)
        assert worker not in calls.trusted_workers(), "its heartbeats go on"
    finally:
        _over.set()


def test_who_waits_for_the_tasks_of_others_is_not_stuck(client: Client) -> None:
    worker = _workers(client)[0]
    others = client.submit(time.sleep, SLOW, workers=[worker], pure=False)
    assert WorkerCalls(client, heartbeat_timeout=TIMEOUT).run([Call(worker, int, ("7",))]) == {worker: 7}
    others.release()


class Answering:
    """In the place of a client: its one worker says what it is told to say, and works the while."""

    def __init__(self, liveness: Liveness | None, work: tuple[float, int] = (0.0, 0)) -> None:
        self.liveness, self.work = liveness, work
        self.answers = True

    def sync(self, *_: Any, **__: Any) -> Any:
        if not self.answers:
            raise TimeoutError
        if self.liveness is None:
            return {"a": {}}
        state, cpu, read, laps = self.liveness
        self.liveness = Liveness(state, cpu + self.work[0], read, laps + self.work[1])
        return {"a": {"key": self.liveness}}


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [0.0]
    monkeypatch.setattr("topline.pipeline.cluster.watchdog.time.monotonic", lambda: now[0])
    return now


def looks(watchdog: Watchdog, clock: list[float], seconds: float, **info: Any) -> dict[str, str]:
    """Look every six seconds for so long, or until something is found."""
    for _ in range(round(seconds / 6)):
        clock[0] += 6.0
        if found := watchdog.find({"key": "a"}, lambda: {"a": info}):
            return found
    return {}


def test_only_time_between_answers_counts(clock: list[float]) -> None:
    """A worker that was stopped, or a coordinator that slept, has a minute from then on."""
    client: Any = Answering(Liveness("executing", 1.0, 1, 1))
    watchdog = Watchdog(client, 60.0)
    assert not looks(watchdog, clock, 42.0)
    clock[0] += 86_400.0
    assert not looks(watchdog, clock, 6.0)
    client.answers = False
    assert not looks(watchdog, clock, 600.0)
    client.answers = True
    assert not looks(watchdog, clock, 6.0)
    assert "for 6" in looks(watchdog, clock, 12.0)["a"]


def test_an_endless_loop_is_found_after_an_hour(clock: list[float]) -> None:
    client: Any = Answering(Liveness("executing", 1.0, 1, 1), work=(5.0, 1))
    watchdog = Watchdog(client, 60.0)
    assert not looks(watchdog, clock, 7200.0), "work ends now and then"
    client.work = (5.0, 0)
    assert not looks(watchdog, clock, 3600.0)
    assert looks(watchdog, clock, 12.0) == {"a": "did not end its task in time"}


@pytest.mark.parametrize("state", ["waiting", "ready"])
def test_who_waits_for_others_has_an_hour(clock: list[float], state: str) -> None:
    watchdog = Watchdog(Answering(Liveness(state, 1.0, 1, 1), work=(0.0, 1)), 60.0)
    assert not looks(watchdog, clock, 3600.0)
    assert looks(watchdog, clock, 12.0) == {"a": "did not end its task in time"}


def test_a_paused_worker_is_said_to_be_paused(clock: list[float]) -> None:
    client: Any = Answering(None)
    info = {"status": "paused", "metrics": {"memory": 3 << 30}, "memory_limit": 4 << 30}
    reason = looks(Watchdog(client, 60.0), clock, 30.0, **info)["a"]
    assert "is paused, because its memory, 3.00 GiB of 4.00 GiB, is over Dask's pause share" in reason
    assert clock[0] <= 24.0
    with pytest.raises(ClusterError, match="as after a clock has jumped"):
        looks(Watchdog(client, 60.0), clock, 60.0, status="running")
