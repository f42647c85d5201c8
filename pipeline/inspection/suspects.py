"""All labels of a model's dataset, the most disputed first, and the rows that carry the classifier."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from topline.pipeline.errors import InputError
from topline.pipeline.images import SourceImages, thumbnail_or_reason
from topline.pipeline.inspection.duplicates import CompareRows, Duplicate, Neighbour, off_topic
from topline.pipeline.options import InspectConfig
from topline.pipeline.pages import Column, Table, count, csv_url, make_page, percent
from topline.pipeline.prediction.files import table_writer
from topline.pipeline.progress import Progress, begin
from topline.pipeline.rows import CachedRows, StoredModel, TrainingRows
from topline.pipeline.sweep.plan import stratified_folds
from topline.pipeline.training import spec_of_model
from topline.solvers.calibration import share_interval
from topline.solvers.inspection import (
    DualPoint,
    LeaveOneOut,
    boundary_rows,
    has_second_opinion,
    judged_rows,
    leave_out_each,
    margins_of,
    softmax_point,
    trained_point,
)
from topline.solvers.losses import loss_from_dict
from topline.solvers.typing import Float64Array
from topline.storage.datasets import Dataset
from topline.storage.records import PlainRecord, now
from topline.storage.schema import SPLIT_OF, SPLITS

_TABLE_ROWS = 1 << 16


@dataclass(frozen=True)
class Suspect:
    """A row of the table; `decided` is right, wrong or open, `likeness` the cosine with a class mean."""

    sample_id: str
    label: str
    suggested: str
    suspicion: float
    loo_margin: float
    decided: str
    split: str
    likeness: float | None


SCHEMA = pa.schema(
    [(one.name, pa.string() if one.type == "str" else pa.float64()) for one in fields(Suspect)]
)


@dataclass(frozen=True)
class ClassGain:
    """A class that more rows would help: shares of wrong rows in training and held out, with interval."""

    name: str
    rows: int
    seen: float
    held_out: float
    least: float
    most: float


@dataclass(frozen=True, eq=False)
class JudgedRows:
    """Rows of a dataset by number, with the model's verdicts on their labels.

    `standing` ranks them: the margin, or 1/2 less a suspicion that a second opinion shares, and then
    `suggested` is its.  The only row of a class has suspicion 1/2 and standing 0: no other row speaks for or
    against it.
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
        cls,
        rows: NDArray[np.int64],
        labels: NDArray[np.int32],
        found: LeaveOneOut,
        scale: float,
        alone: NDArray[np.bool_] | bool = False,
    ) -> JudgedRows:
        """Return the verdicts of `found` on some rows; those `alone` are the only ones of their class."""
        suspicion = np.where(alone, 0.5, found.suspicion(scale))
        standing = np.where(alone, 0.0, found.margins)
        return cls(rows, labels, found.suggested, suspicion, standing, found.margins, found.decided)

    @property
    def disputed(self) -> int:
        """Number of rows with a better class than their label."""
        return int((self.standing < 0.0).sum())

    def worst_first(self) -> JudgedRows:
        """Return the rows, the most disputed first."""
        order = np.argsort(self.standing, kind="stable")
        return JudgedRows(*(values[order] for values in vars(self).values()))

    def ranked_with(self, other: JudgedRows) -> JudgedRows:
        """Return the same rows, ranked by the mean of both suspicions."""
        mean = 0.5 * (self.suspicion + other.suspicion)
        return replace(self, suggested=other.suggested, suspicion=mean, standing=0.5 - mean)

    def joined(self, other: JudgedRows) -> JudgedRows:
        """Return the rows of both."""
        pairs = zip(vars(self).values(), vars(other).values(), strict=True)
        return JudgedRows(*(np.concatenate(pair) for pair in pairs))


