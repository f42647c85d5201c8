"""Images named by a table: CSV, TSV or Parquet with the columns path, label and, if wanted, split."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

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
from topline.pipeline.images.words import NO_FRACTIONS, is_number, numbers_in, word

TABLE_SUFFIXES = (*DELIMITERS, ".parquet")

Row = Mapping[str, str | None]


def list_table(table: Path, *, labelled: bool = True) -> ImageListing:
    """Return all images that `table` names, in its order; paths are relative to the table's folder.

    A path that leads out of that folder, or to no file, and a row without a label are listed with the reason
    why they are refused.  Raises `InputError` naming the line for a table that cannot be read.
    """
    rows = _parquet_rows(table) if table.suffix.lower() == ".parquet" else _csv_rows(table)
    root = table.parent
    items = [_item(root, place, row, labelled=labelled) for place, row in rows]
    if not items:
        raise InputError(f"{table} has no rows: write one for each image, as path,label")
    if not _has_text_labels(table):
        items = _classed(table, items)
    return ImageListing(root, "table", with_unique_ids(items))


def _classed(table: Path, items: list[ImageItem]) -> list[ImageItem]:
    """Return images with the classes that their labels mean where all are numbers: 1.0 is the class 1."""
    labels = [item.label for item in items if item.label is not None]
    if not all(map(is_number, labels)):
        return items
    fraction = next((label for label in labels if not float(label).is_integer()), None)
    if fraction is not None:
        raise InputError(f"{table} has a fraction for a label ({fraction}): {NO_FRACTIONS}")
    return [
        item if item.label is None else replace(item, label=word(numbers_in([item.label])[0]))
        for item in items
    ]


def _has_text_labels(table: Path) -> bool:
    """Whether the labels of a table are typed as text, so that 0.5 is a name."""
    if table.suffix.lower() != ".parquet":
        return False
    schema = pq.read_schema(table)
    kind = schema.field("label").type if "label" in schema.names else pa.string()
    kind = kind.value_type if pa.types.is_dictionary(kind) else kind
    return not (pa.types.is_floating(kind) or pa.types.is_integer(kind))


def _item(root: Path, place: str, row: Row, *, labelled: bool) -> ImageItem:
    path, label, split = ((row.get(name) or "").strip() for name in ("path", "label", "split"))
    if not path:
        raise InputError(f"{place} has no path")
    if labelled and row.get("split") is not None:
        item = ImageItem(path, path, path, label or None, split_name(split, place))
    else:
        item = ImageItem(path, path, path, label or None)
    if labelled and not label:
        return ImageItem(path, path, path, error=f"{place} has no label")
    return with_file_stats(root, item)


def _csv_rows(table: Path) -> Iterator[tuple[str, Row]]:
    try:
        with table.open(encoding="utf-8-sig", newline="") as file:
            delimiter = delimiter_of(table, file.readline(), ("path",))
            file.seek(0)
            reader = csv.DictReader(file, delimiter=delimiter, strict=True)
            _check_columns(table, reader.fieldnames or ())
            for row in reader:
                place = f"{table}, line {reader.line_num},"
                if None in row:
                    raise InputError(f"{place} has more fields than the header: quote paths that hold commas")
                yield place, row
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
                columns = [_words(batch.column(name)) for name in wanted]
                for values in zip(*columns, strict=True):
                    number += 1
                    yield f"{table}, row {number},", dict(zip(wanted, values, strict=True))
    except (OSError, pa.ArrowException) as error:
        raise InputError(f"the table {table} cannot be read: {error}; it must be Parquet") from error


def _words(column: pa.Array) -> list[str | None]:
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    return [None if value is None else str(value) for value in column.to_pylist()]


def _check_columns(table: Path, names: object) -> None:
    found = list(names) if isinstance(names, (list, tuple)) else []
    if "path" not in found:
        raise InputError(
            f"{table} has the columns {', '.join(map(str, found)) or '(none)'}: it needs path and label,"
            " and may have split"
        )
