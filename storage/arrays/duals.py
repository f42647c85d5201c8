"""Dual variables in parts: a file for each run of rows, sparse where that is smaller.

Each process writes the rows it holds, so the parts of a matrix come from many processes, cut anywhere.  A
part is a line of JSON describing it and its compressed arrays: the values if dense, or the entry counts per
row, columns and values if sparse.
"""

from __future__ import annotations

import json
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeAlias

import numpy as np
from numcodecs.zstd import Zstd
from numpy.typing import NDArray

from topline.storage.arrays.shards import ZSTD_LEVEL
from topline.storage.errors import FormatError
from topline.storage.records import canonical_json
from topline.storage.schema import DUALS_ENCODING, check_encoding, encoding
from topline.storage.stores import FileEntry, FileSet, Store
from topline.storage.stores.files import PackedFile, put_files
from topline.storage.stores.urls import join

DUALS = "duals"
PART_BYTES = 16 << 20
"""Rows of a part would take no more than this if they were dense."""
_CHECKED_AT_ONCE = 4

RowBlocks: TypeAlias = Iterable[tuple[int, int, NDArray[Any]]]
"""(start, stop, rows): runs of rows, ascending."""


@dataclass(frozen=True)
class DualWriter:
    """Writes parts below `folder`; picklable, so that every process writes the rows it holds."""

    store: Store
    folder: str

    def write(self, blocks: RowBlocks) -> list[FileEntry]:
        """Write runs of rows and return the files; consecutive short runs share a part."""
        return put_files(self.store, self.folder, (_packed(start, rows) for start, rows in _parts(blocks)))


DualSource: TypeAlias = Callable[[DualWriter], Sequence[FileEntry]]
"""What writes all dual variables through a writer, from wherever they are, and returns the files."""


def from_rows(blocks: RowBlocks) -> DualSource:
    """Return a `DualSource` of dual variables in this process."""
    return lambda writer: writer.write(blocks)


class StoredDuals:
    """Dual variables of a `FileSet`, read by rows; picklable, so that each process reads its own.

    Parts are read whole, with their SHA-256 checked; the last one is cached.
    """

    def __init__(self, files: FileSet) -> None:
        self._files = files
        self._entries = parts_in_order(files.entries)
        self._starts = [_rows_of(entry)[0] for entry in self._entries]
        self._last: tuple[str, _Part] | None = None

    def __reduce__(self) -> tuple[object, ...]:
        return StoredDuals, (self._files,)

    def __iter__(self) -> Iterator[tuple[int, int, NDArray[Any]]]:
        """Yield all rows, part by part, as (start, stop, rows)."""
        return self.between(0, self.n_rows)

    def check(self) -> None:
        """Read every part; `IntegrityError` for one that differs from what was written."""
        with ThreadPoolExecutor(_CHECKED_AT_ONCE, thread_name_prefix="topline-check") as pool:
            for _ in pool.map(self._files.read, [entry.path for entry in self._entries]):
                pass

    @property
    def n_rows(self) -> int:
        """Number of rows."""
        return _rows_of(self._entries[-1])[1]

    def rows(self, start: int, stop: int) -> NDArray[Any]:
        """Return rows start..stop-1, shape (stop - start, m)."""
        return _joined([rows for _, _, rows in self.between(start, stop)])

    def between(self, start: int, stop: int) -> Iterator[tuple[int, int, NDArray[Any]]]:
        """Yield rows start..stop-1 as (first row, end row, rows), at most a part at a time."""
        if not 0 <= start < stop <= self.n_rows:
            raise FormatError(f"rows {start}..{stop} are not within the {self.n_rows} rows")
        for entry in self._entries[bisect_right(self._starts, start) - 1 : bisect_left(self._starts, stop)]:
            first, last = _rows_of(entry)
            low, high = max(first, start), min(last, stop)
            yield low, high, self._part(entry).rows(low - first, high - first)

    def _part(self, entry: FileEntry) -> _Part:
        held = self._last
        if held is None or held[0] != entry.path:
            data = self._files.read(entry.path, subject=f"{DUALS} of {self._files.owner}: {entry.path}")
            held = self._last = entry.path, _decode(data, self._files.place(entry.path))
        return held[1]


def parts_in_order(entries: Iterable[FileEntry]) -> list[FileEntry]:
    """Return the parts among some files in order; `FormatError` unless they hold each row from 0 on once."""
    found = sorted((e for e in entries if e.path.startswith(f"{DUALS}/")), key=_rows_of)
    reached = 0
    for entry in found:
        start, stop = _rows_of(entry)
        if start != reached:
            raise FormatError(f"dual variables of rows {start}..{stop} do not follow row {reached}")
        reached = stop
    return found


def stored_rows(entries: Iterable[FileEntry]) -> int:
    """Return the number of rows whose dual variables are in some files."""
    return sum(len(range(*_rows_of(entry))) for entry in parts_in_order(entries))


