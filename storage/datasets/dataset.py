"""Reading a dataset, and checking it: every file against its record, and with `deep` the values too."""

from __future__ import annotations

import threading
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from scipy.sparse import csr_matrix, issparse

from topline.storage.arrays import ArrayReader, ChunkPlan, Span
from topline.storage.arrays.groups import ArraySpec, read_checked, read_strings
from topline.storage.datasets.contents import (
    UnitRef,
    load_manifest,
    load_overrides,
    load_units,
    overridden,
    unit_files,
    unit_table,
    with_labels_and_splits,
)
from topline.storage.datasets.info import DatasetInfo, find_dataset, read_catalog
from topline.storage.datasets.labels import (
    LabelSetTable,
    RecordedEdits,
    RowFacts,
    check_labels_and_splits,
    check_rejected,
    load_edits,
    split_counts,
)
from topline.storage.datasets.writer import dense_spec
from topline.storage.errors import FormatError, IntegrityError, StorageError
from topline.storage.records import Finding
from topline.storage.schema import (
    CLASS_NAMES,
    CSR_ARRAYS,
    EDITS,
    FILES_LIST,
    GROUP,
    GROUPS,
    LABEL_SET_INDICES,
    LABEL_SET_INDPTR,
    LABELS,
    MARKS,
    OVERRIDES,
    OWN_FEATURES,
    OWN_MANIFEST,
    SPLIT,
    STAGING,
    UNITS_LIST,
    WEIGHTS,
    manifest_path,
    own_csr_path,
    unit_folder,
)
from topline.storage.stores import FileSet, Store, check_files
from topline.storage.stores.files import load_entries
from topline.storage.stores.lease import hold_while
from topline.storage.stores.local import PARTIAL
from topline.storage.stores.sealed import TOMBSTONE
from topline.storage.stores.urls import join


