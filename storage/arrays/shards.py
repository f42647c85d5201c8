"""How rows are cut into shards and chunks, and the bytes of one shard.

A chunk is compressed and checked as one: zstd, then crc32c.  A shard is a file of whole chunks with an index
of its own crc32c, and the unit of writing, resuming and partitioning, with a single writer each.  This is
Zarr 3's `sharding_indexed` codec (https://zarr-specs.readthedocs.io, codecs/sharding-indexed), cut along the
first axis only.  Zarr's own implementation reads a missing or empty shard as fill values, its event loop
neither survives a fork nor fails quietly on a full disk, and its thread pool competes with single-threaded
workers.  Any Zarr reader opens the result.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import google_crc32c
import numpy as np
from numcodecs.zstd import Zstd
from numpy.typing import NDArray

from topline.storage.errors import FormatError

ZSTD_LEVEL = 1
# A chunk that compresses to more than this fraction is stored in an uncompressed zstd frame: noise, such as
# the mantissas of dense features, then reads seven times as fast.
_WORTH_PACKING = 0.875
_AS_IT_IS = -1
CRC_BYTES = 4
ENTRY_BYTES = 16
_ABSENT = 2**64 - 1


class DamagedError(Exception):
    """Bytes differ from what was written; callers add place and rows and raise `IntegrityError`."""


@dataclass(frozen=True)
class ChunkLayout:
    """A chunk's `rows`, the `row_shape` and `dtype` of a row, and the chunks in a shard."""

    rows: int
    row_shape: tuple[int, ...]
    dtype: np.dtype[Any]
    per_shard: int

    @property
    def index_bytes(self) -> int:
        """Length of the index at the end of a shard."""
        return self.per_shard * ENTRY_BYTES + CRC_BYTES

    @property
    def chunk_shape(self) -> tuple[int, ...]:
        """Shape of a chunk."""
        return (self.rows, *self.row_shape)


def encode_shard(rows: NDArray[Any], layout: ChunkLayout, fill: float | bool) -> bytes:
    """Return the shard that holds `rows` (at most a shard's worth); the last chunk is padded with `fill`."""
    codec, quick = Zstd(level=ZSTD_LEVEL), Zstd(level=_AS_IT_IS)
    index = np.full((layout.per_shard, 2), _ABSENT, dtype="<u8")
    pieces: list[bytes] = []
    offset = 0
    for number, start in enumerate(range(0, len(rows), layout.rows)):
        chunk = np.ascontiguousarray(rows[start : start + layout.rows], dtype=layout.dtype)
        if len(chunk) < layout.rows:
            padded = np.full(layout.chunk_shape, fill, dtype=layout.dtype)
            padded[: len(chunk)] = chunk
            chunk = padded
        raw = chunk.reshape(-1).view(np.uint8)
        packed = codec.encode(raw)
        if len(packed) > _WORTH_PACKING * len(raw):
            packed = quick.encode(raw)
        index[number] = offset, len(packed) + CRC_BYTES
        pieces += packed, _crc(packed)
        offset += len(packed) + CRC_BYTES
    tail = index.tobytes()
    return b"".join([*pieces, tail, _crc(tail)])


def decode_index(tail: bytes, layout: ChunkLayout, shard_bytes: int) -> NDArray[np.uint64]:
    """Return offsets and lengths of the chunks (per_shard, 2), from a shard's last `index_bytes` bytes."""
    if len(tail) != layout.index_bytes:
        raise DamagedError("is cut short")
    body = tail[:-CRC_BYTES]
    if _crc(body) != tail[-CRC_BYTES:]:
        raise DamagedError("has a damaged index")
    index = np.frombuffer(body, dtype="<u8").reshape(layout.per_shard, 2)
    present = index[:, 0] != _ABSENT
    if np.any(index[present].sum(axis=1) > shard_bytes - layout.index_bytes):
        raise DamagedError("has an index that points behind its end")
    return index


def decode_chunk(data: bytes | NDArray[np.uint8], out: NDArray[Any], layout: ChunkLayout) -> None:
    """Unpack one chunk into `out`, a contiguous array of all its rows or its first ones."""
    raw = np.frombuffer(data, dtype=np.uint8)
    if len(raw) <= CRC_BYTES:
        raise DamagedError("is cut short")
    packed = raw[:-CRC_BYTES]
    if _crc(packed) != raw[-CRC_BYTES:].tobytes():
        raise DamagedError("is damaged: its checksum does not match its contents")
    whole = (
        out
        if out.shape == layout.chunk_shape and out.flags.c_contiguous
        else np.empty(layout.chunk_shape, layout.dtype)
    )
    try:
        Zstd().decode(packed, out=whole.reshape(-1).view(np.uint8))
    except (RuntimeError, ValueError) as error:
        raise DamagedError("does not unpack to a whole chunk") from error
    if whole is not out:
        out[...] = whole[: len(out)]


