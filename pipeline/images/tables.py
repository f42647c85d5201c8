"""Images in tables: named by path, label and perhaps split, or inside Parquet as Hugging Face keeps them."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path, PurePosixPath

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from topline.pipeline.errors import InputError
from topline.pipeline.images.items import ImageItem, ImageListing, Wanted, with_file_stats, with_unique_ids
from topline.pipeline.readers import (
    SPLIT_NAMES,
    class_words,
    label_names,
    named,
    parquet_column,
    pick,
    pick_label,
    read_table,
    reading,
    refuse_rows,
    row_weights,
    split_name,
    text_of,
    words_of,
)

PATH_NAMES = ("path", "file_name", "image_path", "filename")
PICTURE_NAMES = ("image", "img", "picture", "photo")


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
    splits = found.column("split") if labelled and "split" in found.names else [None] * len(found.rows)
    items = []
    for place, row, name, split in zip(found.places, found.rows, found.column(path), splits, strict=True):
        if len(row) > len(found.names):
            raise InputError(f"{place} has more fields than the header: quote paths that hold commas")
        text = _text(name, f"{place} has {name!r} for its path")
        if not text:
            raise InputError(f"{place} has no path")
        said = None if split is None else _text(split, f"{place} has {split!r} for its split")
        word = None if said is None else split_name(said, place)
        items.append(ImageItem(text, text, text, split=word, follow=wanted.follow_links))
    if labelled:
        items = classed(items, found.values(str(label)).tolist(), str(table))
    elif label is not None:
        words = words_of(found.values(label).tolist())
        items = [replace(item, label=word) for item, word in zip(items, words, strict=True)]
    items = [item if item.error else with_file_stats(table.parent, item) for item in items]
    items = beside(items, table, wanted, found.names, found.column)
    return ImageListing(table.parent, "table", with_unique_ids(items))


def classed(
    items: Sequence[ImageItem], values: Sequence[object], place: str, missing: str = "has no label"
) -> list[ImageItem]:
    """Return images with the classes that labels mean, by the rule of every table; others are refused."""
    words = class_words(values, place)
    return [
        replace(item, label=word) if word or item.error else replace(item, split=None, error=missing)
        for item, word in zip(items, words, strict=True)
    ]


def beside(
    items: Sequence[ImageItem],
    table: Path,
    wanted: Wanted,
    names: Collection[str],
    column: Callable[[str], Iterable[object]],
) -> list[ImageItem]:
    """Return the images of a table with their groups and weights, by the columns that are wanted."""
    found = list(items)
    if wanted.groups_from_folder:
        found = [replace(item, group=str(PurePosixPath(item.path).parent)) for item in found]
    if wanted.groups is not None:
        pick(str(table), "column", wanted.groups, (), list(names))
        words = map(text_of, column(wanted.groups))
        found = [replace(item, group=word) for item, word in zip(found, words, strict=True)]
    if wanted.weights is not None:
        pick(str(table), "column", wanted.weights, (), list(names))
        weights = row_weights(list(column(wanted.weights)), str(table)).tolist()
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
    splits = [SPLIT_NAMES.get(re.split("[-_.]", table.name.lower())[0]) for table in tables]
    items: list[ImageItem] = []
    values: list[object] = []
    # Beside parts that are all called train there are no held-out ones: rows are drawn.
    known = None not in splits and set(splits) != {"train"}
    for table, split in zip(tables, splits if known else [None] * len(splits), strict=True):
        column, place, stamp = picture_column(table), str(table.relative_to(root)), table.stat().st_mtime_ns
        with pq.ParquetFile(table) as file:
            schema = file.schema_arrow
            sizes = [file.metadata.row_group(group).num_rows for group in range(file.num_row_groups)]
        blank = ImageItem("", "", place, split=split, stamp=stamp, follow=wanted.follow_links)
        rows = [
            replace(blank, sample_id=name, path=name, offset=row, run=f"{place} {group} {column}")
            for row, group in enumerate(np.repeat(np.arange(len(sizes)), sizes).tolist())
            for name in (f"{place}/{row:07d}",)
        ]
        items += beside(rows, table, wanted, schema.names, partial(parquet_column, table))
        values += _labels(table, schema) if wanted.labelled else ()
    items = classed(items, values, str(root)) if wanted.labelled else items
    return ImageListing(root, "shards", tuple(items))


def _labels(table: Path, schema: pa.Schema) -> list[object]:
    """Return the labels of a Parquet file; numbers of the names in its schema as these, and -1 as none."""
    label = pick_label(str(table), "column", None, schema.names)
    if label is None:
        raise InputError(
            f"{table} has images and the columns {named(schema.names)}: call the one with the classes label"
        )
    values: list[object] = parquet_column(table, label).tolist()
    names = label_names(schema, label)
    if names is None:
        return values
    wrong = [not isinstance(value, int) or not -1 <= value < len(names) for value in values]
    refuse_rows(str(table), "a label out of range", wrong, f"the file names {len(names)} classes", values)
    return [None if code == -1 else names[int(str(code))] for code in values]
