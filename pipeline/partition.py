"""The rows of one split as blocks of whole chunks: how a dataset is dealt out and read during training.

A dataset is read in units: a unit is a shard or, where a dataset has few shards, a run of whole chunks.
Training row i is the i-th row of the split, in row order.  Cut points depend on the dataset alone, so the
number of workers cannot change an answer; and as every reader takes whole units in order and holds on to
the last one, no chunk is decoded twice in a pass.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from typing import Any, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_matrix, issparse, vstack

from storage.features import Dataset
from storage.schema import SPLITS

#: Rows of features: an array (r, d), or a CSR matrix where the dataset is sparse.
Rows: TypeAlias = Any

# Fewer shards than this are read in runs of chunks instead, so that a small dataset still has several blocks.
FEW_SHARDS = 8
UNITS_WANTED = 16
BLOCKS_AT_MOST = 256


class RowTransform(Protocol):
    """Fitted transforms: what partitioning needs to know of them."""

    def apply(self, X: Any) -> Any:
        """Rows (r, d) to rows (r, d')."""


class TrainingRows:
    """Rows of one split after the fitted transforms: float32, row slices, read unit by unit.

    Pickles as the dataset's address, the split and the transforms; it opens the dataset where it is used.
    A slice may be a view of a buffer of its thread: it is valid until the next slice is taken.
    """

    dtype = np.dtype(np.float32)

    def __init__(
        self, dataset: Dataset, split: str = "train", transforms: RowTransform | None = None
    ) -> None:
        self.dataset = dataset
        self.split = split
        self.transforms = transforms
        self._open()

    def _open(self) -> None:
        labels = self.dataset.labels()
        self._indices = np.flatnonzero((self.dataset.split() == SPLITS[self.split]) & (labels >= 0))
        self._labels = labels[self._indices]
        self._unit_rows = _unit_rows(self.dataset)
        cuts = range(0, self.dataset.info.n_rows + self._unit_rows, self._unit_rows)
        self._offsets = np.searchsorted(self._indices, np.asarray(cuts)).astype(np.int64)
        d = self.dataset.info.d
        if self.transforms is not None:
            d = int(self.transforms.apply(np.zeros((1, d), dtype=np.float32)).shape[1])
        self.shape = (len(self._indices), d)
        self._buffer = threading.local()

    def __reduce__(self) -> tuple[object, ...]:
        return TrainingRows, (self.dataset, self.split, self.transforms)

    def __len__(self) -> int:
        return self.shape[0]

    @property
    def units(self) -> int:
        """Number of units the dataset is read in."""
        return len(self._offsets) - 1

    @property
    def nbytes(self) -> int:
        """Bytes of all rows as training sees them."""
        return len(self) * _row_bytes(self)[0]

    @property
    def indices(self) -> NDArray[np.int64]:
        """Row of the dataset for each training row, shape (n,)."""
        return self._indices

    def labels(self) -> NDArray[np.int32]:
        """Labels of the rows, shape (n,)."""
        return self._labels

    def unit_span(self, unit: int) -> tuple[int, int]:
        """First training row of `unit` and the one after its last."""
        return int(self._offsets[unit]), int(self._offsets[unit + 1])

    @property
    def cuts(self) -> list[int]:
        """Training rows at which units end, from 0 to n: what lies between two of them is read at once."""
        return sorted({*self._offsets.tolist(), len(self)})

    def block_bounds(self, most: int = BLOCKS_AT_MOST) -> list[int]:
        """Cut points of at most so many blocks: runs of whole units, fixed by the data, never empty."""
        step = -(-self.units // most)
        cuts = [*self._offsets[:-1:step].tolist(), len(self)]
        return sorted(set(cuts))

    def raw_unit(self, unit: int) -> Rows:
        """Rows of `unit` as stored, without transforms."""
        first, last = self.unit_span(unit)
        if first == last:
            return _no_rows(self.dataset)
        picked = self._indices[first:last]
        start, stop = int(picked[0]), int(picked[-1]) + 1
        stored = self.dataset.rows(start, stop)
        return stored if stop - start == last - first else stored[picked - start]

    def transformed(self, raw: Rows) -> Rows:
        """Stored rows as training sees them: float32, transforms applied."""
        rows = raw.astype(np.float32, copy=False)
        return rows if self.transforms is None else self.transforms.apply(rows)

    def read_unit(self, unit: int) -> Rows:
        """Rows of `unit` as training sees them."""
        return self.transformed(self.raw_unit(unit))

    def tiles(self) -> Iterator[tuple[int, int, Rows]]:
        """All rows, as (start, stop, rows) unit by unit."""
        for unit in range(self.units):
            start, stop = self.unit_span(unit)
            if stop > start:
                yield start, stop, self.read_unit(unit)

    def __getitem__(self, rows: slice) -> Rows:
        start, stop, step = rows.indices(len(self))
        if step != 1:
            raise IndexError("training rows are taken in slices of step 1")
        first = max(0, int(np.searchsorted(self._offsets, start, side="right")) - 1)
        parts = []
        for unit in range(first, self.units):
            low, high = self.unit_span(unit)
            if low >= stop:
                break
            if high > start:
                parts.append(self._unit(unit)[max(start, low) - low : min(stop, high) - low])
        if not parts:
            return self.transformed(_no_rows(self.dataset))
        return parts[0] if len(parts) == 1 else _stack(parts)

    def _unit(self, unit: int) -> Rows:
        """Give a unit from this thread's buffer, which holds the last one."""
        if getattr(self._buffer, "unit", None) != unit:
            self._buffer.rows = None  # let the old one go before the new one comes
            self._buffer.rows = self.read_unit(unit)
            self._buffer.unit = unit
        return self._buffer.rows


class CachedRows(TrainingRows):
    """Training rows of which as many as fit into `budget` bytes stay in memory; the rest is streamed.

    Only rows start..stop-1 count (a worker's own).  They are kept as training sees them or, if only that
    fits better (float16), as stored.  Does not travel: each worker makes its own.
    """

    def __init__(self, rows: TrainingRows, budget: int, start: int = 0, stop: int | None = None) -> None:
        super().__init__(rows.dataset, rows.split, rows.transforms)
        stop = len(self) if stop is None else stop
        sizes = [max(0, min(b, stop) - max(a, start)) for a, b in map(self.unit_span, range(self.units))]
        ready, stored = _row_bytes(self)
        self.keeps_stored = stored < ready and sum(sizes) * ready > budget
        row_bytes = stored if self.keeps_stored else ready
        self._kept = _units_within(sizes, row_bytes, budget)
        self._cache: dict[int, Rows] = {}
        self._locks = {unit: threading.Lock() for unit in self._kept}

    def __reduce__(self) -> tuple[object, ...]:
        raise TypeError("cached rows stay in their process: send the TrainingRows and cache them there")

    def adopt(self, other: CachedRows) -> None:
        """Take over what `other`, of the same rows, has in memory and this one would keep."""
        if other.keeps_stored == self.keeps_stored:
            # A copy, for a task of the epoch before may still be adding to it.
            held = other._cache.copy()
            self._cache.update({unit: rows for unit, rows in held.items() if unit in self._kept})

    @property
    def cached_bytes(self) -> int:
        """Bytes held at this moment."""
        return sum(_nbytes(rows) for rows in self._cache.values())

    def read_unit(self, unit: int) -> Rows:
        """Rows of `unit` as training sees them, from memory where they are kept as stored."""
        if unit in self._kept and self.keeps_stored:
            return self.transformed(self._keep(unit))
        return super().read_unit(unit)

    def _unit(self, unit: int) -> Rows:
        if unit in self._kept and not self.keeps_stored:
            return self._keep(unit)
        return super()._unit(unit)

    def _keep(self, unit: int) -> Rows:
        with self._locks[unit]:
            if unit not in self._cache:
                raw = self.raw_unit(unit)
                self._cache[unit] = raw if self.keeps_stored else self.transformed(raw)
            return self._cache[unit]


def _unit_rows(dataset: Dataset) -> int:
    plan = dataset.plan
    if plan.units >= FEW_SHARDS:
        return plan.shard_rows
    chunks = -(-plan.n_rows // plan.chunk_rows)
    return plan.chunk_rows * max(1, chunks // UNITS_WANTED)


def _row_bytes(rows: TrainingRows) -> tuple[int, int]:
    """Bytes of one row as training sees it, and as stored."""
    info = rows.dataset.info
    if info.layout == "csr":
        entries = -(-(info.nonzeros or 0) // max(1, info.n_rows))
        return 8 * (entries + 2), 8 * (entries + 2)
    return rows.shape[1] * 4, info.d * np.dtype(info.dtype).itemsize


def _units_within(sizes: Sequence[int], row_bytes: int, budget: int) -> frozenset[int]:
    kept, used = set(), 0
    for unit, rows in enumerate(sizes):
        if rows and used + rows * row_bytes <= budget:
            kept.add(unit)
            used += rows * row_bytes
    return frozenset(kept)


def _no_rows(dataset: Dataset) -> Rows:
    if dataset.info.layout == "csr":
        return csr_matrix(np.zeros((0, dataset.info.d), dtype=np.float32))
    return np.zeros((0, dataset.info.d), dtype=np.float32)


def _stack(parts: Sequence[Rows]) -> Rows:
    if issparse(parts[0]):
        return csr_matrix(vstack(parts, format="csr"))
    return np.concatenate(parts)


def _nbytes(rows: Rows) -> int:
    if isinstance(rows, np.ndarray):
        return rows.nbytes
    return int(rows.data.nbytes + rows.indices.nbytes + rows.indptr.nbytes)
