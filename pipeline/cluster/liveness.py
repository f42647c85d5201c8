"""Liveness of the calls on a worker, read beside them.

A call that computes, compiles, reads or writes uses a processor or moves bytes, however slow the machine or
the disk is; one that hangs in a lock or on a disk that is gone does neither, though heartbeats continue.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from topline.solvers.core.answers import Clock

#: Threads at work for a call, by the worker's address and the call's key.
AT_WORK: Counter[tuple[str, str]] = Counter()
#: The name of such a thread.
CALL_THREAD = "topline-call"
# Threads that work for a call besides its own: ours by their names, and the one on which fsspec waits.
_HELPERS = (
    "topline-block", "topline-head", "topline-helper", "topline-duals", "topline-read-ahead", "topline-check",
    "fsspecIO",
)  # fmt: skip
# Where Linux says what each thread of this process has used.
_TASKS = Path("/proc/self/task")


class Liveness(NamedTuple):
    """What a worker says of a call that it is at work for.

    These are sums over all threads of calls, for one may wait for another, of which only the growth says
    something: seconds of processors, bytes read and written, laps of clocks.
    """

    cpu: float
    moved: int
    laps: int


def liveness_of(keys: Sequence[str], dask_worker: Any) -> dict[str, Liveness]:
    """Return the liveness of those of some calls that a worker is at work for."""
    threads = [each for each in threading.enumerate() if each.name.startswith((CALL_THREAD, *_HELPERS))]
    spent = sum(map(_cpu_seconds, threads)) if _tells_cpu() else time.process_time()
    found = Liveness(spent, sum(map(_bytes_moved, threads)), Clock.laps)
    return {key: found for key in keys if (str(dask_worker.address), key) in AT_WORK}


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
