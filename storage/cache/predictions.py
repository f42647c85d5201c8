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


class PredictionsDraft(Draft):
    """Predictions that are being written: best classes (n, k) in int32 and their scores (n, k) in float32.

    Where there are any, their probabilities (n, k) in float32, and the classes of sets as bits (n, b) in
    uint8, the first class in the highest bit of the first byte.
    """

    kind = _PREDICTIONS

    @classmethod
    def begin(
        cls,
        store: Store,
        key: str,
        plan: ChunkPlan,
        top_k: int,
        *,
        probabilities: bool = False,
        set_classes: int = 0,
    ) -> PredictionsDraft:
        """Begin predictions of rows that are cut as `plan` says, in a new folder.

        `set_classes` is the number of classes that a set may have, 0 without sets.
        """
        whole = ChunkPlan(plan.n_rows, plan.shard_rows, plan.shard_rows)
        kinds: dict[str, tuple[int, type[np.generic]]] = {
            "classes": (top_k, np.int32),
            "scores": (top_k, np.float32),
        }
        if probabilities:
            kinds["probabilities"] = (top_k, np.float32)
        if set_classes:
            kinds["sets"] = (-(-set_classes // 8), np.uint8)
        specs = {name: ArraySpec(whole, (width,), np.dtype(kind)) for name, (width, kind) in kinds.items()}
        return cls.new(store, key, specs)

    @property
    def top_k(self) -> int:
        """Number k of classes of a row."""
        return self.specs["classes"].row_shape[0]

    def write_unit(self, unit: int, arrays: Mapping[str, NDArray[Any]]) -> list[FileEntry]:
        """Write one unit's rows: classes, -1 in rows without a prediction, and what else was begun."""
        return self.write_arrays(unit, arrays)

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

    @cached_property
    def probabilities(self) -> ArrayReader | None:
        """Their probabilities (n, k); None where the model has none."""
        return self._optional("probabilities")

    @cached_property
    def sets(self) -> ArrayReader | None:
        """Bits of the classes in each row's set (n, b); None where no sets were asked for."""
        return self._optional("sets")

    def _optional(self, name: str) -> ArrayReader | None:
        there = any(path.startswith(f"{name}/") for path in self.files.by_path)
        return self.reader(name) if there else None
