"""Images that a table names by path and label, or that are inside Parquet files or tar shards.

Parquet is as Hugging Face keeps images, tar shards are of the WebDataset layout: key.jpg beside key.cls or
key.json.  Nothing is ever extracted to disk: headers are read once, images later, each at its place.
"""

from __future__ import annotations

import json
import re
import tarfile
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from topline.pipeline.errors import ImageRejectedError, InputError
from topline.pipeline.images.items import (
    IMAGE_SUFFIXES,
    ImageItem,
    ImageListing,
    Wanted,
    is_hidden,
    lie_in_splits,
    printable,
    resolve_inside,
    with_file_stats,
    with_unique_ids,
)
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
    words_of,
)

PATH_NAMES = ("path", "file_name", "image_path", "filename")
PICTURE_NAMES = ("image", "img", "picture", "photo")


def list_table(table: Path, wanted: Wanted) -> ImageListing:
    """Return all images that `table` names, by paths from its folder; `InputError` names a line at fault."""
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
        for what, value in (("path", name), ("split", split)):
            if not isinstance(value, str | None):
                raise InputError(
                    f"{place} has {value!r} for its {what}, which is text: write the column anew"
                )
        text = (name or "").strip()
        if not text:
            raise InputError(f"{place} has no path")
        word = None if split is None else split_name(split, place)
        items.append(ImageItem(text, text, text, split=word, follow=wanted.follow_links))
    if labelled:
        items = _classed(items, found.values(str(label)).tolist(), str(table))
    elif label is not None:
        items = _with("label", items, words_of(found.values(label).tolist()))
    items = [item if item.error else with_file_stats(table.parent, item) for item in items]
    items = _beside(items, table, wanted, found.names, found.column)
    return ImageListing(table.parent, "table", with_unique_ids(items))


def _classed(
    items: Sequence[ImageItem], values: Sequence[object], place: str, missing: str = "has no label"
) -> list[ImageItem]:
    """Return images with the classes that labels mean, by the rule of every table; others are refused."""
    words = class_words(values, place, [item.path for item in items] if Path(place).is_dir() else None)
    return [
        replace(item, label=word) if word or item.error else replace(item, split=None, error=missing)
        for item, word in zip(items, words, strict=True)
    ]


def _with(name: str, items: Sequence[ImageItem], values: Iterable[Any]) -> list[ImageItem]:
    """Return images with a value each."""
    return [replace(item, **{name: value}) for item, value in zip(items, values, strict=True)]


