"""Columns of K that a block keeps from one round to the next, within a budget of bytes.

A column holds the float32 values of the block's rows with one row of the problem.  Rows that change once
change again, so that those that come first stay, and what finds no room is computed anew each time.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from topline.solvers.typing import FloatArray, Int64Array

#: Bytes that all blocks of a problem keep together at most where nobody says what they may.
_KEPT_BYTES = 1 << 28


@dataclass(frozen=True, eq=False)
class Places:
    """Where the columns of some rows are: `slots` (r,), -1 for none, and which are `known` already."""

    slots: Int64Array
    known: NDArray[np.bool_]


class KeptColumns:
    """As many columns of `rows` values as `kept_bytes` hold, of the `n` that there are.

    Without a budget a block has its share of a moderate one, in proportion to its rows.
    """

    def __init__(self, rows: int, n: int, kept_bytes: int | None) -> None:
        most = _KEPT_BYTES * rows // n if kept_bytes is None else kept_bytes
        self._rows, self._n = rows, n
        self._room = min(max(most - 8 * n, 0) // (4 * max(rows, 1)), n)
        self._slots: Int64Array | None = None
        self._values: FloatArray | None = None
        self._used = 0

    def places(self, numbers: Int64Array) -> Places:
        """Return where the columns of rows are, with new places for those that come for the first time.

        These count as known once `keep` says that they were written.
        """
        if self._room == 0:
            return Places(np.full(len(numbers), -1), np.zeros(len(numbers), dtype=bool))
        if self._slots is None:
            self._slots = np.full(self._n, -1)
        slots = self._slots[numbers]
        known = slots >= 0
        new = np.flatnonzero(~known)[: self._room - self._used]
        slots[new] = self._used + np.arange(len(new))
        return Places(slots, known)

    def read(self, slots: Int64Array, start: int, stop: int) -> FloatArray:
        """Return the values of the rows [start, stop) in some places, (places, rows)."""
        return np.asarray(self._array()[slots, start:stop])

    def write(self, slots: Int64Array, start: int, values: FloatArray) -> None:
        """Write the values (rows, places) of rows from `start` on; a place of -1 is none."""
        here = slots >= 0
        if here.any():
            self._array()[slots[here], start : start + len(values)] = values[:, here].T

    def keep(self, numbers: Int64Array, places: Places) -> None:
        """Count the columns of rows as known, whose places were written for every row of the block."""
        new = ~places.known & (places.slots >= 0)
        if self._slots is not None and new.any():
            self._slots[numbers[new]] = places.slots[new]
            self._used += int(new.sum())

    def _array(self) -> FloatArray:
        if self._values is None:
            # Pages that nobody writes take no memory.
            self._values = np.empty((self._room, self._rows), dtype=np.float32)
        return self._values


@dataclass(frozen=True, eq=False)
class TileColumns:
    """The columns of some rows, for the rows of a tile that begins at row `start` of the block."""

    columns: KeptColumns
    places: Places
    start: int

    def read(self, which: Int64Array, low: int, high: int) -> FloatArray:
        """Return the values of the rows [low, high) of the tile in known columns, (columns, rows)."""
        return self.columns.read(self.places.slots[which], self.start + low, self.start + high)

    def write(self, which: Int64Array, low: int, values: FloatArray) -> None:
        """Keep the values (rows, columns) of rows of the tile from `low` on, as far as there is room."""
        self.columns.write(self.places.slots[which], self.start + low, values)
