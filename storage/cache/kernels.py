"""Kernel matrices and their factors, kept so that a later run on the same rows need not compute them again.

A kernel lies in a folder of its own, and is there for others once the record kernels/<key>.json names that
folder.  The key stands for everything that the matrix follows from.  Nothing but training reads them: they
can be deleted at any time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from topline.storage.arrays import ArrayReader, ChunkPlan, RowBlocks
from topline.storage.arrays.writer import (
    ArraySpec,
    packed_group,
    packed_metadata,
    packed_shard,
    write_row_blocks,
)
from topline.storage.cache.entries import Cache
from topline.storage.schema import KERNEL_ENCODING, encoding
from topline.storage.stores import FileEntry, FileSet, Store
from topline.storage.stores.files import put_file

MATRIX = "matrix"
FACTOR = "factor"

KERNELS = Cache("kernels", KERNEL_ENCODING, "kernel", "train again")


@dataclass(frozen=True)
class KernelDraft:
    """A kernel that is being written; pickles, so that workers write its shards."""

    store: Store
    folder: str
    spec: ArraySpec

    @classmethod
    def begin(cls, store: Store, key: str, n: int) -> KernelDraft:
        """Take a new folder for an (n, n) matrix in float64."""
        spec = ArraySpec(ChunkPlan.choose(n, n, 8), (n,), np.dtype(np.float64))
        return cls(store, KERNELS.new_folder(key), spec)

    @property
    def plan(self) -> ChunkPlan:
        """Where the rows of the matrix are cut into units."""
        return self.spec.plan

    def write_unit(self, unit: int, rows: NDArray[np.float64]) -> FileEntry:
        """Write one unit's rows of the matrix."""
        return put_file(self.store, self.folder, packed_shard(MATRIX, self.spec, unit, rows))

    def reader(self, entries: Sequence[FileEntry]) -> ArrayReader:
        """Read the matrix back before anything is published."""
        files = FileSet(self.store, self.folder, entries, "the kernel matrix")
        return ArrayReader(files, MATRIX, self.spec, "the kernel matrix")

    def publish(self, key: str, entries: Sequence[FileEntry], factor: RowBlocks, facts: Any) -> StoredKernel:
        """Write the factor and then the record that makes both visible; the first one of a key wins."""
        written, _ = write_row_blocks(self.store, self.folder, FACTOR, factor)
        group = [packed_metadata(MATRIX, self.spec), packed_group("", encoding(KERNEL_ENCODING))]
        files = [*entries, *written, *(put_file(self.store, self.folder, file) for file in group)]
        KERNELS.publish(self.store, key, self.folder, files, facts)
        return load_kernel(self.store, key)

    def discard(self) -> None:
        """Remove what was written."""
        self.store.delete_tree(self.folder)


class StoredKernel:
    """A kernel matrix (n, n) and its factor (n, r), opened for reading.

    Pickles with its record, so that whoever opens it reads the very same factor, whatever the key stands for
    by then: the factor of an equal matrix may be another basis.
    """

    def __init__(self, store: Store, record: Mapping[str, Any]) -> None:
        self.store = store
        self._record = record
        self.key = str(record["key"])
        self.folder = str(record["folder"])
        self.facts: Mapping[str, Any] = record["facts"]
        entries = [FileEntry.from_json(item) for item in record["files"]]
        self.files = FileSet(store, self.folder, entries, f"kernel {self.key}")

    def __reduce__(self) -> tuple[object, ...]:
        return StoredKernel, (self.store, self._record)

    @cached_property
    def matrix(self) -> ArrayReader:
        """The matrix, by rows."""
        return ArrayReader.open(self.files, MATRIX, f"matrix of kernel {self.key}")

    @cached_property
    def factor(self) -> ArrayReader:
        """The factor, by rows."""
        return ArrayReader.open(self.files, FACTOR, f"factor of kernel {self.key}")


def find_kernel(store: Store, key: str) -> StoredKernel | None:
    """The kernel of this key, or None."""
    return load_kernel(store, key) if store.exists(KERNELS.path(key)) else None


def load_kernel(store: Store, key: str) -> StoredKernel:
    """The kernel of this key; `NotFoundError` if there is none, `IntegrityError` if its record is damaged."""
    return StoredKernel(store, KERNELS.read(store, key))


def kernel_keys(store: Store) -> list[str]:
    """Keys of all published kernels."""
    return KERNELS.keys(store)
