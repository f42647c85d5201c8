"""Predictions of a model for every row of a dataset: the best classes and their scores, row by row.

They lie in a folder of their own, and are there for others once the record predictions/<key>.json names that
folder.  The key stands for model, dataset and number of classes.  They can be deleted at any time.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from storage.array_reader import ArrayReader
from storage.arrays import ArraySpec, packed_group, packed_metadata, packed_shard
from storage.chunking import ChunkPlan
from storage.dataset_checks import check_files
from storage.errors import NotFoundError, StorageError
from storage.files import FileEntry, FileSet, put_file
from storage.findings import Finding
from storage.fingerprint import digest_json, seal, unseal
from storage.records import now, plain
from storage.schema import PREDICTIONS_ENCODING, check_encoding, encoding
from storage.stores import Store
from storage.urls import join

_FOLDER = "predictions"
CLASSES = "classes"
SCORES = "scores"

_RECORD = re.compile(r"^([0-9a-f]{16})\.json$")


def predictions_key(facts: Mapping[str, Any]) -> str:
    """Name of the predictions that follow from `facts`, plain values for JSON."""
    return digest_json(plain(facts))[:16]


@dataclass(frozen=True)
class PredictionsDraft:
    """Predictions that are being written; pickles, so that workers write its shards, one writer each."""

    store: Store
    folder: str
    plan: ChunkPlan
    top_k: int

    @classmethod
    def begin(cls, store: Store, key: str, plan: ChunkPlan, top_k: int) -> PredictionsDraft:
        """Take a new folder for predictions of rows that are cut as `plan` says."""
        whole = ChunkPlan(plan.n_rows, plan.shard_rows, plan.shard_rows)
        return cls(store, join(_FOLDER, f"{key}-{uuid.uuid4().hex[:8]}"), whole, top_k)

    @property
    def _specs(self) -> dict[str, ArraySpec]:
        kinds = {CLASSES: np.dtype(np.int32), SCORES: np.dtype(np.float32)}
        return {name: ArraySpec(self.plan, (self.top_k,), kind) for name, kind in kinds.items()}

    def write_unit(
        self, unit: int, classes: NDArray[np.int32], scores: NDArray[np.float32]
    ) -> list[FileEntry]:
        """Write one unit's best classes, -1 in rows without a prediction, and their scores."""
        arrays = {CLASSES: classes, SCORES: scores}
        files = [packed_shard(name, spec, unit, arrays[name]) for name, spec in self._specs.items()]
        return [put_file(self.store, self.folder, file) for file in files]

    def publish(self, key: str, entries: Sequence[FileEntry], facts: Mapping[str, Any]) -> StoredPredictions:
        """Write the record that makes them visible; the first one of a key wins."""
        group = [packed_metadata(name, spec) for name, spec in self._specs.items()]
        group.append(packed_group("", encoding(PREDICTIONS_ENCODING)))
        files = [*entries, *(put_file(self.store, self.folder, file) for file in group)]
        record = {
            **encoding(PREDICTIONS_ENCODING),
            "key": key,
            "created": now(),
            "folder": self.folder,
            "files": [entry.to_json() for entry in sorted(files)],
            "facts": plain(facts),
        }
        if not self.store.put_if_absent(_record_path(key), seal(record)):
            self.discard()
        return load_predictions(self.store, key)

    def discard(self) -> None:
        """Remove what was written."""
        self.store.delete_tree(self.folder)


class StoredPredictions:
    """Predictions, opened for reading by rows of the dataset."""

    def __init__(self, store: Store, record: Mapping[str, Any]) -> None:
        self.key = str(record["key"])
        self.url = join(store.url, _FOLDER, self.key)
        self.folder = str(record["folder"])
        self.facts: Mapping[str, Any] = record["facts"]
        entries = [FileEntry.from_json(item) for item in record["files"]]
        self.files = FileSet(store, self.folder, entries, f"predictions {self.key}")

    @cached_property
    def classes(self) -> ArrayReader:
        """Best classes (n, k), the best first; -1 in rows without a prediction."""
        return ArrayReader.open(self.files, CLASSES, f"classes of predictions {self.key}")

    @cached_property
    def scores(self) -> ArrayReader:
        """Their scores (n, k); NaN in rows without a prediction."""
        return ArrayReader.open(self.files, SCORES, f"scores of predictions {self.key}")


def find_predictions(store: Store, key: str) -> StoredPredictions | None:
    """The predictions of this key, or None."""
    return load_predictions(store, key) if store.exists(_record_path(key)) else None


def load_predictions(store: Store, key: str) -> StoredPredictions:
    """The predictions of this key; `NotFoundError`, or `IntegrityError` if their record is damaged."""
    path = _record_path(key)
    if not store.exists(path):
        raise NotFoundError(f"{store.url} has no predictions {key}: run topline predict again")
    place = join(store.url, path)
    record = unseal(store.read_bytes(path), place)
    check_encoding(record, PREDICTIONS_ENCODING, place)
    return StoredPredictions(store, record)


def predictions_findings(store: Store, *, deep: bool) -> Iterator[Finding]:
    """What a check of the store finds among the predictions."""
    mend = "delete the record and folder of the predictions, and predict again"
    names = store.list(_FOLDER)
    named = set()
    for key in (match.group(1) for name in names if (match := _RECORD.match(name))):
        try:
            found = load_predictions(store, key)
        except StorageError as error:
            yield Finding("predictions", _record_path(key), str(error), mend)
            continue
        named.add(found.folder)
        yield from check_files(found.files, deep=deep, mend=mend)
    for folder in (join(_FOLDER, name) for name in names if not name.endswith(".json")):
        if folder not in named:
            yield Finding("staging", folder, "it was begun and never finished", "delete it", harmless=True)


def _record_path(key: str) -> str:
    return join(_FOLDER, f"{key}.json")
