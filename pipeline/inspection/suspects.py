"""All labels of a model's dataset, the most disputed first, and the rows that carry the classifier."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from topline.pipeline.inspection.stored_point import stored_point
from topline.pipeline.options import InspectConfig
from topline.pipeline.prediction.table import table_writer
from topline.pipeline.progress import Progress
from topline.pipeline.rows import StoredModel
from topline.solvers.inspection import LeaveOneOut, boundary_rows, judged_rows, leave_out_each
from topline.storage.datasets import Dataset
from topline.storage.schema import SPLITS

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
#: Rows named for each class that carry its boundary.
CARRIERS = 5
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


@dataclass(frozen=True)
class Inspection:
    """What was found; `right`, `wrong` and `open` count training rows, `others` the rows of other splits.

    `loo_error` bounds the leave-one-out error of the model from below and above.  `boundary` names for each
    class the training rows with the largest dual variables.
    """

    model: str
    dataset: str
    rows: int
    right: int
    wrong: int
    open: int
    others: int
    disputed: int
    loo_error: tuple[float, float]
    passes: int
    seconds: float
    suspects: tuple[Suspect, ...]
    boundary: Mapping[str, tuple[str, ...]]
    output: str | None

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return asdict(self)


@dataclass(frozen=True, eq=False)
class JudgedRows:
    """Rows of a dataset by their places, with the verdicts on their labels."""

    rows: NDArray[np.int64]
    labels: NDArray[np.int32]
    suggested: NDArray[np.int64]
    suspicion: NDArray[np.float64]
    margins: NDArray[np.float64]
    decided: NDArray[Any]

    @classmethod
    def of(
        cls, rows: NDArray[np.int64], labels: NDArray[np.int32], found: LeaveOneOut, scale: float
    ) -> JudgedRows:
        """Return the verdicts of `found` on some rows."""
        suspicion = found.suspicion(scale)
        return cls(rows, labels, found.suggested, suspicion, found.margins, found.decided)

    def worst_first(self) -> JudgedRows:
        """Return the same rows, the most disputed first."""
        order = np.argsort(self.margins, kind="stable")
        return JudgedRows(*(values[order] for values in vars(self).values()))

    def joined(self, other: JudgedRows) -> JudgedRows:
        """Return the rows of both."""
        pairs = zip(vars(self).values(), vars(other).values(), strict=True)
        return JudgedRows(*(np.concatenate(pair) for pair in pairs))


def inspect_model(model_url: str, config: InspectConfig, progress: Progress | None = None) -> Inspection:
    """Judge every labelled row of a model's dataset as a model would that has not seen it.

    Raises `InputError` for a model whose rows cannot be left out one by one, and `InvalidProblemError` for a
    `top_k` that leaves no class.
    """
    started = time.perf_counter()
    stored = StoredModel.open(model_url)
    record = stored.model.record
    point = stored_point(stored)
    taken = int(record.result.get("passes") or 0)
    budget = taken if config.max_passes is None else config.max_passes
    if progress is not None:
        progress.begin("leave rows out", budget, "passes")
    found = leave_out_each(point, config.top_k, budget, None if progress is None else progress.advance)
    dataset = stored.dataset()
    judged = JudgedRows.of(stored.rows("train").indices, point.y, found, found.scale)
    others = _unseen(stored, config.top_k, found.scale)
    for rows in others:
        judged = judged.joined(rows)
    judged = judged.worst_first()
    ids = dataset.sample_ids()
    if config.output is not None:
        with table_writer(config.output, SCHEMA) as write:
            for table in _tables(judged, ids, dataset):
                write(table)
    carriers = boundary_rows(point.A, point.y, record.m, CARRIERS)
    train = stored.rows("train").indices
    return Inspection(
        model=stored.model.url,
        dataset=dataset.info.id,
        rows=record.n,
        right=int(found.right.sum()),
        wrong=int(found.wrong.sum()),
        open=int(found.open.sum()),
        others=len(judged.rows) - record.n,
        disputed=int((judged.margins < 0.0).sum()),
        loo_error=found.error_bounds(),
        passes=found.passes,
        seconds=time.perf_counter() - started,
        suspects=_suspects(judged, ids, dataset, config.shown),
        boundary={
            dataset.class_names[code]: tuple(ids[train[row]] for row in rows.tolist())
            for code, rows in carriers.items()
        },
        output=None if config.output is None else str(config.output),
    )


def _unseen(stored: StoredModel, k: int, scale: float) -> Iterator[JudgedRows]:
    """Yield the rows of the other splits, which the model judges as it is."""
    for split in SPLITS:
        if split in ("train", "rejected"):
            continue
        rows = stored.rows(split)
        for start, stop, X in rows.tiles():
            labels = rows.labels()[start:stop]
            found = judged_rows(stored.scores(X), labels, k)
            yield JudgedRows.of(rows.indices[start:stop], labels, found, scale)


def _tables(judged: JudgedRows, ids: list[str], dataset: Dataset) -> Iterator[pa.Table]:
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


def _suspects(judged: JudgedRows, ids: list[str], dataset: Dataset, most: int) -> tuple[Suspect, ...]:
    """Return the most disputed rows: those that have a better class than their label."""
    disputed = int((judged.margins < 0.0).sum())
    first = next(iter(_tables(judged, ids, dataset))).slice(0, min(most, disputed))
    return tuple(Suspect(**row) for row in first.to_pylist())
