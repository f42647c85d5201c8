"""What the workers of a run have done: for its records, and for the assignment of blocks."""

from __future__ import annotations

from collections.abc import Mapping

from topline.pipeline.cluster.assignment import Assignment
from topline.pipeline.cluster.messages import Answer
from topline.solvers.core.traffic import WorkerActivity

#: Less work than this says nothing about how fast a worker is.
_MEASURED_SECONDS = 2.0


class WorkerLog:
    """Counts by worker; times count from the run's begin and, for `shares`, from the last assignment."""

    def __init__(self) -> None:
        self._busy: dict[str, float] = {}
        self._memory: dict[str, int] = {}
        self._read: dict[str, int] = {}
        self._row_seconds: dict[str, list[float]] = {}
        #: Bytes of features that were not in memory.
        self.bytes_read = 0

    def begin_assignment(self) -> None:
        """Forget how fast anyone was with other blocks."""
        self._row_seconds, self._read = {}, {}

    def add(self, worker: str, rows: int, answer: Answer) -> None:
        """Count a request that a worker has done on its rows."""
        self._busy[worker] = self._busy.get(worker, 0.0) + answer.seconds
        self._memory[worker] = answer.memory_bytes
        self.bytes_read += answer.bytes_read - self._read.get(worker, 0)
        self._read[worker] = answer.bytes_read
        sums = self._row_seconds.setdefault(worker, [0.0, 0.0])
        sums[0] += rows
        sums[1] += answer.seconds

    def shares(self, threads: Mapping[str, int]) -> dict[str, float]:
        """Give rows a second of each worker; of those not seen yet, by their threads, what is usual."""
        pace = {
            worker: rows / seconds
            for worker, (rows, seconds) in self._row_seconds.items()
            if seconds > _MEASURED_SECONDS
        }
        known = [worker for worker in threads if worker in pace]
        usual = (
            sum(pace[worker] for worker in known) / sum(threads[worker] for worker in known) if known else 1.0
        )
        return {worker: pace.get(worker, usual * count) for worker, count in threads.items()}

    def activities(self, owned: Assignment) -> tuple[WorkerActivity, ...]:
        """Give those that hold blocks, in the order of their blocks."""
        return tuple(
            WorkerActivity(
                worker,
                blocks[-1].stop - blocks[0].start,
                self._busy.get(worker, 0.0),
                self._memory.get(worker, 0),
            )
            for worker, blocks in owned.items()
        )