def chunks_between(start: int, stop: int, layout: ChunkLayout) -> Iterator[tuple[int, int, int]]:
    """Yield the chunks that overlap rows start..stop-1 of a shard: (number, first row, end row)."""
    for number in range(start // layout.rows, -(-stop // layout.rows)):
        yield number, max(start, number * layout.rows), min(stop, (number + 1) * layout.rows)


def _crc(data: Any) -> bytes:
    return struct.pack("<I", google_crc32c.value(data))


_CHUNK_BYTES = 1 << 20
_SHARD_BYTES = 16 << 20


@dataclass(frozen=True, order=True)
class Span:
    """Rows start..stop-1."""

    start: int
    stop: int

    @property
    def rows(self) -> int:
        """Number of rows."""
        return self.stop - self.start

    def __str__(self) -> str:
        return f"rows {self.start}-{self.stop - 1}"


@dataclass(frozen=True)
class ChunkPlan:
    """`n_rows` rows in shards of `shard_rows`, each of whole chunks; the last shard may be short."""

    n_rows: int
    chunk_rows: int
    shard_rows: int

    def __post_init__(self) -> None:
        if self.n_rows < 0 or self.chunk_rows < 1 or self.shard_rows < 1:
            raise FormatError(f"no rows can be cut by {self}")
        if self.shard_rows % self.chunk_rows:
            raise FormatError(
                f"a shard of {self.shard_rows} rows is not a whole number of chunks of {self.chunk_rows} rows"
            )

    @classmethod
    def choose(cls, n_rows: int, d: int, itemsize: int, max_shard_rows: int | None = None) -> ChunkPlan:
        """Return the plan for rows of `d` numbers of `itemsize` bytes: chunks near 1 MiB, shards near 16 MiB.

        `max_shard_rows` bounds a unit where making a row costs far more than storing it.
        """
        row_bytes, rows = max(1, d * itemsize), max(1, n_rows)
        largest = rows if max_shard_rows is None else max_shard_rows
        if largest < 1:
            raise FormatError(f"a shard holds at least one row, not {largest}")
        chunk = min(rows, largest, _power_of_two(_CHUNK_BYTES // row_bytes))
        chunks = min(-(-rows // chunk), max(1, _SHARD_BYTES // (chunk * row_bytes)))
        if max_shard_rows is not None:
            chunks = min(chunks, max_shard_rows // chunk)
        return cls(n_rows, chunk, chunk * chunks)

    @property
    def units(self) -> int:
        """Number of shards, which are the units of writing."""
        return -(-self.n_rows // self.shard_rows)

    @property
    def chunks_per_shard(self) -> int:
        """Chunks in a full shard."""
        return self.shard_rows // self.chunk_rows

    def bounds(self, unit: int) -> Span:
        """Return the rows of `unit`; `FormatError` if there is no such unit."""
        if not 0 <= unit < self.units:
            raise FormatError(f"unit {unit} is not one of the {self.units} units of {self.shard_rows} rows")
        return Span(unit * self.shard_rows, min(self.n_rows, (unit + 1) * self.shard_rows))

    def unit_bounds(self) -> list[int]:
        """Cut points 0, shard_rows, ..., n_rows: units + 1 integers."""
        return [*range(0, self.n_rows, self.shard_rows), self.n_rows] if self.n_rows else [0]

    def overlapping(self, start: int, stop: int) -> Iterator[tuple[int, Span]]:
        """Yield the units that overlap rows start..stop-1, each with the dataset rows in the overlap."""
        if not 0 <= start <= stop <= self.n_rows:
            raise FormatError(f"rows {start}..{stop} are not within the {self.n_rows} rows")
        for unit in range(start // self.shard_rows, -(-stop // self.shard_rows) if stop > start else 0):
            whole = self.bounds(unit)
            yield unit, Span(max(start, whole.start), min(stop, whole.stop))


def _power_of_two(limit: int) -> int:
    """Return the largest power of two that is at most `limit`, and at least 1."""
    return 1 << max(0, limit.bit_length() - 1)
