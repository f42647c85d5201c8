"""How the rows of a dataset are cut into shards and chunks.

A chunk is compressed and checked as one; a shard is a file of whole chunks.  The shard is also the unit of
writing, resuming and partitioning, with a single writer each.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from topline.storage.errors import FormatError

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
