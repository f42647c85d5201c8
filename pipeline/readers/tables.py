"""Small tables as text or Parquet, read whole: labels, splits, lists of images, corrections."""

from __future__ import annotations

import csv
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from topline.pipeline.readers.files import reading
from topline.pipeline.readers.words import as_given, numbers_in, objects

#: What may separate the columns of a text table, by its suffix; the usual one first.
DELIMITERS = {".csv": ",;\t", ".tsv": "\t,;"}
TABLE_SUFFIXES = (*DELIMITERS, ".parquet")


@dataclass(frozen=True, eq=False)
class Table:
    """Rows of a table under the names of their columns; `places` say where each row is.

    A text of one column may give it no name: then it is "".  Texts have no types.
    """

    path: Path
    names: tuple[str, ...]
    rows: Sequence[Sequence[object]]
    places: Sequence[str]
    kind = "column"

    def column(self, name: str) -> list[Any]:
        """Return the values of a column, None where a row ends before it."""
        place = self.names.index(name)
        return [row[place] if len(row) > place else None for row in self.rows]

    def values(self, name: str) -> NDArray[Any]:
        """Return the values of a column (n,), those of a text as numbers where all are."""
        found = self.column(name)
        if self.path.suffix.lower() == ".parquet":
            return objects(found)
        return numbers_in([text if text is None else str(text).strip() for text in found])


def read_table(
    path: Path, usual: Collection[str], separator: str | None = None, rows: int | None = None
) -> Table:
    """Return a table in Parquet, or in text with a first line of names; `InputError` for what is none.

    What separates the columns of a text is what leaves one of the `usual` names; what parts the labels of a
    cell, `separator`, parts none.  A text of one column needs no name above as many lines as `rows`, and one
    that is no table is its lines.
    """
    with reading(path):
        if path.suffix.lower() == ".parquet":
            names = tuple(pq.read_schema(path).names)
            columns = [parquet_column(path, name) for name in names]
            found = list(zip(*columns, strict=True))
            return Table(path, names, found, [f"{path}, row {row + 1}," for row in range(len(found))])
        if path.suffix.lower() not in DELIMITERS:
            text = path.read_text(encoding="utf-8-sig").splitlines()
            return Table(path, ("",), [[line] for line in text], [""] * len(text))
        lines = _cells(path, usual, separator, rows)
        head = tuple(word.strip() for word in lines[0][1]) if lines else ()
        if len(head) == 1 and head[0] not in usual and len(lines) == rows:
            return Table(path, ("",), [row or [""] for _, row in lines], [""] * len(lines))
        kept = [(number, row) for number, row in lines[1:] if row]
        return Table(path, head, [row for _, row in kept], [f"{path}, line {number}," for number, _ in kept])


def parquet_column(path: Path, name: str) -> NDArray[Any]:
    """Return the values of a column (n,) as Python has them, times as NumPy does."""
    column = pq.read_table(path, columns=[name], partitioning=None)[name]
    return objects(list(column.to_numpy()) if pa.types.is_temporal(column.type) else column.to_pylist())


def _cells(
    path: Path, usual: Collection[str], separator: str | None, rows: int | None
) -> list[tuple[int, list[str]]]:
    """Return the cells of each line of a text table, and the number of the line in which they end.

    A single column may be several that another mark parts, as where a spreadsheet writes semicolons: then
    every line has as many of them.  Not so in a .tsv of `rows` lines without a header, whose labels may hold
    commas.
    """
    with path.open(encoding="utf-8-sig", newline="") as file:

        def parted(mark: str) -> list[tuple[int, list[str]]]:
            file.seek(0)
            reader = csv.reader(file, delimiter=mark, strict=True)
            return [(reader.line_num, list(map(as_given, line))) for line in reader]

        header, marks = file.readline().rstrip("\r\n"), DELIMITERS[path.suffix.lower()]
        known = delimiter_of(marks, header, usual) or marks[0]
        lines = parted(known)
        if any(len(line) > 1 for _, line in lines) or (path.suffix.lower() == ".tsv" and len(lines) == rows):
            return lines
        for mark in marks:
            if mark in header and mark not in (known, separator):
                found = parted(mark)
                if {len(line) for _, line in found if line} == {len(found[0][1])} != {1}:
                    return found
        return lines


def delimiter_of(marks: str, header: str, known: Collection[str]) -> str | None:
    """Return which of `marks` separates columns: what leaves a known name in the first line, else None."""
    parted = ((mark, [word.strip().strip('"') for word in header.split(mark)]) for mark in marks)
    return next((mark for mark, names in parted if not set(names).isdisjoint(known)), None)
