"""Small datasets for the tests of the storage."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from numpy.typing import NDArray
from scipy.sparse import csr_matrix
from scipy.sparse import random as random_sparse
from zarr.storage import FsspecStore, LocalStore

from topline.storage.arrays import ChunkPlan
from topline.storage.datasets import CsrDatasetWriter, Dataset, DatasetInfo, DatasetWriter
from topline.storage.schema import manifest_path, unit_folder
from topline.storage.stores import Store

#: For a test on any kind of store that takes hundreds of requests.
bucket_when_slow = pytest.mark.parametrize(
    "any_store", ["local", "memory", pytest.param("s3", marks=pytest.mark.slow)], indirect=True
)
CLASSES = ("ant", "bee", "Käfer")


def part(start: int, stop: int, **columns: Any) -> pa.Table:
    return pa.table({"sample_id": [f"image-{row}" for row in range(start, stop)], **columns})


def dense(n: int, d: int, seed: int = 0, dtype: str = "float32") -> NDArray[Any]:
    return np.random.default_rng(seed).standard_normal((n, d)).astype(dtype)


def sparse(n: int, d: int, seed: int = 0) -> csr_matrix:
    return csr_matrix(random_sparse(n, d, density=0.2, rng=seed, dtype=np.float32))


def assignments(n: int) -> tuple[NDArray[np.int32], NDArray[np.int8]]:
    """Labels 0, 1, 2, 0, ... and splits train, train, val, test, train, ..."""
    rows = np.arange(n)
    return (rows % len(CLASSES)).astype(np.int32), np.array([0, 0, 1, 2], np.int8)[rows % 4]


def begin(store: Store, X: Any, plan: ChunkPlan, key: str = "key", dtype: str = "float32") -> DatasetWriter:
    kind = DatasetWriter if isinstance(X, np.ndarray) else CsrDatasetWriter
    return kind.begin(store, key, X.shape[1], dtype, plan, {"backbone": "test"})


def write_units(writer: DatasetWriter, X: Any, units: Any = None) -> None:
    for unit in range(writer.plan.units) if units is None else units:
        span = writer.plan.bounds(unit)
        writer.write_unit(unit, X[span.start : span.stop], part(span.start, span.stop))


def write_dataset(
    store: Store, X: Any, plan: ChunkPlan | None = None, key: str = "key", dtype: str = "float32"
) -> DatasetInfo:
    writer = begin(store, X, plan or ChunkPlan(X.shape[0], 8, 32), key, dtype)
    write_units(writer, X)
    return writer.commit(*assignments(X.shape[0]), CLASSES)


def unit_of(store: Store, info: DatasetInfo, unit: int) -> str:
    """The folder of the features of a unit."""
    return unit_folder(Dataset(store, info).units[unit].features)


def manifest_of(store: Store, info: DatasetInfo, unit: int) -> str:
    """The file of the manifest rows of a unit."""
    return manifest_path(Dataset(store, info).units[unit].manifest)


def zarr_store(store: Store, path: str, *, read_only: bool = True) -> LocalStore | FsspecStore:
    """Zarr's own store over the folder `path`, to read and write our groups with zarr-python."""
    if store.local_path is not None:
        return LocalStore(store.local_path / path, read_only=read_only)
    return FsspecStore.from_url(f"{store.url}/{path}", read_only=read_only)
