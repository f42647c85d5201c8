"""Images in tables: named by path, label and perhaps split, or inside Parquet as Hugging Face keeps them."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from topline.pipeline.errors import InputError
from topline.pipeline.images.items import ImageItem, ImageListing, Wanted, with_file_stats, with_unique_ids
from topline.pipeline.readers import (
    SPLIT_NAMES,
    class_words,
    label_names,
    named,
    numbers_in,
    parquet_column,
    pick,
    pick_label,
    read_table,
    reading,
    refuse_rows,
    row_weights,
    split_name,
    text_of,
)

PATH_NAMES = ("path", "file_name", "image_path", "filename")
PICTURE_NAMES = ("image", "img", "picture", "photo")
_SPLIT = re.compile(r"([a-z]+)[-_.]")


def list_table(table: Path, wanted: Wanted) -> ImageListing:
    """Return all images that `table` names, in its order; paths are relative to the table's folder.

    A path that leads out of that folder, or to no file, and a row without a label are listed with the reason
    why they are refused.  Raises `InputError` naming the line for a table that cannot be read.
    """
    found, labelled = read_table(table, PATH_NAMES), wanted.labelled
    path = next((name for name in PATH_NAMES if name in found.names), None)
    label = pick_label(str(table), "column", None, found.names)
    if path is None or (labelled and label is None):
        raise InputError(
            f"{table} has the columns {named(found.names) or '(none)'}: it needs path and label, and may have"
            " split"
        )
    if not found.rows:
        raise InputError(f"{table} has no rows: write one for each image, as path,label")
    long = next(
        (place for place, row in zip(found.places, found.rows, strict=True) if len(row) > len(found.names)),
        None,
    )
    if long is not None:
        raise InputError(f"{long} has more fields than the header: quote paths that hold commas")
    values: Sequence[Any] = [None] * len(found.rows)
    if labelled and label is not None:
        values = found.column(label)
        if table.suffix.lower() != ".parquet":
            values = numbers_in([str(value or "").strip() for value in values]).tolist()
    splits = found.column("split") if labelled and "split" in found.names else [None] * len(values)
    items = []
    for place, name, word, split in zip(
        found.places, found.column(path), class_words(values, str(table)), splits, strict=True
    ):
        text = _text(name, f"{place} has {name!r} for its path")
        if not text:
            raise InputError(f"{place} has no path")
        item = ImageItem(text, text, text, word, follow=wanted.follow_links)
        if split is not None:
            item = replace(
                item, split=split_name(_text(split, f"{place} has {split!r} for its split"), place)
            )
        if labelled and word is None:
            items.append(replace(item, split=None, error=f"{place} has no label"))
        else:
            items.append(with_file_stats(table.parent, item))
    items = _beside(items, table, wanted, found.names, found.column)
    return ImageListing(table.parent, "table", with_unique_ids(items))


def _beside(
    items: Sequence[ImageItem],
    table: Path,
    wanted: Wanted,
    names: Sequence[str],
    column: Callable[[str], Sequence[object]],
) -> list[ImageItem]:
    """Return the images of a table with their groups and weights, by the columns that are wanted."""
    found = list(items)
    if wanted.groups_from_folder:
        found = [replace(item, group=str(PurePosixPath(item.path).parent)) for item in found]
    if wanted.groups is not None:
        pick(str(table), "column", wanted.groups, (), names)
        words = map(text_of, column(wanted.groups))
        found = [replace(item, group=word) for item, word in zip(found, words, strict=True)]
    if wanted.weights is not None:
        pick(str(table), "column", wanted.weights, (), names)
        weights = row_weights(column(wanted.weights), str(table)).tolist()
        found = [replace(item, weight=weight) for item, weight in zip(found, weights, strict=True)]
    return found


def _text(value: object, what: str) -> str:
    if value is not None and not isinstance(value, str):
        raise InputError(f"{what}, which is text: write the column anew")
    return (value or "").strip()


def picture_column(table: Path) -> str | None:
    """Return the column of a Parquet file that holds images, as Hugging Face's datasets keep them."""
    with reading(str(table)):
        schema = pq.read_schema(table)
    for name in (*(name for name in PICTURE_NAMES if name in schema.names), *schema.names):
        kind = schema.field(name).type
        if pa.types.is_struct(kind) and "bytes" in [kind.field(i).name for i in range(kind.num_fields)]:
            return str(name)
    return None


def list_pictures(root: Path, tables: Sequence[Path], wanted: Wanted) -> ImageListing:
    """Return all images inside the Parquet files `tables` below `root`, row by row.

    Their labels are numbers of the names in the schema, or classes by the rule of every table.  The names of
    the files say the split where each begins with one (train-00000-of-00003.parquet).
    """
    found = [_SPLIT.match(table.name.lower()) for table in tables]
    splits = [SPLIT_NAMES.get(match[1]) if match else None for match in found]
    items: list[ImageItem] = []
    values: list[object] = []
    for table, split in zip(tables, splits, strict=True):
        column, place, stamp = picture_column(table), str(table.relative_to(root)), table.stat().st_mtime_ns
        with pq.ParquetFile(table) as file:
            names = file.schema_arrow.names
            sizes = [file.metadata.row_group(group).num_rows for group in range(file.num_row_groups)]
            rows: list[ImageItem] = []
            known = label_names(file.schema_arrow, pick_label(str(table), "column", None, names))
        for row, group in enumerate(group for group, size in enumerate(sizes) for _ in range(size)):
            name, run = f"{place}/{row:07d}", f"{place} {group} {column}"
            item = ImageItem(name, name, place, stamp=stamp, offset=row, run=run, follow=wanted.follow_links)
            rows.append(replace(item, split=split if None not in splits else None))
        items += _beside(rows, table, wanted, names, partial(_values, table))
        if wanted.labelled:
            values += _labels(table, names, known)
    if wanted.labelled:
        labels = class_words(values, str(root))
        items = [
            replace(
                item, label=label, split=item.split if label else None, error="" if label else "has no label"
            )
            for item, label in zip(items, labels, strict=True)
        ]
    return ImageListing(root, "shards", tuple(items))


def _values(table: Path, name: str) -> list[object]:
    return list(parquet_column(table, name, None).tolist())


def _labels(table: Path, columns: Sequence[str], names: Sequence[str] | None) -> list[object]:
    """Return the labels of a Parquet file; numbers of known `names` as these, and -1 as none."""
    label = pick_label(str(table), "column", None, columns)
    if label is None:
        raise InputError(
            f"{table} has images and the columns {named(columns)}: call the one with the classes label"
        )
    values: list[object] = parquet_column(table, label, label).tolist()
    if names is None:
        return values
    wrong = [not isinstance(value, int) or not -1 <= value < len(names) for value in values]
    refuse_rows(str(table), "a label out of range", wrong, f"the file names {len(names)} classes", values)
    return [None if code == -1 else names[int(str(code))] for code in values]
