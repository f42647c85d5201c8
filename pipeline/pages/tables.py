"""Tables of pages: every one scrolls in a box of its own, is sorted by its heads and is offered as CSV."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.cluster.hierarchy import leaves_list, linkage
from scipy.spatial.distance import squareform

from topline.pipeline.pages.formatting import DASH, count, csv_url, gap, percent

# Of a longer table a page shows the first rows; the CSV has all.
MOST_ROWS = 1000


@dataclass(frozen=True)
class Column:
    """A column: head, `kind` ("n" number, "t" time, "path", "words" that wrap, or text), and format."""

    title: str
    kind: str = ""
    show: Callable[[Any], str] = str


@dataclass(frozen=True)
class TableCell:
    """A cell of a table: its text, as a badge in a `tone` with a note after it, or as a link to `href`.

    `kind` is its style, mostly that of its column.  It is sorted by the number `sort`, else by its text.
    """

    text: str
    tone: str | None = None
    note: str = ""
    href: str | None = None
    kind: str = ""
    sort: float | None = None

    def __str__(self) -> str:
        return f"{self.text} {self.note}".strip()


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
    def shown(self) -> list[list[TableCell]]:
        """The rows that the page shows."""
        return [
            [_cell(column, value) for column, value in zip(self.columns, row, strict=True)]
            for row in self.rows[:MOST_ROWS]
        ]

    @cached_property
    def csv(self) -> str:
        """All rows as CSV in a data URL, values as they were measured."""
        return csv_url([column.title for column in self.columns], self.rows)


def _cell(column: Column, value: Any) -> TableCell:
    if isinstance(value, TableCell):
        return replace(value, kind=column.kind)
    number = float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else None
    return TableCell(DASH if value is None else column.show(value), kind=column.kind, sort=number)


# Shades of a cell; the templates' style sheet has as many.
SHADES = 6


@dataclass(frozen=True, eq=False)
class ConfusionMatrix:
    """Rows of each class (a row each) by the class that they were given, (m, m), with the names (m,)."""

    names: tuple[str, ...]
    counts: NDArray[np.int64]

    @cached_property
    def rows(self) -> list[tuple[str, list[TableCell]]]:
        """The rows by class; a cell's kind is the shade of its share of the class's rows."""
        totals = np.maximum(self.counts.sum(axis=1), 1)
        return [
            (name, [self._cell(i, j, float(self.counts[i, j] / totals[i])) for j in range(len(self.names))])
            for i, name in enumerate(self.names)
        ]

    def _cell(self, i: int, j: int, share: float) -> TableCell:
        count = int(self.counts[i, j])
        # Mistakes are few, so that their shades grow as the root of their share.
        shade = min(SHADES, int(np.ceil(SHADES * (share if i == j else np.sqrt(share))))) if count else 0
        title = f"{count:,} of {self.names[i]} given {self.names[j]} ({share:.1%})"
        return TableCell(str(count or ""), note=title, kind=f"{'hit' if i == j else 'miss'} l{shade}")

    @cached_property
    def orders(self) -> str:
        """The orders that the page offers, as JSON of (name, classes in order) pairs."""
        totals, classes = self.counts.sum(axis=1), range(len(self.names))
        right = np.diag(self.counts) / np.maximum(totals, 1)
        orders = {
            "as listed": list(classes),
            "by name": sorted(classes, key=lambda i: self.names[i].casefold()),
            "worst first": np.argsort(right, kind="stable").tolist(),
            "largest first": np.argsort(-totals, kind="stable").tolist(),
            "alike together": self._alike(),
        }
        return json.dumps([*map(list, orders.items())])

    def _alike(self) -> list[int]:
        """Return an order in which classes that are often taken for each other stand side by side."""
        if len(self.names) < 3:
            return list(range(len(self.names)))
        shares = self.counts / np.maximum(self.counts.sum(axis=1, keepdims=True), 1)
        mixed = (shares + shares.T) / 2.0
        np.fill_diagonal(mixed, 1.0)
        distances = squareform(1.0 - mixed, checks=False)
        leaves = leaves_list(linkage(distances, "average", optimal_ordering=True))
        return [int(leaf) for leaf in leaves]

    @cached_property
    def csv(self) -> str:
        """The matrix as CSV in a data URL, a row each true class."""
        rows = ([name, *counts] for name, counts in zip(self.names, self.counts.tolist(), strict=True))
        return csv_url(["true class", *self.names], rows)


#: Of the cells of a sweep.
_SHARES = "{:.2%}".format
_COLUMNS = (
    Column("loss"), Column("C", "n", "{:g}".format), Column("accuracy", "n", _SHARES),
    Column("error", "n", _SHARES), Column("at least", "n", percent), Column("at most", "n", percent),
    Column("folds", "n", str), Column("relative gap", "n", gap), Column("passes", "n", count),
    Column("ended"), Column("why", "why"),
)  # fmt: skip


def cell_table(rows: Sequence[Mapping[str, Any]], empty: str = "") -> Table:
    """Return the table of a sweep's cells: values by column of each row, of the columns that rows have."""
    columns = [column for column in _COLUMNS if any(column.title in row for row in rows)]
    return Table.of("cells", columns, [[row[each.title] for each in columns] for row in rows], empty=empty)
