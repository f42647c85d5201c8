"""Writing a dataset: whole units into a staging folder, then one commit that makes it visible."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import ArrayLike, NDArray

from storage.chunking import ChunkPlan
from storage.dataset_info import DatasetInfo
from storage.stores import Store


class DatasetWriter:
    """Writer of one dense dataset; pickles to other processes, which may write different units at once.

    `committed` is the dataset of the same key if it exists already: then there is nothing to write.
    """

    committed: DatasetInfo | None
    plan: ChunkPlan
    store: Store

    @classmethod
    def begin(
        cls, store: Store, key: str, n_rows: int, d: int, dtype: Any, plan: ChunkPlan, attributes: Mapping[str, Any]
    ) -> DatasetWriter:
        """Begin the dataset `key`, or go on with its staging.

        `attributes` is the features' specification and becomes `DatasetInfo.features`.  Raises
        `MismatchError` if the staging of that key has another shape, type or specification.
        """
        raise NotImplementedError

    def done_units(self) -> frozenset[int]:
        """Units that are written whole: their manifest part is there and their files have its sizes."""
        raise NotImplementedError

    def write_unit(self, unit: int, X: ArrayLike, part: pa.Table) -> None:
        """Write the rows of `unit` and then, as its mark of completion, its part of the manifest.

        `X` is (rows of the unit, d) of real numbers, `part` has a row for each.  Rows whose status is
        "rejected" have zero features.  `FormatError` for a misaligned shape and for NaN, infinity or
        overflow of float16.  Writing a unit again is harmless.
        """
        raise NotImplementedError

    def commit(
        self,
        labels: ArrayLike,
        split: ArrayLike,
        class_names: Sequence[str],
        manifest: pa.Table | None = None,
    ) -> DatasetInfo:
        """Make the dataset visible, in one step; without `manifest` the units' parts are joined.

        `labels` (n_rows,) are 0..m-1, or -1 exactly where `split` is "rejected" (3).  The manifest's
        label, class_name and split columns are set from the arrays.  A key that is committed already
        gives that dataset.  Raises `IncompleteError` if units are missing, `FormatError` for bad labels.
        """
        raise NotImplementedError

    def abandon(self) -> None:
        """Delete the staging, unless it is committed."""
        raise NotImplementedError


class CsrDatasetWriter(DatasetWriter):
    """Writer of one sparse dataset: every unit is a small CSR matrix of its own."""

    def write_unit(self, unit: int, X: Any, part: pa.Table) -> None:
        """As for dense rows; `X` is a SciPy sparse matrix (rows of the unit, d) of finite numbers."""
        raise NotImplementedError


_ = NDArray, np
