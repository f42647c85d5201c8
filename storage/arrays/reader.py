"""Readers of stored arrays by rows, checking file sizes and chunk checksums on the way."""

from __future__ import annotations

import itertools
import threading
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from topline.storage.arrays.chunking import Span
from topline.storage.arrays.shards import (
    ChunkLayout,
    DamagedError,
    chunks_between,
    decode_chunk,
    decode_index,
)
from topline.storage.arrays.writer import ArraySpec
from topline.storage.errors import NotFoundError
from topline.storage.stores import FileSet
from topline.storage.stores.urls import join


@dataclass(eq=False)
class ArrayReader:
    """An array of a `FileSet`, read by rows; safe to share between threads.

    Synchronous and single-threaded on purpose: callers are one-core workers, and decompression releases the
    GIL for those that read from several threads.  In messages `title` names the array.  For a unit of a
    larger array, `unit` is reported as the shard and `first_row` offsets its rows; for a part of a unit (an
    array of a CSR unit) the rows of the whole unit, `unit_rows`, are reported.
    """

    files: FileSet
    path: str
    spec: ArraySpec
    title: str
    unit: int | None = None
    unit_rows: tuple[int, int] | None = None
    first_row: int = 0
    _sizes_checked: set[int] = field(default_factory=set, init=False, repr=False)
    _indices: dict[int, NDArray[np.uint64]] = field(default_factory=dict, init=False, repr=False)
    _lock: threading.Lock = field(default_factory=threading.Lock, init=False, repr=False)

    @classmethod
    def open(
        cls,
        files: FileSet,
        path: str,
        title: str,
        unit: int | None = None,
        unit_rows: tuple[int, int] | None = None,
    ) -> ArrayReader:
        """Return the reader of the array at `path`, described by its zarr.json."""
        metadata = join(path, "zarr.json")
        spec = ArraySpec.from_metadata(files.read(metadata), files.place(metadata))
        return cls(files, path, spec, title, unit, unit_rows)

    def rows(self, start: int, stop: int) -> NDArray[Any]:
        """Return rows start..stop-1; `IntegrityError` naming shard and rows of damaged data."""
        out = np.empty((stop - start, *self.spec.row_shape), dtype=self.spec.dtype)
        self.read_into(out, start)
        return out

    def read_into(self, out: NDArray[Any], start: int) -> None:
        """Fill `out` (r, ...) with rows start..start + r - 1, as `rows` does."""
        for unit, span in self.spec.plan.overlapping(start, start + len(out)):
            if out.size:
                self._read_shard(unit, span, out[span.start - start : span.stop - start])

    def whole(self) -> NDArray[Any]:
        """Return the whole array in its original shape."""
        array = self.rows(0, self.spec.plan.n_rows)
        return array.reshape(()) if self.spec.attributes.get("dimensions") == 0 else array

    def _read_shard(self, unit: int, span: Span, out: NDArray[Any]) -> None:
        path = join(self.path, self.spec.shard_path(unit))
        whole = self.spec.plan.bounds(unit)
        try:
            if span == whole:
                self._read_whole(unit, path, out)
            else:
                self._read_part(unit, path, Span(span.start - whole.start, span.stop - whole.start), out)
        except NotFoundError:
            raise self._broken(unit, "is missing", whole) from None

    def _read_whole(self, unit: int, path: str, out: NDArray[Any]) -> None:
        layout, span = self.spec.layout, self.spec.plan.bounds(unit)
        self._check_size(unit, path)
        data = np.frombuffer(self.files.store.read_bytes(self.files.place(path)), dtype=np.uint8)
        try:
            index = decode_index(data[-layout.index_bytes :].tobytes(), layout, len(data))
        except DamagedError as error:
            raise self._broken(unit, str(error), span) from None
        for number, first, last in chunks_between(0, span.rows, layout):
            offset, length = (int(value) for value in index[number])
            chunk = data[offset : offset + length] if offset < len(data) else data[:0]
            self._decode(unit, number, chunk, out[first:last])

    def _read_part(self, unit: int, path: str, wanted: Span, out: NDArray[Any]) -> None:
        """Read in one request only the chunks with the wanted rows, counted from the shard's first."""
        layout = self.spec.layout
        index = self._index(unit, path)
        numbers = [number for number, _, _ in chunks_between(wanted.start, wanted.stop, layout)]
        low = int(index[numbers[0], 0])
        high = int(index[numbers[-1]].sum())
        raw = self.files.store.read_range(self.files.place(path), low, max(0, high - low))
        data = np.frombuffer(raw, dtype=np.uint8)
        for number, first, last in chunks_between(wanted.start, wanted.stop, layout):
            offset, length = int(index[number, 0]) - low, int(index[number, 1])
            target = out[first - wanted.start : last - wanted.start]
            skip = first - number * layout.rows
            if skip == 0:
                self._decode(unit, number, data[offset : offset + length], target)
            else:
                held = np.empty((skip + len(target), *layout.row_shape), dtype=layout.dtype)
                self._decode(unit, number, data[offset : offset + length], held)
                target[...] = held[skip:]

    def _index(self, unit: int, path: str) -> NDArray[np.uint64]:
        """Return a shard's index, read once."""
        found = self._indices.get(unit)
        if found is not None:
            return found
        size = self._check_size(unit, path)
        layout: ChunkLayout = self.spec.layout
        start = max(0, size - layout.index_bytes)
        tail = self.files.store.read_range(self.files.place(path), start, layout.index_bytes)
        try:
            index = decode_index(tail, layout, size)
        except DamagedError as error:
            raise self._broken(unit, str(error), self.spec.plan.bounds(unit)) from None
        with self._lock:
            self._indices[unit] = index
        return index

    def _check_size(self, unit: int, path: str) -> int:
        """Return the recorded size of a shard's file after checking it."""
        if unit not in self._sizes_checked:
            self.files.check_size(path, subject=self._subject(unit))
            with self._lock:
                self._sizes_checked.add(unit)
        return self.files.by_path[path].size

    def _decode(self, unit: int, number: int, chunk: NDArray[np.uint8], out: NDArray[Any]) -> None:
        try:
            decode_chunk(chunk, out, self.spec.layout)
        except DamagedError as error:
            whole, size = self.spec.plan.bounds(unit), self.spec.layout.rows
            start = whole.start + number * size
            raise self._broken(unit, str(error), Span(start, min(start + size, whole.stop))) from None

    def _subject(self, unit: int) -> str:
        return f"{self.title}: shard {unit if self.unit is None else self.unit}"

    def _broken(self, unit: int, problem: str, span: Span) -> Exception:
        rows = self.unit_rows or (self.first_row + span.start, self.first_row + span.stop)
        return self.files.broken(self._subject(unit), problem, rows)


def read_strings(files: FileSet, path: str, title: str) -> list[str]:
    """Return the strings that `packed_strings` packed, every file's digest checked."""
    data = read_checked(files, join(path, "data"), title).tobytes()
    offsets = read_checked(files, join(path, "offsets"), title).tolist()
    return [data[a:b].decode() for a, b in itertools.pairwise(offsets)]


def read_checked(files: FileSet, path: str, title: str) -> NDArray[Any]:
    """Return a small array after checking the SHA-256 of each of its files, not just chunk checksums."""
    reader = ArrayReader.open(files, path, title)
    for unit in range(reader.spec.plan.units if np.prod(reader.spec.shape) else 0):
        files.read(join(path, reader.spec.shard_path(unit)), subject=f"{title}: shard {unit}")
    return reader.whole()
