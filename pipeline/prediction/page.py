"""The page of predictions: pictures with their best classes, the least certain first."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from topline.pipeline.errors import NotStoredError
from topline.pipeline.images import thumbnail_or_reason
from topline.pipeline.options import PredictConfig
from topline.pipeline.pages import csv_url, make_page
from topline.pipeline.prediction.table import table_writer
from topline.storage.errors import AccessError, DiskFullError
from topline.storage.records import now

#: The result of a prediction: a dataclass with a `model`, and with the places `output` and `page`.
Result = TypeVar("Result", bound=Any)

SHOWN = 200
STYLE = """
.cards { display: grid; grid-template-columns: repeat(auto-fill, minmax(230px, 1fr)); gap: 14px; }
.card { border: 1px solid var(--rule); border-radius: 8px; padding: 10px 12px; min-width: 0; }
.card img, .card .gone { display: flex; width: 96px; height: 96px; object-fit: contain;
  background: var(--track); border-radius: 6px; margin-bottom: 6px; }
.card h3 { font-size: 13px; font-weight: 500; margin: 0 0 4px; }
.card td, .card th { padding: 2px 8px 2px 0; font-size: 13px; }
.card p { margin: 6px 0 0; font-size: 13px; }
"""

#: Return RGB pixels (h, w, 3) of the picture of a row of the table, given its place and its values.
ReadPicture = Callable[[int, Mapping[str, Any]], NDArray[np.uint8]]


@dataclass(frozen=True)
class Card:
    """One prediction on the page; `right` is None where the label is not known, `note` says what is amiss."""

    name: str
    label: str | None
    split: str | None
    guesses: tuple[tuple[str, str], ...]
    right: bool | None
    picture: str | None
    note: str = ""
    members: tuple[str, ...] | None = None


def write_page(
    path: Path,
    config: PredictConfig,
    model: str,
    subject: str,
    tables: Iterable[pa.Table],
    read_picture: ReadPicture,
) -> None:
    """Write the page of the predictions in `tables` of the model `model`; what is there is replaced.

    `config` asked for them, and `subject` says in words what was predicted.
    """
    rows, total, unread = _least_certain(tables)
    cards = [_card(place, row, read_picture) for place, row in rows]
    make_page(
        "predictions.html.j2",
        style=STYLE,
        model=model,
        subject=subject,
        cards=cards,
        coverage=None if config.coverage is None else f"{100.0 * config.coverage:g}%",
        per_class=config.per_class,
        scored=any(not row["probabilities"] for _, row in rows),
        csv=_csv(cards),
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
    """Write the table and the page that are asked for, and return the result with their places.

    `NotStoredError` with the result where one of them cannot be written.
    """
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


def _csv(cards: Sequence[Card]) -> str:
    """Return the predictions that the page shows as CSV in a data URL, a row for each."""
    heads = ("name", "label", "split", "classes", "figures", "set")
    rows = (
        (
            card.name, card.label, card.split, " | ".join(name for name, _ in card.guesses),
            " | ".join(figure for _, figure in card.guesses),
            None if card.members is None else " | ".join(card.members),
        )
        for card in cards
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
    name = str(row.get("path") or row.get("sample_id"))
    label, classes = row["label"], row["classes"]
    picture, note = thumbnail_or_reason(lambda: read_picture(place, row))
    figures = [f"{p:.1%}" for p in row["probabilities"] or ()] or [f"{s:.3f}" for s in row["scores"]]
    guesses = tuple(zip(classes, figures, strict=True))
    members = None if row.get("set") is None else tuple(row["set"])
    right = classes[:1] == [label] if label is not None else None
    return Card(
        name, label, row["split"], guesses, right, picture, note, None if members is None else tuple(members)
    )
