"""Rows that several threads visit at the same time, each slab of which is read once for all of them.

A reader says which slabs it still wants, in no order.  Once every reader waits, the slab that most of them
want is read, and given to all that do; the one that is likely to come next is read meanwhile.  The order
follows from what is wanted and from how many scans there were before, so that it is the same each time.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

from topline.solvers.core.read_ahead import ComingSlab
from topline.solvers.core.rows import RowRange, Rows, RowSource, as_rows

Slab = tuple[int, int]


class _Served(NamedTuple):
    slab: Slab
    rows: Any = None
    error: BaseException | None = None


class SharedScan(RowRange):
    """The rows of a source, for readers that take them together; without any they are as they were."""

    def __init__(self, source: RowSource) -> None:
        super().__init__(source, 0, int(source.shape[0]))
        self._turn = threading.Condition()
        self._readers = 0
        self._wanted: dict[int, set[Slab]] = {}
        self._served: dict[int, _Served] = {}
        self._coming: tuple[Slab, ComingSlab] | None = None
        self._scans = 0
        #: How many slabs were read for readers together.
        self.slabs_read = 0

    def begin(self, readers: int) -> None:
        """Expect so many readers, each a thread that will `leave`."""
        with self._turn:
            self._readers, self._scans = readers, self._scans + 1

    def leave(self) -> None:
        """Be one reader less."""
        with self._turn:
            self._readers -= 1
            self._serve_if_all_wait()
            if self._readers == 0 and self._coming is not None:
                self._coming[1].drop()
                self._coming = None

    def scan(self, wanted: Iterable[Slab], dtype: np.dtype[Any]) -> Iterator[tuple[int, int, Rows]]:
        """Yield (start, stop, rows as floats of `dtype`) of each slab that is wanted, in whatever order."""
        left = set(wanted)
        while left:
            served = self._next(left)
            if served.error is not None:
                raise served.error
            left.discard(served.slab)
            yield *served.slab, as_rows(served.rows, dtype)

    @property
    def shared(self) -> bool:
        """Whether there are readers that take the rows together."""
        return self._readers > 0

    def _next(self, left: set[Slab]) -> _Served:
        me = threading.get_ident()
        with self._turn:
            self._wanted[me] = set(left)
            self._serve_if_all_wait()
            self._turn.wait_for(lambda: me in self._served)
            return self._served.pop(me)

    def _serve_if_all_wait(self) -> None:
        """Read the next slab for those who want it, once nobody is at work any more."""
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
        """Return the rows of a slab, and begin to read the one that is likely to be wanted next."""
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
        """Return the slab that most want; of equals the one under way, else one at random."""
        often = Counter(slab for left in wanted.values() for slab in left)
        most = max(often.values())
        equal = sorted(slab for slab, count in often.items() if count == most)
        if self._coming is not None and self._coming[0] in equal:
            return self._coming[0]
        return equal[int(np.random.default_rng((self._scans, len(equal))).integers(len(equal)))]


def read_together(
    X: RowSource, bounds: Iterable[Slab], dtype: np.dtype[Any]
) -> Iterator[tuple[int, int, Rows]] | None:
    """Return the slabs of rows that are read for several readers at once; None of other rows."""
    return X.scan(bounds, dtype) if isinstance(X, SharedScan) and X.shared else None
