"""Calls to chosen Dask workers that end: with answers, with the call's own error, or with who was lost."""

from __future__ import annotations

import asyncio
import concurrent.futures
import logging
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from typing import Any, TypeAlias

import numpy as np
from distributed import Client, Future, wait
from distributed.comm.core import CommClosedError
from distributed.protocol.pickle import dumps
from distributed.scheduler import KilledWorker

from topline.pipeline.cluster.liveness import KEY_PREFIX
from topline.pipeline.cluster.messages import ShippedRows
from topline.pipeline.cluster.watchdog import POLL_SECONDS, Clock, Watchdog, WorkerWatch, ask_scheduler
from topline.solvers.errors import StateLostError

logger = logging.getLogger(__name__)

# An answer that is not here so long after it was ready is on no way.
FETCH_SECONDS = 3600.0
# Larger arguments go straight to the worker, past the scheduler, which would warn and slow down.
DIRECT_BYTES = 2 << 20
# Nobody waits longer than this for workers that are lost to hear so.
TELL_SECONDS = 2.0

_CANCELLED = (asyncio.CancelledError, concurrent.futures.CancelledError)


@dataclass(frozen=True, eq=False)
class Call:
    """`function(*arguments)` on the worker at `worker`, a module-level function of ours."""

    worker: str
    function: Callable[..., Any]
    arguments: tuple[Any, ...]


@dataclass(frozen=True)
class AnswerOf:
    """An argument: the answer of another call, of those before it that are run together."""

    call: Call


class WorkersLost(Exception):  # noqa: N818 - a signal to the executor, which handles it
    """Some workers are gone, silent, or hold another epoch; nothing they were asked has an answer."""

    def __init__(self, workers: Sequence[str], reason: str) -> None:
        super().__init__(f"worker {', '.join(workers)} {reason}")
        self.workers = tuple(workers)


@dataclass(frozen=True, eq=False)
class _Begun:
    """A call that a worker has been asked for, and those whose answers it needs."""

    worker: str
    future: Future[Any]
    needs: tuple[_Begun, ...] = ()

    @property
    def can_begin(self) -> bool:
        """Whether it has what it needs; until then its worker does not hear of it."""
        return all(task.future.done() for task in self.needs)


_Tasks: TypeAlias = dict[Call, _Begun]


