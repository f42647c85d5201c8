"""All labels of a model's dataset, the most disputed first, and the rows that carry the classifier."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from topline.pipeline.inspection.duplicates import CompareRows, Duplicate
from topline.pipeline.inspection.page import SHOWN, Shown, write_page
from topline.pipeline.inspection.stored_point import stored_point
from topline.pipeline.inspection.verdicts import SCHEMA, JudgedRows, Suspect, most_disputed, verdict_tables
from topline.pipeline.options import InspectConfig
from topline.pipeline.prediction.files import table_writer
from topline.pipeline.progress import Progress, begin
from topline.pipeline.rows import StoredModel
from topline.solvers.inspection import (
    DualPoint,
    LeaveOneOut,
    boundary_rows,
    has_second_opinion,
    judged_rows,
    leave_out_each,
    softmax_point,
)
from topline.solvers.typing import Float64Array
from topline.storage.schema import SPLITS

#: Rows named for each class that carry its boundary.
CARRIERS = 5


@dataclass(frozen=True)
class Inspection:
    """What was found; `right`, `wrong` and `open` count training rows, `others` the rows of other splits.

    `second_opinion` says whether a softmax ranked the rows in place of the model, and `disputed` counts those
    that have a better class than their label by who ranked them.  `loo_error` bounds the leave-one-out error
    of the model from below and above, `loo_estimate` is what the margins say of it, the open ones included.
    `boundary` names for each class the training rows with the largest dual variables, `duplicates` rows that
    lie almost on each other and have two labels or lie in two splits; None where the rows are too many to be
    compared.
    """

    model: str
    dataset: str
    rows: int
    right: int
    wrong: int
    open: int
    others: int
    disputed: int
    second_opinion: bool
    loo_error: tuple[float, float]
    loo_estimate: float
    passes: int
    seconds: float
    suspects: tuple[Suspect, ...]
    boundary: Mapping[str, tuple[str, ...]]
    duplicates: tuple[Duplicate, ...] | None
    output: str | None
    page: str | None

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return asdict(self)


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
    begin(progress, "leave rows out", budget, "passes")
    found = leave_out_each(point, config.top_k, budget, None if progress is None else progress.advance)
    dataset = stored.dataset()
    judged = _all_rows(stored, point, found)
    asks = config.second_opinion and has_second_opinion(point)
    if asks:
        begin(progress, "second opinion")
        softmax = softmax_point(point)
        judged = judged.ranked_by(_all_rows(stored, softmax, leave_out_each(softmax, config.top_k, 0)))
    judged = judged.worst_first()
    ids = dataset.sample_ids()
    if config.output is not None:
        with table_writer(config.output, SCHEMA) as write:
            for table in verdict_tables(judged, ids, dataset):
                write(table)
    boundary = _boundary(stored, point, ids)
    compare = CompareRows.of(dataset, ids)
    duplicates = None if compare is None else compare.conflicts(config.duplicate_cosine)
    suspects = most_disputed(judged, ids, dataset, max(config.shown, SHOWN))
    if config.page is not None:
        rows, total = judged.rows[: len(suspects)].tolist(), len(judged.rows)
        shown = (dataset, total, judged.disputed, rows, suspects, duplicates, boundary, compare, asks)
        write_page(config.page, Shown(stored.model.url, *shown))
    return Inspection(
        model=stored.model.url,
        dataset=dataset.info.id,
        rows=record.n,
        right=int(found.right.sum()),
        wrong=int(found.wrong.sum()),
        open=int(found.open.sum()),
        others=len(judged.rows) - record.n,
        disputed=judged.disputed,
        second_opinion=asks,
        loo_error=found.error_bounds(),
        loo_estimate=float((found.margins < 0.0).mean()),
        passes=found.passes,
        seconds=time.perf_counter() - started,
        suspects=suspects[: config.shown],
        boundary=boundary,
        duplicates=duplicates,
        output=None if config.output is None else str(config.output),
        page=None if config.page is None else str(config.page),
    )


def _all_rows(stored: StoredModel, point: DualPoint, found: LeaveOneOut) -> JudgedRows:
    """Return the training rows with what was found, and all others as the weights of the point judge them."""
    judged = JudgedRows.of(stored.rows("train").indices, point.y, found, found.scale)
    for rows in _unseen(stored, point.W, found.k, found.scale):
        judged = judged.joined(rows)
    return judged


def _boundary(stored: StoredModel, point: DualPoint, ids: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """Return the ids of the training rows that carry each class."""
    train, names = stored.rows("train").indices, stored.model.record.class_names
    found = boundary_rows(point.A, point.y, len(names), CARRIERS)
    return {names[code]: tuple(ids[train[row]] for row in rows.tolist()) for code, rows in found.items()}


def _unseen(stored: StoredModel, W: Float64Array, k: int, scale: float) -> Iterator[JudgedRows]:
    """Yield the rows of the other splits, which weights judge that have not seen them."""
    for split in SPLITS:
        if split in ("train", "rejected"):
            continue
        rows = stored.rows(split)
        for start, stop, X in rows.tiles():
            labels = rows.labels()[start:stop]
            found = judged_rows(np.asarray(X @ W, dtype=np.float64), labels, k)
            yield JudgedRows.of(rows.indices[start:stop], labels, found, scale)