@dataclass(frozen=True, eq=False)
class Verdicts:
    """Judged rows of a dataset and further facts; `likeness` (n,) is that of all rows, if compared."""

    judged: JudgedRows
    dataset: Dataset
    ids: Sequence[str]
    likeness: NDArray[np.float64] | None

    def table(self, places: NDArray[np.int64]) -> pa.Table:
        """Return some of the judged rows as a table of `SCHEMA`."""
        judged, names = self.judged, np.array(self.dataset.class_names, dtype=object)
        rows = judged.rows[places]
        near = np.full(len(rows), None) if self.likeness is None else self.likeness[rows]
        columns = {
            "sample_id": [self.ids[row] for row in rows.tolist()],
            "label": names[judged.labels[places]].tolist(),
            "suggested": names[judged.suggested[places]].tolist(),
            "suspicion": judged.suspicion[places],
            "loo_margin": judged.margins[places],
            "decided": judged.decided[places].tolist(),
            "split": [SPLIT_OF[code] for code in self.dataset.split()[rows].tolist()],
            "likeness": near.tolist(),
        }
        return pa.table(columns, schema=SCHEMA)

    def suspects(self, places: NDArray[np.int64]) -> tuple[Suspect, ...]:
        """Return some of the judged rows as records."""
        return tuple(Suspect(**row) for row in self.table(places).to_pylist())

    def write(self, path: Path) -> None:
        """Write all judged rows, in their order."""
        with table_writer(path, SCHEMA) as write:
            for low in range(0, len(self.judged.rows), _TABLE_ROWS):
                write(self.table(np.arange(low, min(low + _TABLE_ROWS, len(self.judged.rows)))))

    def disputed_by_split(self) -> dict[str, int]:
        """Return the number of disputed rows in each split."""
        disputed = self.judged.rows[: self.judged.disputed]
        return dict(Counter(SPLIT_OF[code] for code in sorted(self.dataset.split()[disputed].tolist())))


#: Numbers of cards for disputed labels and off-topic rows, and of neighbours on each.
SHOWN, OFF_TOPIC_SHOWN, NEAR = 60, 24, 3
#: Pixels of the longer side of a card's picture, and of its neighbours' pictures.
PICTURE_SIDE, NEAR_SIDE = 320, 96
#: Smallest certain gain of a class that is said to need more rows.
LEAST_GAIN = 0.02
#: Boundary rows named per class.
CARRIERS = 5


@dataclass(frozen=True)
class Inspection(PlainRecord):
    """The findings; `right`, `wrong` and `open` count training rows, `others` rows of other splits.

    `disputed` counts rows with a better class than their label, in the ranking with a `second_opinion` if
    asked, and `disputed_though_right` those that the model proves right.  `loo_error` bounds the leave-one-
    out error; `loo_estimate` is that of `folds` held-out folds, or None.  `boundary` names each class's rows
    with the largest dual variables; `duplicates` and `off_topic` rows are None if there are too many to
    compare.
    """

    model: str
    dataset: str
    rows: int
    right: int
    wrong: int
    open: int
    others: int
    disputed: int
    disputed_by_split: Mapping[str, int]
    disputed_though_right: int
    second_opinion: bool
    loo_error: tuple[float, float]
    loo_estimate: float | None
    loo_interval: tuple[float, float] | None
    folds: int
    passes: int
    seconds: float
    suspects: tuple[Suspect, ...]
    boundary: Mapping[str, tuple[str, ...]]
    duplicates: tuple[Duplicate, ...] | None
    off_topic: tuple[Suspect, ...] | None
    classes: tuple[ClassGain, ...]
    output: str | None
    page: str | None