class Dataset:
    """A committed dataset, opened for reading; pickles as store URL and record, and is thread-safe.

    Every read is checked: a missing, empty or short file or a flipped bit is an `IntegrityError` that names
    the rows.  On a local disk it is not removed while open.
    """

    def __init__(self, store: Store, info: DatasetInfo) -> None:
        self.store = store
        self.info = info
        hold_while(self, store, join(info.folder, FILES_LIST))
        self.files = _listed_files(store, info)
        self._readers: dict[int, tuple[ArrayReader, ...]] = {}
        self._lock = threading.Lock()

    @classmethod
    def open(cls, store: Store, which: str = "latest") -> Dataset:
        """Return the newest dataset of `store`, or the one with id `which`; `NotFoundError` if absent."""
        return cls(store, find_dataset(store, which))

    def __reduce__(self) -> tuple[object, ...]:
        return Dataset, (self.store, self.info)

    @property
    def plan(self) -> ChunkPlan:
        """How its rows are cut."""
        return self.info.plan

    @property
    def shares_nothing(self) -> bool:
        """Whether it is of version 1, with features and manifest in its own folder."""
        return self.info.version == "1"

    @property
    def class_names(self) -> tuple[str, ...]:
        """Names of the m classes; label i is class_names[i]."""
        return self.info.class_names

    def labels(self) -> NDArray[np.int32]:
        """Return the labels, or numbers of `label_sets`, shape (n_rows,); -1 in rejected rows."""
        return self._checked(LABELS)

    def label_sets(self) -> LabelSetTable | None:
        """Return the label sets numbered by the labels; None if each row has one label."""
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

    def facts(self) -> RowFacts:
        """Return groups and weights of the rows, as far as given."""
        groups, weights = (
            self._checked(name) if join(name, "zarr.json") in self.files.by_path else None
            for name in (GROUPS, WEIGHTS)
        )
        return RowFacts(groups, weights)

    def sample_ids(self) -> list[str]:
        """Return the ids of the rows, in order."""
        ids: list[str] = self.shared_manifest()["sample_id"].to_pylist()
        return ids

    def edits(self) -> RecordedEdits | None:
        """Return the edits of labels and rows relative to the images; None if none are recorded."""
        if EDITS not in self.files.by_path:
            return None
        return load_edits(self.files.read(EDITS), self.files.place(EDITS))

    @cached_property
    def units(self) -> tuple[UnitRef, ...]:
        """The units of its rows in order, some of them shared with other datasets."""
        if self.shares_nothing:
            spans = map(self.plan.bounds, range(self.plan.units))
            return tuple(UnitRef((span.start, span.stop), "", "") for span in spans)
        return load_units(self.files.read(UNITS_LIST), self.info.n_rows, self.files.owner)

    def unit_files(self, number: int) -> FileSet:
        """Return the files of the features of a unit."""
        subject = f"features of {self.files.owner}: shard {number}"
        return unit_files(self.store, self.units[number], self.files.owner, subject)

    def stored_class_names(self) -> tuple[str, ...]:
        """Return the class names stored in the Zarr group; `class_names` are those of the commit record."""
        return tuple(read_strings(self.files, CLASS_NAMES, self._title(CLASS_NAMES)))

    def rows(self, start: int, stop: int) -> NDArray[Any] | csr_matrix:
        """Return the features of rows start..stop-1, shape (stop - start, d).

        Dense: the stored type (float16 or float32).  CSR: float32, as SciPy has no float16.
        """
        if not 0 <= start <= stop <= self.info.n_rows:
            raise FormatError(f"rows {start}..{stop} are not within the {self.info.n_rows} rows")
        if self.info.layout == "dense":
            out = np.empty((stop - start, self.info.d), dtype=self.info.dtype)
            for number, span in self._overlapping(start, stop):
                (reader,) = self._opened(number)
                reader.read_into(out[span.start - start : span.stop - start], span.start - reader.first_row)
            return out
        pieces = [self._csr_rows(number, span) for number, span in self._overlapping(start, stop)]
        lengths = np.concatenate([np.zeros(1, np.int64), *(piece[0] for piece in pieces)])
        indices = np.concatenate([np.zeros(0, np.int32), *(piece[1] for piece in pieces)])
        data = np.concatenate([np.zeros(0, np.float32), *(piece[2] for piece in pieces)])
        return csr_matrix((data, indices, np.cumsum(lengths)), shape=(stop - start, self.info.d), copy=False)

    def take(self, rows: NDArray[np.int64]) -> NDArray[np.float32]:
        """Return dense features (r, d) of rows in any order; each chunk is read once."""
        X = np.empty((len(rows), self.info.d), dtype=np.float32)
        order = np.argsort(rows, kind="stable")
        chunks = rows[order] // self.plan.chunk_rows
        for part in np.split(order, np.flatnonzero(np.diff(chunks)) + 1):
            if len(part):
                first, last = int(rows[part[0]]), int(rows[part[-1]])
                X[part] = np.asarray(self.rows(first, last + 1))[rows[part] - first]
        return X

    def manifest(self) -> pa.Table:
        """Return the manifest, n_rows rows of `topline.storage.datasets.contents.MANIFEST_SCHEMA`."""
        table = self.shared_manifest()
        if self.shares_nothing:
            return table
        if OVERRIDES in self.files.by_path:
            table = overridden(table, load_overrides(self.files.read(OVERRIDES), self.files.place(OVERRIDES)))
        sets = self.label_sets()
        names = self.class_names if sets is None else sets.names(self.class_names)
        return with_labels_and_splits(table, self.labels(), self.split(), names)

    def check_manifest(self) -> None:
        """Read the whole manifest, a unit at a time; `IntegrityError` if any of it is damaged or missing."""
        if self.shares_nothing:
            self.shared_manifest()
            return
        for unit in self.units:
            unit_table(self.store, unit, self.files.owner)
        if OVERRIDES in self.files.by_path:
            load_overrides(self.files.read(OVERRIDES), self.files.place(OVERRIDES))

    def shared_manifest(self) -> pa.Table:
        """Return the manifest rows of all units, without the columns specific to this version."""
        if self.shares_nothing:
            return load_manifest(self.files.read(OWN_MANIFEST), self.files.place(OWN_MANIFEST))
        return pa.concat_tables([unit_table(self.store, unit, self.files.owner) for unit in self.units])

    def _overlapping(self, start: int, stop: int) -> Iterator[tuple[int, Span]]:
        """Yield the units that overlap rows start..stop-1, each with the dataset rows in the overlap."""
        number = bisect_right(self.units, start, key=lambda unit: unit.rows[1])
        while start < stop:
            end = min(stop, self.units[number].rows[1])
            yield number, Span(start, end)
            start, number = end, number + 1

    def _csr_rows(self, number: int, span: Span) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
        """Return the entry counts per row, column indices and values of some rows of a unit."""
        first = span.start - self.units[number].rows[0]
        indptr, indices, data = self._opened(number)
        bounds = indptr.rows(first, first + span.rows + 1)
        low, high = int(bounds[0]), int(bounds[-1])
        return np.diff(bounds), indices.rows(low, high), data.rows(low, high).astype(np.float32, copy=False)

    def _opened(self, number: int) -> tuple[ArrayReader, ...]:
        """Return the reader of a dense unit, or those of the arrays of a sparse one; cached."""
        found = self._readers.get(number)
        if found is None:
            found = self._own_readers(number) if self.shares_nothing else self._shared_readers(number)
            with self._lock:
                self._readers[number] = found
        return found

    def _shared_readers(self, number: int) -> tuple[ArrayReader, ...]:
        start, stop = self.units[number].rows
        files = self.unit_files(number)
        if self.info.layout == "csr":
            return self._csr_readers(number, files, "")
        spec = dense_spec(stop - start, self.info.d, np.dtype(self.info.dtype), self.info.chunk_rows)
        return (ArrayReader(files, "", spec, self._title(OWN_FEATURES), number, first_row=start),)

    def _own_readers(self, number: int) -> tuple[ArrayReader, ...]:
        if self.info.layout == "csr":
            return self._csr_readers(number, self.files, own_csr_path(number))
        spec = ArraySpec(self.plan, (self.info.d,), np.dtype(self.info.dtype))
        return (ArrayReader(self.files, OWN_FEATURES, spec, self._title(OWN_FEATURES)),)

    def _csr_readers(self, number: int, files: FileSet, folder: str) -> tuple[ArrayReader, ...]:
        rows, title = self.units[number].rows, self._title(OWN_FEATURES)
        return tuple(
            ArrayReader.open(files, join(folder, name), title, unit=number, unit_rows=rows)
            for name in CSR_ARRAYS
        )

    def _checked(self, name: str) -> NDArray[Any]:
        array = read_checked(self.files, name, self._title(name))
        if array.shape != (self.info.n_rows,):
            raise FormatError(f"{self._title(name)} have shape {array.shape}, not ({self.info.n_rows},)")
        return array

    def _title(self, name: str) -> str:
        return f"{name.removeprefix(GROUP + '/')} of {self.files.owner}"


