"""Datasets: how they are read.  Writing is in `storage.writers`, and both are offered from here."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from scipy.sparse import csr_matrix

from storage.chunking import ChunkPlan
from storage.dataset_info import DatasetInfo, find_by_key, list_datasets
from storage.findings import Finding
from storage.stores import Store
from storage.writers import CsrDatasetWriter, DatasetWriter

__all__ = ["CsrDatasetWriter", "Dataset", "DatasetInfo", "DatasetWriter", "find_by_key", "list_datasets"]


class Dataset:
    """A committed dataset, opened for reading; pickles as (store URL, id).

    Every read checks what it reads.  A file that is missing, empty or short, or a chunk of which a bit has
    flipped, is an `IntegrityError` that names the rows.
    """

    info: DatasetInfo
    store: Store

    @classmethod
    def open(cls, store: Store, which: str = "latest") -> Dataset:
        """The newest dataset of `store`, or the one with the id `which`; `NotFoundError` if there is none."""
        raise NotImplementedError

    @property
    def plan(self) -> ChunkPlan:
        """Where its rows are cut."""
        raise NotImplementedError

    @property
    def class_names(self) -> tuple[str, ...]:
        """Names of the m classes; label i is class_names[i]."""
        return self.info.class_names

    def labels(self) -> NDArray[np.int32]:
        """Labels, shape (n_rows,); -1 in rejected rows."""
        raise NotImplementedError

    def split(self) -> NDArray[np.int8]:
        """Codes of `storage.schema.SPLITS`, shape (n_rows,)."""
        raise NotImplementedError

    def sample_ids(self) -> list[str]:
        """Ids of the rows, in their order."""
        raise NotImplementedError

    def rows(self, start: int, stop: int) -> NDArray[Any] | csr_matrix:
        """Features of rows start..stop-1, shape (stop - start, d).

        Dense: the stored type (float16 or float32).  CSR: a float32 matrix, as SciPy has no float16.
        """
        raise NotImplementedError

    def manifest(self) -> pa.Table:
        """The manifest, n_rows rows of `storage.manifest.MANIFEST_SCHEMA`."""
        raise NotImplementedError

    def verify(self, *, deep: bool = False) -> list[Finding]:
        """What is wrong with the stored files: presence and sizes; with `deep` every digest and value too."""
        raise NotImplementedError
