"""Which new rows to label next: those of which the model is least sure, spread over their variety."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import astuple, dataclass
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from sklearn.cluster import KMeans
from sklearn.exceptions import ConvergenceWarning

from topline.pipeline.errors import ConfigError, InputError
from topline.pipeline.images import thumbnail_or_reason
from topline.pipeline.inspection.suspects import PICTURE_SIDE
from topline.pipeline.options import SuggestConfig
from topline.pipeline.pages import csv_url, make_page
from topline.pipeline.prediction.answers import NewRows
from topline.pipeline.prediction.files import table_writer
from topline.pipeline.prediction.of_features import NewFeatures, opened_features
from topline.pipeline.prediction.of_images import NewImages
from topline.pipeline.progress import Progress, begin
from topline.pipeline.rows import StoredModel
from topline.solvers.core.rows import stacked
from topline.solvers.inspection import unit_rows
from topline.storage.records import PlainRecord, now

#: The least certain rows that are clustered, as a multiple of the wanted number.
POOL = 10


@dataclass(frozen=True)
class Suggestion:
    """A row to label: its best two classes, the lead of the first, and how many rows it `stands_for`."""

    name: str
    prediction: str
    second: str
    lead: float
    stands_for: int


@dataclass(frozen=True)
class Suggestions(PlainRecord):
    """What to label next of `rows` new rows; `known` are in the model's dataset, `unread` are unreadable."""

    model: str
    rows: int
    known: int
    unread: int
    suggested: tuple[Suggestion, ...]
    output: str | None
    page: str | None


@dataclass(frozen=True, eq=False)
class Uncertain:
    """Rows by number (r,), the least certain first: X (r, d), leads (r,) and the best two classes."""

    places: NDArray[np.int64]
    X: Any
    leads: NDArray[np.float64]
    best: NDArray[np.int64]

    def with_block(self, start: int, block: NewRows, most: int) -> Uncertain:
        """Return the `most` least certain of these rows and those of a new block."""
        facts = zip(block.errors, block.splits, strict=True)
        fresh = np.flatnonzero([error is None and split is None for error, split in facts])
        best = np.argsort(-block.scores[fresh], axis=1, kind="stable")[:, :2]
        first, second = np.take_along_axis(block.scores[fresh], best, axis=1).T
        rows = (
            np.concatenate([self.places, start + fresh]),
            stacked([self.X, block.X[fresh]]),
            np.concatenate([self.leads, first - second]),
            np.concatenate([self.best, best]),
        )
        order = np.argsort(rows[2], kind="stable")[:most]
        return Uncertain(*(part[order] for part in rows))


def spread(X: Any, leads: NDArray[np.float64], count: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the numbers of `count` of the rows X (n, d), and how many rows each stands for.

    Rows are in ascending order of their leads (n,).  They are clustered by direction, and the first of each
    cluster is taken: after Zhdanov, "Diverse mini-batch active learning", 2019.
    """
    if len(leads) <= count:
        return np.arange(len(leads)), np.ones(len(leads), dtype=np.int64)
    weights = 1.0 / (leads + np.median(leads) + np.finfo(np.float32).tiny)
    # There may be fewer kinds of rows than are wanted: of copies one is enough.
    with warnings.catch_warnings(action="ignore", category=ConvergenceWarning):
        clusters = KMeans(count, n_init=1, random_state=0).fit_predict(unit_rows(X), sample_weight=weights)
    _, first, sizes = np.unique(clusters, return_index=True, return_counts=True)
    order = np.argsort(first, kind="stable")
    return first[order], sizes[order]


def suggest_rows(
    model_url: str, config: SuggestConfig, count: int = 50, progress: Progress | None = None
) -> Suggestions:
    """Return which `count` of new images or rows of features to label next, and write the requested files.

    Raises `ConfigError` unless exactly one kind is named, and `InputError` for rows that the model cannot
    take, a model of several labels per row, or if all rows are known.
    """
    if config.images is not None and config.features is not None:
        raise ConfigError("--images and --features are two things to label: give one of them")
    stored = StoredModel.open(model_url)
    if stored.model.record.multilabel:
        raise InputError(
            f"{stored.model.record.id} predicts several labels per row, and suggest asks for one of each:"
            " train on single labels"
        )
    if config.features is None:
        return _suggested(stored, NewImages.of(stored, config), config, count, progress)
    with opened_features(stored, config) as new:
        return _suggested(stored, new.placed(), config, count, progress)


def _suggested(
    stored: StoredModel,
    new: NewImages | NewFeatures,
    config: SuggestConfig,
    count: int,
    progress: Progress | None,
) -> Suggestions:
    record, known, unread = stored.model.record, 0, 0
    kept: Uncertain | None = None
    for start, block in new.blocks(len(new.names), progress):
        unread += sum(error is not None for error in block.errors)
        known += sum(split is not None for split in block.splits)
        none = kept or Uncertain(np.empty(0, int), block.X[:0], np.empty(0), np.empty((0, 2), int))
        kept = none.with_block(start, block, POOL * count)
    if kept is None or not len(kept.places):
        raise InputError(
            f"none of the {len(new.names):,} rows is left to label: {known:,} are in the dataset of"
            f" {record.id}, {unread:,} cannot be read"
        )
    begin(progress, "suggest")
    chosen, sizes = spread(kept.X, kept.leads, count)
    names = record.class_names
    taken = zip(*(part[chosen].tolist() for part in (kept.places, kept.best, kept.leads)), sizes, strict=True)
    suggested = tuple(
        Suggestion(new.names[row], names[first], names[second], lead, int(size))
        for row, (first, second), lead, size in taken
    )
    places = (None if path is None else str(path) for path in (config.output, config.page))
    found = Suggestions(stored.model.url, len(new.names), known, unread, suggested, *places)
    _write(found, config, new, kept.places[chosen].tolist(), sorted(names))
    return found


def _write(
    found: Suggestions,
    config: SuggestConfig,
    new: NewImages | NewFeatures,
    places: Sequence[int],
    names: Sequence[str],
) -> None:
    """Write the table, with empty labels to fill in, and the page."""
    key = "path" if isinstance(new, NewImages) else "sample_id"
    schema = pa.schema(
        [
            (key, pa.string()), ("label", pa.string()), ("prediction", pa.string()), ("second", pa.string()),
            ("lead", pa.float64()), ("stands_for", pa.int64()),
        ]
    )  # fmt: skip
    rows = [(one.name, None, *astuple(one)[1:]) for one in found.suggested]
    if config.output is not None:
        with table_writer(config.output, schema) as write:
            write(pa.table(list(map(list, zip(*rows, strict=True))), schema=schema))
    if config.page is None:
        return
    pictures = [thumbnail_or_reason(partial(new.picture, place), PICTURE_SIDE)[0] for place in places]
    make_page(
        "suggest.html.j2",
        scripts=("correct.js",),
        found=found,
        cards=list(zip(found.suggested, pictures, strict=True)),
        key=key,
        names=names,
        csv=csv_url(schema.names, rows),
        created=now(),
    ).write(config.page)