def _listed_files(store: Store, info: DatasetInfo) -> FileSet:
    """Return the dataset's list of files, checked against the committed digest."""
    empty = FileSet(store, info.folder, (), f"dataset {info.id}")
    subject = f"{FILES_LIST} of {empty.owner}"
    try:
        data = empty.named_by(info.digest, FILES_LIST, subject, (0, info.n_rows))
    except IntegrityError:
        if info.id in read_catalog(store).removed:
            find_dataset(store, info.id)
        raise
    return replace(empty, entries=load_entries(data))


_REWRITE = "restore it from a copy, or write the dataset again under another key"


def check_dataset(dataset: Dataset, *, deep: bool, checked: set[str] | None = None) -> list[Finding]:
    """Return the findings of a dataset; values are checked only if all files are sound.

    Units in `checked`, given by the folder of their features, were already checked for another dataset that
    shares them; this dataset's are added.
    """
    found = check_files(dataset.files, deep=deep, fix=_REWRITE)
    found += _foreign_files(dataset)
    if any(finding.path.endswith(UNITS_LIST) for finding in found):
        return found
    try:
        units = dataset.units
    except StorageError as error:
        found.append(Finding("units", join(dataset.info.folder, UNITS_LIST), str(error), _REWRITE))
        return found
    for number, unit in enumerate(() if dataset.shares_nothing else units):
        found += _unit_findings(dataset, number, unit, set() if checked is None else checked, deep=deep)
    if deep and not any(not finding.harmless for finding in found):
        found += _value_findings(dataset)
    return found


