"""Stored predictions as a table for other programs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from topline.storage.cache import StoredPredictions
from topline.storage.datasets import Dataset
from topline.storage.errors import DiskFullError


def write_table(found: StoredPredictions, dataset: Dataset, path: Path) -> None:
    """Write predictions as a Parquet file: sample_id, and lists of class names and scores, the best first.

    A rejected row has none, and one without a label above the threshold has empty lists.
    """
    names = np.array([*found.facts["class_names"], None], dtype=object)
    ids, labels = dataset.sample_ids(), dataset.labels()
    kinds = [
        ("sample_id", pa.string()),
        ("classes", pa.list_(pa.string())),
        ("scores", pa.list_(pa.float32())),
    ]
    waiting = path.with_name(f".{path.name}.partial")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with pq.ParquetWriter(waiting, pa.schema(kinds)) as writer:
            for start, stop, classes, scores in _row_runs(found, dataset):
                known = labels[start:stop] >= 0
                columns = {
                    "sample_id": ids[start:stop],
                    "classes": _predicted(names[classes], classes, known),
                    "scores": _predicted(scores, classes, known),
                }
                writer.write_table(pa.table(columns, schema=pa.schema(kinds)))
        waiting.replace(path)
    except OSError as error:
        waiting.unlink(missing_ok=True)
        raise DiskFullError(f"{path} cannot be written: {error.strerror or error}") from error


def _row_runs(
    found: StoredPredictions, dataset: Dataset
) -> Iterator[tuple[int, int, NDArray[Any], NDArray[Any]]]:
    for unit in range(dataset.plan.units):
        span = dataset.plan.bounds(unit)
        yield (
            span.start,
            span.stop,
            found.classes.rows(span.start, span.stop),
            found.scores.rows(span.start, span.stop),
        )


def _predicted(values: NDArray[Any], classes: NDArray[Any], known: NDArray[np.bool_]) -> list[Any]:
    """Values of the classes that are predicted; None for a row that was rejected."""
    return [
        row[kept].tolist() if there else None
        for row, kept, there in zip(values, classes >= 0, known.tolist(), strict=True)
    ]
