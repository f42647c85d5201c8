"""Calls that hang are found while their workers send heartbeats; calls that are only slow are not."""

from __future__ import annotations

import itertools
import logging
import os
import re
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from distributed import Client
from distributed.comm import CommClosedError

from tests.pipeline.small_data import make_features
from tests.processes import until
from topline.pipeline.cluster import Call, DaskExecutor, WorkerCalls, WorkersLost, known_workers, open_cluster
from topline.pipeline.cluster.calls import this_worker
from topline.pipeline.cluster.liveness import CALL_THREAD, Liveness, liveness_of
from topline.pipeline.cluster.watchdog import Watchdog, WorkerWatch, ask_scheduler
from topline.pipeline.errors import ClusterError
from topline.pipeline.options.train import ClusterConfig
from topline.solvers.crew import Crew
from topline.solvers.executors import SerialExecutor
from topline.solvers.losses import TopKHinge
from topline.solvers.operations.base import RowBlock, _on_threads
from topline.solvers.run import solve

N, D, M = 200, 8, 4
X, Y = make_features(N, D, M)
# What a call may be still for here.
TIMEOUT = 3.0


_over = threading.Event()


@pytest.fixture
def client() -> Iterator[Client]:
    """Two workers, whose calls go on until `_over` is set, at the test's end at the latest."""
    _over.clear()
    with open_cluster(ClusterConfig(workers=2), data_bytes=0) as client:
        try:
            yield client
        finally:
            _over.set()


def solved(executor: Any) -> Any:
    options: Any = {"method": "fw", "tol": 1e-12, "max_passes": 12, "m": M}
    return solve(X, Y, TopKHinge(2), lam=1.0 / N, executor=executor, **options)


