"""The rows of one split as blocks of whole chunks: how a dataset is partitioned and read during training.

A dataset is read in batches: a batch is a shard or, where a dataset has few shards or large ones, a run of
whole chunks.  Training row i is the i-th row of the split, in row order.  Cut points depend on the dataset
alone, so the number of workers cannot change an answer; and as every reader takes whole batches in order and
holds on to the last one, no chunk is decoded twice in a pass.

What else is known of the rows is here too: their weights, those of their classes, and groups of them.
"""

from __future__ import annotations

import difflib
import threading
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any, Literal, Protocol, TypeAlias

import numpy as np
from numpy.typing import DTypeLike, NDArray
from scipy.sparse import csr_matrix, issparse

from topline.pipeline.errors import ConfigError, InputError
from topline.pipeline.options import BLOCKS_AT_MOST
from topline.pipeline.progress import Progress, advance
from topline.solvers.core.rows import as_rows, stacked
from topline.solvers.losses import LabelSets
from topline.storage.datasets import Dataset, DatasetInfo
from topline.storage.schema import SPLITS

#: Rows of features: an array (r, d), or a CSR matrix where the dataset is sparse.
Rows: TypeAlias = Any

# Fewer shards than this are read in runs of chunks instead, so that a small dataset still has several blocks.
FEW_SHARDS = 8
BATCHES_WANTED = 16
# A batch of dense rows takes about so many bytes at most, as stored: a worker holds a few batches at a time.
BATCH_BYTES = 1 << 24