def _beside(
    items: Sequence[ImageItem],
    table: Path,
    wanted: Wanted,
    names: Collection[str],
    column: Callable[[str], Iterable[object]],
) -> list[ImageItem]:
    """Return the images of a table with their groups and weights, by the columns that are wanted."""
    found = list(items)
    for name in filter(None, (wanted.groups, wanted.weights)):
        pick(str(table), "column", name, (), list(names))
    if wanted.groups_from_folder:
        found = _with("group", found, [str(PurePosixPath(item.path).parent) for item in found])
    if wanted.groups is not None:
        found = _with("group", found, map(text_of, column(wanted.groups)))
    if wanted.weights is not None:
        found = _with("weight", found, row_weights(list(column(wanted.weights)), str(table)).tolist())
    return found


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

    The names of the files say the split where each begins with one (train-00000-of-00003.parquet).
    """
    splits = [SPLIT_NAMES.get(re.split("[-_.]", table.name.lower())[0]) for table in tables]
    items, values = list[ImageItem](), list[object]()
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
        items += _beside(rows, table, wanted, schema.names, partial(parquet_column, table))
        values += _labels(table, schema) if wanted.labelled else ()
    items = _classed(items, values, str(root)) if wanted.labelled else items
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


#: Fields of key.json that may have the label; that of key.cls has no name, and precedence.
LABEL_FIELDS = ("", "label", "class_name", "class", "cls")
# A label is a word or a small JSON object; anything larger is not read.
LABEL_BYTES = 1 << 20


@dataclass
class _Sample:
    """Members of one key that have been met so far, and what is written beside its image."""

    image: ImageItem | None = None
    facts: dict[str, object] = field(default_factory=dict)
    others: list[str] = field(default_factory=list)


def list_shards(root: Path, shards: list[Path], wanted: Wanted) -> ImageListing:
    """Return all samples of the tar files `shards` below `root`, in their order.

    The label is the text of key.cls, or the field "label" (class_name, class or cls) of key.json; where no
    sample has one it is the folder in the archive, if all are in some.  Groups and weights are fields of
    key.json.  Shards in folders train/, val/ and test/ have these splits.
    """
    splits = lie_in_splits(root, (shard.relative_to(root).as_posix() for shard in shards))
    found: list[tuple[ImageItem, Mapping[str, object]]] = []
    ignored: list[str] = []
    for shard in shards:
        place = shard.relative_to(root)
        split = SPLIT_NAMES[place.parts[0].lower()] if splits and len(place.parts) > 1 else None
        blank = ImageItem("", "", place.as_posix(), split=split, follow=wanted.follow_links)
        try:
            resolve_inside(root, blank.location, follow=blank.follow)
        except ImageRejectedError as error:
            raise InputError(f"the shard {blank.location} {error}") from error
        found += _samples(root, blank, ignored)
    items = [item for item, _ in found]
    labels = [next((facts[name] for name in LABEL_FIELDS if name in facts), None) for _, facts in found]
    if wanted.labelled:
        folders = [PurePosixPath(item.path.removeprefix(item.location)).parent for item in items]
        good = [folder for folder, item in zip(folders, items, strict=True) if not item.error]
        if not any(label is not None for label in labels) and all(folder.name for folder in good):
            labels = [str(folder)[1:] for folder in folders]
        else:
            # A text has no types, but beside numbers of JSON it is one where it looks like one.
            typed = iter(numbers_in([label for label in labels if isinstance(label, str)]))
            labels = [next(typed) if isinstance(label, str) else label for label in labels]
        missing = "the sample has no label: add key.cls, or key.json with a label"
        items = _classed(items, labels, str(root), missing)
    names = sorted({name for _, facts in found for name in facts if name})
    items = _beside(items, root, wanted, names, lambda name: [facts.get(name) for _, facts in found])
    return ImageListing(root, "shards", with_unique_ids(items), tuple(ignored))


def _samples(
    root: Path, shard: ImageItem, ignored: list[str]
) -> Iterator[tuple[ImageItem, Mapping[str, object]]]:
    """Yield the samples of a tar file in its order; one that ends too early ends with a refused item."""

    def refused(name: str, error: str) -> tuple[ImageItem, Mapping[str, object]]:
        path = f"{printable(shard.location)}/{printable(name)}"
        return replace(shard, sample_id=path, path=path, error=error), {}

    path = root / shard.location
    samples: dict[str, _Sample] = {}
    cut = ""
    try:
        with tarfile.open(path, "r:") as archive:
            shard = replace(shard, stamp=path.stat().st_mtime_ns)
            for member in archive:
                if member.isdir():
                    continue
                if wrong := _refusal(member):
                    yield refused(member.name, wrong)
                elif any(map(is_hidden, PurePosixPath(member.name).parts)):
                    ignored.append(f"{shard.location}/{printable(member.name)}")
                else:
                    _note(archive, member, shard, samples)
    except tarfile.ReadError as error:
        if not samples:
            raise InputError(
                f"{path} is not a tar archive ({error}): decompress it first if it is compressed"
            ) from error
        cut = str(error)
    except OSError as error:
        raise InputError(f"the shard {path} cannot be read: {error.strerror or error}") from error
    for key, sample in samples.items():
        if sample.image is None:
            names = ", ".join(sample.others[:3]) or "a label alone"
            yield refused(key, f"the sample has no image, only {names}")
        else:
            ignored.extend(f"{shard.location}/{printable(name)}" for name in sample.others)
            yield sample.image, sample.facts
    if cut:
        yield refused("(rest of the shard)", f"the shard is damaged or cut short: {cut}")


def _refusal(member: tarfile.TarInfo) -> str:
    """Return why a member that is no folder cannot be read, "" where it can."""
    path = PurePosixPath(member.name)
    if path.is_absolute() or ".." in path.parts:
        return "leads out of the archive, and is not followed"
    if any(map(is_hidden, path.parts)) or (member.isreg() and not member.issparse()):
        return ""
    return "is a link, a device or a sparse file, and is not followed"


def _note(
    archive: tarfile.TarFile, member: tarfile.TarInfo, shard: ImageItem, samples: dict[str, _Sample]
) -> None:
    """Take a member into the sample of its key."""
    path = PurePosixPath(member.name)
    stem, dot, suffix = path.name.partition(".")
    sample, suffix = samples.setdefault(str(path.parent / stem), _Sample()), dot + suffix.lower()
    if suffix in IMAGE_SUFFIXES and sample.image is None:
        name = f"{printable(shard.location)}/{printable(member.name)}"
        there = replace(shard, size=member.size, offset=member.offset_data)
        sample.image = replace(there, sample_id=name, path=name)
    elif suffix in (".cls", ".json"):
        file = archive.extractfile(member) if member.size <= LABEL_BYTES else None
        text = "" if file is None else file.read().decode("utf-8", "replace").strip()
        sample.facts |= _record(text) if suffix == ".json" else {"": text} if text else {}
    else:
        sample.others.append(member.name)


def _record(text: str) -> dict[str, object]:
    """Return the fields of key.json; nothing where it is none."""
    try:
        record = json.loads(text)
    except ValueError:
        return {}
    fields = record if isinstance(record, dict) else {"label": record}
    return {name: value for name, value in fields.items() if value is not None}
