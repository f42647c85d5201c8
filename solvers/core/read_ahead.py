"""Slabs of rows in a given order, read ahead: while one is processed, the next one is read.

Each thread reads one slab and ends, so no thread has to be stopped: a caller that gives up waits for the slab
under way, and a reader that is merely dropped leaves nothing behind.  At most three slabs are in memory: the
one just processed, the one handed out, and the one being read.

When several threads visit rows at the same time (`SharedScan`) each slab is read once for all.  A reader
lists the slabs it still wants, in any order.  Once every reader waits, the slab that most of them want is
read and given to each of them, and the likeliest next one is read meanwhile.  The order depends only on the
requests and on the number of earlier scans, so it is reproducible.
"""

from __future__ import annotations

import contextvars
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

from topline.solvers.core.rows import RowRange, Rows, RowSource, as_rows, at_hand


def read_slabs(
    X: RowSource, bounds: Iterable[tuple[int, int]], dtype: np.dtype[Any]
) -> Iterator[tuple[int, int, Rows]]:
    """Yield (start, stop, rows start:stop of X as floats of `dtype`) for each of `bounds`, in their order."""
    return _in_order(X, bounds, lambda values: as_rows(values, dtype))


def stored_slabs(X: RowSource, bounds: Iterable[tuple[int, int]]) -> Iterator[tuple[int, int, Any]]:
    """Yield (start, stop, rows start:stop of X as they are stored) for each of `bounds`, in their order."""
    return _in_order(X, bounds, lambda values: values)


def _in_order(
    X: RowSource, bounds: Iterable[tuple[int, int]], convert: Callable[[Any], Rows]
) -> Iterator[tuple[int, int, Rows]]:
    spans = list(bounds)
    if all(at_hand(X, start, stop) for start, stop in spans):
        for start, stop in spans:
            yield start, stop, convert(X[start:stop])
        return
    coming: list[ComingSlab] = []
    try:
        for number, (start, stop) in enumerate(spans):
            rows = (coming.pop() if coming else ComingSlab(X, start, stop, convert)).take()
            if number + 1 < len(spans):
                coming.append(ComingSlab(X, *spans[number + 1], convert))
            yield start, stop, rows
            del rows
    finally:
        for slab in coming:
            slab.drop()


class ComingSlab:
    """A slab that a thread is reading."""

    def __init__(
        self, X: RowSource, start: int, stop: int, convert: Callable[[Any], Rows] = lambda values: values
    ) -> None:
        self._source, self._bounds, self._convert = X, (start, stop), convert
        self._rows: Rows = None
        self._error: BaseException | None = None
        # NumPy keeps its disabled warnings in the context.
        context = contextvars.copy_context()
        self._thread = threading.Thread(target=context.run, args=(self._read,), name="topline-read-ahead")
        self._thread.start()

    def _read(self) -> None:
        start, stop = self._bounds
        try:
            self._rows = self._convert(self._source[start:stop])
        except BaseException as error:  # noqa: BLE001  it is raised where the slab is asked for
            self._error = error

    def take(self) -> Rows:
        """Return the rows, or raise the exception of their reading."""
        self._thread.join()
        if self._error is not None:
            try:
                raise self._error
            finally:
                self._error = None  # it holds this frame, which holds it
        return self._rows

    def drop(self) -> None:
        """Wait for the thread to end, unless it is the current one, disposing of a dropped reader."""
        if threading.current_thread() is not self._thread:
            self._thread.join()


Slab = tuple[int, int]


class _Served(NamedTuple):
    slab: Slab
    rows: Any = None
    error: BaseException | None = None


class SharedScan(RowRange):
    """Rows of a source, by default all, for readers that visit them together; a plain source without any."""

    def __init__(self, source: RowSource, start: int = 0, stop: int | None = None) -> None:
        super().__init__(source, start, int(source.shape[0]) if stop is None else stop)
        self._turn = threading.Condition()
        self._readers = 0
        self._wanted: dict[int, set[Slab]] = {}
        self._served: dict[int, _Served] = {}
        self._coming: tuple[Slab, ComingSlab] | None = None
        self._scans = 0
        #: Number of slabs read for readers together.
        self.slabs_read = 0

    def begin(self, readers: int) -> None:
        """Expect `readers` readers, each a thread that will call `leave`."""
        with self._turn:
            self._readers, self._scans = readers, self._scans + 1

    def leave(self) -> None:
        """Remove one reader."""
        with self._turn:
            self._readers -= 1
            self._serve_if_all_wait()
            if self._readers == 0 and self._coming is not None:
                self._coming[1].drop()
                self._coming = None

    def scan(self, wanted: Iterable[Slab], dtype: np.dtype[Any]) -> Iterator[tuple[int, int, Rows]]:
        """Yield (start, stop, rows as floats of `dtype`) of each wanted slab, in any order."""
        left = set(wanted)
        while left:
            served = self._next(left)
            if served.error is not None:
                raise served.error
            left.discard(served.slab)
            yield *served.slab, as_rows(served.rows, dtype)

    @property
    def shared(self) -> bool:
        """Whether there are readers that visit the rows together."""
        return self._readers > 0

    def _next(self, left: set[Slab]) -> _Served:
        me = threading.get_ident()
        with self._turn:
            self._wanted[me] = set(left)
            self._serve_if_all_wait()
            self._turn.wait_for(lambda: me in self._served)
            return self._served.pop(me)

    def _serve_if_all_wait(self) -> None:
        """Read the next slab for the readers that want it, once every reader waits."""
        if self._served or not self._wanted or len(self._wanted) < self._readers:
            return
        slab = self._best(self._wanted)
        try:
            served = _Served(slab, self._read(slab))
        except Exception as error:  # noqa: BLE001 - each of the readers raises it
            served = _Served(slab, error=error)
        for reader in [reader for reader, left in self._wanted.items() if slab in left]:
            del self._wanted[reader]
            self._served[reader] = served
        self._turn.notify_all()

    def _read(self, slab: Slab) -> Any:
        """Return the rows of a slab, and start to read the likeliest next one."""
        coming, self._coming = self._coming, None
        known = coming is not None and coming[0] == slab
        rows = coming[1].take() if coming is not None and known else self[slab[0] : slab[1]]
        self.slabs_read += 1
        after = {reader: left - {slab} for reader, left in self._wanted.items()}
        if any(after.values()):
            following = self._best(after)
            self._coming = following, ComingSlab(self, *following)
        return rows

    def _best(self, wanted: Mapping[int, set[Slab]]) -> Slab:
        """Return the slab that most readers want; ties go to the one under way, else to a random one."""
        often = Counter(slab for left in wanted.values() for slab in left)
        most = max(often.values())
        equal = sorted(slab for slab, count in often.items() if count == most)
        if self._coming is not None and self._coming[0] in equal:
            return self._coming[0]
        return equal[int(np.random.default_rng((self._scans, len(equal))).integers(len(equal)))]


def read_together(
    X: RowSource, bounds: Iterable[Slab], dtype: np.dtype[Any]
) -> Iterator[tuple[int, int, Rows]] | None:
    """Return the slabs of rows that are read for several readers at once; None for other rows."""
    return X.scan(bounds, dtype) if isinstance(X, SharedScan) and X.shared else None
