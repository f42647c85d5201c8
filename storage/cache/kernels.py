"""Kernel matrices and their factors, cached so that a later run on the same rows need not compute them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from topline.storage.arrays import ArrayReader, ChunkPlan, RowBlocks
from topline.storage.arrays.writer import ArraySpec, write_row_blocks
from topline.storage.cache.entries import CacheKind, Draft, StoredEntry
from topline.storage.schema import KERNEL_ENCODING
from topline.storage.stores import FileEntry, FileSet, Store

_KERNELS = CacheKind("kernels", KERNEL_ENCODING, "kernel", "train again")
_MATRIX = "matrix"
_FACTOR = "factor"


class KernelDraft(Draft):
    """A kernel matrix (n, n) in float64 that is being written."""

    kind = _KERNELS

    @classmethod
    def begin(cls, store: Store, key: str, n: int) -> KernelDraft:
        """Begin an (n, n) matrix in a new folder."""
        spec = ArraySpec(ChunkPlan.choose(n, n, 8), (n,), np.dtype(np.float64))
        return cls.new(store, key, {_MATRIX: spec})

    def write_unit(self, unit: int, rows: NDArray[np.float64]) -> FileEntry:
        """Write one unit's rows (r, n) of the matrix."""
        return self.write_arrays(unit, {_MATRIX: rows})[0]

    def reader(self, entries: Sequence[FileEntry]) -> ArrayReader:
        """Return a reader of the matrix, before anything is published."""
        files = FileSet(self.store, self.folder, entries, "the kernel matrix")
        return ArrayReader(files, _MATRIX, self.specs[_MATRIX], "the kernel matrix")

    def publish(self, key: str, entries: Sequence[FileEntry], factor: RowBlocks, facts: Any) -> StoredKernel:
        """Write the factor (n, r) and the record that makes both visible; return the first one of the key."""
        written, _ = write_row_blocks(self.store, self.folder, _FACTOR, factor)
        self.publish_files(key, [*entries, *written], facts)
        return StoredKernel.load(self.store, key)


class StoredKernel(StoredEntry):
    """A kernel matrix (n, n) and its factor (n, r).

    The factor of an equal matrix may be another basis: workers open the one whose record they were sent.
    """

    kind = _KERNELS

    @cached_property
    def matrix(self) -> ArrayReader:
        """The matrix, by rows."""
        return self.reader(_MATRIX)

    @cached_property
    def factor(self) -> ArrayReader:
        """The factor, by rows."""
        return self.reader(_FACTOR)