def test_blocks_of_a_call_that_hangs_move(
    client: Client, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(WorkerWatch, "silent", lambda *_: [])
    expected = solved(SerialExecutor(blocks=4))
    hung: list[str] = []
    genuine = RowBlock.run

    def hanging(block: RowBlock, request: Any, threads: int = 1) -> Any:
        if not hung and request.round == 5:
            hung.append(this_worker().address)
            _over.wait()
        return genuine(block, request, threads)

    monkeypatch.setattr(RowBlock, "run", hanging)
    with (
        caplog.at_level(logging.WARNING),
        DaskExecutor(client, blocks=4, heartbeat_timeout=TIMEOUT) as executor,
    ):
        result = solved(executor)
        assert [*executor.owners] == [other for other in _workers(client) if other not in hung]
    _over.set()
    assert np.array_equal(result.W, expected.W)
    assert f"worker {hung[0]} is there, but has not computed, read or written anything" in caplog.text


def _workers(client: Client) -> list[str]:
    return sorted(known_workers(client))


def compute(_path: str = "") -> None:
    """Use a processor, as a compiler does."""
    while not _over.is_set():
        sum(range(1000))


def read_slowly(path: str) -> None:
    """Read a few bytes, and a few more."""
    file = os.open(path, os.O_RDONLY)
    while not _over.wait(0.05):
        os.lseek(file, 0, os.SEEK_SET)
        os.read(file, 16)
    os.close(file)


def hang(_path: str = "") -> None:
    _over.wait()


_compiling = threading.Lock()


def compute_alone(_path: str) -> None:
    """Compute while others of the process wait, as where functions are compiled."""
    with _compiling:
        compute()


def helped(_path: str) -> None:
    """Wait for a thread of ours that does the work."""
    helper = threading.Thread(target=compute, name="topline-block_0")
    helper.start()
    helper.join()


def heads(_path: str) -> None:
    """Wait for the threads of heads that share passes."""
    _on_threads([compute, compute], 2)


def helpers(_path: str) -> None:
    """Wait for a thread that helps sweeps."""
    Crew().pool.submit(compute).result()


def liveness(client: Client, worker: str, key: str) -> Liveness | None:
    return client.run(liveness_of, [key], workers=[worker])[worker].get(key)


def until_it_has_moved(client: Client, worker: str, key: str) -> None:
    """Return once a running call has used a processor, or read."""
    before = until_it_works(client, worker, key)

    def has_moved() -> bool:
        now = liveness(client, worker, key)
        return now.cpu > before.cpu + 0.01 or now.moved > before.moved + 100

    until(has_moved, "work", pause=0.0)


def until_it_works(client: Client, worker: str, key: str) -> Liveness:
    """Return what is known of a call once it is under way."""
    return until(lambda: liveness(client, worker, key), "the call", pause=0.01)


@pytest.mark.parametrize("work", [read_slowly, compute, helped, heads, helpers, compute_alone])
def test_slow_work_shows_that_it_goes_on(client: Client, tmp_path: Path, work: Callable[..., None]) -> None:
    """Also that of the worker that waits while the other one of its process compiles."""
    (tmp_path / "file").write_bytes(bytes(16))
    calls = WorkerCalls(client, heartbeat_timeout=3600.0)
    begun = [calls.begin(Call(worker, work, (str(tmp_path / "file"),))) for worker in _workers(client)]
    for each in begun:
        until_it_has_moved(client, each.call.worker, each.key)
    _over.set()
    for each in begun:
        each.future.result()


def test_a_worker_that_hangs_gets_no_more_work(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(WorkerWatch, "silent", lambda *_: [])
    calls, worker = WorkerCalls(client, heartbeat_timeout=TIMEOUT), _workers(client)[0]
    with pytest.raises(WorkersLost, match="has not computed, read or written"):
        calls.run([Call(worker, hang, ())])
    seen = heartbeat(client, worker)
    until(lambda: heartbeat(client, worker) != seen, "a heartbeat", pause=0.05)
    assert worker not in calls.trusted_workers(), "its heartbeats go on"


def test_workers_are_known_while_dask_looks_for_none(client: Client) -> None:
    """Dask's own look, which forgets them, comes in before the answer."""
    genuine = client._update_scheduler_info

    async def forgetful(n_workers: int = 0) -> None:
        await genuine(n_workers=n_workers)
        await genuine(n_workers=0)

    client._update_scheduler_info = forgetful
    assert not client.scheduler_info(n_workers=-1)["workers"]
    assert len(known_workers(client)) == 2


def heartbeat(client: Client, worker: str) -> float:
    return float(known_workers(client)[worker]["last_seen"])


def last(*items: Any) -> Any:
    return items[-1]


def test_who_waits_for_another_is_not_at_work(client: Client) -> None:
    first, second = _workers(client)
    calls = WorkerCalls(client, heartbeat_timeout=3600.0)
    begun = calls.begin(Call(first, last, (7,), source=Call(second, hang, ())))
    until_it_works(client, second, begun.key)
    assert liveness(client, first, begun.key) is None
    _over.set()
    assert begun.future.result() is None


def test_calls_go_on_beside_tasks_and_hand_on_what_others_find(client: Client) -> None:
    first, second = _workers(client)
    others = client.submit(hang, workers=[first], pure=False)
    handed = Call(first, int, ("7",), below=(Call(second, int, ("8",)),), join=last)
    assert WorkerCalls(client, heartbeat_timeout=3600.0).run([handed]) == {first: 8}
    with pytest.raises(ZeroDivisionError):
        WorkerCalls(client, heartbeat_timeout=3600.0).run(
            [Call(first, int, ("7",), below=(Call(second, divmod, (1, 0)),))]
        )
    _over.set()
    others.release()


def test_workers_are_not_idle_for_dask_until_their_calls_are_over(client: Client) -> None:
    """Dask ends idle schedulers, and workers of clusters that shrink, where that is asked for."""
    calls, workers = WorkerCalls(client, heartbeat_timeout=3600.0), _workers(client)

    def wait_until(idle: list[str]) -> None:
        to_close = client.scheduler.workers_to_close
        until(lambda: sorted(client.sync(to_close, n=None, minimum=0)) == idle, f"{idle} idle", pause=0.05)

    wait_until(workers)
    # A task of others, and a second call, make no difference.
    for _ in range(2):
        calls.run([Call(worker, int, ("7",)) for worker in workers])
        wait_until([])
    assert client.submit(int, "8", pure=False).result() == 8
    calls.let_go()
    wait_until(workers)


def test_a_worker_may_end_while_a_call_works(monkeypatch: pytest.MonkeyPatch) -> None:
    raised: list[threading.ExceptHookArgs] = []
    monkeypatch.setattr(threading, "excepthook", raised.append)
    _over.clear()
    with open_cluster(ClusterConfig(workers=1), data_bytes=0) as client:
        worker = _workers(client)[0]
        begun = WorkerCalls(client, heartbeat_timeout=3600.0).begin(Call(worker, hang, ()))
        until_it_works(client, worker, begun.key)
    working = [each for each in threading.enumerate() if each.name == CALL_THREAD]
    _over.set()
    for each in working:
        each.join()
    assert working
    assert not raised


def refuse(dask_worker: Any) -> None:
    dask_worker.blocked_handlers = ["run"]


def test_a_worker_that_cannot_take_calls_gets_no_more(client: Client) -> None:
    refusing, other = _workers(client)
    client.run(refuse, workers=[refusing])
    calls = WorkerCalls(client, heartbeat_timeout=3600.0)
    with pytest.raises(WorkersLost, match=f"{refusing} cannot take calls .*disallowed"):
        calls.run([Call(refusing, int, ("7",))])
    assert [*calls.trusted_workers()] == [other]


def test_who_waits_for_a_worker_says_so_once(client: Client, caplog: pytest.LogCaptureFixture) -> None:
    watch = WorkerWatch(client, 3600.0, clock=itertools.count(0.0, 2.0).__next__)
    watch.give_up(dict.fromkeys(_workers(client), "hangs"))
    with pytest.raises(ClusterError, match=r"no worker for 40 s: worker \S+ hangs"):
        watch.wait(1, 40.0)
    (said,) = (record.getMessage() for record in caplog.records)
    assert re.fullmatch(r"there is no worker: waiting up to 40 s; (worker \S+ hangs; )+start workers", said)


def test_a_worker_that_cannot_be_reached_is_asked_through_the_scheduler(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker, genuine = _workers(client)[0], client.rpc.connect

    async def connect(address: str, *options: Any) -> Any:
        if address == worker:
            raise OSError("no way")
        return await genuine(address, *options)

    monkeypatch.setattr("topline.pipeline.cluster.calls._far", set())
    monkeypatch.setattr(client.rpc, "connect", connect)
    calls = WorkerCalls(client, heartbeat_timeout=3600.0)
    assert [calls.run([Call(worker, int, (text,))]) for text in "12"] == [{worker: 1}, {worker: 2}]


class Answering:
    """In the place of a client: its one worker says what it is told to say, and works the while."""

    def __init__(self, liveness: Liveness | None, work: tuple[float, int] = (0.0, 0)) -> None:
        self.liveness, self.work = liveness, work
        self.reads, self.answers = 0, True

    def sync(self, *_: Any, **__: Any) -> Any:
        if not self.answers:
            raise TimeoutError
        if self.liveness is None:
            return {"a": {}}
        cpu, read, laps = self.liveness
        self.liveness = Liveness(cpu + self.work[0], read + self.reads, laps + self.work[1])
        return {"a": {"key": self.liveness}}


@pytest.fixture
def clock() -> list[float]:
    return [0.0]


def watchdog_of(client: Any, clock: list[float]) -> Watchdog:
    return Watchdog(client, 60.0, lambda: clock[0])


def polls(watchdog: Watchdog, clock: list[float], seconds: float, **info: Any) -> dict[str, str]:
    """Poll every six seconds for so long, or until something is found."""
    for _ in range(round(seconds / 6)):
        clock[0] += 6.0
        if found := watchdog.find({"a": "key"}, lambda: {"a": info}):
            return found
    return {}


def test_only_time_between_answers_counts(clock: list[float]) -> None:
    """A worker that was stopped, or a coordinator that slept, has a minute from then on."""
    client: Any = Answering(Liveness(1.0, 1, 1))
    watchdog = watchdog_of(client, clock)
    assert not polls(watchdog, clock, 42.0)
    clock[0] += 86_400.0
    assert not polls(watchdog, clock, 6.0)
    client.answers = False
    assert not polls(watchdog, clock, 600.0)
    client.answers = True
    assert not polls(watchdog, clock, 6.0)
    assert "for 6" in polls(watchdog, clock, 12.0)["a"]


def test_a_call_that_reads_or_computes_is_waited_for(clock: list[float]) -> None:
    client: Any = Answering(Liveness(1.0, 1, 1), work=(0.1, 0))
    watchdog = watchdog_of(client, clock)
    assert not polls(watchdog, clock, 600.0), "a sixtieth of a processor"
    client.work, client.reads = (0.0, 0), 1
    assert not polls(watchdog, clock, 600.0), "a byte now and then"
    client.reads = 0
    assert "for 6" in polls(watchdog, clock, 72.0)["a"]


def test_an_endless_loop_is_found_after_an_hour(clock: list[float]) -> None:
    client: Any = Answering(Liveness(1.0, 1, 1), work=(5.0, 1))
    watchdog = watchdog_of(client, clock)
    assert not polls(watchdog, clock, 7200.0), "work ends now and then"
    client.work = (5.0, 0)
    assert not polls(watchdog, clock, 3600.0)
    assert polls(watchdog, clock, 12.0) == {"a": "did not end its task in time"}


def test_who_waits_for_others_has_an_hour(clock: list[float]) -> None:
    watchdog = watchdog_of(Answering(None), clock)
    assert not polls(watchdog, clock, 3600.0)
    assert polls(watchdog, clock, 12.0) == {"a": "did not end its task in time"}


class CutConnection:
    """A scheduler that answers once `cuts` connections that were cut are used up."""

    def __init__(self, scheduler: Any, cuts: int) -> None:
        self._scheduler = scheduler
        self.cuts = cuts

    async def identity(self, **options: Any) -> Any:
        if self.cuts:
            self.cuts -= 1
            raise CommClosedError("the connection was cut")
        return await self._scheduler.identity(**options)


def test_a_worker_is_silent_by_the_time_in_which_somebody_looked(
    clock: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A coordinator that was stopped looks before its scheduler has read what workers sent."""
    workers = {name: {"last_seen": 1.0} for name in "ab"}
    monkeypatch.setattr("topline.pipeline.cluster.watchdog.known_workers", lambda *_: workers)
    running: Any = SimpleNamespace(status="running")
    watch = WorkerWatch(running, 60.0, lambda: clock[0])
    for late in (1.0, 86_400.0, 4.0):
        clock[0] += late
        watch.alive()
        assert watch.silent("ab") == []
    for _ in range(10):
        clock[0] += 5.0
        workers["b"]["last_seen"] = clock[0]
        watch.alive()
    assert watch.silent("ab") == ["a"]


def test_connections_that_were_cut_are_not_a_scheduler_that_is_gone(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    watch = WorkerWatch(client, heartbeat_timeout=30.0)
    monkeypatch.setattr(client, "scheduler", CutConnection(client.scheduler, cuts=2))
    assert len(watch.alive()) == 2
    monkeypatch.setattr(client, "scheduler", CutConnection(client.scheduler, cuts=1_000))
    with pytest.raises(ClusterError, match="does not answer"):
        watch.alive()


def test_a_client_that_has_given_its_scheduler_up_is_told_from_a_fault(client: Client) -> None:
    """Dask's pool of connections then raises RuntimeError, now here and now there."""

    async def closed(_: Any) -> None:
        raise RuntimeError("ConnectionPool is closed")

    with pytest.raises(RuntimeError, match="ConnectionPool"):
        ask_scheduler(client, closed, 30.0)
    client.close()
    with pytest.raises(OSError, match="the client is closed"):
        ask_scheduler(client, closed, 30.0)
