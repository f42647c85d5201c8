"""Small stored datasets with several shards and a mixed split."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_matrix

from topline.storage.arrays import ChunkPlan
from topline.storage.datasets import CsrDatasetWriter, Dataset, DatasetInfo, DatasetWriter, empty_manifest
from topline.storage.stores import Store, open_store


def make_features(
    n: int, d: int, m: int, seed: int = 0, noise: float = 0.5
) -> tuple[NDArray[Any], NDArray[Any]]:
    """Features (n, d) float32 and labels (n,) that a linear classifier learns with some errors."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, d)).astype(np.float32)
    scores = X @ rng.normal(size=(d, m)) / np.sqrt(d) + noise * rng.normal(size=(n, m))
    labels = scores.argmax(axis=1).astype(np.int32)
    labels[:m] = np.arange(m)
    return X, labels


def make_split(n: int, seed: int = 0) -> NDArray[np.int8]:
    """About 70 % train, the rest val and test, mixed; the first rows are train."""
    split = np.random.default_rng(seed).choice(
        np.array([0, 0, 0, 0, 0, 0, 0, 1, 2, 2], dtype=np.int8), size=n
    )
    split[:20] = 0
    return split


def write_dataset(
    store: Store,
    X: Any,
    labels: NDArray[Any],
    split: NDArray[Any],
    *,
    plan: ChunkPlan | None = None,
    dtype: str = "float32",
    key: str = "small",
    m: int | None = None,
) -> DatasetInfo:
    """Store rows X, dense or CSR, as a committed dataset."""
    n, d = X.shape
    plan = plan or ChunkPlan(n, 16, 64)
    kind = CsrDatasetWriter if isinstance(X, csr_matrix) else DatasetWriter
    writer = kind.begin(store, key, d, dtype, plan, {"backbone": "none"})
    ids = [f"row{i:06d}" for i in range(n)]
    for unit in range(plan.units):
        span = plan.bounds(unit)
        writer.write_unit(unit, X[span.start : span.stop], empty_manifest(ids[span.start : span.stop]))
    names = [f"class {c}" for c in range(m or int(labels.max()) + 1)]
    return writer.commit(labels, split, names)


def small_dataset(
    folder: Path, n: int = 700, d: int = 12, m: int = 5, *, sparse: bool = False, **options: Any
) -> Dataset:
    """Make a store at `folder` with one dataset of `n` rows in shards of 64."""
    store = open_store(folder, create=True)
    X, labels = make_features(n, d, m)
    if sparse:
        X = csr_matrix(np.where(np.abs(X) > 0.8, X, 0.0).astype(np.float32))
    info = write_dataset(store, X, labels, make_split(n), m=m, **options)
    return Dataset.open(store, info.id)


def feature_files(folder: Path) -> list[Path]:
    """Files with the features of a store at `folder`, one or more a unit, in the order of their names."""
    return sorted(path for path in (folder / "units").rglob("c/**/*") if path.is_file())
