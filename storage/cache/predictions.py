"""Predictions of a model for every row of a dataset: the best classes and their scores, row by row.

They lie in a folder of their own, and are there for others once the record predictions/<key>.json names that
folder.  The key stands for model, dataset and number of classes.  They can be deleted at any time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from topline.storage.arrays import ArrayReader, ChunkPlan
from topline.storage.arrays.writer import ArraySpec, packed_group, packed_metadata, packed_shard
from topline.storage.cache.entries import Cache
from topline.storage.schema import PREDICTIONS_ENCODING, encoding
from topline.storage.stores import FileEntry, FileSet, Store
from topline.storage.stores.files import put_file
from topline.storage.stores.urls import join

CLASSES = "classes"
SCORES = "scores"

PREDICTIONS = Cache("predictions", PREDICTIONS_ENCODING, "predictions", "run topline predict again")


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
        return cls(store, PREDICTIONS.new_folder(key), whole, top_k)

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
        PREDICTIONS.publish(self.store, key, self.folder, files, facts)
        return load_predictions(self.store, key)

    def discard(self) -> None:
        """Remove what was written."""
        self.store.delete_tree(self.folder)


class StoredPredictions:
    """Predictions, opened for reading by rows of the dataset."""

    def __init__(self, store: Store, record: Mapping[str, Any]) -> None:
        self.key = str(record["key"])
        self.url = join(store.url, PREDICTIONS.folder, self.key)
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
    return load_predictions(store, key) if store.exists(PREDICTIONS.path(key)) else None


def load_predictions(store: Store, key: str) -> StoredPredictions:
    """The predictions of this key; `NotFoundError`, or `IntegrityError` if their record is damaged."""
    return StoredPredictions(store, PREDICTIONS.read(store, key))
