"""Which workers of a cluster are there, heard of, and fit for work, as its scheduler and its client know."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from typing import Any

from distributed import Client

from topline.pipeline.cluster.watchdog import why_paused
from topline.pipeline.errors import ClusterError

POLL_SECONDS = 0.25
# A worker that was killed is back from its nanny after about 3 s.
REPLACEMENT_SECONDS = 5.0
# Dask's words for workers on their way out.
_LEAVING = ("closing_gracefully", "closing", "closed", "failed", "stopping", "stopped")


class WorkerWatch:
    """Looks at the workers of `client`, whose heartbeats may be `heartbeat_timeout` seconds apart."""

    def __init__(self, client: Client, heartbeat_timeout: float) -> None:
        self._client = client
        self.heartbeat_timeout = heartbeat_timeout
        self._heard: dict[str, tuple[float, float]] = {}
        self._distrusted: set[str] = set()
        #: Workers that get no more work here, whatever their heartbeats, each with the reason.
        self._unfit: dict[str, str] = {}

    def alive(self) -> dict[str, Any]:
        """Workers that the scheduler knows, noting whose heartbeat has moved.

        Raises `ClusterError` where the scheduler is gone or does not answer.
        """
        self.check_scheduler()
        try:
            # Not `scheduler_info`, which waits for ever, and gives what it last heard where nobody answers.
            identity = self._client.sync(self._ask_scheduler, callback_timeout=self.heartbeat_timeout)
            known: Mapping[str, Any] = identity["workers"]
        except (OSError, TimeoutError) as error:
            raise ClusterError(
                f"the scheduler does not answer ({error}): resume the run on another"
            ) from error
        # One that is closing takes no more tasks, and may be a while at it.
        workers = {worker: info for worker, info in known.items() if info.get("status") not in _LEAVING}
        now = time.monotonic()
        for worker, info in workers.items():
            seen = float(info.get("last_seen", 0.0))
            if worker not in self._heard or self._heard[worker][0] != seen:
                if worker in self._heard:
                    self._distrusted.discard(worker)
                self._heard[worker] = (seen, now)
        return workers

    def silent(self, workers: Iterable[str]) -> list[str]:
        """Those of some workers that were there, and not heard of for too long; they are not trusted now."""
        now = time.monotonic()
        found = [worker for worker in workers if now - self._heard[worker][1] > self.heartbeat_timeout]
        self.distrust(found)
        return found

    def distrust(self, workers: Iterable[str]) -> None:
        """Give workers no work until they are heard of again."""
        self._distrusted.update(workers)

    def give_up(self, reasons: Mapping[str, str]) -> None:
        """Give workers no more work; a reason goes on from the worker's name."""
        self._unfit.update(reasons)

    def trusted(self) -> dict[str, int]:
        """Threads of each worker that is there and takes work, by address, in a fixed order."""
        return {
            worker: int(info["nthreads"])
            for worker, info in sorted(self.alive().items())
            if worker not in self._distrusted and worker not in self._unfit and not is_paused(info)
        }

    def wait(self, hoped_for: int, seconds: float) -> dict[str, int]:
        """Give the trusted workers: after a little wait for `hoped_for`, and `seconds` for the first one."""
        started = time.monotonic()
        while True:
            found = self.trusted()
            waited = time.monotonic() - started
            if found and (len(found) >= hoped_for or waited > min(REPLACEMENT_SECONDS, seconds)):
                return found
            if waited > seconds:
                raise ClusterError(f"no worker for {seconds:g} s: {self._what_to_do()}")
            time.sleep(POLL_SECONDS)

    def check_scheduler(self) -> None:
        """`ClusterError` where the connection to the scheduler is lost."""
        if self._client.status not in ("running", "connecting"):
            raise ClusterError(
                f"the connection to the scheduler is {self._client.status}: resume the run on another"
            )

    def _what_to_do(self) -> str:
        """Return what is wrong with the workers that are there, and what to do."""
        alive = self.alive()
        reasons = {worker: why_paused(info) for worker, info in alive.items() if is_paused(info)}
        reasons |= {worker: reason for worker, reason in self._unfit.items() if worker in alive}
        there = [f"worker {worker} {reason}" for worker, reason in sorted(reasons.items())]
        return "; ".join([*there[:2], "start workers and resume the run"])

    async def _ask_scheduler(self) -> Any:
        scheduler = self._client.scheduler
        if scheduler is None:
            raise OSError("the client is closed")
        return await scheduler.identity(n_workers=-1)


def is_paused(info: Mapping[str, Any]) -> bool:
    """Whether Dask lets a worker take up no tasks, by what the scheduler knows of it."""
    return info.get("status") == "paused"
