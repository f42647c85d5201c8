"""Datasets: features, labels, splits and the manifest of their rows, made visible by one commit.

A `DatasetWriter` (or `CsrDatasetWriter`) stages whole units, from any number of processes, and commits them;
a `Dataset` reads what was committed.  A committed dataset never changes.
"""

from __future__ import annotations

from topline.storage.datasets.contents import MANIFEST_SCHEMA, UnitRef, empty_manifest, with_labels_and_splits
from topline.storage.datasets.dataset import Dataset, check_dataset
from topline.storage.datasets.info import (
    Catalog,
    DatasetInfo,
    find_by_key,
    find_dataset,
    list_datasets,
    read_catalog,
    remove_dataset,
)
from topline.storage.datasets.labels import LabelSetTable, RecordedEdits, RowFacts, digest_of_id
from topline.storage.datasets.writer import CsrDatasetWriter, DatasetWriter, discard_staged, staged
