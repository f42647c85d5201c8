"""Running the units of an extraction: in this process, or on Dask workers with a bounded number in flight."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any

from topline.pipeline.errors import ClusterError
from topline.pipeline.images import ImageItem
from topline.pipeline.ingest.unit import UnitContext, UnitReport, extract_unit
from topline.pipeline.interrupts import StopFlag

if TYPE_CHECKING:
    from distributed import Client, Future

POLL_SECONDS = 0.25
# Units in flight for each worker thread: one that runs and one that is there when it ends.
IN_FLIGHT = 2
# A cluster on which no unit ends for so long hangs, whatever its heartbeats say.
UNIT_SECONDS = 3600.0

Done = Callable[[UnitReport], None]


class StoppedError(Exception):
    """The job was asked to stop; every unit that was done is stored."""


@dataclass(frozen=True, eq=False)
class Units:
    """Units that are still to be done, and who is notified of them."""

    context: UnitContext
    items: tuple[ImageItem, ...]
    done: Done
    advance: Callable[[int], None]
    flag: StopFlag

    def images(self, unit: int) -> tuple[ImageItem, ...]:
        """Images of a unit."""
        span = self.context.writer.bounds(unit)
        return self.items[span.start : span.stop]

    def run_here(self, units: Iterator[int], *, seconds: float = float("inf")) -> float:
        """Run units one after the other, until one ends later than `seconds`; return the seconds spent.

        Raises `StoppedError` at the next batch of images once a stop is requested.
        """
        begun = time.monotonic()
        for unit in units:
            self.done(extract_unit(self.context, unit, self.images(unit), self._tick))
            if time.monotonic() - begun > seconds:
                break
        return time.monotonic() - begun

    def _tick(self, images: int) -> None:
        if self.flag:
            raise StoppedError
        self.advance(images)

    def run_on(self, client: Client, units: Iterator[int], *, worker_wait: float) -> None:
        """Run units on the client's workers; a unit whose worker dies is run again by another.

        Raises `StoppedError` as `run_here`, `ClusterError` where no worker is left for `worker_wait` seconds,
        where units keep killing their workers, and where nothing ends any more.
        """
        pending: dict[Future[Any], int] = {}
        clock = _Clock(worker_wait)
        try:
            while True:
                if self.flag:
                    raise StoppedError
                room = IN_FLIGHT * max(1, clock.threads(client)) - len(pending)
                for unit in islice(units, max(0, room)):
                    pending[self._submit(client, unit)] = unit
                if not pending:
                    return
                self._collect(client, pending, clock)
        finally:
            if pending and client.status == "running":
                client.cancel(list(pending))

    def _submit(self, client: Client, unit: int) -> Future[Any]:
        return client.submit(extract_unit, self.context, unit, self.images(unit), pure=False)

    def _collect(self, client: Client, pending: dict[Future[Any], int], clock: _Clock) -> None:
        """Wait a moment and take in what has ended."""
        from distributed import wait

        try:
            with client.as_current():
                ended = wait(list(pending), timeout=POLL_SECONDS, return_when="FIRST_COMPLETED").done
        except TimeoutError:
            clock.check(len(pending))
            return
        for future in ended:
            unit = pending.pop(future)
            if future.status == "finished":
                report: UnitReport = future.result()
                self.done(report)
                self.advance(report.rows)
                clock.unit_ended()
            elif future.status == "error":
                raise self._failure(future, unit)
            else:
                pending[self._submit(client, unit)] = unit

    def _failure(self, future: Future[Any], unit: int) -> BaseException:
        from distributed.scheduler import KilledWorker

        error = future.exception()
        if not isinstance(error, KilledWorker):
            return error or ClusterError(f"unit {unit} failed without a reason")
        items = self.images(unit)
        return ClusterError(
            f"workers died again and again on the images {items[0].path} to {items[-1].path}: give them more"
            " memory (--memory-limit), or lower --max-pixels"
        )


class _Clock:
    """When something last happened on a cluster, so that no wait is endless."""

    def __init__(self, worker_wait: float) -> None:
        self._wait = worker_wait
        self._worker_seen = self._ended = time.monotonic()

    def threads(self, client: Client) -> int:
        """Return the threads of all workers; `ClusterError` where there was none for too long."""
        from topline.pipeline.cluster import known_workers

        if client.status not in ("running", "connecting"):
            raise ClusterError(f"the connection to the scheduler is {client.status}")
        try:
            workers = known_workers(client)
        except (OSError, TimeoutError) as error:
            raise ClusterError(f"the scheduler does not answer ({error})") from error
        now = time.monotonic()
        if workers:
            self._worker_seen = now
        elif now - self._worker_seen > self._wait:
            raise ClusterError(
                f"no worker for {self._wait:g} s: start workers, or wait longer (--worker-wait)"
            )
        return sum(int(worker["nthreads"]) for worker in workers.values())

    def unit_ended(self) -> None:
        """Note that work is in progress."""
        self._ended = time.monotonic()

    def check(self, pending: int) -> None:
        """`ClusterError` where nothing has ended for too long."""
        if time.monotonic() - self._ended > UNIT_SECONDS:
            raise ClusterError(f"none of {pending} units ended within {UNIT_SECONDS:g} s")
