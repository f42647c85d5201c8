"""Predictions in files: a table, Parquet or CSV, and a page of pictures, the least certain ones first."""

from __future__ import annotations

import csv
import heapq
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from topline.pipeline.errors import NotStoredError
from topline.pipeline.images import thumbnail_or_reason
from topline.pipeline.options import PredictConfig
from topline.pipeline.pages import csv_url, make_page
from topline.pipeline.readers import harmless, without_controls
from topline.storage.errors import AccessError, DiskFullError, StorageError
from topline.storage.records import now

Key = Literal["sample_id", "path"]
WriteTable = Callable[[pa.Table], None]


def table_schema(key: Key, *, sets: bool) -> pa.Schema:
    """Return the columns of a table of predictions, one row per image or row of a dataset.

    Lists have the best class first and are null in rejected rows; an empty `set` says that the row is like no
    class.  `prediction` is the first class, or all labels joined by semicolons, and `probability` its own.
    """
    columns = [
        (key, pa.string()),
        ("label", pa.string()),
        ("split", pa.string()),
        ("classes", pa.list_(pa.string())),
        ("scores", pa.list_(pa.float32())),
        ("probabilities", pa.list_(pa.float32())),
    ]
    held = [("set", pa.list_(pa.string())), ("set_size", pa.int64())] if sets else []
    plain = [("prediction", pa.string()), ("probability", pa.float32()), ("error", pa.string())]
    return pa.schema([*columns, *held, *plain])


def table_of(schema: pa.Schema, columns: Mapping[str, Sequence[Any]], *, several: bool) -> pa.Table:
    """Return the table of lists and what else is known, with the plain columns that follow from the lists."""
    classes, probabilities = columns["classes"], columns["probabilities"]
    found = {
        "error": [None] * len(classes),
        **columns,
        "prediction": [";".join(row if several else row[:1]) if row else None for row in classes],
        "probability": [None if several or not row else row[0] for row in probabilities],
        "set_size": [None if row is None else len(row) for row in columns.get("set", ())],
    }
    return pa.table({name: found[name] for name in schema.names}, schema=schema)


@contextmanager
def table_writer(path: Path, schema: pa.Schema) -> Iterator[WriteTable]:
    """Write tables to `path`, CSV or Parquet, which appears whole or not at all; raise `DiskFullError`."""
    waiting = path.with_name(f".{path.name}.partial")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with (_csv if path.suffix.lower() == ".csv" else _parquet)(waiting, schema) as write:
            yield write
        waiting.replace(path)
    except StorageError:
        # It is not the file that fails, but what is to be written to it.
        raise
    except OSError as error:
        raise DiskFullError(f"{path} cannot be written: {error.strerror or error}") from error
    finally:
        waiting.unlink(missing_ok=True)


@contextmanager
def _parquet(path: Path, schema: pa.Schema) -> Iterator[WriteTable]:
    with pq.ParquetWriter(path, schema) as writer:
        yield writer.write_table


@contextmanager
def _csv(path: Path, schema: pa.Schema) -> Iterator[WriteTable]:
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(schema.names)

        def write(table: pa.Table) -> None:
            columns = [_cells(column) for column in table.select(schema.names).columns]
            writer.writerows(zip(*columns, strict=True))

        yield write


def _cells(column: pa.ChunkedArray) -> list[str]:
    """Return a column as text: lists as JSON, what is not known as nothing."""
    if not pa.types.is_list(column.type):
        text = "{:.7g}".format if pa.types.is_floating(column.type) else str
        return ["" if value is None else harmless(text(value)) for value in column.to_pylist()]
    lists: list[list[Any] | None] = column.to_pylist()
    if pa.types.is_floating(column.type.value_type):
        # A float32 has seven digits; Python would write what its conversion adds to them.
        lists = [some and [float(f"{value:.7g}") for value in some] for some in lists]
    return ["" if some is None else without_controls(json.dumps(some, ensure_ascii=False)) for some in lists]


#: The result of a prediction: a dataclass with a `model`, and with the places `output` and `page`.
Result = TypeVar("Result", bound=Any)

SHOWN = 200
#: Return RGB pixels (h, w, 3) of the picture of a row of the table, given its place and its values.
ReadPicture = Callable[[int, Mapping[str, Any]], NDArray[np.uint8]]


