"""Zarr arrays cut along the rows, written and read, and groups of them in one folder.

A reader checks file sizes and chunk checksums on the way; a group lists its files with their digests.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import re
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from topline.storage.arrays.duals import DUALS, DualSource, DualWriter, StoredDuals, parts_in_order
from topline.storage.arrays.shards import (
    ZSTD_LEVEL,
    ChunkLayout,
    ChunkPlan,
    DamagedError,
    Span,
    chunks_between,
    decode_chunk,
    decode_index,
    encode_shard,
)
from topline.storage.errors import FormatError, NotFoundError, StorageError
from topline.storage.schema import encoding
from topline.storage.stores import FileEntry, FileSet, Store
from topline.storage.stores.files import PackedFile, put_file, put_files
from topline.storage.stores.urls import join


@dataclass(frozen=True)
class ArraySpec:
    """The metadata of a Zarr array: `plan` cuts its first axis, `row_shape` is the shape of a row."""

    plan: ChunkPlan
    row_shape: tuple[int, ...]
    dtype: np.dtype[Any]
    attributes: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.dtype.kind not in "biuf" or self.dtype.itemsize > 8:
            raise FormatError(f"arrays of type {self.dtype} are not stored; use numbers or booleans")

    @classmethod
    def of(cls, array: NDArray[Any]) -> ArraySpec:
        """Return the specification for storing a whole array of one or more dimensions."""
        rows = len(array)
        row_shape = array.shape[1:]
        plan = ChunkPlan.choose(rows, int(np.prod(row_shape)), array.dtype.itemsize)
        return cls(plan, row_shape, array.dtype.newbyteorder("="))

    @property
    def shape(self) -> tuple[int, ...]:
        """The array's shape."""
        return (self.plan.n_rows, *self.row_shape)

    @cached_property
    def layout(self) -> ChunkLayout:
        """How a shard is laid out."""
        return ChunkLayout(self.plan.chunk_rows, self.row_shape, self.dtype, self.plan.chunks_per_shard)

    @property
    def fill(self) -> float | bool:
        """Fill value, chosen to be impossible: NaN, or -1 for signed integers."""
        return {"f": float("nan"), "i": -1, "b": False}.get(self.dtype.kind, 0)

    def metadata(self) -> bytes:
        """Return the array's zarr.json (Zarr 3)."""
        endian = {} if self.dtype.itemsize == 1 else {"configuration": {"endian": "little"}}
        to_bytes = {"name": "bytes", **endian}
        zstd = {"name": "zstd", "configuration": {"level": ZSTD_LEVEL, "checksum": False}}
        crc = {"name": "crc32c"}
        inner = [max(1, n) for n in self.row_shape]
        sharding = {
            "chunk_shape": [self.plan.chunk_rows, *inner],
            "codecs": [to_bytes, zstd, crc],
            "index_codecs": [{"name": "bytes", "configuration": {"endian": "little"}}, crc],
            "index_location": "end",
        }
        record = {
            "zarr_format": 3,
            "node_type": "array",
            "shape": list(self.shape),
            "data_type": self.dtype.name,
            "chunk_grid": {
                "name": "regular",
                "configuration": {"chunk_shape": [self.plan.shard_rows, *inner]},
            },
            "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
            "fill_value": "NaN" if self.dtype.kind == "f" else self.fill,
            "codecs": [{"name": "sharding_indexed", "configuration": sharding}],
            "attributes": dict(self.attributes),
            "storage_transformers": [],
        }
        return json.dumps(record, indent=1, sort_keys=True).encode()

    @classmethod
    def from_metadata(cls, data: bytes, place: str) -> ArraySpec:
        """Return the specification from a zarr.json by `metadata`; or `FormatError` naming `place`."""
        try:
            record = json.loads(data)
            shape = [int(n) for n in record["shape"]]
            shard_rows = record["chunk_grid"]["configuration"]["chunk_shape"][0]
            chunk_rows = record["codecs"][0]["configuration"]["chunk_shape"][0]
            plan = ChunkPlan(shape[0], chunk_rows, shard_rows)
            spec = cls(plan, tuple(shape[1:]), np.dtype(record["data_type"]), record["attributes"])
        except (ValueError, KeyError, IndexError, TypeError) as error:
            raise FormatError(f"{place} does not describe an array of topline") from error
        if json.loads(spec.metadata()) != record:
            raise FormatError(f"{place} describes an array that is cut or packed in another way")
        return spec

    def shard_path(self, unit: int) -> str:
        """Return the path of a shard's file relative to the array's folder."""
        return join("c", str(unit), *("0" for _ in self.row_shape))


def packed_metadata(path: str, spec: ArraySpec) -> PackedFile:
    """Return the zarr.json of the array at `path`."""
    return PackedFile(join(path, "zarr.json"), spec.metadata())


