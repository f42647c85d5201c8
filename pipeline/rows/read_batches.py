"""Read batches: how many rows a dataset is read in at a time, and how much memory they take."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import DTypeLike
from scipy.sparse import csr_matrix

from topline.storage.datasets import Dataset, DatasetInfo

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
