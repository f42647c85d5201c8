"""The factor of a kernel matrix in the place of features: what trains on a dataset trains on it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from topline.pipeline.rows.partition import TrainingRows
from topline.storage.arrays import ArrayReader
from topline.storage.cache import StoredKernel
from topline.storage.datasets import Dataset, LabelSetTable
from topline.storage.schema import SPLITS


class FactorDataset(Dataset):
    """The training rows of a dataset with the rows of a factor as their features; pickles by address."""

    def __init__(self, dataset: Dataset, kernel: StoredKernel) -> None:
        self.store = dataset.store
        self.files = kernel.files
        self._origin = dataset
        self._kernel = kernel
        self._labels = TrainingRows(dataset, "train").labels()
        n, r = kernel.factor.spec.shape
        plan = kernel.factor.spec.plan
        self.info = replace(
            dataset.info,
            n_rows=n,
            d=r,
            dtype=kernel.factor.spec.dtype.name,
            layout="dense",
            chunk_rows=plan.chunk_rows,
            shard_rows=plan.shard_rows,
            nonzeros=None,
        )

    def __reduce__(self) -> tuple[object, ...]:
        return FactorDataset, (self._origin, self._kernel)

    def labels(self) -> NDArray[np.int32]:
        """Labels of the training rows."""
        return self._labels

    def label_sets(self) -> LabelSetTable | None:
        """The label sets of the dataset that the rows come from."""
        return self._origin.label_sets()

    def split(self) -> NDArray[np.int8]:
        """Say that every row is for training."""
        return np.full(self.info.n_rows, SPLITS["train"], dtype=np.int8)

    def rows(self, start: int, stop: int) -> NDArray[Any]:
        """Rows of the factor."""
        return self._kernel.factor.rows(start, stop)


class MatrixRows:
    """A stored matrix as a `RowSource` of the solvers."""

    def __init__(self, reader: ArrayReader) -> None:
        self._reader = reader
        self.shape = reader.spec.shape
        self.dtype = reader.spec.dtype
        self.cuts = reader.spec.plan.unit_bounds()

    def __getitem__(self, rows: slice) -> NDArray[Any]:
        start, stop, _ = rows.indices(self.shape[0])
        return self._reader.rows(start, stop)
