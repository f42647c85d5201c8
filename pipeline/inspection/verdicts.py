"""Verdicts on the labels of a dataset, as rows of a table."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from topline.solvers.inspection import LeaveOneOut
from topline.storage.datasets import Dataset

#: Columns of the table; `decided` is right, wrong or open.
SCHEMA = pa.schema(
    [
        ("sample_id", pa.string()),
        ("label", pa.string()),
        ("suggested", pa.string()),
        ("suspicion", pa.float64()),
        ("loo_margin", pa.float64()),
        ("decided", pa.string()),
    ]
)
_TABLE_ROWS = 1 << 16


@dataclass(frozen=True)
class Suspect:
    """One row of the table."""

    sample_id: str
    label: str
    suggested: str
    suspicion: float
    loo_margin: float
    decided: str


@dataclass(frozen=True, eq=False)
class JudgedRows:
    """Rows of a dataset by their places, with the verdicts on their labels.

    `standing` is the margin by which rows are ranked, of the model itself or of a second opinion; `suggested`
    and `suspicion` follow from it.  `margins` and `decided` are the model's.
    """

    rows: NDArray[np.int64]
    labels: NDArray[np.int32]
    suggested: NDArray[np.int64]
    suspicion: NDArray[np.float64]
    standing: NDArray[np.float64]
    margins: NDArray[np.float64]
    decided: NDArray[Any]

    @classmethod
    def of(
        cls, rows: NDArray[np.int64], labels: NDArray[np.int32], found: LeaveOneOut, scale: float
    ) -> JudgedRows:
        """Return the verdicts of `found` on some rows."""
        suspicion = found.suspicion(scale)
        return cls(rows, labels, found.suggested, suspicion, found.margins, found.margins, found.decided)

    @property
    def disputed(self) -> int:
        """How many rows have a better class than their label."""
        return int((self.standing < 0.0).sum())

    def worst_first(self) -> JudgedRows:
        """Return the same rows, the most disputed first."""
        order = np.argsort(self.standing, kind="stable")
        return JudgedRows(*(values[order] for values in vars(self).values()))

    def ranked_by(self, other: JudgedRows) -> JudgedRows:
        """Return the same rows, ranked as `other` ranks them."""
        return replace(self, suggested=other.suggested, suspicion=other.suspicion, standing=other.standing)

    def joined(self, other: JudgedRows) -> JudgedRows:
        """Return the rows of both."""
        pairs = zip(vars(self).values(), vars(other).values(), strict=True)
        return JudgedRows(*(np.concatenate(pair) for pair in pairs))


def verdict_tables(judged: JudgedRows, ids: list[str], dataset: Dataset) -> Iterator[pa.Table]:
    """Yield the verdicts as tables of `SCHEMA`, in their order."""
    names = np.array(dataset.class_names, dtype=object)
    for low in range(0, len(judged.rows), _TABLE_ROWS):
        part = slice(low, low + _TABLE_ROWS)
        columns = {
            "sample_id": [ids[row] for row in judged.rows[part].tolist()],
            "label": names[judged.labels[part]].tolist(),
            "suggested": names[judged.suggested[part]].tolist(),
            "suspicion": judged.suspicion[part],
            "loo_margin": judged.margins[part],
            "decided": judged.decided[part].tolist(),
        }
        yield pa.table(columns, schema=SCHEMA)


def most_disputed(judged: JudgedRows, ids: list[str], dataset: Dataset, most: int) -> tuple[Suspect, ...]:
    """Return the most disputed rows: those that have a better class than their label."""
    first = next(iter(verdict_tables(judged, ids, dataset))).slice(0, min(most, judged.disputed))
    return tuple(Suspect(**row) for row in first.to_pylist())
