"""Which workers are present and usable, and which calls hang although their workers are present.

A call hangs if it neither computes nor reads nor writes; its worker is asked.  Time counts only between
answers, so that a stopped worker or a machine that slept loses none.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from typing import Any, TypeAlias

from distributed import Client
from distributed.protocol.pickle import dumps
from distributed.utils_comm import retry

from topline.pipeline.cluster.liveness import Liveness, liveness_of
from topline.pipeline.errors import ClusterError

logger = logging.getLogger(__name__)

POLL_SECONDS = 0.25
# Interval between questions about unfinished calls.
ASK_SECONDS = 5.0
# A nanny restarts a killed worker in about 3 s.
REPLACEMENT_SECONDS = 5.0
# Who waits for longer than a replacement takes says so.
TOLD_SECONDS = 10.0
# A cut pooled connection shows only in use; there may be as many as there were simultaneous calls.
ASK_AGAIN = 3
# A call that completes no stretch of work for this long is in an endless loop or queue.
TASK_SECONDS = 3600.0
# A living call uses a larger share of a CPU than this on any machine.
_ALIVE = 1e-3
# Dask's states of workers that are leaving.
_LEAVING = ("closing_gracefully", "closing", "closed", "failed", "stopping", "stopped")

#: A monotonic clock, in seconds.
Clock: TypeAlias = Callable[[], float]


@dataclass
class _Watched:
    """The last answer about a call, and the seconds between answers for which it has not changed."""

    liveness: Liveness | None
    at: float
    still: float = 0.0
    lapless: float = 0.0

    def note(self, liveness: Liveness | None, now: float) -> None:
        """Add the time since the last answer to everything that has not changed."""
        before, seconds = self.liveness, min(now - self.at, 2.0 * ASK_SECONDS)
        self.liveness, self.at = liveness, now
        if before is None or liveness is None:
            # In transit, or waiting for forwarded calls.
            self.still, self.lapless = 0.0, self.lapless + seconds if before is liveness else 0.0
            return
        # A thread that has ended in the meantime was alive.
        worked = abs(liveness.cpu - before.cpu) > _ALIVE * seconds or before[1:] != liveness[1:]
        self.still = 0.0 if worked else self.still + seconds
        self.lapless = self.lapless + seconds if before.laps == liveness.laps else 0.0


class Watchdog:
    """Watches unfinished calls until one has shown no activity for `stillness` seconds of `clock`."""

    def __init__(self, client: Client, stillness: float, clock: Clock = time.monotonic) -> None:
        self._client = client
        self._clock = clock
        self._stillness = stillness
        self._every = min(ASK_SECONDS, stillness / 4)
        self._polled = self._clock()
        self._watched: dict[str, _Watched] = {}

    def find(self, pending: Mapping[str, str], alive: Callable[[], Mapping[str, Any]]) -> dict[str, str]:
        """Return the hanging workers of `pending` by address, each with the reason.

        `pending` maps workers to the keys of their calls; `alive` returns the workers known to the scheduler.
        """
        now = self._clock()
        if now - self._polled < self._every:
            return {}
        self._polled = now
        try:
            answers = ask_scheduler(self._client, partial(self._ask, pending), ASK_SECONDS)
        except (OSError, TimeoutError):
            return {}
        for worker in pending.keys() & answers.keys() & alive().keys():
            liveness = answers[worker].get(pending[worker])
            self._watched.setdefault(worker, _Watched(liveness, now)).note(liveness, now)
        self._watched = {worker: watched for worker, watched in self._watched.items() if worker in pending}
        return {worker: why for worker, watched in self._watched.items() if (why := self._judged(watched))}

    def _judged(self, watched: _Watched) -> str | None:
        if watched.still > self._stillness:
            return (
                f"is there, but has not computed, read or written anything for {watched.still:.0f} s: restart"
                " it if that continues"
            )
        return "did not end its task in time" if watched.lapless > TASK_SECONDS else None

    async def _ask(self, pending: Mapping[str, str], scheduler: Any) -> dict[str, Mapping[str, Liveness]]:
        """Return the liveness of the calls on each worker that answers."""
        keys = sorted(set(pending.values()))
        message = {"op": "run", "function": dumps(liveness_of), "args": dumps((keys,))}
        answers = await scheduler.broadcast(
            msg=message | {"wait": True, "kwargs": dumps({})}, workers=sorted(pending), on_error="ignore"
        )
        return {w: answer["result"] for w, answer in answers.items() if answer["status"] == "OK"}


class WorkerWatch:
    """Polls the workers of `client`; heartbeats may be `heartbeat_timeout` seconds of `clock` apart."""

    def __init__(self, client: Client, heartbeat_timeout: float, clock: Clock = time.monotonic) -> None:
        self._client = client
        self._clock = clock
        self.heartbeat_timeout = heartbeat_timeout
        # When a worker was last seen by the scheduler, and how long that has not changed.
        self._heard: dict[str, tuple[float, float]] = {}
        self._looked = clock()
        self._distrusted: set[str] = set()
        #: Workers that get no more work, despite heartbeats, each with the reason.
        self._unfit: dict[str, str] = {}

    def alive(self) -> dict[str, Any]:
        """Return the workers known to the scheduler, and note whose heartbeat has moved.

        Raises `ClusterError` if the scheduler is gone or does not answer.
        """
        self.check_scheduler()
        try:
            known = self._asked()
        except (OSError, TimeoutError) as error:
            raise ClusterError(
                f"the scheduler does not answer ({error}): resume the run on another"
            ) from error
        # A closing worker takes no more tasks and may take a while to close.
        workers = {worker: info for worker, info in known.items() if info.get("status") not in _LEAVING}
        now = self._clock()
        # A process resumed after a stop may look before the scheduler has read waiting heartbeats.
        seconds, self._looked = min(now - self._looked, 2.0 * ASK_SECONDS), now
        for worker, info in workers.items():
            seen = float(info.get("last_seen", 0.0))
            before, silence = self._heard.get(worker, (seen, -seconds))
            if before != seen:
                self._distrusted.discard(worker)
                silence = -seconds
            self._heard[worker] = (seen, silence + seconds)
        return workers

    def _asked(self) -> Mapping[str, Any]:
        """Return the workers known to the scheduler; say what is waited for if it does not answer soon."""
        soon = min(ASK_SECONDS, 0.5 * self.heartbeat_timeout)
        rest = self.heartbeat_timeout - soon
        with suppress(TimeoutError):
            return known_workers(self._client, soon)
        until = datetime.now().astimezone() + timedelta(seconds=rest)
        logger.warning(
            "the scheduler does not answer: it is waited for until %s, and then the run ends, to be resumed",
            f"{until:%H:%M:%S}",
        )
        return known_workers(self._client, rest)

    def silent(self, workers: Iterable[str]) -> list[str]:
        """Return those of `workers` not heard of for too long, and distrust them for now."""
        found = [worker for worker in workers if self._heard[worker][1] > self.heartbeat_timeout]
        self.distrust(found)
        return found

    def distrust(self, workers: Iterable[str]) -> None:
        """Give workers no work until they are heard of again."""
        self._distrusted.update(workers)

    def give_up(self, reasons: Mapping[str, str]) -> None:
        """Give workers no more work; a reason is a phrase that follows the worker's name."""
        self._unfit.update(reasons)

    def trusted(self) -> dict[str, int]:
        """Return the threads of each present worker that takes work, by address, in a fixed order."""
        return {
            worker: int(info["nthreads"])
            for worker, info in sorted(self.alive().items())
            if worker not in self._distrusted and worker not in self._unfit
        }

    def wait(self, hoped_for: int, seconds: float) -> dict[str, int]:
        """Return the trusted workers; wait briefly for `hoped_for`, and up to `seconds` for the first."""
        started, told = self._clock(), False
        while True:
            found = self.trusted()
            waited = self._clock() - started
            if found and (len(found) >= hoped_for or waited > min(REPLACEMENT_SECONDS, seconds)):
                return found
            if waited > seconds:
                raise ClusterError(f"no worker for {seconds:g} s: {self._what_to_do()}")
            if waited > TOLD_SECONDS and not told:
                told = True
                logger.warning("there is no worker: waiting up to %g s; %s", seconds, self._what_to_do(""))
            time.sleep(POLL_SECONDS)

    def check_scheduler(self) -> None:
        """Raise `ClusterError` if the connection to the scheduler is lost."""
        if self._client.status not in ("running", "connecting"):
            raise ClusterError(
                f"the connection to the scheduler is {self._client.status}: resume the run on another"
            )

    def _what_to_do(self, then: str = " and resume the run") -> str:
        """Return what is wrong with the present workers, and what to do: start some, `then` go on."""
        alive = self.alive()
        there = [f"worker {worker} {why}" for worker, why in sorted(self._unfit.items()) if worker in alive]
        return "; ".join([*there[:2], f"start workers{then}"])


