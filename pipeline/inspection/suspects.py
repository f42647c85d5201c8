"""All labels of a model's dataset, the most disputed first, and the rows that carry the classifier."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, astuple, dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from topline.pipeline.images import SourceImages, thumbnail_or_reason
from topline.pipeline.inspection.duplicates import CompareRows, Duplicate, Neighbour
from topline.pipeline.inspection.stored_point import stored_point
from topline.pipeline.options import InspectConfig
from topline.pipeline.pages import Column, Table, csv_url, make_page
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
from topline.storage.datasets import Dataset
from topline.storage.records import now
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


#: Labels in dispute that have a card, and neighbours on it.
SHOWN, NEAR = 60, 3


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
    inspection = Inspection(
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
    if config.page is not None:
        cards = _cards(dataset, judged.rows[:SHOWN].tolist(), suspects[:SHOWN], compare)
        _write_page(config.page, inspection, suspects, cards)
    return inspection


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


@dataclass(frozen=True)
class Card:
    """A label in dispute, with its nearest rows and their pictures; `note` says why it has no picture."""

    suspect: Suspect
    picture: str | None
    note: str
    neighbours: tuple[tuple[Neighbour, str | None], ...]


def _cards(
    dataset: Dataset, rows: Sequence[int], suspects: Sequence[Suspect], compare: CompareRows | None
) -> list[Card]:
    """Return the cards of rows in dispute, with pictures as far as the images are where they were."""
    manifest, source = dataset.manifest(), SourceImages(dataset.info.features)

    def picture(row: int) -> tuple[str | None, str]:
        return thumbnail_or_reason(lambda: source(manifest.slice(row, 1).to_pylist()[0]))

    near = [()] * len(suspects) if compare is None else compare.near(rows[: len(suspects)], NEAR)
    return [
        Card(suspect, *picture(row), tuple((one, picture(one.row)[0]) for one in neighbours))
        for row, suspect, neighbours in zip(rows, suspects, near, strict=False)
    ]


def _write_page(path: Path, found: Inspection, suspects: Sequence[Suspect], cards: Sequence[Card]) -> None:
    """Write the page of labels in dispute; what is there is replaced."""
    make_page(
        "inspect.html.j2",
        model=found.model,
        dataset=found.dataset,
        total=found.rows + found.others,
        disputed=found.disputed,
        second_opinion=found.second_opinion,
        cards=cards,
        csv=csv_url([field.name for field in fields(Suspect)], [astuple(one) for one in suspects]),
        duplicates=_duplicates(found.duplicates),
        boundary=_boundary_table(found.boundary),
        created=now(),
    ).write(path)


def _duplicates(found: Sequence[Duplicate] | None) -> Table:
    columns = [Column("row"), Column("label"), Column("split")]
    empty = "No two rows that lie almost on each other have two labels or lie in two splits."
    return Table.of(
        "near-duplicates",
        [*columns, *columns, Column("cosine", "n", lambda value: f"{value:.5f}")],
        [astuple(one) for one in found or ()],
        empty=empty if found is not None else "Not looked for: there are too many rows to compare.",
    )


def _boundary_table(found: Mapping[str, Sequence[str]]) -> Table:
    rows = [(name, ", ".join(rows)) for name, rows in found.items()]
    return Table.of("rows-that-carry-a-class", [Column("class"), Column("rows")], rows)