def packed_group(path: str, attributes: Mapping[str, Any]) -> PackedFile:
    """Return the zarr.json of the group at `path`."""
    record = {"zarr_format": 3, "node_type": "group", "attributes": dict(attributes)}
    return PackedFile(join(path, "zarr.json"), json.dumps(record, indent=1, sort_keys=True).encode())


def packed_shard(path: str, spec: ArraySpec, unit: int, rows: NDArray[Any]) -> PackedFile:
    """Return one shard of the array at `path`; `FormatError` unless `rows` has exactly its rows."""
    span = spec.plan.bounds(unit)
    if rows.shape != (span.rows, *spec.row_shape):
        raise FormatError(
            f"unit {unit} ({span}) takes an array of shape {(span.rows, *spec.row_shape)}, not {rows.shape}"
        )
    data = encode_shard(rows, spec.layout, spec.fill)
    return PackedFile(join(path, spec.shard_path(unit)), data, (span.start, span.stop))


def packed_array(path: str, array: NDArray[Any]) -> Iterator[PackedFile]:
    """Yield all files of an array; a scalar is stored with shape (1,) and marked as such."""
    spec = ArraySpec.of(np.atleast_1d(array))
    if array.ndim == 0:
        spec = replace(spec, attributes={"dimensions": 0})
    rows = array.reshape(spec.shape)
    for unit in range(spec.plan.units if array.size else 0):
        span = spec.plan.bounds(unit)
        yield packed_shard(path, spec, unit, rows[span.start : span.stop])
    yield packed_metadata(path, spec)


def packed_strings(path: str, strings: Sequence[str], attributes: Mapping[str, Any]) -> Iterator[PackedFile]:
    """Yield strings as two arrays: UTF-8 bytes `data` and the len(strings) + 1 boundaries `offsets`."""
    encoded = [text.encode() for text in strings]
    offsets = np.cumsum([0, *(len(text) for text in encoded)], dtype=np.int64)
    yield from packed_array(join(path, "data"), np.frombuffer(b"".join(encoded), dtype=np.uint8))
    yield from packed_array(join(path, "offsets"), offsets)
    yield packed_group(path, attributes)


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


_NAME = re.compile(r"^[A-Za-z0-9_][A-Za-z0-9_.-]*$")


def write_group(
    store: Store, folder: str, kind: str, arrays: Mapping[str, NDArray[Any]], duals: DualSource | None
) -> list[FileEntry]:
    """Write arrays as a Zarr group of encoding `kind`, and the duals of a source; return the files."""
    for name in arrays:
        if not _NAME.match(name) or name == DUALS:
            raise FormatError(f"an array is not named {name!r}; use letters, digits, '_', '-' and '.'")
    parts = [] if duals is None else parts_in_order(duals(DualWriter(store, folder)))
    if duals is not None and not parts:
        raise FormatError(f"no dual variables were given to write to {folder}")
    packed = (file for name in sorted(arrays) for file in packed_array(name, arrays[name]))
    entries = put_files(store, folder, packed)
    return [*entries, *parts, put_file(store, folder, packed_group("", encoding(kind)))]


def discard_group(store: Store, folder: str) -> None:
    """Remove a group's files as far as possible: others may still be writing to it."""
    with contextlib.suppress(StorageError):
        store.delete_tree(folder)


@contextlib.contextmanager
def whole_or_nothing(store: Store, folder: str) -> Iterator[None]:
    """Discard the group in `folder` unless the block ends without an error."""
    with contextlib.ExitStack() as undo:
        undo.callback(discard_group, store, folder)
        yield
        undo.pop_all()


class ArrayGroup:
    """A group, opened for reading."""

    def __init__(self, files: FileSet) -> None:
        self.files = files
        self._duals: StoredDuals | None = None

    def check(self) -> None:
        """Raise `IntegrityError` if the group's metadata is damaged; `array` checks the rest."""
        for path in self.files.by_path:
            if "/" not in path:
                self.files.read(path)

    @property
    def arrays(self) -> tuple[str, ...]:
        """Names of the arrays, without the duals."""
        found = {path.partition("/")[0] for path in self.files.by_path if "/" in path}
        return tuple(sorted(found - {DUALS}))

    @property
    def has_duals(self) -> bool:
        """Whether dual variables were stored."""
        return any(path.startswith(f"{DUALS}/") for path in self.files.by_path)

    def dual_blocks(self) -> StoredDuals:
        """Return all dual variables, readable by rows; `NotFoundError` if none were stored."""
        if not self.has_duals:
            raise NotFoundError(f"{self.files.owner} was stored without dual variables")
        self._duals = self._duals or StoredDuals(self.files)
        return self._duals

    def array(self, name: str) -> NDArray[Any]:
        """Return the array `name`, the SHA-256 of its files checked; `NotFoundError` if there is none."""
        if name not in self.arrays:
            raise NotFoundError(f"{self.files.owner} has no array {name!r}; it has {', '.join(self.arrays)}")
        return read_checked(self.files, name, f"{name} of {self.files.owner}")
