"""Predictions of a model for every row of a dataset: the best classes and their scores, row by row.

The key stands for model, dataset and number of classes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from topline.storage.arrays import ArrayReader, ChunkPlan
from topline.storage.arrays.writer import ArraySpec
from topline.storage.cache.entries import CacheKind, Draft, StoredEntry
from topline.storage.schema import PREDICTIONS_ENCODING
from topline.storage.stores import FileEntry, Store

_PREDICTIONS = CacheKind("predictions", PREDICTIONS_ENCODING, "predictions", "run topline predict again")
_TYPES = {"classes": np.dtype(np.int32), "scores": np.dtype(np.float32)}


class PredictionsDraft(Draft):
    """Predictions that are being written: best classes (n, k) in int32 and their scores (n, k) in float32."""

    kind = _PREDICTIONS

    @classmethod
    def begin(cls, store: Store, key: str, plan: ChunkPlan, top_k: int) -> PredictionsDraft:
        """Begin predictions of rows that are cut as `plan` says, in a new folder."""
        whole = ChunkPlan(plan.n_rows, plan.shard_rows, plan.shard_rows)
        return cls.new(
            store, key, {name: ArraySpec(whole, (top_k,), dtype) for name, dtype in _TYPES.items()}
        )

    @property
    def top_k(self) -> int:
        """Number k of classes of a row."""
        return self.specs["classes"].row_shape[0]

    def write_unit(
        self, unit: int, classes: NDArray[np.int32], scores: NDArray[np.float32]
    ) -> list[FileEntry]:
        """Write one unit's best classes (r, k), -1 in rows without a prediction, and their scores (r, k)."""
        return self.write_arrays(unit, {"classes": classes, "scores": scores})

    def publish(self, key: str, entries: Sequence[FileEntry], facts: Mapping[str, Any]) -> StoredPredictions:
        """Write the record that makes them visible; return the first ones of the key."""
        self.publish_files(key, entries, facts)
        return StoredPredictions.load(self.store, key)


class StoredPredictions(StoredEntry):
    """Predictions, read by rows of the dataset."""

    kind = _PREDICTIONS

    @cached_property
    def classes(self) -> ArrayReader:
        """Best classes (n, k), the best first; -1 in rows without a prediction."""
        return self.reader("classes")

    @cached_property
    def scores(self) -> ArrayReader:
        """Their scores (n, k); NaN in rows without a prediction."""
        return self.reader("scores")
