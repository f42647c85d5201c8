"""Metadata and files of Zarr arrays cut along the rows."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from topline.storage.arrays.chunking import ChunkPlan
from topline.storage.arrays.shards import ZSTD_LEVEL, ChunkLayout, encode_shard
from topline.storage.errors import FormatError
from topline.storage.stores import FileEntry, Store
from topline.storage.stores.files import PackedFile, put_file
from topline.storage.stores.urls import join

_MANY_ROWS = 1 << 40


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


def write_row_blocks(
    store: Store, folder: str, path: str, blocks: Iterable[tuple[int, int, NDArray[Any]]]
) -> tuple[list[FileEntry], int]:
    """Write an array given as consecutive blocks (start, stop, rows); return files and number of rows.

    Holds at most a shard and a block in memory.  `FormatError` for a gap, an overlap or no rows at all.
    """
    spec: ArraySpec | None = None
    entries: list[FileEntry] = []
    waiting: list[NDArray[Any]] = []
    held = 0
    for start, stop, rows in blocks:
        following = held if spec is None else spec.plan.n_rows + held
        if start != following or len(rows) != stop - start:
            raise FormatError(f"rows {start}..{stop} ({len(rows)} given) do not follow row {following}")
        waiting.append(rows)
        held += len(rows)
        spec = spec or _open_ended(rows)
        while held >= spec.plan.shard_rows:
            joined = np.concatenate(waiting)
            spec, entry = _append_shard(store, folder, path, spec, joined[: spec.plan.shard_rows])
            entries.append(entry)
            waiting, held = [joined[spec.plan.shard_rows :]], held - spec.plan.shard_rows
    if spec is None:
        raise FormatError(f"no rows were given to write to {path}")
    if held:
        last = np.concatenate(waiting)
        if not entries:
            spec = replace(ArraySpec.of(last), plan=replace(ArraySpec.of(last).plan, n_rows=0))
        spec, entry = _append_shard(store, folder, path, spec, last)
        entries.append(entry)
    return [*entries, put_file(store, folder, packed_metadata(path, spec))], spec.plan.n_rows


def _open_ended(rows: NDArray[Any]) -> ArraySpec:
    """Return the specification of an array, without rows yet, that rows like these can be appended to."""
    sample = ArraySpec.of(rows)
    plan = ChunkPlan.choose(_MANY_ROWS, int(np.prod(sample.row_shape)), sample.dtype.itemsize)
    return replace(sample, plan=replace(plan, n_rows=0))


def _append_shard(
    store: Store, folder: str, path: str, spec: ArraySpec, rows: NDArray[Any]
) -> tuple[ArraySpec, FileEntry]:
    """Write the next shard; return it with the extended specification."""
    unit = spec.plan.units
    longer = replace(spec, plan=replace(spec.plan, n_rows=spec.plan.n_rows + len(rows)))
    return longer, put_file(store, folder, packed_shard(path, longer, unit, rows))
