"""Calls to chosen Dask workers that always end: with answers, the call's error, or the lost workers.

A call goes straight to its worker over one of Dask's connections (with its TLS), not as a Dask task: tasks
take ten times as long, wait while a worker is paused, and are delayed when a clock jumps.  One long Dask task
per worker shows Dask that the worker is in use.  A worker that cannot be reached directly is asked through
the scheduler.  After a cut connection a call may run again, with the same answer.  With many workers, calls
are forwarded and answers merged along a tree (`by_tree`).
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, fields, is_dataclass
from typing import Any

import numpy as np
from distributed import Client, Future, get_worker, secede
from distributed.core import clean_exception, error_message
from distributed.protocol.pickle import dumps
from distributed.protocol.serialize import to_serialize

from topline.pipeline.cluster.liveness import AT_WORK, CALL_THREAD
from topline.pipeline.cluster.messages import ShippedRows
from topline.pipeline.cluster.shared_arrays import SharedArray
from topline.pipeline.cluster.watchdog import POLL_SECONDS, Clock, Watchdog, WorkerWatch
from topline.solvers.errors import StateLostError

#: The coordinator, and every worker that forwards calls, calls at most this many workers itself.
ROOTS = 4
#: Name of the handler of calls on Dask's workers.
_OPERATION = "topline-call"
#: Seconds between two checks of whether a worker is still in use.
_LOOK_SECONDS = 1.0

_worker: ContextVar[Any] = ContextVar("topline_worker")
#: Addresses of workers that take calls, and of those that only the scheduler can reach.
_serving: set[str] = set()
_far: set[str] = set()


@dataclass(frozen=True, eq=False)
class Call:
    """`function(*arguments)`, a module-level function of ours, on the worker at `worker`.

    The answer of `source`, a call to another worker, becomes one more argument.  The worker forwards the
    calls `below` and answers with the `join` of its own answer and theirs.
    """

    worker: str
    function: Callable[..., Any]
    arguments: tuple[Any, ...]
    source: Call | None = None
    below: tuple[Call, ...] = ()
    join: Callable[..., Any] = tuple

    def workers(self) -> Iterator[str]:
        """Yield all workers that take part in the call."""
        yield self.worker
        for other in (*self.below, *(() if self.source is None else (self.source,))):
            yield from other.workers()


class WorkersLost(Exception):  # noqa: N818 - a signal to the executor, which handles it
    """Some workers are gone, silent, unfit or hold another epoch; no call to them has an answer."""

    def __init__(self, workers: Sequence[str], reason: str, unfit: bool = False) -> None:
        super().__init__(workers, reason, unfit)
        self.workers, self.reason, self.unfit = tuple(workers), reason, unfit

    def __str__(self) -> str:
        return f"worker {', '.join(self.workers)} {self.reason}"


@dataclass(frozen=True, eq=False)
class Begun:
    """A call in progress, with the key by which its workers know it."""

    call: Call
    key: str
    future: concurrent.futures.Future[Any]


def by_tree(
    workers: Sequence[str],
    function: Callable[..., Any],
    arguments: tuple[Any, ...],
    join: Callable[..., Any],
) -> list[Call]:
    """Return at most `ROOTS` calls of `function(*arguments)`, which forward to all other workers.

    The first of each run of workers forwards to the others in the same way: a link carries few copies, and
    the answers of neighbours merge first.
    """
    roots = min(len(workers), ROOTS)
    runs = [workers[len(workers) * i // roots : len(workers) * (i + 1) // roots] for i in range(roots)]
    return [
        Call(first, function, arguments, below=tuple(by_tree(rest, function, arguments, join)), join=join)
        for first, *rest in runs
    ]


class WorkerCalls:
    """Runs calls on the workers of `client` and never waits for one that will not answer.

    A worker is given up after `heartbeat_timeout` seconds of `clock` without a heartbeat or progress.
    """

    def __init__(self, client: Client, *, heartbeat_timeout: float, clock: Clock = time.monotonic) -> None:
        self._client = client
        self._clock = clock
        self._watch = WorkerWatch(client, heartbeat_timeout, clock)
        #: A Dask task on each worker that was called, so that Dask does not take it for idle.
        self._signs: dict[str, Future[None]] = {}
        self.begin_count()

    def begin_count(self) -> None:
        """Start counting the bytes of arguments and answers."""
        self.sent = self.received = 0

    def run(self, calls: Sequence[Call], *, limit: float | None = None) -> dict[str, Any]:
        """Return the answers by worker of calls to different workers, within `limit` seconds in total.

        Raises `WorkersLost`, `ClusterError` if the scheduler is gone, or what a call itself raised.
        """
        self._watch.check_scheduler()
        deadline = self._clock() + (limit or float("inf"))
        self._keep({worker for call in calls for worker in call.workers()})
        begun = [self.begin(call) for call in calls]
        try:
            self._wait(begun, deadline)
        except WorkersLost as lost:
            for worker in lost.workers:
                self._signs.pop(worker, None)
            raise
        finally:
            for each in begun:
                each.future.cancel()
        answers = {each.call.worker: each.future.result() for each in begun}
        self.received += nbytes(answers)
        return answers

    def begin(self, call: Call) -> Begun:
        """Start a call without waiting for it."""
        self.sent += nbytes(call.arguments)
        loop: Any = self._client.loop
        key = f"{call.function.__name__}-{uuid.uuid4().hex}"
        answer = asyncio.run_coroutine_threadsafe(_answer_of(self._client, call, key), loop.asyncio_loop)
        return Begun(call, key, answer)

    def let_go(self) -> None:
        """Let Dask treat the workers as idle until the next calls."""
        self._signs.clear()

    def _keep(self, workers: set[str]) -> None:
        """Show Dask that workers are in use: it may stop idle workers, and schedulers without tasks."""
        for worker in workers - self._signs.keys():
            key = f"topline-at-work-{uuid.uuid4().hex}"
            self._signs[worker] = self._client.submit(_stay, key=key, workers=[worker])

    def wait_for_workers(self, hoped_for: int, seconds: float) -> dict[str, int]:
        """Return the threads of each trusted worker, by address, in a fixed order.

        Waits briefly for `hoped_for` of them, and up to `seconds` for the first.
        """
        return self._watch.wait(hoped_for, seconds)

    def trusted_workers(self) -> dict[str, int]:
        """Return the threads of each present, trusted worker, by address, in a fixed order."""
        return self._watch.trusted()

    def _wait(self, begun: Sequence[Begun], deadline: float) -> None:
        """Return when all are done; raise as soon as one is known never to finish."""
        watchdog = Watchdog(self._client, self._watch.heartbeat_timeout, self._clock)
        futures = {each.future: each for each in begun}
        while True:
            done, pending = concurrent.futures.wait(
                futures, POLL_SECONDS, return_when=concurrent.futures.FIRST_EXCEPTION
            )
            # Errors first: a failed call is reported at once, however long the others still take.
            for future in done:
                self._raise_error(futures[future])
            if not pending:
                return
            waiting = {worker: futures[f].key for f in pending for worker in futures[f].call.workers()}
            self._check_workers([*waiting])
            if reasons := watchdog.find(waiting, self._watch.alive):
                self._watch.give_up(reasons)
                raise WorkersLost([*reasons], "; ".join(sorted(set(reasons.values()))))
            if self._clock() > deadline:
                self._watch.distrust(waiting)
                raise WorkersLost(sorted(waiting), "did not answer in time")

    def _check_workers(self, workers: Sequence[str]) -> None:
        alive = self._watch.alive()
        if gone := [worker for worker in workers if worker not in alive]:
            raise WorkersLost(gone, "is gone")
        if silent := self._watch.silent(workers):
            raise WorkersLost(silent, f"has been silent for {self._watch.heartbeat_timeout:g} s")

    def _raise_error(self, ended: Begun) -> None:
        if ended.future.cancelled():
            self._watch.check_scheduler()
            raise WorkersLost([ended.call.worker], "gave up its call")
        if (error := ended.future.exception()) is not None:
            # Without a scheduler every call fails, so report that first.
            self._watch.check_scheduler()
            if isinstance(error, WorkersLost) and error.unfit:
                self._watch.give_up(dict.fromkeys(error.workers, error.reason))
            raise error


def _stay() -> None:
    """Run as a Dask task, outside the thread pool, until its client releases it."""
    worker = get_worker()
    key = worker.get_current_task()
    secede()
    while (task := worker.state.tasks.get(key)) and task.state in ("executing", "long-running"):
        time.sleep(_LOOK_SECONDS)


async def _answer_of(node: Any, call: Call, key: str) -> Any:
    """Return the answer of a call that `node`, a Dask client or worker, asks for.

    Raises what the call raised; `WorkersLost` if its worker is gone or says that it lost its blocks.
    """
    problem: Exception | None = None
    # An idle connection may have been cut in the meantime.
    for way in (_to_worker, _to_worker, _by_scheduler):
        if way is _to_worker and call.worker in _far:
            continue
        try:
            if call.worker not in _serving:
                await _prepare(way, node, call.worker)
            response = await way(
                node, call.worker, {"op": _OPERATION, "call": to_serialize(call), "key": key}
            )
        except OSError as error:
            problem = error
            continue
        if way is _by_scheduler:
            _far.add(call.worker)
        if response is None:
            # Another process now has the address.
            _serving.discard(call.worker)
            continue
        _serving.add(call.worker)
        if response["status"] == "OK":
            return response["result"]
        _, raised, trace = clean_exception(**response)
        if isinstance(raised, StateLostError):
            raise WorkersLost([call.worker], f"lost its blocks ({raised})") from raised
        raise (raised or RuntimeError("no reason was given")).with_traceback(trace)
    raise WorkersLost([call.worker], "is gone") from problem


async def _prepare(way: Callable[..., Any], node: Any, worker: str) -> None:
    """Let a worker take calls; raise `WorkersLost` if it is not able to."""
    try:
        response = await way(node, worker, {"op": "run", "function": dumps(_serve)})
    except OSError:
        raise
    except Exception as error:  # noqa: BLE001 - such as a refusal by Dask's configuration
        response = {"status": "error", "exception_text": str(error)}
    if response["status"] != "OK":
        why = f"cannot take calls ({response['exception_text']}): give it the packages and settings of others"
        raise WorkersLost([worker], why, unfit=True)


async def _to_worker(node: Any, worker: str, message: dict[str, Any]) -> Any:
    return await getattr(node.rpc(worker), message.pop("op"))(**message)


async def _by_scheduler(node: Any, worker: str, message: dict[str, Any]) -> Any:
    return await node.scheduler.proxy(msg=message, worker=worker)


def _serve(dask_worker: Any) -> None:
    """Register the handler of calls on a worker."""

    async def answer(call: Call, key: str) -> Any:
        try:
            return {"status": "OK", "result": to_serialize(await _carried_out(dask_worker, call, key))}
        except Exception as error:  # noqa: BLE001 - whoever asked raises it
            closed = dask_worker.rpc.status.name == "closed"
            return error_message(WorkersLost([str(dask_worker.address)], "is gone") if closed else error)

    dask_worker.handlers[_OPERATION] = answer


async def _carried_out(worker: Any, call: Call, key: str) -> Any:
    """Run a call on this worker and return its answer; forwarded calls run at the same time."""
    handed = [asyncio.ensure_future(_answer_of(worker, other, key)) for other in call.below]
    try:
        more = () if call.source is None else (await _answer_of(worker, call.source, key),)
        answer = await _on_thread(worker, key, call.function, *call.arguments, *more)
        if handed:
            answer = await _on_thread(worker, key, call.join, answer, *await asyncio.gather(*handed))
        return answer
    finally:
        for other in handed:
            other.cancel()


async def _on_thread(worker: Any, key: str, function: Callable[..., Any], *arguments: Any) -> Any:
    """Return the result of a function run for a call, on a thread that does not delay exit."""
    future: concurrent.futures.Future[Any] = concurrent.futures.Future()
    # A closing worker cancels the wait but not the thread, which must still be able to set its result.
    future.set_running_or_notify_cancel()
    place = str(worker.address), key

    def work() -> None:
        _worker.set(worker)
        try:
            future.set_result(function(*arguments))
        except BaseException as error:  # noqa: BLE001 - whoever asked raises it
            future.set_exception(error)

    AT_WORK[place] += 1
    try:
        threading.Thread(target=work, name=CALL_THREAD, daemon=True).start()
        return await asyncio.wrap_future(future)
    finally:
        AT_WORK[place] -= 1
        if not AT_WORK[place]:
            del AT_WORK[place]


def this_worker() -> Any:
    """Return the Dask worker whose call this thread runs."""
    return _worker.get()


def nbytes(value: Any) -> int:
    """Return the bytes of the arrays in an argument or answer, which are nearly all of the traffic."""
    if isinstance(value, np.ndarray | ShippedRows | SharedArray):
        return value.nbytes
    if isinstance(value, list | tuple):
        return sum(nbytes(item) for item in value)
    if isinstance(value, Mapping):
        return sum(map(nbytes, value.values()))
    return sum(nbytes(getattr(value, field.name)) for field in fields(value)) if is_dataclass(value) else 0
