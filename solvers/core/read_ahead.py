"""Slabs of rows in a given order, read before they are asked for: while one is worked on, the next one comes.

One thread reads one slab and ends, so that there is none to stop: who gives up waits for the slab that is on
its way, and a reader that is merely forgotten leaves nothing behind.  No more than three slabs are in memory:
the one that the caller has just done with, the one it gets, and the one that is being read.
"""

from __future__ import annotations

import contextvars
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np

from topline.solvers.core.rows import Rows, RowSource, as_rows, at_hand


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
        # NumPy keeps in the context which of its warnings are off.
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
        """Return the rows, or raise what their reading raised."""
        self._thread.join()
        if self._error is not None:
            try:
                raise self._error
            finally:
                self._error = None  # it holds this frame, which holds it
        return self._rows

    def drop(self) -> None:
        """Wait for the end of the thread, unless it is the one that clears away a forgotten reader."""
        if threading.current_thread() is not self._thread:
            self._thread.join()
