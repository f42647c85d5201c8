"""Data moved and work done by a run: counters of an executor, of which the loop takes differences."""

from __future__ import annotations

import math
import threading
import time
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np
import psutil

from topline.solvers.core.rows import RowRange, RowSource, is_sparse

_Number = TypeVar("_Number", int, float)


@dataclass(frozen=True, slots=True)
class WorkerActivity:
    """One worker: another process, or a thread of this one.

    Attributes
    ----------
    name : identifies the worker throughout the run, such as an address.
    rows : examples that it holds; for a thread, those of its last request.
    seconds_busy : seconds spent on requests.
    memory_bytes : its resident memory; 0 if shared with the coordinator.
    """

    name: str
    rows: int
    seconds_busy: float
    memory_bytes: int = 0

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return {name: getattr(self, name) for name in self.__slots__}


@dataclass(frozen=True)
class Traffic:
    """Totals of an executor since the problem was bound; memory, workers and rows are current values.

    Attributes
    ----------
    bytes_sent, bytes_received : by the coordinator to all workers, and from them; 0 within one process.
    bytes_read : of features outside memory, after decompression.
    memory_bytes : resident memory of the coordinator and all workers, summed.
    workers : the present workers, in a fixed order.
    """

    bytes_sent: int = 0
    bytes_received: int = 0
    bytes_read: int = 0
    memory_bytes: int = 0
    workers: tuple[WorkerActivity, ...] = ()

    def since(self, before: Traffic) -> Traffic:
        """Return the increase since `before`; a counter that was reset counts from 0."""
        busy = {worker.name: worker.seconds_busy for worker in before.workers}
        return Traffic(
            bytes_sent=_added(self.bytes_sent, before.bytes_sent),
            bytes_received=_added(self.bytes_received, before.bytes_received),
            bytes_read=_added(self.bytes_read, before.bytes_read),
            memory_bytes=self.memory_bytes,
            workers=tuple(
                replace(worker, seconds_busy=_added(worker.seconds_busy, busy.get(worker.name, 0.0)))
                for worker in self.workers
            ),
        )


class ThreadActivity:
    """Counts the work of each thread of this process; threads share it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._busy: dict[str, float] = {}
        self._rows: dict[str, int] = {}

    def begin_request(self) -> None:
        """Reset the row counts for a new request."""
        with self._lock:
            self._rows = {}

    def worked(self, rows: int, began: float) -> None:
        """Count rows that the calling thread has processed since `began`, a `time.perf_counter` value."""
        name, seconds = threading.current_thread().name, time.perf_counter() - began
        with self._lock:
            self._busy[name] = self._busy.get(name, 0.0) + seconds
            self._rows[name] = self._rows.get(name, 0) + rows

    def workers(self) -> tuple[WorkerActivity, ...]:
        """Return every thread that has ever worked, by name."""
        with self._lock:
            return tuple(
                WorkerActivity(name, self._rows.get(name, 0), seconds)
                for name, seconds in sorted(self._busy.items())
            )


class CountedRows(RowRange):
    """All rows of a source, counting in `bytes_read` the bytes taken from it."""

    def __init__(self, source: RowSource) -> None:
        super().__init__(source, 0, int(source.shape[0]))
        self._lock = threading.Lock()
        self.bytes_read = 0

    def __getitem__(self, rows: slice) -> Any:
        values = super().__getitem__(rows)
        stored = values.data if is_sparse(values) else values
        with self._lock:
            self.bytes_read += int(stored.nbytes)
        return values


def counted(X: RowSource) -> RowSource:
    """Return X, wrapped to count reads if it is stored in pieces or mapped and does not count them itself."""
    if hasattr(X, "bytes_read") or bool(getattr(X, "in_memory", False)):
        return X
    stored = isinstance(X, np.memmap) or any(getattr(X, name, None) for name in ("chunks", "cuts"))
    return CountedRows(X) if stored else X


def resident_bytes() -> int:
    """Return the resident memory of this process."""
    return int(psutil.Process().memory_info().rss)


class MemoryGauge:
    """Reads `resident_bytes` at most a hundred times a second, as rounds may be shorter than the reading."""

    def __init__(self) -> None:
        self._looked = -math.inf
        self._bytes = 0

    def read(self) -> int:
        """Return the memory of this process, at most a hundredth of a second old."""
        now = time.perf_counter()
        if now - self._looked >= 0.01:
            self._looked, self._bytes = now, resident_bytes()
        return self._bytes


def _added(now: _Number, before: _Number) -> _Number:
    return now - before if now >= before else now
