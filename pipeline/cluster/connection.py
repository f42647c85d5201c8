"""The Dask cluster of a job: none, a local one of its own, or one that is already running."""

from __future__ import annotations

import ast
import importlib.metadata
import inspect
import ipaddress
import logging
import os
import platform
import signal
import socket
import ssl
import sys
import warnings
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, cast
from urllib.parse import urlsplit

import dask
import numpy as np
from dask.system import CPU_COUNT
from distributed import Client, LocalCluster, Worker, WorkerPlugin
from distributed.client import AllExit
from distributed.comm.core import CommClosedError

from topline.pipeline.cluster.memory_plan import memory_limit, worker_share
from topline.pipeline.cluster.tls import expired, handshake_problem, temporary_security, warn_of_expiry
from topline.pipeline.errors import ClusterError
from topline.pipeline.options import ClusterConfig

logger = logging.getLogger(__name__)

# Data of this size fits one process's caches many times over, and a round costs mostly latency: 6 ms with
# threads, against 9 ms and half a second of start-up with processes.
SMALL_JOB_BYTES = 64 << 20

# The scheduler gives up a worker process that is silent this long (Dask's default is five minutes).  One on a
# thread is silent while its process sleeps, as on a closed laptop: it stays, since none would take its place.
WORKER_TTL = "60s"

# The nanny restarts a worker that died.  Dask closes one that is not back within 15 seconds, which starting a
# process on a busy machine can take: permanently, or just after it is back and holds blocks.
LOST_WORKER_TIMEOUT = "24h"

# Dask cannot spill what we hold to disk, and a paused worker waits forever: let it end at its limit.
MEMORY_SETTINGS = {
    f"distributed.worker.memory.{name}": value
    for name, value in (("target", False), ("spill", False), ("pause", False), ("terminate", 0.95))
}

# For debugging, each end of a Dask connection keeps its last messages of up to a megabyte each: 1,000 by
# default, which is hundreds of megabytes after a few hundred rounds.
LOG_SETTINGS = {"distributed.admin.low-level-log-length": 10}

DASHBOARD_PORT = 8787
# Module that adds a run's page to Dask's dashboard.
PAGE = "topline.pipeline.dashboard.dask_page"
# Topic of the events that tell the scheduler, for that page, which run is in progress.
TOPIC = "topline-runs"

THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")


class IgnoreInterrupts(WorkerPlugin):
    """Leave Ctrl-C to the coordinator: a terminal sends it to worker processes too."""

    idempotent = True
    name = "topline-ignore-interrupts"

    def setup(self, worker: Any) -> None:  # noqa: ARG002
        """Run in the main thread of a worker process."""
        signal.signal(signal.SIGINT, signal.SIG_IGN)


