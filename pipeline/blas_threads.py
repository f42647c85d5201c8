"""One BLAS thread while a worker computes."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from threadpoolctl import ThreadpoolController


class BlasThreads:
    """Keeps BLAS to one thread while any worker of this process computes, then restores it.

    One thread makes a product independent of the machine, and workers do not fight.  The count is for
    in-process clusters, where a restore by the first to finish would unleash BLAS on the others.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._users = 0
        self._controller: ThreadpoolController | None = None
        self._limit: Any = None

    @contextmanager
    def one(self) -> Iterator[None]:
        """Hold BLAS to one thread."""
        with self._lock:
            self._users += 1
            if self._users == 1:
                self._controller = self._controller or ThreadpoolController()  # looking for BLAS takes 2 ms
                self._limit = self._controller.limit(limits=1, user_api="blas")
        try:
            yield
        finally:
            with self._lock:
                self._users -= 1
                if self._users == 0:
                    self._limit.restore_original_limits()
