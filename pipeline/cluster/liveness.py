"""Liveness of the calls on a worker, measured from outside them.

A call that computes, compiles, reads or writes uses CPU time or moves bytes, however slow the machine or
disk. One that hangs in a lock or on a lost disk does neither, though heartbeats continue.
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

#: Threads that work for a call, by the worker's address and the call's key.
AT_WORK: Counter[tuple[str, str]] = Counter()
#: Name of such threads.
CALL_THREAD = "topline-call"
# Names of helper threads of a call: ours, and the one on which fsspec waits.
_HELPERS = (
    "topline-block", "topline-head", "topline-helper", "topline-duals", "topline-read-ahead", "topline-check",
    "fsspecIO",
)  # fmt: skip
# Where Linux lists the usage of each thread of this process.
_TASKS = Path("/proc/self/task")


class Liveness(NamedTuple):
    """Activity of a call: CPU seconds, bytes read and written, and completed laps of work.

    These are sums over the threads of all calls, since one may wait for another; only growth matters.
    """

    cpu: float
    moved: int
    laps: int


def liveness_of(keys: Sequence[str], dask_worker: Any) -> dict[str, Liveness]:
    """Return the liveness of those of the calls `keys` that run on this worker."""
    threads = [each for each in threading.enumerate() if each.name.startswith((CALL_THREAD, *_HELPERS))]
    spent = sum(map(_cpu_seconds, threads)) if _tells_cpu() else time.process_time()
    found = Liveness(spent, sum(map(_bytes_moved, threads)), Clock.laps)
    return {key: found for key in keys if (str(dask_worker.address), key) in AT_WORK}


@lru_cache(1)
def _tells_cpu() -> bool:
    """Return whether the system reports CPU time per thread."""
    return _cpu_seconds(threading.current_thread()) > 0.0


def _cpu_seconds(thread: threading.Thread) -> float:
    """Return the CPU seconds of a thread; 0 once it has ended."""
    try:
        text = (_TASKS / str(thread.native_id) / "schedstat").read_text(encoding="ascii")
    except OSError:
        return 0.0
    return 1e-9 * int(text.split()[0])


def _bytes_moved(thread: threading.Thread) -> int:
    """Return the bytes a thread has read and written, in system calls and on disk; 0 once it has ended."""
    try:
        lines = (_TASKS / str(thread.native_id) / "io").read_text(encoding="ascii").splitlines()
    except OSError:
        return 0
    counts = dict(line.split(": ") for line in lines)
    return sum(int(counts.get(name, 0)) for name in ("rchar", "wchar", "read_bytes", "write_bytes"))
