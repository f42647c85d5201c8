"""Checks of one dataset: every file against its record, and with `deep` the values too."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from scipy.sparse import issparse

from topline.storage.datasets.contents import UnitRef, unit_table
from topline.storage.datasets.dataset import Dataset
from topline.storage.datasets.labels import check_labels_and_splits, check_rejected, split_counts
from topline.storage.datasets.writer import dense_spec
from topline.storage.errors import StorageError
from topline.storage.findings import Finding
from topline.storage.schema import FILES_LIST, MARKS, STAGING, UNITS_LIST, manifest_path, unit_folder
from topline.storage.stores import check_files
from topline.storage.stores.local import PARTIAL
from topline.storage.stores.numbered_folders import TOMBSTONE
from topline.storage.stores.urls import join

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