@dataclass(frozen=True)
class Prediction:
    """One image: its classes with scores, best first, or why it could not be read.

    `label` and `split` are its own, if known.  An empty `set` means that the image is like no class.
    """

    sample: str
    status: str
    labels: tuple[str, ...] = ()
    scores: tuple[float, ...] = ()
    error: str = ""
    label: str | None = None
    split: str | None = None
    probabilities: tuple[float, ...] | None = None
    set: tuple[str, ...] | None = None

    @classmethod
    def of_row(cls, row: Mapping[str, Any], key: str) -> Prediction:
        """Return the prediction in a table's row, named by its column `key`."""
        known = {
            name: None if row.get(name) is None else tuple(row[name]) for name in ("probabilities", "set")
        }
        return cls(
            row[key], "rejected" if row["error"] else "ok", tuple(row["classes"] or ()),
            tuple(row["scores"] or ()), row["error"] or "", row["label"], row["split"], **known,
        )  # fmt: skip

    @property
    def guesses(self) -> list[tuple[str, str]]:
        """The classes with their probabilities, or without these their scores, as text."""
        figures = [f"{p:.1%}" for p in self.probabilities or ()] or [f"{score:.3f}" for score in self.scores]
        return list(zip(self.labels, figures, strict=True))

    @property
    def right(self) -> bool | None:
        """Whether the first class is the label; None where that is not known."""
        return None if self.label is None else self.labels[:1] == (self.label,)


#: A prediction on the page with its picture, or with what is amiss.
Card = tuple[Prediction, str | None, str]


def write_page(
    path: Path,
    config: PredictConfig,
    model: str,
    subject: str,
    tables: Iterable[pa.Table],
    read_picture: ReadPicture,
) -> None:
    """Write the page of the predictions in `tables`, made of `subject`, replacing any earlier one."""
    rows, total, unread = _least_certain(tables)
    cards = [_card(place, row, read_picture) for place, row in rows]
    make_page(
        "predictions.html.j2",
        model=model,
        subject=subject,
        cards=cards,
        coverage=None if config.coverage is None else f"{100.0 * config.coverage:g}%",
        price=config.guess_price,
        per_class=config.per_class,
        never_empty=config.never_empty,
        scored=any(not row["probabilities"] for _, row in rows),
        csv=_cards_csv(cards),
        total=total,
        unread=unread,
        created=now(),
    ).write(path)


def write_files(
    result: Result,
    config: PredictConfig,
    subject: str,
    schema: pa.Schema,
    tables: Callable[[], Iterable[pa.Table]],
    read_picture: ReadPicture,
) -> Result:
    """Write the requested table and page; raise `NotStoredError` with the result if one fails."""
    try:
        if config.output is not None:
            with table_writer(config.output, schema) as write:
                for table in tables():
                    write(table)
            result = replace(result, output=str(config.output))
        if config.page is not None:
            write_page(config.page, config, result.model, subject, tables(), read_picture)
            result = replace(result, page=str(config.page))
    except (AccessError, DiskFullError) as error:
        raise NotStoredError(str(error), result) from error
    return result


def _cards_csv(cards: Sequence[Card]) -> str:
    """Return the predictions that the page shows as CSV in a data URL, a row for each."""
    heads = ("name", "label", "split", "classes", "figures", "set")
    rows = (
        (
            one.sample, one.label, one.split, " | ".join(one.labels),
            " | ".join(figure for _, figure in one.guesses), None if one.set is None else " | ".join(one.set),
        )
        for one, _, _ in cards
    )  # fmt: skip
    return csv_url(heads, rows)


def _least_certain(tables: Iterable[pa.Table]) -> tuple[list[tuple[int, dict[str, Any]]], int, int]:
    """Return the rows to show with their places, the number of all rows, and of those without classes."""
    kept: list[tuple[float, int, dict[str, Any]]] = []
    place = unread = 0
    for table in tables:
        for row in table.to_pylist():
            place += 1
            if row["classes"] is None:
                unread += 1
                continue
            entry = (-certainty(row), -place, row)
            (heapq.heappush if len(kept) < SHOWN else heapq.heappushpop)(kept, entry)
    shown = sorted(kept, key=lambda entry: (-entry[0], -entry[1]))
    return [(-negative - 1, row) for _, negative, row in shown], place, unread


def certainty(row: Mapping[str, Any]) -> float:
    """Return the probability of a row's first class, or without one by how much its score leads."""
    if row["probabilities"]:
        return float(row["probabilities"][0])
    scores = row["scores"]
    return float(scores[0] - scores[1]) if len(scores) > 1 else float(sum(scores))


def _card(place: int, row: Mapping[str, Any], read_picture: ReadPicture) -> Card:
    one = Prediction.of_row(row, "path" if "path" in row else "sample_id")
    return one, *thumbnail_or_reason(lambda: read_picture(place, row))
