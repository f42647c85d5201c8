"""Writing a sparse dataset."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from topline.storage.arrays.writer import packed_array, packed_group
from topline.storage.datasets.units import csr_unit
from topline.storage.datasets.writer import DatasetWriter
from topline.storage.schema import CSR_ARRAYS, CSR_ENCODING, encoding
from topline.storage.stores.files import PackedFile


class CsrDatasetWriter(DatasetWriter):
    """Writer of one sparse dataset; `X` of a unit is a SciPy sparse matrix of finite numbers.

    Every unit is a Zarr group of its own with the arrays indptr (int64, from 0), indices (int32) and data,
    so that units can be written in any order, again, and by different processes.  A plan from
    `ChunkPlan.choose` wants the mean number of stored entries a row in the place of d.
    """

    layout: ClassVar[str] = "csr"

    def _checked(self, unit: int, X: Any) -> tuple[NDArray[Any], ...]:
        return csr_unit(X, self.bounds(unit), self.d, self.dtype)

    def _nonzero_rows(self, arrays: tuple[NDArray[Any], ...], rows: NDArray[Any]) -> bool:
        return bool(np.diff(arrays[0])[rows].any())

    def _nonzeros(self, arrays: tuple[NDArray[Any], ...]) -> int:
        return int(arrays[-1].size)

    def _packed_unit(self, arrays: tuple[NDArray[Any], ...]) -> Iterator[PackedFile]:
        for name, array in zip(CSR_ARRAYS, arrays, strict=True):
            yield from packed_array(name, array)
        yield packed_group("", {**encoding(CSR_ENCODING), "shape": [len(arrays[0]) - 1, self.d]})
