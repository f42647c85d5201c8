"""Tables of pages: every one scrolls in a box of its own, is sorted by its heads and is offered as CSV."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from topline.pipeline.pages.formatting import DASH
from topline.pipeline.pages.spreadsheet import csv_url

# Of a longer table a page shows the first rows; the CSV has all.
MOST_ROWS = 1000


@dataclass(frozen=True)
class Column:
    """A column: its head, `kind` and how values are written.

    The kinds are "n" number, "t" time, "path", "words" that may wrap on a phone, or text.
    """

    title: str
    kind: str = ""
    show: Callable[[Any], str] = str


@dataclass(frozen=True)
class Link:
    """A cell that leads to another page; text alone where `href` is None."""

    text: str
    href: str | None

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True)
class Badge:
    """A cell with a state in colour, and a note after it."""

    tone: str
    text: str
    note: str = ""

    def __str__(self) -> str:
        return f"{self.text} {self.note}".strip()


@dataclass(frozen=True)
class ShownCell:
    """A cell as the template writes it; `sort` is the number that it is sorted by, None for its text."""

    kind: str
    text: str
    sort: float | None = None
    href: str | None = None
    badge: str | None = None
    note: str = ""


@dataclass(frozen=True)
class Table:
    """Rows of values under columns; `name` is that of the CSV, `empty` is said where there are no rows."""

    name: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[Any, ...], ...]
    empty: str = ""
    note: str = ""

    @classmethod
    def of(
        cls,
        name: str,
        columns: Iterable[Column],
        rows: Iterable[Sequence[Any]],
        *,
        empty: str = "",
        note: str = "",
    ) -> Table:
        """Return a table of the rows, each with a value a column; None is not known."""
        return cls(name, tuple(columns), tuple(map(tuple, rows)), empty, note)

    @cached_property
    def shown(self) -> list[list[ShownCell]]:
        """The rows that the page shows."""
        return [
            [_cell(column, value) for column, value in zip(self.columns, row, strict=True)]
            for row in self.rows[:MOST_ROWS]
        ]

    @cached_property
    def csv(self) -> str:
        """All rows as CSV in a data URL, values as they were measured."""
        return csv_url([column.title for column in self.columns], self.rows)

    @property
    def label(self) -> str:
        """The name as people read it."""
        return self.name.replace("-", " ")


def _cell(column: Column, value: Any) -> ShownCell:
    if isinstance(value, Link):
        return ShownCell(column.kind, value.text, href=value.href)
    if isinstance(value, Badge):
        return ShownCell(column.kind, value.text, badge=value.tone, note=value.note)
    number = float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else None
    if value is None:
        return ShownCell(column.kind, DASH)
    return ShownCell(column.kind, column.show(value), sort=number)
