"""Where the paths of a sweep are solved: in this process, or on Dask workers, each with its own paths."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator, Sequence
from typing import Protocol

from distributed import Client

from topline.pipeline.cluster import (
    LOSSES_IN_A_ROW,
    Call,
    WorkerCalls,
    WorkersLost,
    too_many_losses,
)
from topline.pipeline.sweep.cells import Outcome
from topline.pipeline.sweep.folds import forget_folds
from topline.pipeline.sweep.paths import PathTask, advance_path, forget_paths

logger = logging.getLogger(__name__)

FORGET_SECONDS = 10.0

Answer = tuple[PathTask, tuple[Outcome, ...]]


class Runner(Protocol):
    """Takes paths through their last round."""

    def run(self, tasks: Sequence[PathTask]) -> Iterator[Answer]:
        """Yield each task with its answer as it comes."""
        ...

    def close(self, name: str) -> None:
        """Let go of what is remembered of the paths whose names begin with `name`."""
        ...


class HereRunner:
    """One path after the other in this process."""

    def run(self, tasks: Sequence[PathTask]) -> Iterator[Answer]:
        """Yield each task with its answer as it comes."""
        for task in tasks:
            yield task, advance_path(task)

    def close(self, name: str) -> None:
        """Let go of everything."""
        _forget(name)


class DaskRunner:
    """One path at a time on every worker; a path stays with its worker, where its state is.

    Where a worker is lost its paths go to others, which take them through all rounds again, and come to the
    same numbers; what the others had been asked at the time they answer from memory.
    """

    def __init__(self, client: Client, *, heartbeat_timeout: float, worker_wait: float) -> None:
        self._client = client
        self._calls = WorkerCalls(client, heartbeat_timeout=heartbeat_timeout)
        self._wait = worker_wait
        self._homes: dict[tuple[str, int], str] = {}
        self._hoped_for = 1

    def run(self, tasks: Sequence[PathTask]) -> Iterator[Answer]:
        """Yield each task with its answer as it comes, a wave of one task a worker after the other."""
        waiting, losses = list(tasks), 0
        while waiting:
            workers = list(self._calls.wait_for_workers(self._hoped_for, self._wait))
            self._hoped_for = len(workers)
            wave = self._dealt(waiting, workers)
            try:
                answers = self._calls.run(
                    [Call(worker, advance_path, (task,)) for worker, task in wave.items()]
                )
            except WorkersLost as lost:
                if (losses := losses + 1) >= LOSSES_IN_A_ROW:
                    raise too_many_losses(losses, lost, "sweep") from lost
                logger.warning("%s: its paths go to others", lost)
                self._homes = {path: home for path, home in self._homes.items() if home not in lost.workers}
                continue
            losses = 0
            for worker, task in wave.items():
                waiting.remove(task)
                yield task, answers[worker]

    def close(self, name: str) -> None:
        """Let the workers forget the paths; who is gone has forgotten them."""
        if self._client.status == "running":
            # Beside the tasks, which may be what is to end; and a worker that hangs is not waited for.
            asking = threading.Thread(
                target=self._client.run, args=(_forget, name), kwargs={"on_error": "ignore"}, daemon=True
            )
            asking.start()
            asking.join(FORGET_SECONDS)

    def _dealt(self, waiting: Sequence[PathTask], workers: Sequence[str]) -> dict[str, PathTask]:
        """Return every worker one of its own paths, else one that has no worker yet."""
        wave: dict[str, PathTask] = {}
        homeless = []
        for task in waiting:
            home = self._homes.get((task.name, task.fold))
            if home not in workers:
                homeless.append(task)
            elif home not in wave:
                wave[str(home)] = task
        for worker in workers:
            if worker not in wave and homeless:
                wave[worker] = homeless.pop(0)
                self._homes[wave[worker].name, wave[worker].fold] = worker
        return wave


def _forget(name: str) -> None:
    forget_paths(name)
    forget_folds()
