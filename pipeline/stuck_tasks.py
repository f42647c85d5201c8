"""Finds tasks that wait for a message that Dask does not send.

Scheduler, workers and client collect messages for a moment, until a time of the clock.  Where that jumps back
meanwhile, the moment lasts as long as the jump: everyone is there and answers, and nothing happens.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from distributed import Client, Future
from distributed.protocol.pickle import dumps

from pipeline.errors import ClusterError

LOOK_SECONDS = 5.0
STUCK_SECONDS = 20.0

# States of a task, as a worker knows it, in which there is nothing left to do for it.
_OVER = ("memory", "error", "released", "forgotten")


class StuckTasks:
    """Watches some tasks that are not done; asks their workers now and then, directly."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._looked = time.monotonic()
        #: Since when a worker has had nothing to do for its task.
        self._idle: dict[str, float] = {}

    def check(self, pending: Mapping[str, Future[Any]]) -> None:
        """Raise `ClusterError` where a worker has long had nothing to do for a task that is not done."""
        now = time.monotonic()
        if now - self._looked < LOOK_SECONDS:
            return
        self._looked = now
        keys = {worker: str(future.key) for worker, future in pending.items()}
        try:
            busy = self._client.sync(self._ask, keys, callback_timeout=LOOK_SECONDS)
        except (OSError, TimeoutError):
            return
        self._idle = {w: self._idle.get(w, now) for w in keys if w in busy and keys[w] not in busy[w]}
        for worker, since in self._idle.items():
            if now - since > STUCK_SECONDS:
                raise ClusterError(
                    f"the scheduler and worker {worker} are there, but messages between them have been held"
                    f" back for {now - since:.0f} s, as after a clock has jumped back: start both anew"
                )

    async def _ask(self, keys: Mapping[str, str]) -> dict[str, Sequence[str]]:
        """Give the tasks that each worker is busy with, of those who answer."""
        scheduler: Any = self._client.scheduler
        message = {"op": "run", "function": dumps(busy_with), "args": dumps((list(keys.values()),))}
        answers = await scheduler.broadcast(
            msg=message | {"wait": True, "kwargs": dumps({})}, workers=list(keys), on_error="ignore"
        )
        return {w: answer["result"] for w, answer in answers.items() if answer["status"] == "OK"}


def busy_with(keys: Sequence[str], dask_worker: Any) -> list[str]:
    """Give those of some tasks that a worker still has something to do for."""
    tasks = dask_worker.state.tasks
    return [key for key in keys if key in tasks and tasks[key].state not in _OVER]
