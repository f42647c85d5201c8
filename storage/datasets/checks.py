"""Checking one dataset: every file against its record, and with `deep` every value against the rules."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from scipy.sparse import issparse

from topline.storage.arrays.writer import ArraySpec
from topline.storage.datasets.dataset import Dataset
from topline.storage.datasets.labels import check_labels_and_splits, split_counts
from topline.storage.datasets.manifest import with_labels_and_splits
from topline.storage.errors import StorageError
from topline.storage.findings import Finding
from topline.storage.schema import FEATURES, FILES_LIST, STAGING
from topline.storage.stores import check_files
from topline.storage.stores.local import PARTIAL
from topline.storage.stores.urls import join

_REWRITE = "restore the file from a copy, or write the dataset again under another key"


def check_dataset(dataset: Dataset, *, deep: bool) -> list[Finding]:
    """Return everything that is wrong with a dataset; values are checked only where all files are sound."""
    found = check_files(dataset.files, deep=deep, fix=_REWRITE)
    found += _foreign_files(dataset)
    if deep and not any(not finding.harmless for finding in found):
        found += _value_findings(dataset)
    return found


def _foreign_files(dataset: Dataset) -> Iterator[Finding]:
    """Yield the files in the dataset's folder that it does not list.

    Killed writers' are reported with the store's.
    """
    known = {FILES_LIST, STAGING, *dataset.files.by_path}
    folder = dataset.info.folder
    if not dataset.store.exists(join(folder, STAGING)):
        what = "it is missing, which nobody needs any more"
        yield Finding("staging", join(folder, STAGING), what, "restore it from a copy", harmless=True)
    for path in dataset.store.walk(folder):
        inside = path[len(folder) + 1 :]
        if inside not in known and not inside.endswith(PARTIAL):
            what = f"the file does not belong to {dataset.files.owner}"
            yield Finding("foreign-file", path, what, "delete it if it is not yours", harmless=True)


def _value_findings(dataset: Dataset) -> Iterator[Finding]:
    """Yield what the stored values say against each other, though every file has its recorded digest."""
    info, manifest_path = dataset.info, join(dataset.info.folder, "manifest.parquet")
    fix = "write the dataset again under another key"
    try:
        sets = dataset.label_sets()
        labels, split = check_labels_and_splits(dataset.labels(), dataset.split(), info.n_rows, info.m, sets)
        shown = info.class_names if sets is None else sets.names(info.class_names)
        table = dataset.manifest()
        if table.num_rows != info.n_rows or table["sample_id"].to_pylist() != dataset.sample_ids():
            yield Finding("manifest", manifest_path, "its rows are not the dataset's sample ids", fix)
        elif not with_labels_and_splits(table, labels, split, shown).equals(table):
            what = "its labels, class names or splits are not the dataset's"
            yield Finding("manifest", manifest_path, what, fix)
        if split_counts(split) != dict(info.counts):
            yield Finding(
                "counts", join(info.folder, "arrays/split"), "splits are not of the recorded sizes", fix
            )
        if dataset.stored_class_names() != info.class_names:
            what = "class names are not the committed ones"
            yield Finding("class-names", join(info.folder, "arrays/class_names"), what, fix)
        yield from _metadata_findings(dataset, fix)
        yield from _unit_findings(dataset, fix)
    except StorageError as error:
        yield Finding("values", info.folder, str(error), fix)


def _metadata_findings(dataset: Dataset, fix: str) -> Iterator[Finding]:
    info = dataset.info
    if info.layout == "dense":
        wanted = ArraySpec(info.plan, (info.d,), np.dtype(info.dtype)).metadata()
        if dataset.files.read(join(FEATURES, "zarr.json")) != wanted:
            path = join(info.folder, FEATURES, "zarr.json")
            yield Finding("metadata", path, "it describes other features than were committed", fix)


def _unit_findings(dataset: Dataset, fix: str) -> Iterator[Finding]:
    """Yield the units with values that are not finite, or columns out of range."""
    for unit in range(dataset.plan.units):
        span = dataset.plan.bounds(unit)
        rows = dataset.rows(span.start, span.stop)
        values = rows.data if issparse(rows) else rows
        place = join(dataset.info.folder, FEATURES)
        if not np.isfinite(values).all():
            yield Finding(
                "non-finite", place, f"unit {unit} holds NaN or infinity", fix, (span.start, span.stop)
            )
        if issparse(rows) and rows.nnz and not 0 <= rows.indices.min() <= rows.indices.max() < dataset.info.d:
            what = f"unit {unit} has columns beyond {dataset.info.d}"
            yield Finding("columns", place, what, fix, (span.start, span.stop))
