"""Liveness of the calls on a worker, read beside them.

A call that computes, compiles, reads or writes uses a processor or moves bytes, however slow the machine or
the disk is; one that hangs in a lock or on a disk that is gone does neither, though heartbeats continue.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from topline.solvers.core.answers import Clock

# States of a task, as a worker knows it, in which there is nothing left to do for it.
_OVER = ("memory", "error", "released", "forgotten")
# The keys of our calls begin with this.
KEY_PREFIX = "topline-"
# Threads that work for a call besides its own: ours by their names, and the one on which fsspec waits.
_HELPERS = (
    "topline-block", "topline-head", "topline-helper", "topline-duals", "topline-read-ahead", "topline-check",
    "fsspecIO",
)  # fmt: skip
# Part of the names of those on which Dask runs tasks.
_DASK = "Dask-Default-Threads"
# Where Linux says what each thread of this process has used.
_TASKS = Path("/proc/self/task")


class Liveness(NamedTuple):
    """What a worker says of a call that it has to do.

    `state` is Dask's word for where it is.  The others are sums over the call's threads, or over more, of
    which only the growth says something: seconds of processors, bytes read and written, laps of its clocks.
    """

    state: str
    cpu: float
    moved: int
    laps: int


def liveness_of(keys: Sequence[str], dask_worker: Any) -> dict[str, Liveness]:
    """Return the liveness of those of some tasks that a worker still has something to do for."""
    tasks = dask_worker.state.tasks
    states = {key: str(tasks[key].state) for key in keys if key in tasks and tasks[key].state not in _OVER}
    threads = _working_threads(dask_worker)
    spent = sum(map(_cpu_seconds, threads)) if _tells_cpu() else time.process_time()
    moved = sum(map(_bytes_moved, threads))
    return {key: Liveness(state, spent, moved, Clock.laps) for key, state in states.items()}


def _working_threads(dask_worker: Any) -> list[threading.Thread]:
    """Threads that may be at work for our calls on a worker.

    A call may wait for what another of ours does, of an epoch that is over, and workers of one process wait
    for each other where something is compiled.
    """
    working: Mapping[int, Any] = dask_worker.active_threads
    ours = {thread for thread, key in [*working.items()] if str(key).startswith(KEY_PREFIX)}
    shared = str(dask_worker.address).startswith("inproc://")
    return [
        each
        for each in threading.enumerate()
        if each.ident in ours or each.name.startswith(_HELPERS) or (shared and _DASK in each.name)
    ]


@lru_cache(1)
def _tells_cpu() -> bool:
    """Whether the system says what a thread has used, of which this one has used something."""
    return _cpu_seconds(threading.current_thread()) > 0.0


def _cpu_seconds(thread: threading.Thread) -> float:
    """Processor seconds of a thread; 0 once it ended."""
    try:
        text = (_TASKS / str(thread.native_id) / "schedstat").read_text(encoding="ascii")
    except OSError:
        return 0.0
    return 1e-9 * int(text.split()[0])


def _bytes_moved(thread: threading.Thread) -> int:
    """Bytes that a thread has read and written, by its own account and that of the disks; 0 once it ended."""
    try:
        lines = (_TASKS / str(thread.native_id) / "io").read_text(encoding="ascii").splitlines()
    except OSError:
        return 0
    counts = dict(line.split(": ") for line in lines)
    return sum(int(counts.get(name, 0)) for name in ("rchar", "wchar", "read_bytes", "write_bytes"))
