"""Writing a sparse dataset."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from topline.storage.arrays.writer import packed_array, packed_group
from topline.storage.datasets.units import csr_unit
from topline.storage.datasets.writer import DatasetWriter
from topline.storage.schema import CSR_ARRAYS, CSR_ENCODING, FEATURES, csr_unit_path, encoding
from topline.storage.stores.files import PackedFile
from topline.storage.stores.urls import join


class CsrDatasetWriter(DatasetWriter):
    """Writer of one sparse dataset; `X` of a unit is a SciPy sparse matrix of finite numbers.

    Every unit is a Zarr group of its own with the arrays indptr (int64, from 0), indices (int32) and data,
    so that units can be written in any order, again, and by different processes.  A plan from
    `ChunkPlan.choose` wants the mean number of stored entries a row in the place of d.
    """

    layout: ClassVar[str] = "csr"

    def _checked(self, unit: int, X: Any) -> tuple[NDArray[Any], ...]:
        return csr_unit(X, self.plan.bounds(unit), self.d, self.dtype)

    def _nonzero_rows(self, arrays: tuple[NDArray[Any], ...], rows: NDArray[Any]) -> bool:
        return bool(np.diff(arrays[0])[rows].any())

    def _packed_unit(self, unit: int, arrays: tuple[NDArray[Any], ...]) -> Iterator[PackedFile]:
        path, span = csr_unit_path(unit), self.plan.bounds(unit)
        for name, array in zip(CSR_ARRAYS, arrays, strict=True):
            for file in packed_array(join(path, name), array):
                yield replace(file, rows=(span.start, span.stop))
        yield packed_group(path, {**encoding(CSR_ENCODING), "shape": [span.rows, self.d]})

    def _packed_metadata(self) -> PackedFile:
        attributes = {**encoding(CSR_ENCODING), "shape": [self.plan.n_rows, self.d], "units": self.plan.units}
        return packed_group(FEATURES, attributes)
