"""Images named by a table: CSV, TSV or Parquet with the columns path, label and, if wanted, split."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from topline.pipeline.errors import InputError
from topline.pipeline.images.items import (
    DELIMITERS,
    ImageItem,
    ImageListing,
    delimiter_of,
    split_name,
    with_file_stats,
    with_unique_ids,
)
from topline.pipeline.images.words import class_words, numbers_in

TABLE_SUFFIXES = (*DELIMITERS, ".parquet")

Row = Mapping[str, Any]


def list_table(table: Path, *, labelled: bool = True) -> ImageListing:
    """Return all images that `table` names, in its order; paths are relative to the table's folder.

    A path that leads out of that folder, or to no file, and a row without a label are listed with the reason
    why they are refused.  Raises `InputError` naming the line for a table that cannot be read.
    """
    rows = list(_parquet_rows(table) if table.suffix.lower() == ".parquet" else _csv_rows(table))
    if not rows:
        raise InputError(f"{table} has no rows: write one for each image, as path,label")
    root = table.parent
    values = [row.get("label") if labelled else None for _, row in rows]
    labels = class_words(values, str(table))
    items = [
        _item(root, place, row, label, labelled) for (place, row), label in zip(rows, labels, strict=True)
    ]
    return ImageListing(root, "table", with_unique_ids(items))


def _item(root: Path, place: str, row: Row, label: str | None, labelled: bool) -> ImageItem:
    path, split = (_cell(place, row, name) for name in ("path", "split"))
    if not path:
        raise InputError(f"{place} has no path")
    item = ImageItem(path, path, path, label)
    if labelled and row.get("split") is not None:
        item = replace(item, split=split_name(split, place))
    if labelled and label is None:
        return replace(item, split=None, error=f"{place} has no label")
    return with_file_stats(root, item)


def _cell(place: str, row: Row, name: str) -> str:
    """Return the text of a cell; `InputError` where it is none."""
    value = row.get(name) or ""
    if not isinstance(value, str):
        raise InputError(f"{place} has {value!r} for its {name}, which is text: write the column anew")
    return value.strip()


def _csv_rows(table: Path) -> list[tuple[str, Row]]:
    try:
        with table.open(encoding="utf-8-sig", newline="") as file:
            delimiter = delimiter_of(table, file.readline(), ("path",))
            file.seek(0)
            reader = csv.DictReader(file, delimiter=delimiter, strict=True)
            _check_columns(table, reader.fieldnames or ())
            rows = []
            for row in reader:
                place = f"{table}, line {reader.line_num},"
                if None in row:
                    raise InputError(f"{place} has more fields than the header: quote paths that hold commas")
                rows.append((place, row))
        labels = numbers_in([(row.get("label") or "").strip() for _, row in rows])
        return [(place, {**row, "label": label}) for (place, row), label in zip(rows, labels, strict=True)]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise InputError(f"the table {table} cannot be read: {error}; it must be CSV in UTF-8") from error


def _parquet_rows(table: Path) -> Iterator[tuple[str, Row]]:
    try:
        with pq.ParquetFile(table) as file:
            names = file.schema_arrow.names
            _check_columns(table, names)
            wanted = [name for name in ("path", "label", "split") if name in names]
            number = 0
            for batch in file.iter_batches(columns=wanted):
                columns = [batch.column(name).to_pylist() for name in wanted]
                for values in zip(*columns, strict=True):
                    number += 1
                    yield f"{table}, row {number},", dict(zip(wanted, values, strict=True))
    except (OSError, pa.ArrowException) as error:
        raise InputError(f"the table {table} cannot be read: {error}; it must be Parquet") from error


def _check_columns(table: Path, names: object) -> None:
    found = list(names) if isinstance(names, (list, tuple)) else []
    if "path" not in found:
        raise InputError(
            f"{table} has the columns {', '.join(map(str, found)) or '(none)'}: it needs path and label,"
            " and may have split"
        )