def _foreign_files(dataset: Dataset) -> Iterator[Finding]:
    """Yield unlisted files in the dataset's folder, except partial ones (found with the store)."""
    known = {FILES_LIST, STAGING, TOMBSTONE, *dataset.files.by_path}
    folder = dataset.info.folder
    if not dataset.store.exists(join(folder, STAGING)):
        what = "it is missing, which nobody needs any more"
        yield Finding("staging", join(folder, STAGING), what, "restore it from a copy", harmless=True)
    for path in dataset.store.walk(folder):
        inside = path[len(folder) + 1 :]
        if inside not in known and not inside.endswith(PARTIAL):
            mark = inside.startswith(f"{MARKS}/")
            what = "its writer was killed" if mark else f"the file does not belong to {dataset.files.owner}"
            fix = "topline prune deletes it" if mark else "delete it if it is not yours"
            yield Finding("foreign-file", path, what, fix, harmless=True)


def _unit_findings(
    dataset: Dataset, number: int, unit: UnitRef, checked: set[str], *, deep: bool
) -> Iterator[Finding]:
    """Yield the findings of the contents that a unit refers to."""
    features, manifest = unit_folder(unit.features), manifest_path(unit.manifest)
    if manifest not in checked:
        checked.add(manifest)
        try:
            if deep:
                unit_table(dataset.store, unit, dataset.files.owner)
            else:
                dataset.store.size(manifest)
        except StorageError as error:
            yield Finding("manifest", manifest, f"{error}, in {dataset.files.owner}", _REWRITE, unit.rows)
    if features in checked:
        return
    checked.add(features)
    try:
        files = dataset.unit_files(number)
    except StorageError as error:
        yield Finding("unit", join(features, FILES_LIST), str(error), _REWRITE, unit.rows)
        return
    found = check_files(files, deep=deep, fix=_REWRITE)
    yield from found
    if deep and not found:
        yield from _feature_findings(dataset, number, unit)


def _feature_findings(dataset: Dataset, number: int, unit: UnitRef) -> Iterator[Finding]:
    """Yield disagreements between a unit's features and the dataset, given intact files."""
    info, place, (start, stop) = dataset.info, unit_folder(unit.features), unit.rows
    fix = "write the dataset again under another key"
    if info.layout == "dense":
        wanted = dense_spec(stop - start, info.d, np.dtype(info.dtype), info.chunk_rows).metadata()
        if dataset.unit_files(number).read("zarr.json") != wanted:
            path = join(place, "zarr.json")
            yield Finding("metadata", path, "it describes other features than were committed", fix, unit.rows)
            return
    try:
        rows = dataset.rows(start, stop)
    except StorageError as error:
        yield Finding("values", place, str(error), fix, unit.rows)
        return
    if not np.isfinite(rows.data if issparse(rows) else rows).all():
        yield Finding("non-finite", place, f"unit {number} holds NaN or infinity", fix, unit.rows)
    if issparse(rows) and rows.nnz and not 0 <= rows.indices.min() <= rows.indices.max() < info.d:
        yield Finding("columns", place, f"unit {number} has columns beyond {info.d}", fix, unit.rows)


def _value_findings(dataset: Dataset) -> Iterator[Finding]:
    """Yield inconsistencies between stored values, given intact files."""
    info = dataset.info
    fix = "write the dataset again under another key"
    try:
        _, split = check_labels_and_splits(
            dataset.labels(), dataset.split(), info.n_rows, info.m, dataset.label_sets()
        )
        check_rejected(dataset.manifest(), split)
        if split_counts(split) != dict(info.counts):
            what = "splits are not of the recorded sizes"
            yield Finding("counts", join(info.folder, "arrays/split"), what, fix)
        if dataset.stored_class_names() != info.class_names:
            what = "class names are not the committed ones"
            yield Finding("class-names", join(info.folder, "arrays/class_names"), what, fix)
    except StorageError as error:
        yield Finding("values", info.folder, str(error), fix)
