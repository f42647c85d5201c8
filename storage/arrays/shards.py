"""The bytes of one Zarr shard: whole chunks, each zstd then crc32c, and an index with its own crc32c.

This is Zarr 3's `sharding_indexed` codec (https://zarr-specs.readthedocs.io, codecs/sharding-indexed), cut
along the first axis only.  Zarr's own implementation reads a missing or empty shard as fill values, its event
loop neither survives a fork nor fails quietly on a full disk, and its thread pool competes with
single-threaded workers.  Any Zarr reader opens the result.
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