class WorkerCalls:
    """Runs calls on the workers of `client` and never waits for one that will not answer.

    A worker may send no heartbeat, or a call do nothing, for `heartbeat_timeout` seconds of `clock`.
    """

    def __init__(self, client: Client, *, heartbeat_timeout: float, clock: Clock = time.monotonic) -> None:
        self._client = client
        self._clock = clock
        self._watch = WorkerWatch(client, heartbeat_timeout, clock)
        self.begin_count()

    def begin_count(self) -> None:
        """Count the bytes of arguments and answers from here on."""
        self.sent = self.received = 0

    def run(self, calls: Sequence[Call], *, limit: float | None = None) -> dict[str, Any]:
        """Answers by worker, of calls to different workers; all together may take `limit` seconds.

        Raises `WorkersLost`, `ClusterError` when the scheduler is gone, or what a call raised itself.
        """
        answers = self.run_together(calls, calls, limit=limit)
        return {call.worker: answer for call, answer in zip(calls, answers, strict=True)}

    def run_together(
        self, calls: Sequence[Call], wanted: Sequence[Call], *, limit: float | None = None
    ) -> list[Any]:
        """Answers of the calls `wanted`; those of others stay with the workers, for later calls.

        Arguments may be the answers of calls before (`AnswerOf`), which go from worker to worker.  Raises
        what `run` raises.
        """
        self._watch.check_scheduler()
        deadline = self._clock() + (limit or float("inf"))
        tasks: _Tasks = {}
        try:
            for call in calls:
                needs = tuple(tasks[item.call] for item in call.arguments if isinstance(item, AnswerOf))
                tasks[call] = _Begun(call.worker, self._submit(call, tasks), needs)
            self._wait(tasks, deadline)
            answers = self._answers(tasks, wanted, min(deadline, self._clock() + FETCH_SECONDS))
        except _CANCELLED as error:
            self._watch.check_scheduler()
            raise WorkersLost(_workers(tasks), "gave up its task") from error
        except CommClosedError as error:
            # The answers were on their way when the connection ended.
            self._watch.check_scheduler()
            raise WorkersLost(_workers(tasks), "answered, and the connection is cut") from error
        finally:
            self._drop(tasks)
        self.received += sum(map(nbytes, answers))
        return answers

    def begin(self, call: Call) -> Future[Any]:
        """Begin a call that nobody waits for; it is given up when the future is dropped."""
        return self._submit(call, {})

    def tell(self, workers: Sequence[str], function: Callable[..., Any], *arguments: Any) -> None:
        """Run `function(*arguments, dask_worker=...)` beside the tasks of workers, those that answer."""
        message = {"op": "run", "function": dumps(function), "args": dumps(arguments), "kwargs": dumps({})}

        async def broadcast(scheduler: Any) -> None:
            await scheduler.broadcast(msg=message | {"wait": True}, workers=workers, on_error="ignore")

        try:
            ask_scheduler(self._client, broadcast, TELL_SECONDS)
        except (OSError, TimeoutError) as error:
            logger.debug("%s were not told: %s", workers, error)

    def wait_for_workers(self, hoped_for: int, seconds: float) -> dict[str, int]:
        """Threads of each worker that can be trusted, by address, in a fixed order.

        Waits a little for `hoped_for` of them, and `seconds` for the first one.
        """
        return self._watch.wait(hoped_for, seconds)

    def trusted_workers(self) -> dict[str, int]:
        """Threads of each worker that is there and can be trusted, by address, in a fixed order."""
        return self._watch.trusted()

    def _submit(self, call: Call, begun: _Tasks) -> Future[Any]:
        arguments = [
            begun[item.call].future if isinstance(item, AnswerOf) else self._sent(item, call.worker)
            for item in call.arguments
        ]
        return self._client.submit(
            call.function,
            *arguments,
            key=f"{KEY_PREFIX}{call.function.__name__}-{uuid.uuid4().hex}",
            workers=[call.worker],
            allow_other_workers=False,
            retries=0,
        )

    def _sent(self, argument: Any, worker: str) -> Any:
        size = nbytes(argument)
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
                timeout=self._watch.heartbeat_timeout,
            )
        except (OSError, TimeoutError, KeyError, ValueError) as error:
            raise WorkersLost([worker], f"did not take what it was sent ({error})") from error

    def _wait(self, tasks: _Tasks, deadline: float) -> None:
        """Return when all are done; raise as soon as one never will be."""
        watchdog = Watchdog(self._client, self._watch.heartbeat_timeout, self._clock)
        while tasks:
            try:
                with self._client.as_current():
                    wait([task.future for task in tasks.values()], timeout=POLL_SECONDS)
            except TimeoutError:
                self._check_workers(tasks)
                if any(task.future.status == "error" for task in tasks.values()):
                    return
                waiting = [task for task in tasks.values() if not task.future.done() and task.can_begin]
                pending = {str(task.future.key): task.worker for task in waiting}
                if reasons := watchdog.find(pending, self._watch.alive):
                    self._watch.give_up(reasons)
                    raise WorkersLost([*reasons], "; ".join(sorted(set(reasons.values())))) from None
                if self._clock() > deadline:
                    self._watch.distrust(pending.values())
                    raise WorkersLost(sorted(set(pending.values())), "did not end its task in time") from None
            else:
                return

    def _check_workers(self, tasks: _Tasks) -> None:
        alive = self._watch.alive()
        # Also one that has done its part: what it answered is still with it.
        if gone := [worker for worker in _workers(tasks) if worker not in alive]:
            raise WorkersLost(gone, "is gone")
        if silent := self._watch.silent(_workers(tasks)):
            raise WorkersLost(silent, f"has been silent for {self._watch.heartbeat_timeout:g} s")

    def _answers(self, tasks: _Tasks, wanted: Sequence[Call], deadline: float) -> list[Any]:
        """Fetch answers at once; a fetch takes what time the connection needs and begins only once."""
        # Errors first: who has failed says so, however long the others still take.
        self._raise_errors(tasks)
        loop: Any = self._client.loop
        futures = [tasks[call].future for call in wanted]
        fetch = asyncio.run_coroutine_threadsafe(self._fetch(futures), loop.asyncio_loop)
        try:
            while True:
                done, _ = concurrent.futures.wait([fetch], timeout=POLL_SECONDS)
                if done:
                    return list(fetch.result())
                self._raise_errors(tasks)
                # A worker that dies between its answer and our reading it leaves a task that nobody runs.
                self._check_workers(tasks)
                if self._clock() > deadline:
                    self._watch.distrust(_workers(tasks))
                    raise WorkersLost(_workers(tasks), "did not hand over its answer in time")
        except (StateLostError, KilledWorker):
            self._raise_errors(tasks)
            raise
        finally:
            fetch.cancel()

    async def _fetch(self, futures: list[Future[Any]]) -> Any:
        return await self._client.gather(futures, asynchronous=True)

    def _raise_errors(self, tasks: _Tasks) -> None:
        """Raise what a call raised; what a worker says of its own state is a loss."""
        for task in tasks.values():
            if task.future.status == "error":
                error = task.future.exception(timeout=self._watch.heartbeat_timeout)
                if isinstance(error, StateLostError | KilledWorker):
                    raise WorkersLost([task.worker], f"lost its blocks ({error})") from error
                raise error

    def _drop(self, tasks: _Tasks) -> None:
        """Take back what has no answer; what has one is freed with its future."""
        pending = [task.future for task in tasks.values() if not task.future.done()]
        if pending and self._client.status == "running":
            self._client.cancel(pending)


def _workers(tasks: _Tasks) -> list[str]:
    """Return the workers of tasks, each once."""
    return [*dict.fromkeys(call.worker for call in tasks)]


def nbytes(value: Any) -> int:
    """Return the bytes of the arrays in an argument or answer, which are nearly all that is sent."""
    if isinstance(value, np.ndarray | ShippedRows):
        return value.nbytes
    if isinstance(value, list | tuple):
        return sum(nbytes(item) for item in value)
    if isinstance(value, Mapping):
        return sum(map(nbytes, value.values()))
    return sum(nbytes(getattr(value, field.name)) for field in fields(value)) if is_dataclass(value) else 0