def batch_rows(dataset: Dataset) -> int:
    """Return the rows of a batch: a shard, or whole chunks of one."""
    plan, info = dataset.plan, dataset.info
    chunks = -(-plan.n_rows // plan.chunk_rows) // BATCHES_WANTED
    if plan.units >= FEW_SHARDS:
        chunks = plan.chunks_per_shard
    if info.layout == "dense":
        chunks = min(chunks, BATCH_BYTES // max(1, plan.chunk_rows * row_bytes(info, info.d, info.dtype)))
    return plan.chunk_rows * max(1, chunks)


def row_bytes(info: DatasetInfo, width: int, dtype: DTypeLike) -> int:
    """Return the bytes of a row: `width` numbers of a type, or a sparse dataset's mean entries."""
    if info.layout == "csr":
        entries = -(-(info.nonzeros or 0) // max(1, info.n_rows))
        return 8 * (entries + 2)
    return width * np.dtype(dtype).itemsize


def batches_within(sizes: Sequence[int], row_bytes: int, budget: int) -> frozenset[int]:
    """Return the first batches, of so many rows each, that fit into a budget of bytes together."""
    kept, used = set(), 0
    for batch, rows in enumerate(sizes):
        if rows and used + rows * row_bytes <= budget:
            kept.add(batch)
            used += rows * row_bytes
    return frozenset(kept)


def empty_rows(dataset: Dataset) -> Rows:
    """Return an array or matrix without a row."""
    empty = np.zeros((0, dataset.info.d), dtype=np.float32)
    return csr_matrix(empty) if dataset.info.layout == "csr" else empty


def nbytes(rows: Rows) -> int:
    """Return the bytes that rows take in memory."""
    if isinstance(rows, np.ndarray):
        return rows.nbytes
    return int(rows.data.nbytes + rows.indices.nbytes + rows.indptr.nbytes)


# Rows of so many bytes are transformed at once.
RUN_BYTES = 1 << 20


class RowTransform(Protocol):
    """Fitted transforms: what partitioning needs to know of them."""

    @property
    def steps(self) -> Sequence[Any]:
        """The transforms, none where rows stay as they are."""

    def apply(self, X: Any) -> Any:
        """Rows (r, d) to rows (r, d')."""


class TrainingRows:
    """Rows of one split after the fitted transforms: row slices, read batch by batch.

    Slices are float16 where float16 is stored and nothing transforms it, for the solvers widen what they work
    on; else, and from `read_batch` and `tiles`, rows are float32.

    Pickles as the dataset's address, the split and the transforms; it opens the dataset where it is used.
    A slice may be a view of a buffer of its thread: it is valid until the next slice is taken.
    """

    def __init__(
        self,
        dataset: Dataset,
        split: str = "train",
        transforms: RowTransform | None = None,
        only: NDArray[np.int64] | None = None,
    ) -> None:
        #: The rows of the split that are taken, ascending; None for all.
        self.only = only
        self.dataset = dataset
        self.split = split
        self.transforms = transforms
        # None where nothing changes a row
        self._transforms = transforms if transforms is not None and transforms.steps else None
        self._open()

    def _open(self) -> None:
        labels = self.dataset.labels()
        self._indices = np.flatnonzero((self.dataset.split() == SPLITS[self.split]) & (labels >= 0))
        if self.only is not None:
            self._indices = self._indices[self.only]
        self._labels = labels[self._indices]
        self._batch_rows = batch_rows(self.dataset)
        cuts = range(0, self.dataset.info.n_rows + self._batch_rows, self._batch_rows)
        self._offsets = np.searchsorted(self._indices, np.asarray(cuts)).astype(np.int64)
        #: Training rows at which batches end, from 0 to n: what lies between two of them is read at once.
        self.cuts: list[int] = np.unique(self._offsets).tolist()
        d = self.dataset.info.d
        if self._transforms:
            d = int(self._transforms.apply(np.zeros((1, d), dtype=np.float32)).shape[1])
        self.shape = (len(self._indices), d)
        #: Whether slices are CSR matrices; no transform of sparse rows makes them dense.
        self.sparse = self.dataset.info.layout == "csr"
        halves = self.dataset.info.layout == "dense" and self.dataset.info.dtype == "float16"
        self.dtype = np.dtype(np.float16 if halves and not self._transforms else np.float32)
        self._buffer = threading.local()
        #: Bytes of stored rows, decompressed, that were read so far.
        self.bytes_read = 0
        self._counting = threading.Lock()

    def __reduce__(self) -> tuple[object, ...]:
        return TrainingRows, (self.dataset, self.split, self.transforms, self.only)

    def __len__(self) -> int:
        return self.shape[0]

    def at(self, places: NDArray[np.int64], transforms: RowTransform | None) -> TrainingRows:
        """Return some of these rows, by their ascending places among them, with other transforms."""
        only = places if self.only is None else self.only[places]
        return TrainingRows(self.dataset, self.split, transforms, only)

    @property
    def batches(self) -> int:
        """Number of batches the dataset is read in."""
        return len(self._offsets) - 1

    @property
    def nbytes(self) -> int:
        """Bytes of all rows as float32."""
        return len(self) * row_bytes(self.dataset.info, self.shape[1], np.float32)

    @property
    def indices(self) -> NDArray[np.int64]:
        """Row of the dataset for each training row, shape (n,)."""
        return self._indices

    def labels(self) -> NDArray[np.int32]:
        """Return labels of the rows, or numbers of their label sets, shape (n,)."""
        return self._labels

    @cached_property
    def solver_label_sets(self) -> LabelSets | None:
        """The label sets that labels are numbers of, None where each row has one label."""
        table, m = self.dataset.label_sets(), self.dataset.info.m
        return None if table is None else LabelSets(table.indptr, table.indices.astype(np.int64), m)

    def class_counts(self) -> NDArray[np.int64]:
        """Return rows of each class, shape (m,); a row with several labels counts for each of them."""
        m, sets = self.dataset.info.m, self.solver_label_sets
        if sets is None:
            return np.bincount(self._labels, minlength=m).astype(np.int64)
        often = np.bincount(self._labels, minlength=len(sets))
        counted = np.bincount(sets.indices, weights=np.repeat(often, sets.sizes), minlength=m)
        return counted.astype(np.int64)

    @cached_property
    def groups(self) -> NDArray[np.int32] | None:
        """Number of the group that each row is in, shape (n,), None where none were given."""
        groups = self.dataset.facts().groups
        return None if groups is None else groups[self._indices]

    @cached_property
    def own_weights(self) -> NDArray[np.float64] | None:
        """How often each row counts by itself, shape (n,), None where all count once."""
        weights = self.dataset.facts().weights
        return None if weights is None else weights[self._indices]

    def weights(self, class_weights: Sequence[float] | None) -> NDArray[np.float64] | None:
        """Return how often each row counts (n,): its own weight times that of its class (m,); None once."""
        if class_weights is None:
            return self.own_weights
        weights = np.asarray(class_weights)[self._labels]
        return weights if self.own_weights is None else weights * self.own_weights

    def label_names(self) -> NDArray[Any]:
        """Return the class of each row by name, or its classes with commas between them, shape (n,)."""
        table, names = self.dataset.label_sets(), self.dataset.class_names
        return np.asarray(names if table is None else table.names(names), dtype=object)[self._labels]

    def batch_span(self, batch: int) -> tuple[int, int]:
        """Return the first training row of `batch` and the one after its last."""
        return int(self._offsets[batch]), int(self._offsets[batch + 1])

    def block_bounds(self, most: int = BLOCKS_AT_MOST) -> list[int]:
        """Return cut points of at most so many blocks: whole batches, fixed by the data, never empty."""
        blocks = max(min(most, self.batches), 1)
        return sorted({int(self._offsets[self.batches * block // blocks]) for block in range(blocks + 1)})

    def raw_batch(self, batch: int) -> Rows:
        """Return rows of `batch` as stored, without transforms."""
        first, last = self.batch_span(batch)
        if first == last:
            return empty_rows(self.dataset)
        picked = self._indices[first:last]
        start, stop = int(picked[0]), int(picked[-1]) + 1
        stored = self.dataset.rows(start, stop)
        with self._counting:
            self.bytes_read += nbytes(stored)
        return stored if stop - start == last - first else stored[picked - start]

    def transformed(self, raw: Rows) -> Rows:
        """Return stored rows as float32, transforms applied.

        They are made a cacheful at a time so that no array between goes through memory.
        """
        single = np.dtype(np.float32)
        if not self._transforms:
            return as_rows(raw, single)
        if issparse(raw) or not len(raw):
            return self._transforms.apply(as_rows(raw, single))
        rows = np.empty((len(raw), self.shape[1]), dtype=single)
        step = max(1, RUN_BYTES // (4 * max(raw.shape[1], self.shape[1])))
        for low in range(0, len(raw), step):
            rows[low : low + step] = self._transforms.apply(as_rows(raw[low : low + step], single))
        return rows

    def read_batch(self, batch: int) -> Rows:
        """Return rows of `batch`: float32, transforms applied."""
        return self.transformed(self.raw_batch(batch))

    def _prepared(self, batch: int) -> Rows:
        """Return rows of `batch` as slices give them."""
        return self._ready(self.raw_batch(batch))

    def _ready(self, raw: Rows) -> Rows:
        """Return stored rows as slices give them."""
        as_they_are = raw.dtype == self.dtype and not self._transforms
        return raw if as_they_are else self.transformed(raw)

    def tiles(self, progress: Progress | None = None) -> Iterator[tuple[int, int, Rows]]:
        """Return all rows, as (start, stop, rows) batch by batch; advance `progress` after each."""
        for batch in range(self.batches):
            start, stop = self.batch_span(batch)
            if stop > start:
                yield start, stop, self.read_batch(batch)
                advance(progress, stop - start)

    def whole(self) -> Rows:
        """Return all rows as float32, stacked; batches without any of them are not read."""
        parts = [rows for _, _, rows in self.tiles()]
        return stacked(parts) if parts else self.transformed(empty_rows(self.dataset))

    def __getitem__(self, rows: slice) -> Rows:
        start, stop, step = rows.indices(len(self))
        if step != 1:
            raise IndexError("training rows are taken in slices of step 1")
        parts = []
        for batch in self._batches_of(start, stop):
            low, high = self.batch_span(batch)
            parts.append(self._batch(batch)[max(start, low) - low : min(stop, high) - low])
        if not parts:
            return self.transformed(empty_rows(self.dataset)).astype(self.dtype)
        return parts[0] if len(parts) == 1 else stacked(parts)

    def _batches_of(self, start: int, stop: int) -> Iterator[int]:
        """Return batches that have rows among start..stop-1."""
        for batch in range(
            max(0, int(np.searchsorted(self._offsets, start, side="right")) - 1), self.batches
        ):
            low, high = self.batch_span(batch)
            if low >= stop:
                return
            if max(low, start) < min(high, stop):
                yield batch

    def _batch(self, batch: int) -> Rows:
        """Return a batch from this thread's buffer, which holds the last one."""
        if getattr(self._buffer, "batch", None) != batch:
            self._buffer.rows = None  # free the old one before reading the new one
            self._buffer.rows = self._prepared(batch)
            self._buffer.batch = batch
        return self._buffer.rows


class CachedRows(TrainingRows):
    """Training rows of which as many as fit into `budget` bytes stay in memory; the rest is streamed.

    Only rows start..stop-1 count (a worker's own).  They are kept as slices give them or, if that
    is smaller (transformed float16) and they do not all fit, as stored.  Dense rows that all fit are one
    array, which solvers visit in place.  Does not travel: each worker makes its own.
    """

    def __init__(self, rows: TrainingRows, budget: int, start: int = 0, stop: int | None = None) -> None:
        super().__init__(rows.dataset, rows.split, rows.transforms, rows.only)
        stop = len(self) if stop is None else stop
        sizes = [max(0, min(b, stop) - max(a, start)) for a, b in map(self.batch_span, range(self.batches))]
        info = self.dataset.info
        ready, stored = row_bytes(info, self.shape[1], self.dtype), row_bytes(info, info.d, info.dtype)
        self.keeps_stored = stored < ready and sum(sizes) * ready > budget
        self._kept = batches_within(sizes, stored if self.keeps_stored else ready, budget)
        self._cache: dict[int, Rows] = {}
        taken = [batch for batch, size in enumerate(sizes) if size]
        self._span = (self.batch_span(taken[0])[0], self.batch_span(taken[-1])[1]) if taken else (0, 0)
        #: The rows of `_span`; as much of it takes room as was read.
        self._array: NDArray[Any] | None = None
        if not self.keeps_stored and info.layout == "dense" and self.kept(*self._span):
            self._array = np.empty((self._span[1] - self._span[0], self.shape[1]), dtype=self.dtype)
        self._locks = {batch: threading.Lock() for batch in self._kept}

    def __reduce__(self) -> tuple[object, ...]:
        raise TypeError("cached rows stay in their process: send the TrainingRows and cache them there")

    def adopt(self, other: CachedRows) -> None:
        """Take over what `other`, of the same rows, has in memory and this one would keep."""
        if other.keeps_stored == self.keeps_stored:
            # A copy, for a task of the epoch before may still be adding to it.
            held = other._cache.copy()
            if other._span != self._span or self._array is None:
                self._array = None
            else:
                self._array = other._array
            self._cache.update({batch: rows for batch, rows in held.items() if batch in self._kept})

    def at_hand(self, start: int, stop: int) -> bool:
        """Return whether rows start..stop-1 are in memory as slices give them."""
        return not self.keeps_stored and all(batch in self._cache for batch in self._batches_of(start, stop))

    def in_place(self, start: int, stop: int) -> bool:
        """Return whether slices of rows start..stop-1 are views of one array, once they are read."""
        return self._array is not None and self._span[0] <= start <= stop <= self._span[1]

    def kept(self, start: int, stop: int) -> bool:
        """Return whether rows start..stop-1 stay in memory once they are read, in whatever form."""
        return all(batch in self._kept for batch in self._batches_of(start, stop))

    def __getitem__(self, rows: slice) -> Rows:
        start, stop, step = rows.indices(len(self))
        if step != 1 or self._array is None or not self.in_place(start, stop):
            return super().__getitem__(rows)
        for batch in self._batches_of(start, stop):
            self._keep(batch)
        return self._array[start - self._span[0] : stop - self._span[0]]

    def take(self, rows: NDArray[np.int64]) -> Rows:
        """Return kept rows by their numbers, in any order, as slices give them."""
        batches = np.searchsorted(self._offsets, rows, side="right") - 1
        order = np.argsort(batches, kind="stable")
        parts = [
            self._picked(int(batches[here[0]]), rows[here])
            for here in np.split(order, np.flatnonzero(np.diff(batches[order])) + 1)
            if len(here)
        ]
        if not parts:
            return self[0:0]
        taken, place = stacked(parts), np.empty_like(order)
        place[order] = np.arange(len(order))
        return taken[place]

    def _picked(self, batch: int, rows: NDArray[np.int64]) -> Rows:
        """Return rows of one kept batch."""
        picked = self._keep(batch)[rows - self.batch_span(batch)[0]]
        return self._ready(picked) if self.keeps_stored else picked

    def raw_batch(self, batch: int) -> Rows:
        """Return rows of `batch` as stored, from memory where they are kept so."""
        if batch in self._kept and self.keeps_stored:
            return self._keep(batch)
        return super().raw_batch(batch)

    def _batch(self, batch: int) -> Rows:
        if batch in self._kept and not self.keeps_stored:
            return self._keep(batch)
        return super()._batch(batch)

    def _keep(self, batch: int) -> Rows:
        with self._locks[batch]:
            if batch not in self._cache:
                rows = super().raw_batch(batch) if self.keeps_stored else self._prepared(batch)
                if self._array is not None:
                    start, stop = self.batch_span(batch)
                    place = self._array[start - self._span[0] : stop - self._span[0]]
                    place[:] = rows
                    rows = place
                self._cache[batch] = rows
            return self._cache[batch]


ClassWeight: TypeAlias = Literal["none", "balanced"] | Mapping[str, float]


def class_weights(
    chosen: ClassWeight, labels: NDArray[Any], names: Sequence[str], own: NDArray[np.float64] | None = None
) -> NDArray[np.float64] | None:
    """Return how often an example of each class counts (m,), None once.

    "balanced" gives all classes with examples the same total, those of the examples' `own` weights (n,) with
    it; of named weights a class without one has 1.  `ConfigError` for the name of no class.
    """
    if isinstance(chosen, Mapping):
        unknown = sorted(set(chosen).difference(names))
        if unknown:
            close = difflib.get_close_matches(unknown[0], names, n=1)
            fix = f"did you mean {close[0]!r}?" if close else f"they are {', '.join(names[:5])} ..."
            raise ConfigError(f"class_weight names {unknown[0]!r}, which is none of the classes: {fix}")
        return np.array([chosen.get(name, 1.0) for name in names])
    if chosen == "none":
        return None
    counts = np.bincount(labels, own, minlength=len(names))
    share = counts.sum() / np.count_nonzero(counts)
    return np.asarray(np.divide(share, counts, out=np.zeros(len(counts)), where=counts > 0))


def example_weights(
    chosen: ClassWeight, labels: NDArray[Any], names: Sequence[str], own: NDArray[np.float64] | None
) -> NDArray[np.float64] | None:
    """Return how often each example counts (n,): its own weight times that of its class; None once."""
    weights = class_weights(chosen, labels, names, own)
    if weights is None:
        return own
    return np.asarray(weights[labels] if own is None else weights[labels] * own)


def class_of_groups(groups: NDArray[np.integer[Any]], labels: NDArray[Any]) -> NDArray[Any]:
    """Return the class that most examples of each group 0, 1, ... have, shape (g,)."""
    pairs, often = np.unique(np.stack([groups, labels]), axis=1, return_counts=True)
    most = pairs[:, np.lexsort((pairs[1], -often, pairs[0]))]
    return np.asarray(most[1, np.unique(most[0], return_index=True)[1]])


def require_single_labels(info: DatasetInfo, why: str) -> None:
    """Raise `InputError` for a dataset whose rows have several labels, which have no top-k accuracy."""
    if info.label_sets is not None:
        raise InputError(
            f"dataset {info.id} has rows with several labels, and {why} by top-k accuracy, which takes one a"
            " row: measure models with topline evaluate"
        )
