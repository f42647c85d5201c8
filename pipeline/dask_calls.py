"""Calls to chosen Dask workers that end: with answers, with the call's own error, or with who was lost."""

from __future__ import annotations

import asyncio
import concurrent.futures
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, is_dataclass
from typing import Any

import numpy as np
from distributed import Client, Future, wait
from distributed.comm.core import CommClosedError
from distributed.scheduler import KilledWorker

from pipeline.errors import ClusterError
from pipeline.placements import ShippedRows
from pipeline.stuck_tasks import StuckTasks
from solvers.errors import StateLostError

logger = logging.getLogger(__name__)

POLL_SECONDS = 0.25
# A task that runs this long, or this many times as long as any before it, hangs, heartbeats or not.
TASK_SECONDS = 3600.0
TASK_FACTOR = 20.0
# Larger arguments go straight to the worker, past the scheduler, which would warn and slow down.
DIRECT_BYTES = 2 << 20
# A worker that was killed is back from its nanny after about 3 s.
REPLACEMENT_SECONDS = 5.0

_CANCELLED = (asyncio.CancelledError, concurrent.futures.CancelledError)


@dataclass(frozen=True, eq=False)
class Call:
    """`function(*arguments)` on the worker at `worker`, a module-level function of ours."""

    worker: str
    function: Callable[..., Any]
    arguments: tuple[Any, ...]


class WorkersLost(Exception):  # noqa: N818 - a signal to the executor, which handles it
    """Some workers are gone, silent, or hold another epoch; nothing they were asked has an answer."""

    def __init__(self, workers: Sequence[str], reason: str) -> None:
        super().__init__(f"worker {', '.join(workers)} {reason}")
        self.workers = tuple(workers)