def known_workers(client: Client, timeout: float | None = None) -> Mapping[str, Any]:
    """Return what the scheduler knows about each worker, by address, freshly asked.

    `scheduler_info` waits forever, returns stale data if nobody answers, and sometimes lists no worker when
    it coincides with Dask's own poll every two seconds.
    Raises OSError or TimeoutError if the scheduler does not answer within `timeout` seconds.
    """

    async def identity(scheduler: Any) -> Any:
        return await retry(partial(scheduler.identity, n_workers=-1), ASK_AGAIN, POLL_SECONDS, POLL_SECONDS)

    workers: Mapping[str, Any] = ask_scheduler(client, identity, timeout)["workers"]
    return workers


def ask_scheduler(
    client: Client, question: Callable[[Any], Awaitable[Any]], timeout: float | None = None
) -> Any:
    """Return the answer of `question(scheduler)`, which awaits one of the scheduler's own functions.

    Raises OSError or TimeoutError if the scheduler does not answer within `timeout` seconds.
    """

    async def ask() -> Any:
        if client.scheduler is None:
            raise OSError("the client is closed")
        try:
            return await question(client.scheduler)
        except RuntimeError as error:
            # Raised by Dask's connection pool after its client has given up the scheduler.
            if client.status in ("running", "connecting"):
                raise
            raise OSError(f"the client is {client.status}") from error

    try:
        return client.sync(ask, callback_timeout=timeout)
    except TimeoutError as error:
        raise TimeoutError("no answer in time" if timeout is None else f"none in {timeout:g} s") from error
