"""What a run moves and who works: counters that an executor keeps, of which the loop takes differences."""

from __future__ import annotations

import os
import resource
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path

_STATM = Path("/proc/self/statm")


@dataclass(frozen=True)
class WorkerActivity:
    """One worker: a process elsewhere, or a thread of this one.

    Attributes
    ----------
    name : what tells it from the others, such as an address; the same all through the run.
    rows : examples that it holds; of a thread, those that it took of the last order.
    seconds_busy : seconds in which it has worked on orders, since the problem was bound.
    memory_bytes : its resident memory; 0 where it shares that of the coordinator.
    """

    name: str
    rows: int
    seconds_busy: float
    memory_bytes: int = 0


@dataclass(frozen=True)
class Traffic:
    """What an executor has done since the problem was bound; `memory_bytes` and `rows` are those of now.

    Attributes
    ----------
    bytes_sent, bytes_received : by the coordinator to all workers, and from them; 0 within one process.
    bytes_read : of features, as stored but decompressed, read because they were not in memory.
    memory_bytes : resident memory of the coordinator and all workers, summed.
    workers : who works, in a fixed order; also those that were lost, for what they did was done.
    """

    bytes_sent: int = 0
    bytes_received: int = 0
    bytes_read: int = 0
    memory_bytes: int = 0
    workers: tuple[WorkerActivity, ...] = ()


class ThreadActivity:
    """Counts what each thread of this process has worked; threads share it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._busy: dict[str, float] = {}
        self._rows: dict[str, int] = {}

    def begin_order(self) -> None:
        """Forget which rows each thread took of the order before."""
        with self._lock:
            self._rows = {}

    def worked(self, rows: int, began: float) -> None:
        """Count rows that the calling thread took at `began`, of `time.perf_counter`, and has done."""
        name, seconds = threading.current_thread().name, time.perf_counter() - began
        with self._lock:
            self._busy[name] = self._busy.get(name, 0.0) + seconds
            self._rows[name] = self._rows.get(name, 0) + rows

    def workers(self) -> tuple[WorkerActivity, ...]:
        """Give every thread that has ever worked, by name."""
        with self._lock:
            return tuple(
                WorkerActivity(name, self._rows.get(name, 0), seconds)
                for name, seconds in sorted(self._busy.items())
            )


def resident_bytes() -> int:
    """Give the memory of this process that is in use now; where the system does not say, the most so far."""
    try:
        return int(_STATM.read_bytes().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, IndexError, ValueError):
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak if sys.platform == "darwin" else peak * 1024