def inspect_model(model_url: str, config: InspectConfig, progress: Progress | None = None) -> Inspection:
    """Judge each row's label as a model without that row would; raise `InputError` if none can be."""
    started = time.perf_counter()
    stored = StoredModel.open(model_url)
    record = stored.model.record
    point = stored_point(stored)
    taken = int(record.result.get("passes") or 0)
    budget = taken if config.max_passes is None else config.max_passes
    begin(progress, "leave rows out", budget, "passes")
    watch = None if progress is None else progress.advance
    groups, fold = stored.rows("train").groups, None
    if groups is not None and config.folds:
        fold = stratified_folds(point.y, config.folds, 0, groups)
    found = leave_out_each(point, config.top_k, budget, watch=watch, folds=config.folds, fold=fold)
    dataset = stored.dataset()
    judged = _all_rows(stored, point, found)
    asks = config.second_opinion and has_second_opinion(point)
    if asks:
        begin(progress, "second opinion")
        softmax = softmax_point(point)
        judged = judged.ranked_with(_all_rows(stored, softmax, leave_out_each(softmax, config.top_k, 0)))
    judged, ids = judged.worst_first(), dataset.sample_ids()
    compare = CompareRows.of(dataset, ids)
    verdicts = Verdicts(judged, dataset, ids, None if compare is None else compare.likeness())
    if config.output is not None:
        verdicts.write(config.output)
    shown = np.arange(min(judged.disputed, max(config.shown, SHOWN)))
    far = None if verdicts.likeness is None else off_topic(verdicts.likeness[judged.rows])
    inspection = Inspection(
        model=stored.model.url,
        dataset=dataset.info.id,
        rows=record.n,
        right=int(found.right.sum()),
        wrong=int(found.wrong.sum()),
        open=int(found.open.sum()),
        others=len(judged.rows) - record.n,
        disputed=judged.disputed,
        disputed_by_split=verdicts.disputed_by_split(),
        disputed_though_right=int((judged.decided[: judged.disputed] == "right").sum()),
        second_opinion=asks,
        loo_error=found.error_bounds(),
        loo_estimate=found.error,
        loo_interval=None if found.error is None else share_interval(found.error, record.n),
        folds=found.folds,
        passes=found.passes,
        seconds=time.perf_counter() - started,
        suspects=verdicts.suspects(shown[: config.shown]),
        boundary=_boundary(stored, point, ids),
        duplicates=None if compare is None else compare.conflicts(config.duplicate_cosine),
        off_topic=None if far is None else verdicts.suspects(far),
        classes=tuple(_gains(stored, point, found)) if found.folds else (),
        output=None if config.output is None else str(config.output),
        page=None if config.page is None else str(config.page),
    )
    if config.page is not None:
        _write_page(config.page, inspection, verdicts, compare, (shown[:SHOWN], far))
    return inspection


def _alone(train: TrainingRows, y: NDArray[Any]) -> NDArray[np.bool_]:
    """Return which rows are with all others of their class in one row or group, and so in one fold."""
    units = np.arange(len(y)) if train.groups is None else train.groups
    classes, _ = np.unique(np.stack([y, units]), axis=1)
    alone: NDArray[np.bool_] = (np.bincount(classes) == 1)[y]
    return alone


def _gains(stored: StoredModel, point: DualPoint, found: LeaveOneOut) -> list[ClassGain]:
    """Return the classes with significantly more errors on held-out folds than in training."""
    seen, held_out = margins_of(point.scores, point.y, found.k)[0] <= 0.0, found.margins <= 0.0
    gains, judged = [], ~_alone(stored.rows("train"), point.y)
    for code, name in enumerate(stored.model.record.class_names):
        own = judged & (point.y == code)
        if own.any():
            share = float(held_out[own].mean())
            least, most = share_interval(share, int(own.sum()))
            gains.append(ClassGain(name, int(own.sum()), float(seen[own].mean()), share, least, most))
    sure = (one for one in gains if one.least - one.seen > LEAST_GAIN)
    return sorted(sure, key=lambda one: one.seen - one.least)


def _all_rows(stored: StoredModel, point: DualPoint, found: LeaveOneOut) -> JudgedRows:
    """Return the training rows with their findings, and all others as the point's weights judge them."""
    train = stored.rows("train")
    judged = JudgedRows.of(train.indices, point.y, found, found.scale, _alone(train, point.y))
    for rows in _unseen(stored, point.W, found.k, found.scale):
        judged = judged.joined(rows)
    return judged