def encode(rows: NDArray[Any]) -> bytes:
    """Return the encoded part that holds `rows` (r, m) of real numbers."""
    r, m = rows.shape
    values = np.ascontiguousarray(rows).reshape(-1)
    filled = values != 0
    index = np.dtype(np.uint16 if m <= np.iinfo(np.uint16).max else np.uint32)
    sparse_bytes = r * index.itemsize + np.count_nonzero(filled) * (index.itemsize + values.itemsize)
    arrays = [values]
    if sparse_bytes < values.nbytes:
        places = np.flatnonzero(filled)
        counts = np.diff(np.searchsorted(places, np.arange(0, (r + 1) * m, m)))
        columns = places - np.repeat(np.arange(0, r * m, m), counts)
        arrays = [counts.astype(index), columns.astype(index), values[places]]
    packed = [_compressed(array) for array in arrays]
    head = {
        **encoding(DUALS_ENCODING),
        "shape": [r, m],
        "arrays": [[a.dtype.newbyteorder("<").str, len(p)] for a, p in zip(arrays, packed, strict=True)],
    }
    return b"".join([canonical_json(head), b"\n", *packed])


def _compressed(array: NDArray[Any]) -> bytes:
    """Return an array compressed by zstd; b"" if empty, which Zstd itself cannot read back."""
    return bytes(Zstd(level=ZSTD_LEVEL).encode(np.ascontiguousarray(array))) if array.size else b""


@dataclass(frozen=True)
class _Part:
    """An unpacked part: all values, or counts, columns and values."""

    shape: tuple[int, int]
    arrays: tuple[NDArray[Any], ...]

    @cached_property
    def offsets(self) -> NDArray[np.int64]:
        """Offsets of the entries of each row of a sparse part, and their end."""
        return np.concatenate([[0], np.cumsum(self.arrays[0], dtype=np.int64)])

    def rows(self, start: int, stop: int) -> NDArray[Any]:
        """Return rows start..stop-1 of the part as a new dense array."""
        if len(self.arrays) == 1:
            return self.arrays[0].reshape(self.shape)[start:stop].copy()
        counts, columns, values = self.arrays
        entries = slice(self.offsets[start], self.offsets[stop])
        out = np.zeros((stop - start, self.shape[1]), dtype=values.dtype)
        out[np.repeat(np.arange(stop - start), counts[start:stop]), columns[entries]] = values[entries]
        return out


def _decode(data: bytes, place: str) -> _Part:
    offset = data.index(b"\n") + 1
    head = json.loads(data[:offset])
    check_encoding(head, DUALS_ENCODING, place)
    arrays = []
    for dtype, length in head["arrays"]:
        packed = memoryview(data)[offset : offset + length]
        arrays.append(np.frombuffer(Zstd().decode(packed) if length else b"", dtype=dtype))
        offset += length
    return _Part((head["shape"][0], head["shape"][1]), tuple(arrays))


def _parts(blocks: RowBlocks) -> Iterator[tuple[int, NDArray[Any]]]:
    """Join runs of rows into parts: (first row, rows)."""
    waiting: list[NDArray[Any]] = []
    first = reached = 0
    for start, rows in _pieces(blocks):
        fits = start == reached and start - first + len(rows) <= _most_rows(rows)
        if waiting and not (fits and rows.dtype == waiting[0].dtype):
            yield first, _joined(waiting)
            waiting = []
        first = first if waiting else start
        reached = start + len(rows)
        waiting.append(rows)
    if waiting:
        yield first, _joined(waiting)


def _pieces(blocks: RowBlocks) -> Iterator[tuple[int, NDArray[Any]]]:
    """Cut runs of rows longer than a part without copying: (first row, rows)."""
    reached = 0
    for start, stop, rows in blocks:
        if len(rows) != stop - start or start < reached:
            raise FormatError(f"rows {start}..{stop} ({len(rows)} given) do not follow row {reached}")
        reached = stop
        most = _most_rows(rows)
        for low in range(0, len(rows), most):
            yield start + low, rows[low : low + most]


def _most_rows(rows: NDArray[Any]) -> int:
    return max(1, PART_BYTES // max(1, rows[:1].nbytes))


def _joined(pieces: Sequence[NDArray[Any]]) -> NDArray[Any]:
    return pieces[0] if len(pieces) == 1 else np.concatenate(pieces)


def _packed(start: int, rows: NDArray[Any]) -> PackedFile:
    stop = start + len(rows)
    return PackedFile(join(DUALS, f"{start:012d}-{stop:012d}"), encode(rows), (start, stop))


def _rows_of(entry: FileEntry) -> tuple[int, int]:
    if entry.rows is None:
        raise FormatError(f"{entry.path} does not say which rows it holds")
    return entry.rows
