"""Dual rows of one block: an array, or packed under a budget of bytes.

Both are read and written by slices of rows, and hold the same numbers: packed rows are those that were
written, to the last bit except the sign of a zero.  A slice of an array is a view of it, a slice of packed
rows a fresh array, whose changes count only once they are written back.

Packed rows (r, m) are the non-zero values, row after row, then the start of each row among them (r + 1
numbers), then their columns.  Rows of zeros take no bytes, and rows that packing would not shorten are stored
as they are, which their length reveals.
"""

from __future__ import annotations

import errno
import os
import tempfile
import threading
import weakref
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from topline.solvers.jit_cache import jit
from topline.solvers.typing import FloatArray, IntArray

#: Packed rows.
Bytes: TypeAlias = NDArray[np.uint8]

_PLACE = np.dtype(np.uint32)


@jit
def count_values(rows: FloatArray, places: IntArray) -> int:
    """Count the non-zeros of rows (r, m); places (r + 1,) receives the counts before each row."""
    total = 0
    for i in range(rows.shape[0]):
        places[i] = total
        for j in range(rows.shape[1]):
            total += rows[i, j] != 0.0
    places[rows.shape[0]] = total
    return total


@jit
def gather_values(rows: FloatArray, values: FloatArray, columns: IntArray) -> None:
    """Write the non-zeros of rows (r, m), and their columns."""
    k = 0
    for i in range(rows.shape[0]):
        for j in range(rows.shape[1]):
            if rows[i, j] != 0.0:
                values[k] = rows[i, j]
                columns[k] = j
                k += 1


@jit
def scatter_values(values: FloatArray, places: IntArray, columns: IntArray, out: FloatArray) -> None:
    """Write out (r, m): row i has values[places[i] : places[i + 1]] in their columns, else zero."""
    for i in range(out.shape[0]):
        out[i, :] = 0.0
        for k in range(places[i], places[i + 1]):
            out[i, columns[k]] = values[k]


def pack(rows: FloatArray) -> Bytes:
    """Return the bytes of rows (r, m), a C-contiguous array."""
    places = np.empty(len(rows) + 1, dtype=_PLACE)
    count = count_values(rows, places)
    if count == 0:
        return np.empty(0, dtype=np.uint8)
    size = count * (rows.itemsize + _column_dtype(rows.shape[1]).itemsize) + places.nbytes
    if size >= rows.nbytes:
        return rows.reshape(-1).view(np.uint8).copy()
    packed = np.empty(size, dtype=np.uint8)
    values, kept_places, columns = _parts(packed, len(rows), rows.shape[1], rows.dtype)
    kept_places[:] = places
    gather_values(rows, values, columns)
    return packed


def unpack(packed: Bytes, first: int, rows: int, out: FloatArray) -> None:
    """Write the rows from `first` on of `rows` packed rows to out (r, m), which has their dtype."""
    if len(packed) == 0:
        out[:] = 0.0
    elif len(packed) == rows * out.shape[1] * out.itemsize:
        out[:] = packed.view(out.dtype).reshape(rows, -1)[first : first + len(out)]
    else:
        values, places, columns = _parts(packed, rows, out.shape[1], out.dtype)
        scatter_values(values, places[first : first + len(out) + 1], columns, out)


def _parts(packed: Bytes, rows: int, m: int, dtype: np.dtype[Any]) -> tuple[FloatArray, IntArray, IntArray]:
    """Return values, places and columns as views of the bytes of rows that packing has shortened."""
    column = _column_dtype(m)
    ends = (rows + 1) * _PLACE.itemsize
    count = (len(packed) - ends) // (dtype.itemsize + column.itemsize)
    values = count * dtype.itemsize
    return (
        packed[:values].view(dtype),
        packed[values : values + ends].view(_PLACE),
        packed[values + ends :].view(column),
    )


def _column_dtype(m: int) -> np.dtype[Any]:
    return np.dtype(np.uint16 if m <= 1 << 16 else np.uint32)


#: Bytes of the widest number, for which the file layout reserves room.
_WIDEST = np.dtype(np.float64).itemsize
#: Bytes of an array passed on at once.
_RUN_BYTES = 1 << 26
_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


class ByteBudget:
    """Bytes of memory shared by the stores of a block and the threads that write to them."""

    def __init__(self, nbytes: int) -> None:
        self._left, self._lock = nbytes, threading.Lock()

    def take(self, nbytes: int) -> bool:
        """Take `nbytes` if available; return whether they were."""
        with self._lock:
            if nbytes > self._left:
                return False
            self._left -= nbytes
            return True

    def give_back(self, nbytes: int) -> None:
        """Return bytes to the budget."""
        with self._lock:
            self._left += nbytes


