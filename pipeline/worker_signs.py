"""Signs of life of the calls on a worker, read beside them.

A call that computes, compiles or reads uses a processor or moves bytes, however slow the machine or the disk
is; one that hangs in a lock or on a disk that is gone does neither, while the heart of its worker beats on.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from solvers.clock import Clock

# States of a task, as a worker knows it, in which there is nothing left to do for it.
_OVER = ("memory", "error", "released", "forgotten")
# The keys of our calls begin with this.
KEY_PREFIX = "topline-"
# Threads that work for a call besides its own: ours by their names, and the one on which fsspec waits.
_HELPERS = ("topline-block", "topline-duals", "topline-read-ahead", "topline-check", "fsspecIO")
# Where Linux says what each thread of this process has used.
_TASKS = Path("/proc/self/task")


class Signs(NamedTuple):
    """What a worker says of a call that it has to do.

    `state` is Dask's word for where it is.  The others are sums over the call's threads, or over more, of
    which only the growth says something: seconds of processors, bytes read, stretches of work ended.
    """

    state: str
    cpu: float
    read: int
    laps: int


def signs_of(keys: Sequence[str], dask_worker: Any) -> dict[str, Signs]:
    """Give the signs of those of some tasks that a worker still has something to do for."""
    tasks = dask_worker.state.tasks
    states = {key: str(tasks[key].state) for key in keys if key in tasks and tasks[key].state not in _OVER}
    working: Mapping[int, Any] = dask_worker.active_threads
    # All of ours: a call may wait for what another one, of an epoch that is over, still does.
    ours = {thread for thread, key in [*working.items()] if str(key).startswith(KEY_PREFIX)}
    threads = [
        thread for thread in threading.enumerate() if thread.ident in ours or thread.name.startswith(_HELPERS)
    ]
    spent, read = sum(map(_cpu_seconds, threads)), sum(map(_bytes_read, threads))
    return {key: Signs(state, spent, read, Clock.laps) for key, state in states.items()}


def _cpu_seconds(thread: threading.Thread) -> float:
    """Processor seconds of a thread, of the whole process where the system does not say; 0 once it ended."""
    try:
        text = (_TASKS / str(thread.native_id) / "schedstat").read_text(encoding="ascii")
    except OSError:
        return 0.0 if _TASKS.exists() else time.process_time()
    return 1e-9 * int(text.split()[0])


def _bytes_read(thread: threading.Thread) -> int:
    """Bytes that a thread has read from files or a disk; 0 where the system does not say."""
    try:
        lines = (_TASKS / str(thread.native_id) / "io").read_text(encoding="ascii").splitlines()
    except OSError:
        return 0
    counts = dict(line.split(": ") for line in lines)
    return int(counts.get("rchar", 0)) + int(counts.get("read_bytes", 0))
