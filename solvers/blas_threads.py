"""How many threads BLAS may have: one while workers of this process compute, and one for small products."""

from __future__ import annotations

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
            _held.controller = _held.controller or ThreadpoolController()  # looking for BLAS takes 2 ms
            _held.limit = _held.controller.limit(limits=1, user_api="blas")
    try:
        yield
    finally:
        with _held.lock:
            _held.users -= 1
            if _held.users == 0:
                _held.limit.restore_original_limits()


def blas_threads_for(multiplications: float) -> AbstractContextManager[None]:
    """Return a context with one thread of BLAS for small rounds, and as many as there are for others."""
    return one_blas_thread() if multiplications < _SMALL_ROUND else nullcontext()