class SpillFile:
    """An unnamed file in the folder for temporary files (TMPDIR).

    It is read and written, never mapped: mapped pages count as memory of the process.  Unwritten parts take
    no room.
    """

    def __init__(self) -> None:
        self._folder = tempfile.gettempdir()
        # A named file would survive a killed process.
        with tempfile.TemporaryFile(prefix="topline-") as file:
            self._descriptor = os.dup(file.fileno())
        weakref.finalize(self, os.close, self._descriptor)

    def write(self, place: int, packed: Bytes) -> None:
        """Write bytes from `place` on.  Raises OSError naming the folder if the disk is full."""
        rest = memoryview(packed.data)
        try:
            while len(rest):
                written = os.pwrite(self._descriptor, rest, place)
                rest, place = rest[written:], place + written
        except OSError as error:
            if error.errno in _FULL:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), self._folder) from error
            raise

    def read(self, place: int, out: Bytes) -> None:
        """Fill `out` with the bytes from `place` on, which must have been written before."""
        rest = memoryview(out.data)
        while len(rest):
            count = os.preadv(self._descriptor, [rest], place)
            if count == 0:
                raise OSError(errno.EIO, "a temporary file has become shorter", self._folder)
            rest, place = rest[count:], place + count

    def clear(self) -> None:
        """Free the disk space."""
        os.ftruncate(self._descriptor, 0)


class PackedStore:
    """Rows (rows, m), initially zero, packed run by run: in memory while a budget lasts, else in a file.

    Parameters
    ----------
    cuts : the rows 0 = r_0 < r_1 < ... at which runs begin and end.  Writing part of a run packs it again.
    m : entries of a row.
    dtype : float32 or float64.
    budget : the memory for runs.  A run that does not fit when written goes to the file and no other run is
        evicted: passes are cyclic, so an evicted run would be needed before the one that replaced it.
    """

    def __init__(self, cuts: Sequence[int], m: int, dtype: np.dtype[Any], budget: ByteBudget) -> None:
        self._cuts, self.shape, self.dtype = list(cuts), (cuts[-1], m), np.dtype(dtype)
        self._budget = budget
        self._held: list[Bytes | None] = [None] * (len(cuts) - 1)
        #: Bytes of each run, in memory or in the file.
        self._sizes = [0] * (len(cuts) - 1)
        self._file: SpillFile | None = None

    @property
    def nbytes(self) -> int:
        """Bytes of memory now in use by the rows."""
        return sum(packed.nbytes for packed in self._held if packed is not None)

    @property
    def spilled(self) -> int:
        """Bytes of the rows in the temporary file."""
        return sum(self._sizes) - self.nbytes

    def __getitem__(self, part: slice) -> FloatArray:
        """Return a fresh array of a slice of the rows."""
        start, stop, _ = part.indices(self.shape[0])
        rows = np.empty((stop - start, self.shape[1]), dtype=self.dtype)
        for run, low, high in self._runs(start, stop):
            first = self._cuts[run]
            unpack(
                self._packed(run), low - first, self._cuts[run + 1] - first, rows[low - start : high - start]
            )
        return rows

    def __setitem__(self, part: slice, values: FloatArray) -> None:
        """Replace a slice of the rows."""
        start, stop, _ = part.indices(self.shape[0])
        values = np.ascontiguousarray(values, dtype=self.dtype)
        for run, low, high in self._runs(start, stop):
            rows = values[low - start : high - start]
            first, last = self._cuts[run], self._cuts[run + 1]
            if high - low < last - first:
                whole = self[first:last]
                whole[low - first : high - first] = rows
                rows = whole
            self._keep(run, pack(rows))

    def clear(self) -> None:
        """Make every row zero."""
        self._budget.give_back(self.nbytes)
        self._held = [None] * len(self._held)
        self._sizes = [0] * len(self._sizes)
        if self._file is not None:
            self._file.clear()

    def widen(self) -> None:
        """Keep the rows in float64 from now on."""
        if self.dtype == np.float64:
            return
        for run, size in enumerate(self._sizes):
            if size:
                self._keep(run, pack(self[slice(*self._cuts[run : run + 2])].astype(np.float64)))
        self.dtype = np.dtype(np.float64)

    def _runs(self, start: int, stop: int) -> Iterator[tuple[int, int, int]]:
        """Yield the number of each run that overlaps [start, stop), and the common rows."""
        run = bisect_right(self._cuts, start) - 1
        while start < stop:
            high = min(stop, self._cuts[run + 1])
            yield run, start, high
            run, start = run + 1, high

    def _packed(self, run: int) -> Bytes:
        held = self._held[run]
        if held is not None:
            return held
        packed = np.empty(self._sizes[run], dtype=np.uint8)
        if self._file is not None and len(packed):
            self._file.read(self._place(run), packed)
        return packed

    def _keep(self, run: int, packed: Bytes) -> None:
        before = self._held[run]
        if before is not None:
            self._budget.give_back(before.nbytes)
        if self._budget.take(packed.nbytes):
            self._held[run] = packed
        else:
            self._held[run] = None
            self._file = SpillFile() if self._file is None else self._file
            self._file.write(self._place(run), packed)
        self._sizes[run] = packed.nbytes

    def _place(self, run: int) -> int:
        """Return where a run begins in the file, which reserves room for its unpacked size."""
        return self._cuts[run] * self.shape[1] * _WIDEST


#: Dual rows (rows, m).
DualStore: TypeAlias = FloatArray | PackedStore


def row_runs(start: int, stop: int, m: int) -> Iterator[tuple[int, int]]:
    """Yield runs of the rows [start, stop) whose float64 arrays are small."""
    rows = max(_RUN_BYTES // (m * _WIDEST), 1)
    for low in range(start, stop, rows):
        yield low, min(low + rows, stop)
