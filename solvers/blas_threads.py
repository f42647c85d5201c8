"""How many threads a job may keep busy, and how many of them BLAS may have: one while blocks compute."""

from __future__ import annotations

import os
import sys
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
        #: Each library of BLAS with the threads that it had before.
        self.before: list[tuple[Any, int]] = []
        self._found: dict[bool, list[Any]] = {}

    def libraries(self) -> list[Any]:
        """Return the libraries of BLAS in this process, which takes 2 ms to look for."""
        # SciPy brings one of its own, which may be loaded later.
        both = "scipy.linalg" in sys.modules
        if both not in self._found:
            self._found[both] = ThreadpoolController().select(user_api="blas").lib_controllers
        return self._found[both]

    def hold(self) -> None:
        """Give every library one thread."""
        self.before = [(library, library.num_threads) for library in self.libraries()]
        for library, _ in self.before:
            _set_threads(library, 1)

    def release(self) -> None:
        """Give every library what it had."""
        for library, number in self.before:
            _set_threads(library, number)


def _set_threads(library: Any, number: int) -> None:
    """Set the threads of a library of BLAS, in whichever thread this is.

    From threadpoolctl 3.8 on `set_num_threads` does nothing for OpenBLAS in any thread but the one that came
    first, as long as that lives; here users are counted instead.
    """
    getattr(library, "_real_set_num_threads", library.set_num_threads)(number)


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
            _held.hold()
    try:
        yield
    finally:
        with _held.lock:
            _held.users -= 1
            if _held.users == 0:
                _held.release()


def threads_here() -> int:
    """Return how many threads a job of this process may keep busy.

    As many as BLAS would take, which follows OMP_NUM_THREADS and its like and the limits of threadpoolctl, as
    whoever runs jobs side by side sets them; but no more than the cores that this process may use.
    """
    with _held.lock:
        if _held.users:
            found = [number for _, number in _held.before]
        else:
            found = [library.num_threads for library in _held.libraries()]
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
