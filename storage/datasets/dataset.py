"""Reading a dataset."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from scipy.sparse import csr_matrix

from topline.storage.arrays import ArrayReader, ChunkPlan, Span
from topline.storage.arrays.reader import read_checked, read_strings
from topline.storage.arrays.writer import ArraySpec
from topline.storage.datasets.info import DatasetInfo, find_dataset
from topline.storage.datasets.labels import LabelSetTable
from topline.storage.datasets.manifest import load_manifest
from topline.storage.errors import FormatError, NotFoundError
from topline.storage.fingerprint import digest_bytes
from topline.storage.schema import (
    CLASS_NAMES,
    CSR_ARRAYS,
    FEATURES,
    FILES_LIST,
    GROUP,
    LABEL_SET_INDICES,
    LABEL_SET_INDPTR,
    LABELS,
    MANIFEST,
    SAMPLE_IDS,
    SPLIT,
    csr_unit_path,
)
from topline.storage.stores import FileSet, Store, open_store
from topline.storage.stores.files import load_entries
from topline.storage.stores.urls import join


class Dataset:
    """A committed dataset, opened for reading; pickles as (store URL, id), and threads may share it.

    Every read checks what it reads.  A file that is missing, empty or short, or a chunk of which a bit has
    flipped, is an `IntegrityError` that names the rows.
    """

    def __init__(self, store: Store, info: DatasetInfo) -> None:
        self.store = store
        self.info = info
        self.files = _listed_files(store, info)
        self._dense: ArrayReader | None = None
        if info.layout == "dense":
            spec = ArraySpec(info.plan, (info.d,), np.dtype(info.dtype))
            self._dense = ArrayReader(self.files, FEATURES, spec, self._title(FEATURES))
        self._units: dict[int, tuple[ArrayReader, ...]] = {}
        self._lock = threading.Lock()

    @classmethod
    def open(cls, store: Store, which: str = "latest") -> Dataset:
        """Return the newest dataset of `store`, or the one with the id `which`.

        Raises `NotFoundError` if there is none.
        """
        return cls(store, find_dataset(store, which))

    def __reduce__(self) -> tuple[object, ...]:
        return _reopen, (self.store.url, self.info.id)

    @property
    def plan(self) -> ChunkPlan:
        """Where its rows are cut."""
        return self.info.plan

    @property
    def class_names(self) -> tuple[str, ...]:
        """Names of the m classes; label i is class_names[i]."""
        return self.info.class_names

    def labels(self) -> NDArray[np.int32]:
        """Return the labels, or numbers of `label_sets`, shape (n_rows,); -1 in rejected rows."""
        return self._checked(LABELS)

    def label_sets(self) -> LabelSetTable | None:
        """Return the label sets that labels are numbers of; None where each row has one label."""
        if self.info.label_sets is None:
            return None
        table = LabelSetTable.checked(
            read_checked(self.files, LABEL_SET_INDPTR, self._title(LABEL_SET_INDPTR)),
            read_checked(self.files, LABEL_SET_INDICES, self._title(LABEL_SET_INDICES)),
            self.info.m,
        )
        if len(table) != self.info.label_sets:
            raise FormatError(
                f"{self.files.owner} has {len(table)} label sets, not {self.info.label_sets} as committed"
            )
        return table

    def split(self) -> NDArray[np.int8]:
        """Return the codes of `topline.storage.schema.SPLITS`, shape (n_rows,)."""
        return self._checked(SPLIT)

    def sample_ids(self) -> list[str]:
        """Return the ids of the rows, in their order."""
        return read_strings(self.files, SAMPLE_IDS, self._title(SAMPLE_IDS))

    def stored_class_names(self) -> tuple[str, ...]:
        """Return the class names as the Zarr group has them; `class_names` are those of the commit record."""
        return tuple(read_strings(self.files, CLASS_NAMES, self._title(CLASS_NAMES)))

    def rows(self, start: int, stop: int) -> NDArray[Any] | csr_matrix:
        """Return the features of rows start..stop-1, shape (stop - start, d).

        Dense: the stored type (float16 or float32).  CSR: a float32 matrix, as SciPy has no float16.
        """
        if self._dense is not None:
            return self._dense.rows(start, stop)
        pieces = [self._csr_rows(unit, span) for unit, span in self.plan.overlapping(start, stop)]
        lengths = np.concatenate([np.zeros(1, np.int64), *(piece[0] for piece in pieces)])
        indices = np.concatenate([np.zeros(0, np.int32), *(piece[1] for piece in pieces)])
        data = np.concatenate([np.zeros(0, np.float32), *(piece[2] for piece in pieces)])
        return csr_matrix((data, indices, np.cumsum(lengths)), shape=(stop - start, self.info.d), copy=False)

    def manifest(self) -> pa.Table:
        """Return the manifest, n_rows rows of `topline.storage.datasets.manifest.MANIFEST_SCHEMA`."""
        table, _ = load_manifest(self.files.read(MANIFEST), self.files.place(MANIFEST))
        return table

    def _csr_rows(self, unit: int, span: Span) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
        """Return the entries in each row, column indices and values of some rows of a unit."""
        first = span.start - self.plan.bounds(unit).start
        indptr, indices, data = self._unit(unit)
        bounds = indptr.rows(first, first + span.rows + 1)
        low, high = int(bounds[0]), int(bounds[-1])
        return np.diff(bounds), indices.rows(low, high), data.rows(low, high).astype(np.float32, copy=False)

    def _unit(self, unit: int) -> tuple[ArrayReader, ...]:
        """Return the readers of the three arrays of a sparse unit, opened once."""
        found = self._units.get(unit)
        if found is None:
            span, title = self.plan.bounds(unit), self._title(FEATURES)
            found = tuple(
                ArrayReader.open(
                    self.files,
                    join(csr_unit_path(unit), name),
                    title,
                    unit=unit,
                    unit_rows=(span.start, span.stop),
                )
                for name in CSR_ARRAYS
            )
            with self._lock:
                self._units[unit] = found
        return found

    def _checked(self, name: str) -> NDArray[Any]:
        array = read_checked(self.files, name, self._title(name))
        if array.shape != (self.info.n_rows,):
            raise FormatError(f"{self._title(name)} have shape {array.shape}, not ({self.info.n_rows},)")
        return array

    def _title(self, name: str) -> str:
        return f"{name.removeprefix(GROUP + '/')} of {self.files.owner}"


def _listed_files(store: Store, info: DatasetInfo) -> FileSet:
    """Return the dataset's list of files, which must be the one that was committed."""
    owner = f"dataset {info.id}"
    empty = FileSet(store, info.folder, (), owner)
    try:
        data = store.read_bytes(join(info.folder, FILES_LIST))
    except NotFoundError:
        raise empty.broken(f"{FILES_LIST} of {owner}", "is missing", (0, info.n_rows)) from None
    if digest_bytes(data) != info.digest:
        problem = "is damaged: its SHA-256 is not the committed one"
        raise empty.broken(f"{FILES_LIST} of {owner}", problem, (0, info.n_rows))
    return FileSet(store, info.folder, load_entries(data), owner)


def _reopen(url: str, dataset: str) -> Dataset:
    return Dataset.open(open_store(url), dataset)
