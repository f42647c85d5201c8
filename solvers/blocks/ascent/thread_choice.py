"""Threads of a block, and whether they pay: on a busy machine one is faster than several that wait."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

#: Sweeps after which the slower number of threads is tried again.
_RETRY = 24


class ThreadChoice:
    """As many threads as there are, or one: what took less time a row when it was last tried.

    No number depends on it.
    """

    def __init__(self) -> None:
        self._seconds: dict[int, float] = {}
        self._since: dict[int, int] = {}

    def of(self, most: int) -> int:
        """Return how many of `most` threads the next sweep takes."""
        for number in (most, 1):
            if number not in self._seconds or self._since[number] >= _RETRY:
                return number
        return min((most, 1), key=lambda number: self._seconds[number])

    def note(self, number: int, seconds: float) -> None:
        """Keep how many seconds a row a sweep took."""
        for other in self._since:
            self._since[other] += 1
        self._seconds[number], self._since[number] = seconds, 0


class Helpers:
    """Threads that work for others, begun when they are first asked for and kept with their owner.

    Several may share them that never ask for more than somebody has asked for before.
    """

    def __init__(self) -> None:
        self._pool: ThreadPoolExecutor | None = None
        self._most = 0

    def pool(self, threads: int) -> ThreadPoolExecutor:
        """Return a pool of at least so many threads."""
        if self._pool is None or threads > self._most:
            if self._pool is not None:
                self._pool.shutdown(wait=False)
            self._pool = ThreadPoolExecutor(threads, thread_name_prefix="topline-helper")
            self._most = threads
        return self._pool
