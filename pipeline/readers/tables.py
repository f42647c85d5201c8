"""Small tables as text or Parquet, read whole: labels, splits, lists of images, corrections."""

from __future__ import annotations

import csv
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow.parquet as pq

from topline.pipeline.readers.damage import reading

#: What may separate the columns of a text table, by its suffix; the usual one first.
DELIMITERS = {".csv": ",;\t", ".tsv": "\t,;"}
TABLE_SUFFIXES = (*DELIMITERS, ".parquet")


@dataclass(frozen=True, eq=False)
class Table:
    """Rows of a table under the names of their columns; `places` say where each row is."""

    names: tuple[str, ...]
    rows: Sequence[Sequence[object]]
    places: Sequence[str]

    def column(self, name: str) -> list[object]:
        """Return the values of a column, None where a row ends before it."""
        place = self.names.index(name)
        return [row[place] if len(row) > place else None for row in self.rows]


def read_table(path: Path, usual: Collection[str]) -> Table:
    """Return a table in Parquet, or in text with a first line of names; `InputError` for what is none.

    What separates the columns of a text is what leaves one of the `usual` names.
    """
    with reading(f"the table {path}"):
        if path.suffix.lower() == ".parquet":
            table = pq.read_table(path, partitioning=None)
            columns = [column.to_pylist() for column in table.columns]
            places = [f"{path}, row {row + 1}," for row in range(table.num_rows)]
            return Table(tuple(table.column_names), list(zip(*columns, strict=True)), places)
        lines = cells(path, usual)
        names = tuple(word.strip() for word in lines[0][1]) if lines else ()
        rows = [row for _, row in lines[1:] if row]
        return Table(names, rows, [f"{path}, line {number}," for number, row in lines[1:] if row])


def cells(
    path: Path, usual: Collection[str], separator: str | None = None, rows: int | None = None
) -> list[tuple[int, list[str]]]:
    """Return the cells of each line of a text table, and the number of the line in which they end.

    A single column may be several that another mark parts, as where a spreadsheet writes semicolons: then
    every line has as many of them.  Not so in a .tsv of `rows` lines without a header, whose labels may hold
    commas.  What parts the labels of a cell, `separator`, parts no columns.
    """
    with path.open(encoding="utf-8-sig", newline="") as file:

        def parted(mark: str) -> list[tuple[int, list[str]]]:
            file.seek(0)
            reader = csv.reader(file, delimiter=mark, strict=True)
            return [(reader.line_num, line) for line in reader]

        header = file.readline().rstrip("\r\n")
        known = delimiter_of(path, header, usual)
        lines = parted(known)
        if any(len(line) > 1 for _, line in lines) or (path.suffix.lower() == ".tsv" and len(lines) == rows):
            return lines
        for mark in DELIMITERS.get(path.suffix.lower(), DELIMITERS[".csv"]):
            if mark in header and mark not in (known, separator):
                found = parted(mark)
                if {len(line) for _, line in found if line} == {len(found[0][1])} != {1}:
                    return found
        return lines


def delimiter_of(table: Path, header: str, wanted: Collection[str]) -> str:
    """Return what separates the columns of a text table, for which many spreadsheets write semicolons.

    It is what parts the `header` so that one of the columns `wanted` is in it, or else the usual one.
    """
    usual = DELIMITERS.get(table.suffix.lower(), DELIMITERS[".csv"])

    def names(mark: str) -> Iterator[str]:
        return (word.strip().strip('"') for word in header.split(mark))

    return next((mark for mark in usual if any(name in wanted for name in names(mark))), usual[0])
