"""The rounds that are remembered: all of a run that is not endless, an even choice of one that is."""

from __future__ import annotations

from typing import Generic, TypeVar

#: Rounds that a result keeps at most.  A record takes about 1 kB, and 0.2 kB for each worker.
MOST_ROUNDS = 10_000

T = TypeVar("T")


class ThinnedHistory(Generic[T]):
    """Takes something each round and keeps at most `most` of them, in order.

    Beyond that every second one is dropped, and from then on only every second one is taken, and so on.  The
    last one taken in is always among those given.
    """

    def __init__(self, most: int = MOST_ROUNDS) -> None:
        self._most = most
        self._kept: list[T] = []
        self._stride = 1
        self._seen = 0
        self._last: T | None = None

    def add(self, record: T) -> None:
        """Take that of the next round."""
        self._last = record
        if self._seen % self._stride == 0:
            self._kept.append(record)
        self._seen += 1
        if len(self._kept) > self._most:
            self._kept = self._kept[::2]
            self._stride *= 2

    def records(self) -> tuple[T, ...]:
        """Return the kept ones, and the last, oldest first."""
        if self._last is None or self._kept[-1] is self._last:
            return tuple(self._kept)
        return (*self._kept, self._last)