class WorkerCalls:
    """Runs calls on the workers of `client` and never waits for one that will not answer."""

    def __init__(self, client: Client, *, silence: float) -> None:
        self._client = client
        self._silence = silence
        self._heard: dict[str, tuple[float, float]] = {}
        self._distrusted: set[str] = set()
        self._longest = 0.0
        self.begin_count()

    def begin_count(self) -> None:
        """Count the bytes of arguments and answers from here on."""
        self.sent = self.received = 0

    def run(self, calls: Sequence[Call], *, limit: float | None = None) -> dict[str, Any]:
        """Answers by worker, of calls to different workers.

        Raises `WorkersLost`, `ClusterError` when the scheduler is gone, or what a call raised itself.
        """
        self._check_scheduler()
        started = time.monotonic()
        limit = limit or max(TASK_SECONDS, TASK_FACTOR * self._longest)
        futures: dict[str, Future[Any]] = {}
        try:
            for call in calls:
                futures[call.worker] = self._submit(call)
            self._watch(futures, started + limit)
            answers = self._answers(futures, started + limit)
        except _CANCELLED as error:
            self._check_scheduler()
            raise WorkersLost([*futures], "gave up its task") from error
        except CommClosedError as error:
            # The answers were on their way when the connection ended.
            self._check_scheduler()
            raise WorkersLost([*futures], "answered, and the connection is cut") from error
        finally:
            self._drop(futures)
        self._longest = max(self._longest, time.monotonic() - started)
        self.received += sum(_nbytes(answer) for answer in answers.values())
        return answers

    def begin(self, call: Call) -> Future[Any]:
        """Begin a call that nobody waits for; it is given up when the future is dropped."""
        return self._submit(call)

    def wait_for_workers(self, hoped_for: int, seconds: float) -> dict[str, int]:
        """Threads of each worker that can be trusted, by address, in a fixed order.

        Waits a little for `hoped_for` of them, and `seconds` for the first one.
        """
        started = time.monotonic()
        while True:
            found = self.trusted_workers()
            waited = time.monotonic() - started
            if found and (len(found) >= hoped_for or waited > min(REPLACEMENT_SECONDS, seconds)):
                return found
            if waited > seconds:
                raise ClusterError(f"no worker for {seconds:g} s: start workers and resume the run")
            time.sleep(POLL_SECONDS)

    def trusted_workers(self) -> dict[str, int]:
        """Threads of each worker that is there and can be trusted, by address, in a fixed order."""
        return {
            worker: int(info["nthreads"])
            for worker, info in sorted(self._alive().items())
            if worker not in self._distrusted
        }

    def _submit(self, call: Call) -> Future[Any]:
        arguments = [self._sent(argument, call.worker) for argument in call.arguments]
        return self._client.submit(
            call.function,
            *arguments,
            workers=[call.worker],
            allow_other_workers=False,
            pure=False,
            retries=0,
        )

    def _sent(self, argument: Any, worker: str) -> Any:
        size = _nbytes(argument)
        self.sent += size
        if size <= DIRECT_BYTES:
            return argument
        try:
            # One worker, one copy: a broadcast is undone by the memory manager and hangs when a worker dies.
            return self._client.scatter(
                argument,
                workers=[worker],
                hash=False,
                direct=self._client.direct_to_workers,
                timeout=self._silence,
            )
        except (OSError, TimeoutError, KeyError, ValueError) as error:
            raise WorkersLost([worker], f"did not take what it was sent ({error})") from error

    def _watch(self, futures: dict[str, Future[Any]], deadline: float) -> None:
        """Return when all are done; raise as soon as one never will be."""
        stuck = StuckTasks(self._client)
        while futures:
            try:
                with self._client.as_current():
                    wait(list(futures.values()), timeout=POLL_SECONDS)
            except TimeoutError:
                self._check_workers(futures, deadline)
                if any(future.status == "error" for future in futures.values()):
                    return
                stuck.check({worker: future for worker, future in futures.items() if not future.done()})
            else:
                return

    def _check_workers(self, futures: dict[str, Future[Any]], deadline: float) -> None:
        pending = [worker for worker, future in futures.items() if not future.done()]
        alive = self._alive()
        gone = [worker for worker in pending if worker not in alive]
        if gone:
            raise WorkersLost(gone, "is gone")
        now = time.monotonic()
        silent = [worker for worker in pending if now - self._heard[worker][1] > self._silence]
        if silent:
            self._distrusted.update(silent)
            raise WorkersLost(silent, f"has been silent for {self._silence:g} s")
        if now > deadline:
            self._distrusted.update(pending)
            raise WorkersLost(pending, "did not end its task in time")

    def _alive(self) -> dict[str, Any]:
        """Workers that the scheduler knows, noting whose heartbeat has moved."""
        self._check_scheduler()
        try:
            # Not `scheduler_info`, which waits for ever, and gives what it last heard where nobody answers.
            identity = self._client.sync(self._ask_scheduler, callback_timeout=self._silence)
            workers: dict[str, Any] = dict(identity["workers"])
        except (OSError, TimeoutError) as error:
            raise ClusterError(
                f"the scheduler does not answer ({error}): resume the run on another"
            ) from error
        now = time.monotonic()
        for worker, info in workers.items():
            seen = float(info.get("last_seen", 0.0))
            if worker not in self._heard or self._heard[worker][0] != seen:
                if worker in self._heard:
                    self._distrusted.discard(worker)
                self._heard[worker] = (seen, now)
        return workers

    def _answers(self, futures: dict[str, Future[Any]], deadline: float) -> dict[str, Any]:
        """Fetch all answers at once; a fetch takes what time the connection needs and begins only once."""
        # Errors first: who has failed says so, however long the others still take.
        self._raise_errors(futures)
        loop: Any = self._client.loop
        fetch = asyncio.run_coroutine_threadsafe(self._fetch([*futures.values()]), loop.asyncio_loop)
        try:
            while True:
                done, _ = concurrent.futures.wait([fetch], timeout=POLL_SECONDS)
                if done:
                    return dict(zip(futures, fetch.result(), strict=True))
                self._raise_errors(futures)
                # A worker that dies between its answer and our reading it leaves a task that nobody runs.
                self._check_workers(futures, float("inf"))
                if gone := sorted(futures.keys() - self._alive().keys()):
                    raise WorkersLost(gone, "is gone")
                if time.monotonic() > deadline:
                    self._distrusted.update(futures)
                    raise WorkersLost([*futures], "did not hand over its answer in time")
        except (StateLostError, KilledWorker):
            self._raise_errors(futures)
            raise
        finally:
            fetch.cancel()

    async def _fetch(self, futures: list[Future[Any]]) -> Any:
        return await self._client.gather(futures, asynchronous=True)

    def _raise_errors(self, futures: dict[str, Future[Any]]) -> None:
        """Raise what a call raised; what a worker says of its own state is a loss."""
        for worker, future in futures.items():
            if future.status == "error":
                error = future.exception(timeout=self._silence)
                if isinstance(error, StateLostError | KilledWorker):
                    raise WorkersLost([worker], f"lost its blocks ({error})") from error
                raise error

    async def _ask_scheduler(self) -> Any:
        scheduler = self._client.scheduler
        if scheduler is None:
            raise OSError("the client is closed")
        return await scheduler.identity(n_workers=-1)

    def _check_scheduler(self) -> None:
        if self._client.status not in ("running", "connecting"):
            raise ClusterError(
                f"the connection to the scheduler is {self._client.status}: resume the run on another"
            )

    def _drop(self, futures: dict[str, Future[Any]]) -> None:
        """Take back what has no answer; what has one is freed with its future."""
        pending = [future for future in futures.values() if not future.done()]
        if pending and self._client.status == "running":
            self._client.cancel(pending)


def _nbytes(value: Any) -> int:
    """Give the bytes of the arrays in an argument or answer, which are nearly all that is sent."""
    if isinstance(value, np.ndarray | ShippedRows):
        return value.nbytes
    if isinstance(value, list | tuple):
        return sum(_nbytes(item) for item in value)
    return sum(_nbytes(getattr(value, field.name)) for field in fields(value)) if is_dataclass(value) else 0
