"""Clusters: on loopback only, quiet, without traces in the environment; clear refusals."""

from __future__ import annotations

import asyncio
import gc
import http.client
import logging
import os
import signal
import urllib.request
from contextlib import suppress
from typing import Any

import dask
import psutil
import pytest
from distributed import Client, LocalCluster
from distributed.client import AllExit
from distributed.comm.core import CommClosedError
from distributed.security import Security

from tests.processes import until
from topline.pipeline.cluster import connection, known_workers, open_cluster
from topline.pipeline.cluster.memory_plan import worker_share
from topline.pipeline.errors import ClusterError, ConfigError
from topline.pipeline.options.train import ClusterConfig


def listening() -> set[str]:
    me = psutil.Process()
    family = [me, *me.children(recursive=True)]
    return {c.laddr.ip for process in family for c in process.net_connections() if c.status == "LISTEN"}


def children() -> set[psutil.Process]:
    """Return the processes below this one but Python's tracker of shared memory, which stays to the end."""
    found = set()
    for child in psutil.Process().children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            if "resource_tracker" not in " ".join(child.cmdline()):
                found.add(child)
    return found


@pytest.mark.parametrize(("error", "told"), [(AllExit(), False), (ZeroDivisionError(), True)], ids=repr)
def test_waits_that_dask_gave_up_are_not_reported_later(
    error: Exception, told: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """Nobody asks for their result: asyncio reports them when they are collected, after the job perhaps."""

    async def failing() -> None:
        raise error

    async def forgotten() -> None:
        tasks.append(asyncio.ensure_future(failing()))
        await asyncio.wait(tasks)

    tasks: list[asyncio.Task[None]] = []
    with open_cluster(ClusterConfig(workers=1), data_bytes=0):
        pass
    asyncio.run(forgotten())
    tasks.clear()
    gc.collect()
    assert ("never retrieved" in caplog.text) is told


def test_no_workers_is_no_cluster() -> None:
    with open_cluster(ClusterConfig(workers=0)) as client:
        assert client is None


def test_a_worker_of_this_process_outlives_a_sleeping_laptop() -> None:
    with open_cluster(ClusterConfig(workers=1), data_bytes=0) as client:
        scheduler = client.cluster.scheduler
        (worker,) = scheduler.workers.values()

        async def wake() -> None:
            worker.last_seen -= 8 * 3600.0
            check = scheduler.periodic_callbacks.get("worker-ttl")
            await (asyncio.sleep(0) if check is None else check.callback())

        client.sync(wake)
        assert client.submit(abs, -1).result(timeout=20) == 1
        assert [*scheduler.workers] == [worker.address]


@pytest.mark.parametrize("data_bytes", [0, pytest.param(None, marks=pytest.mark.cluster)])
def test_an_own_cluster_stays_on_loopback_and_leaves_nothing(
    data_bytes: int | None, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    before = children()
    with open_cluster(ClusterConfig(workers=2, memory_limit="2GiB"), data_bytes=data_bytes) as client:
        assert listening() == {"127.0.0.1"}
        workers = known_workers(client).values()
        assert len(workers) == 2
        # Processes share what the coordinator leaves; threads are the coordinator.
        share = 0 if data_bytes == 0 else worker_share(2**31, 2)
        assert [worker["memory_limit"] for worker in workers] == [share, share]
        pids = set(client.run(os.getpid).values())
        assert (os.getpid() in pids) == (data_bytes == 0)
        assert dask.config.get("distributed.scheduler.work-stealing") is False
    assert os.environ["OMP_NUM_THREADS"] == "7"
    assert "MKL_NUM_THREADS" not in os.environ
    until(lambda: not children() - before, "the end of every process", 120)
    assert capfd.readouterr().err == ""


@pytest.mark.cluster
def test_who_has_no_certificate_neither_runs_nor_reads_anything_of_an_own_cluster() -> None:
    """What another user of the machine can do: call every port that the job's processes listen at."""
    with open_cluster(ClusterConfig(workers=1)) as client:
        scheduler, workers = client.scheduler_info()["address"], known_workers(client)
        for address in (scheduler, *workers, *(worker["nanny"] for worker in workers.values())):
            assert address.startswith("tls://127.0.0.1:")
            for scheme, options in (("tcp", {}), ("tls", {"security": Security.temporary()})):
                caller = address.replace("tls", scheme, 1)
                with pytest.raises(OSError, match=r".*"):
                    Client(caller, timeout=2, set_as_default=False, **options)
        me = psutil.Process()
        family = [me, *me.children(recursive=True)]
        ports = {c.laddr.port for one in family for c in one.net_connections() if c.status == "LISTEN"}
        closed = {int(address.rpartition(":")[2]) for address in (scheduler, *workers)}
        told = []
        for port in ports - closed:
            for page in ("status", "info/main/workers.html", "json/identity.json", "metrics", "topline"):
                with suppress(OSError, http.client.HTTPException):
                    urllib.request.urlopen(f"http://127.0.0.1:{port}/{page}", timeout=5).close()
                    told.append((port, page))
        assert told == []
        assert client.submit(sum, (1, 2)).result() == 3


def complain() -> int:
    """What a worker process logs where its heartbeat meets a cluster that is closing."""
    logging.getLogger("distributed.worker").error("failed to communicate")
    return os.getpid()


@pytest.mark.cluster
def test_worker_processes_keep_their_troubles_out_of_the_log(capfd: pytest.CaptureFixture[str]) -> None:
    with open_cluster(ClusterConfig(workers=1)) as client:
        (pid,) = client.run(complain).values()
    assert pid != os.getpid()
    assert capfd.readouterr().err == ""


@pytest.mark.slow
@pytest.mark.cluster
def test_a_worker_that_died_comes_back_however_long_that_takes() -> None:
    """With Dask's own patience at nothing, any start of a process takes too long."""
    with (
        dask.config.set({"distributed.deploy.lost-worker-timeout": "0s"}),
        open_cluster(ClusterConfig(workers=1)) as client,
    ):
        ((first, pid),) = client.run(os.getpid).items()
        os.kill(pid, signal.SIGKILL)
        until(lambda: known_workers(client).keys() - {first}, "another worker", 300)


def test_a_second_cluster_finds_another_port() -> None:
    config = ClusterConfig(workers=1, dashboard=True)
    with open_cluster(config, data_bytes=0) as one, open_cluster(config, data_bytes=0) as two:
        assert one.dashboard_link != two.dashboard_link


def test_messages_of_a_run_are_not_kept() -> None:
    with open_cluster(ClusterConfig(workers=1, dashboard=False), data_bytes=0) as client:
        for number in range(40):
            client.submit(len, bytes(500_000), key=f"message-{number}").result(timeout=60)
        scheduler = client.cluster.scheduler
        ends = client.scheduler_comm, *scheduler.stream_comms.values()
        assert len(ends) == 2
        assert max(len(end.recent_message_log) for end in ends) <= 10


def cluster_of_others() -> LocalCluster:
    """Return a cluster that listens without TLS, with one worker that is a thread."""
    return LocalCluster(
        n_workers=1, processes=False, protocol="tcp", host="127.0.0.1",
        dashboard_address="127.0.0.1:0", worker_dashboard_address="127.0.0.1:0",
    )  # fmt: skip


def test_a_running_scheduler_is_used_and_left_running() -> None:
    with cluster_of_others() as cluster:
        address = cluster.scheduler_address
        with open_cluster(ClusterConfig(scheduler=address)) as client:
            assert client.submit(os.getpid).result() == os.getpid()
        with Client(address, set_as_default=False) as still:
            assert len(known_workers(still)) == 1


def test_workers_with_other_packages_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with cluster_of_others() as cluster:
        monkeypatch.setattr("topline.pipeline.cluster.connection.np.__version__", "1.26.4")
        with (
            pytest.raises(ClusterError, match=r"has numpy 2, here it is 1"),
            open_cluster(ClusterConfig(scheduler=cluster.scheduler_address)),
        ):
            pass


def test_a_scheduler_that_is_not_there_is_a_sentence() -> None:
    with (
        pytest.raises(ClusterError, match=r"no Dask scheduler answered at tcp://127\.0\.0\.1:9"),
        open_cluster(ClusterConfig(scheduler="tcp://127.0.0.1:9", worker_wait=1.0)),
    ):
        pass


def test_a_scheduler_beyond_this_machine_without_tls_is_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    with (
        pytest.raises(ClusterError),
        open_cluster(ClusterConfig(scheduler="tcp://192.0.2.77:8786", worker_wait=0.5)),
    ):
        pass
    assert "without TLS" in caplog.text


def test_what_a_running_cluster_decides_for_itself_is_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    address = "tcp://127.0.0.1:9"

    def said(**given: Any) -> str:
        caplog.clear()
        config = ClusterConfig(scheduler=address, worker_wait=0.1, **given)
        with pytest.raises(ClusterError), open_cluster(config):
            pass
        return caplog.text

    assert "not used" not in said()
    assert "not used: --workers, --threads-per-worker" in said(workers=0, threads_per_worker=4)
    assert f"the cluster at {address} has its own workers; not used: --memory-limit" in said(
        memory_limit="1GiB"
    )


def test_a_memory_limit_that_is_no_size_is_refused() -> None:
    with (
        pytest.raises(ConfigError, match="'lots' is not a size"),
        open_cluster(ClusterConfig(workers=1, memory_limit="lots"), data_bytes=0),
    ):
        pass


def test_a_worker_that_does_not_end_in_time_takes_no_answer_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a busy machine Dask kills it and raises, after everything is done."""
    whole = LocalCluster.close

    def late(self: LocalCluster, *arguments: object) -> None:
        whole(self, *arguments)
        raise TimeoutError

    monkeypatch.setattr(LocalCluster, "close", late)
    with open_cluster(ClusterConfig(workers=1, dashboard=False), data_bytes=0) as client:
        answer = client.submit(sum, (1, 2)).result()
    assert answer == 3


def test_a_worker_that_is_killed_as_it_starts_is_no_fault_of_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    def cluster(**_: object) -> None:
        raise RuntimeError("Nanny failed to start.")

    monkeypatch.setattr(connection, "LocalCluster", cluster)
    with (
        pytest.raises(
            ClusterError, match="did not start, as a worker was killed or ran out of memory: run it"
        ),
        open_cluster(ClusterConfig(workers=2)),
    ):
        pass


@pytest.mark.cluster
def test_a_worker_that_is_killed_once_it_has_started_costs_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Dask raises where a worker that is told of a plugin ends; the one in its place is told again."""
    register = Client.register_plugin

    def lost(self: Client, plugin: Any) -> None:
        register(self, plugin)
        raise CommClosedError("Stream is closed")

    monkeypatch.setattr(Client, "register_plugin", lost)
    with open_cluster(ClusterConfig(workers=1, dashboard=False)) as client:
        assert client.submit(sum, (1, 2)).result() == 3