class _PagelessWorker(Worker):
    """A worker thread without HTTP pages, since those have no password."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **{**options, "dashboard": False})


@contextmanager
def open_cluster(
    config: ClusterConfig, *, data_bytes: int | None = None, worker_bytes: int | None = None
) -> Iterator[Client | None]:
    """Yield a client of the cluster that `config` describes, or None for work in this process.

    `data_bytes` is the size of the job's data: a small job on a local cluster gets worker threads, which
    start sooner than processes and answer within milliseconds.  `worker_bytes` is the memory of each local
    worker, by default its part of `config.memory_limit` or of the machine's memory.
    Raises `ClusterError` if no worker is reachable within `config.worker_wait` seconds or package versions
    differ, `ConfigError` if the memory limit is too small for the workers.
    """
    limit = memory_limit(config.memory_limit)
    if config.scheduler is not None:
        if config.left_to_scheduler:
            left = ", ".join(config.left_to_scheduler)
            logger.warning("the cluster at %s has its own workers; not used: %s", config.scheduler, left)
        with _running_cluster(config.scheduler, config.worker_wait) as client:
            yield client
    elif config.workers == 0:
        yield None
    else:
        processes = takes_processes(data_bytes)
        workers = worker_count(config)
        if processes and worker_bytes is None and limit is not None:
            worker_bytes = worker_share(limit, workers)
        with _own_cluster(config, workers, worker_bytes, processes=processes) as client:
            yield client


@contextmanager
def given_or_own_client(
    config: ClusterConfig, client: Client | None, data_bytes: int, worker_bytes: int | None = None
) -> Iterator[Client | None]:
    """Yield `client`, which stays open, or what `open_cluster` yields if there is none."""
    if client is not None:
        yield client
        return
    with open_cluster(config, data_bytes=data_bytes, worker_bytes=worker_bytes) as own:
        yield own


def takes_processes(data_bytes: int | None) -> bool:
    """Return whether the workers of a local cluster are processes for data of that size."""
    return data_bytes is None or data_bytes >= SMALL_JOB_BYTES


def worker_count(config: ClusterConfig) -> int:
    """Return the number of workers of a local cluster."""
    return config.workers or max(1, CPU_COUNT // config.threads_per_worker)


def announce(client: Client, store_url: str, run_id: str) -> None:
    """Tell the scheduler which run starts, for its page; a failure is harmless."""
    try:
        client.log_event(TOPIC, {"store": store_url, "run": run_id})
    except (OSError, ValueError, RuntimeError) as error:
        logger.debug("the scheduler's page will not show run %s: %s", run_id, error)


def _refuse_unguarded() -> None:
    """Raise `ClusterError` if worker processes would start by running this script again."""
    main = sys.modules["__main__"]
    path, frame = getattr(main, "__file__", None), inspect.currentframe()
    while frame and not (frame.f_globals is vars(main) and frame.f_code.co_name == "<module>"):
        frame = frame.f_back
    try:
        statements = ast.parse(Path(path).read_bytes()).body if frame and path else []
    except (OSError, SyntaxError, ValueError):
        return
    line = frame.f_lineno if frame else 0
    running = [part for part in statements if part.lineno <= line <= (part.end_lineno or part.lineno)]
    if any(not (isinstance(part, ast.If) and "__name__" in ast.dump(part.test)) for part in running):
        raise ClusterError(
            f"{path} starts worker processes, which would run it from its first line again: put line {line}"
            ' under if __name__ == "__main__":, or take workers=0'
        )


def _local_settings(config: ClusterConfig, *, processes: bool) -> dict[str, Any]:
    """Return what Dask is configured with for a cluster on this machine."""
    settings: dict[str, Any] = {
        **MEMORY_SETTINGS,
        **LOG_SETTINGS,
        "distributed.scheduler.work-stealing": False,
        # It would look at the threads of every worker a hundred times a second.
        "distributed.worker.profile.enabled": False,
        "distributed.scheduler.worker-ttl": WORKER_TTL if processes else None,
        "distributed.deploy.lost-worker-timeout": LOST_WORKER_TIMEOUT,
        "distributed.nanny.pre-spawn-environ": dict.fromkeys(THREAD_VARIABLES, config.threads_per_worker),
        "distributed.comm.timeouts.connect": f"{max(30, int(config.worker_wait))}s",
    }
    if config.dashboard:
        preloads = [*dask.config.get("distributed.scheduler.preload"), PAGE]
        settings["distributed.scheduler.preload"] = preloads
    else:
        # The pages have no password, and every user of the machine can reach its loopback.
        settings |= {f"distributed.{role}.http.routes": [] for role in ("scheduler", "worker")}
    return settings


@contextmanager
def _own_cluster(
    config: ClusterConfig, workers: int, worker_bytes: int | None, *, processes: bool
) -> Iterator[Client]:
    if processes:
        _refuse_unguarded()
    threads = config.threads_per_worker
    # Threads need no port, but Dask's configuration may ask for one, and for encryption.
    closed = processes or dask.config.get("distributed.comm.require-encryption")
    with ExitStack() as stack:
        stack.enter_context(_environment_kept())
        stack.enter_context(_quiet())
        stack.enter_context(dask.config.set(_local_settings(config, processes=processes)))
        try:
            cluster = LocalCluster(
                n_workers=workers,
                threads_per_worker=threads,
                processes=processes,
                host="127.0.0.1" if processes else None,
                security=temporary_security() if closed else None,
                scheduler_kwargs={"dashboard": config.dashboard},
                dashboard_address=_dashboard_address() if config.dashboard else "127.0.0.1:0",
                # Worker threads have no host of their own and would listen on every network.
                worker_dashboard_address=None if processes else "127.0.0.1:0",
                worker_class=None if processes or config.dashboard else _PagelessWorker,
                # Worker threads share this process: a memory limit each would only pause them.
                memory_limit=(worker_bytes or "auto") if processes else 0,
                # A worker whose heartbeat meets a closing cluster logs an error.
                silence_logs=logging.CRITICAL,
            )
        except RuntimeError as error:
            raise ClusterError(
                "the cluster on this machine did not start, as a worker was killed or ran out of memory:"
                " run it again with fewer --workers, or with --workers 0, which needs none"
            ) from error
        except OSError as error:
            raise ClusterError(
                f"the cluster on this machine did not start: {error}; --workers 0 needs none"
            ) from error
        stack.callback(_close, cluster)
        client = stack.enter_context(Client(cluster, set_as_default=False, direct_to_workers=True))
        if processes:
            # The replacement of a worker that is killed just now gets it from the scheduler.
            with suppress(CommClosedError):
                client.register_plugin(IgnoreInterrupts())
        # Dask batches a client's messages for 10 ms; a round of a small job is over by then.
        client.scheduler_comm.interval = 0.001
        _wait_for_worker(client, "the cluster on this machine", config.worker_wait)
        yield client


def _close(cluster: LocalCluster) -> None:
    """Close an idle cluster; Dask kills a worker that does not end in time, then raises."""
    with suppress(TimeoutError):
        cluster.close()


def _is_of_use(record: logging.LogRecord) -> bool:
    """Return whether an asyncio message is not about a wait that Dask abandoned after another failure."""
    return not (record.exc_info and isinstance(record.exc_info[1], AllExit))


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep Dask's connection messages out of the job's log; the job reports what concerns it."""
    # asyncio reports tasks that Dask leaves behind when connections end, some only at collection.
    logging.getLogger("asyncio").addFilter(_is_of_use)
    loggers = [logging.getLogger(name) for name in ("distributed", "distributed.client", "asyncio")]
    levels = [each.level for each in loggers]
    for each in loggers:
        each.setLevel(logging.CRITICAL)
    try:
        with warnings.catch_warnings():
            # Another job may take the dashboard's port between our check and Dask's.
            warnings.filterwarnings("ignore", message="Port .* is already in use")
            yield
    finally:
        for each, level in zip(loggers, levels, strict=True):
            each.setLevel(level)