def _boundary(stored: StoredModel, point: DualPoint, ids: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """Return the ids of the training rows that carry each class."""
    train, names = stored.rows("train").indices, stored.model.record.class_names
    found = boundary_rows(point.A, point.y, len(names), CARRIERS)
    return {names[code]: tuple(ids[train[row]] for row in rows.tolist()) for code, rows in found.items()}


def _unseen(stored: StoredModel, W: Float64Array, k: int, scale: float) -> Iterator[JudgedRows]:
    """Yield the rows of the other splits, judged by weights that have not seen them."""
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
    """A row to correct, with its nearest rows and their pictures; `note` says why it has no picture."""

    suspect: Suspect
    picture: str | None
    note: str
    neighbours: tuple[tuple[Neighbour, str | None], ...]


def _cards(verdicts: Verdicts, places: NDArray[np.int64], compare: CompareRows | None) -> list[Card]:
    """Return the cards of judged rows, with pictures of images that are still there."""
    dataset, rows = verdicts.dataset, verdicts.judged.rows[places].tolist()
    manifest, source = dataset.manifest(), SourceImages(dataset.info.features)

    def picture(row: int, side: int) -> tuple[str | None, str]:
        return thumbnail_or_reason(lambda: source(manifest.slice(row, 1).to_pylist()[0]), side)

    near = [()] * len(rows) if compare is None else compare.near(rows, NEAR)
    beside = [tuple((one, picture(one.row, NEAR_SIDE)[0]) for one in some) for some in near]
    return [
        Card(suspect, *picture(row, PICTURE_SIDE), neighbours)
        for row, suspect, neighbours in zip(rows, verdicts.suspects(places), beside, strict=True)
    ]


def _write_page(
    path: Path,
    found: Inspection,
    verdicts: Verdicts,
    compare: CompareRows | None,
    places: tuple[NDArray[np.int64], NDArray[np.int64] | None],
) -> None:
    """Write the page on which to correct labels, replacing any earlier one."""
    suspects, far = places
    make_page(
        "inspect.html.j2",
        scripts=("correct.js",),
        found=found,
        names=sorted(verdicts.dataset.class_names),
        cards=_cards(verdicts, suspects, compare),
        far=[] if far is None else _cards(verdicts, far[:OFF_TOPIC_SHOWN], compare),
        csv=csv_url(SCHEMA.names, [astuple(one) for one in verdicts.suspects(suspects)]),
        duplicates=_duplicates(found.duplicates),
        classes=_class_table(found),
        boundary=Table.of(
            "rows-that-carry-a-class",
            [Column("class"), Column("rows", "words")],
            [(name, ", ".join(rows)) for name, rows in found.boundary.items()],
        ),
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


def _class_table(found: Inspection) -> Table:
    columns = [
        Column("class"), Column("training rows", "n", count), Column("wrong in training", "n", percent),
        Column("wrong on held-out folds", "n", percent), Column("at least", "n", percent),
        Column("at most", "n", percent),
    ]  # fmt: skip
    empty = "No class is wrong on held-out rows more often than in training, beyond chance."
    return Table.of(
        "classes-that-more-rows-would-help",
        columns,
        [astuple(one) for one in found.classes],
        empty=empty if found.folds else "Not measured: --folds 10 holds rows out.",
    )


#: Bytes of rows kept in memory; each pass reads the rest again.
KEPT_BYTES = 2 << 30


def stored_point(stored: StoredModel) -> DualPoint:
    """Return the dual point of a model; raise `InputError` if its rows cannot be left out."""
    record = stored.model.record
    _refuse(stored)
    rows = CachedRows(TrainingRows(stored.dataset(), "train", stored.transforms), KEPT_BYTES)
    problem = spec_of_model(record).problem(record.n, rows.shape[1], record.m)
    labels = rows.labels().astype(np.int32)
    weights = rows.weights(record.class_weights)
    A = np.asarray(stored.model.duals(0, record.n)) if stored.model.has_duals else None
    return trained_point(problem, rows, labels, stored.W, A, weights)


def _refuse(stored: StoredModel) -> None:
    record = stored.model.record
    if record.multilabel:
        raise InputError(
            f"{record.id} predicts several labels per row, and inspect judges one label each: train on single"
            " labels"
        )
    if record.kernel is not None:
        raise InputError(
            f"{record.id} has the kernel {record.kernel.get('name')}, and inspect works on weights: train"
            " with the transform nystroem or fourier in its place"
        )
    if record.config.get("average_top") is not None:
        raise InputError(
            f"{record.id} minimises its largest losses, and inspect bounds what a row does to the mean of"
            " all: train without --average-top"
        )
    if not stored.W.any():
        raise InputError(
            f"W of {record.id} is 0, so it prefers no class for any row: use a larger --C, or features that"
            " tell the classes apart"
        )
    form = loss_from_dict(record.loss).form(record.m)
    if not form.convex:
        raise InputError(
            f"the loss {record.loss.get('name')} of {record.id} is not convex, so nothing bounds what a row"
            " does: train with another"
        )
    if not form.smooth and not stored.model.has_duals:
        raise InputError(
            f"the dual variables of {record.id} were not stored: train it with --keep-duals and a method that"
            " has them, such as dual_ascent"
        )
