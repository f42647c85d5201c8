"""How many threads a job may keep busy, and how many of them BLAS may have: one while blocks compute."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

from threadpoolctl import ThreadpoolController

#: Multiplications a round below which threads of BLAS wait for each other longer than one takes alone.
_SMALL_ROUND = 1e8


class _Limit:
    """The limit of this process, and how many hold it."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.users = 0
        self.controller: ThreadpoolController | None = None
        self.limit: Any = None

    def find(self) -> ThreadpoolController:
        """Return the controller, which takes 2 ms to look for BLAS."""
        self.controller = self.controller or ThreadpoolController()
        return self.controller


_held = _Limit()


@contextmanager
def one_blas_thread() -> Iterator[None]:
    """Hold BLAS to one thread while any user of this process is inside, then restore it.

    One thread makes a product independent of the machine, and workers do not compete for cores.  The users
    are counted for in-process clusters, where a restore by the first to finish would unleash BLAS on the
    others.
    """
    with _held.lock:
        _held.users += 1
        if _held.users == 1:
            _held.limit = _held.find().limit(limits=1, user_api="blas")
    try:
        yield
    finally:
        with _held.lock:
            _held.users -= 1
            if _held.users == 0:
                _held.limit.restore_original_limits()


def threads_here() -> int:
    """Return how many threads a job of this process may keep busy.

    As many as BLAS would take, which follows OMP_NUM_THREADS and its like and the limits of threadpoolctl, as
    whoever runs jobs side by side sets them; but no more than the cores that this process may use.
    """
    with _held.lock:
        if _held.users:
            found = [_held.limit.get_original_num_threads()["blas"]]
        else:
            found = [info["num_threads"] for info in _held.find().info() if info["user_api"] == "blas"]
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min([cores, *(int(number) for number in found if number)]))


def blas_threads_for(multiplications: float) -> AbstractContextManager[None]:
    """Return a context with one thread of BLAS for small rounds, and as many as there are for others."""
    return one_blas_thread() if multiplications < _SMALL_ROUND else nullcontext()


def available_cores() -> int:
    """Return the number of cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