@contextmanager
def _environment_kept() -> Iterator[None]:
    """Restore the environment variables that LocalCluster sets for its children."""
    before = {name: os.environ.get(name) for name in (*THREAD_VARIABLES, "MALLOC_TRIM_THRESHOLD_")}
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def _dashboard_address() -> str:
    """Return Dask's usual port on loopback, or any free one, so that a second job does not complain."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", DASHBOARD_PORT))
        except OSError:
            return "127.0.0.1:0"
    return f"127.0.0.1:{DASHBOARD_PORT}"


@contextmanager
def _running_cluster(address: str, wait: float) -> Iterator[Client]:
    _warn_if_open(address)
    warn_of_expiry()
    with ExitStack() as stack:
        stack.enter_context(dask.config.set(LOG_SETTINGS))
        try:
            client = Client(address, timeout=wait, set_as_default=False)
        except (OSError, ValueError, TypeError, RuntimeError) as error:
            raise ClusterError(_refusal(address, wait, error)) from error
        stack.enter_context(_quiet())
        stack.enter_context(client)
        _wait_for_worker(client, f"the scheduler at {address}", wait)
        _check_versions(client, address)
        yield client


def _refusal(address: str, wait: float, error: Exception) -> str:
    """Return why Dask's client could not reach the scheduler, and what to do."""
    fix = "DASK_CONFIG has to name the dask.yaml that `topline certs` made for this cluster"
    if isinstance(error, TypeError):
        return f"the scheduler at {address} asks for a certificate and Dask has none here: {fix}"
    if isinstance(error, (FileNotFoundError, PermissionError, ssl.SSLError)):
        return f"a certificate of Dask's configuration cannot be used ({error}): {fix}"
    if isinstance(error, RuntimeError):
        return (
            f"Dask's configuration asks for encryption: use tls:// instead of {address}, or unset DASK_CONFIG"
        )
    why = ""
    try:
        problem = expired() or handshake_problem(address, wait)
        if problem is not None:
            said, remedy = problem
            return f"the scheduler at {address} {said}: {remedy or fix}"
    except ConnectionRefusedError:
        why = " (connection refused: nothing listens there)"
    except (OSError, ValueError) as unreachable:
        why = f" ({unreachable})"
    return (
        f"no Dask scheduler answered at {address} within {wait:g} s{why}: check the address, or leave out"
        " --scheduler to start a cluster on this machine"
    )


def _warn_if_open(address: str) -> None:
    parts = urlsplit(address)
    if parts.scheme in ("tls", "wss", "inproc") or _is_loopback(parts.hostname or ""):
        return
    logger.warning(
        "the scheduler at %s is reached without TLS: anyone there can run code on the workers;"
        " use tls:// (see deploy/tls)",
        address,
    )


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _wait_for_worker(client: Client, place: str, wait: float) -> None:
    quiet = min(wait, 10.0)
    for seconds in (quiet, wait - quiet):
        with suppress(TimeoutError):
            client.wait_for_workers(1, timeout=seconds)
            return
        if seconds == quiet < wait:
            logger.warning("%s has no worker yet: waiting up to %g s", place, wait)
    raise ClusterError(
        f"{place} has no worker after {wait:g} s: start workers, or wait longer with --worker-wait"
    )


def _check_versions(client: Client, address: str) -> None:
    """Raise if a worker's Python, NumPy, Dask or Topline could not understand what is sent to it."""
    versions = cast("Mapping[str, Any]", client.get_versions(check=False))["workers"]
    ours = {
        "python": platform.python_version(),
        "numpy": np.__version__,
        "distributed": importlib.metadata.version("distributed"),
    }
    # Of Python the first two parts count, of NumPy the first.
    parts = {"python": 2, "numpy": 1, "distributed": None}
    for worker, entry in versions.items():
        for package, version in ours.items():
            there, here = (
                ".".join(text.split(".")[: parts[package]])
                for text in (str(entry["packages"].get(package)), version)
            )
            if there != here:
                raise ClusterError(
                    f"worker {worker} of {address} has {package} {there}, here it is {here}: install the same"
                )
    found = client.run(importlib.metadata.version, "topline", on_error="return")
    here = importlib.metadata.version("topline")
    for worker, version in found.items():
        if version != here:
            there = "none" if isinstance(version, Exception) else str(version)
            raise ClusterError(
                f"worker {worker} of {address} has topline {there}, here it is {here}: install the same"
            )
