"""Labels, splits and class names from small files, as words; what is missing or foreign is named by row."""

from __future__ import annotations

import csv
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TextIO

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import load_npz

from topline.pipeline.errors import InputError
from topline.pipeline.images import (
    DELIMITERS,
    class_words,
    delimiter_of,
    numbers_in,
    refuse_rows,
    split_name,
    word,
)
from topline.pipeline.readers.base import ID_NAMES, LABEL_NAMES, one_column, pick, refuse_names
from topline.pipeline.readers.damage import cause, check_members, check_not_empty, reading
from topline.storage.schema import SPLITS


def read_labels(
    path: Path,
    rows: int | None = None,
    name: str | None = None,
    ids: Sequence[str] | None = None,
    separator: str | None = None,
) -> NDArray[Any]:
    """Return the labels of a small file: one a row, or an indicator matrix (n, m) of several in .npy or .npz.

    An .npz holds one array, or a sparse matrix as SciPy saves it.  `name` is that of the array or column,
    where there are others; `rows`, `ids` and `separator` are as for `read_column`.
    """
    if not path.exists():
        raise InputError(
            f"there is no file of labels at {path}: check --labels; labels inside the features' own file"
            " are named by --labels-name"
        )
    check_not_empty(path)
    with reading(str(path)):
        return _labels(path, rows, name, ids, separator)


def _labels(
    path: Path, rows: int | None, name: str | None, ids: Sequence[str] | None, separator: str | None
) -> NDArray[Any]:
    suffix = path.suffix.lower()
    if suffix not in (".npz", *DELIMITERS):
        refuse_names(path, "one array" if suffix == ".npy" else "a label per line", labels_name=name)
    try:
        if suffix == ".npy":
            return _npy(path)
        if suffix == ".npz":
            check_members(path)
            with path.open("rb") as file, np.load(file, allow_pickle=False) as archive:
                names = list(archive.files)
                if not names:
                    raise InputError(f"{path} holds no array: save one with np.savez")
                if "indptr" not in names or name is not None:
                    found = pick(str(path), "array", name, (), names)
                    if found is None:
                        raise InputError(
                            f"{path} holds {', '.join(names)}: say which are the labels with --labels-name"
                        )
                    return one_column(np.asarray(archive[found]))
            return np.asarray(load_npz(path).toarray())
    except (OSError, ValueError, zipfile.BadZipFile) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"{path} cannot be read as labels: {cause(error)}") from error
    usual = LABEL_NAMES if name is None else (name,)
    return read_column(path, usual, rows, ids, separator, chosen=name is not None)


def read_column(
    path: Path,
    usual: Sequence[str],
    rows: int | None = None,
    ids: Sequence[str] | None = None,
    separator: str | None = None,
    *,
    chosen: bool = False,
) -> NDArray[Any]:
    """Return one value a row: an .npy array, the lines of a text file, or a column of a .csv.

    The column is one of `usual` or, unless that was `chosen`, the only one, which needs no header where as
    many values as `rows` are expected: it has so many lines then.  Where rows have `ids` and a .csv a column
    of them, each row gets the value beside its id, in whatever order the file has them.  What parts the
    labels of a cell, `separator`, parts no columns.
    """
    try:
        if path.suffix.lower() == ".npy":
            values = _npy(path)
            if values.ndim != 1:
                raise InputError(f"{path} has shape {values.shape}: give one value a row")
            return values
        if path.suffix.lower() == ".gz":
            raise InputError(f"{path} is gzipped, which only features may be: unpack it")
        with path.open(encoding="utf-8-sig", newline="") as file:
            if path.suffix.lower() in DELIMITERS:
                lines = _lines(path, file, usual, separator, rows)
                values = _csv_column(path, lines, usual, rows, chosen=chosen)
                return values if ids is None else _by_id(path, lines, values, ids)
            return numbers_in([line.strip() for line in file.read().splitlines()])
    except (OSError, ValueError, csv.Error) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"{path} cannot be read: {cause(error)}; give .npy, .csv or a line a row") from error


def _npy(path: Path) -> NDArray[Any]:
    # A map is refused where the file is shorter than its header says; an array would be allocated first.
    return one_column(np.array(np.load(path, mmap_mode="r", allow_pickle=False)))


def _lines(
    path: Path, file: TextIO, usual: Sequence[str], separator: str | None, rows: int | None
) -> list[list[str]]:
    """Return the cells of each line of a text table.

    A single column may be several that another mark parts, as where a spreadsheet writes semicolons: then
    every line has as many of them.  Not so in a .tsv without a header, whose labels may hold commas.
    """

    def parted(mark: str) -> list[list[str]]:
        file.seek(0)
        return list(csv.reader(file, delimiter=mark))

    header = file.readline()
    known = delimiter_of(path, header, usual)
    lines = parted(known)
    if any(len(line) > 1 for line in lines) or (path.suffix.lower() == ".tsv" and len(lines) == rows):
        return lines
    for mark in DELIMITERS[path.suffix.lower()]:
        if mark in header and mark not in (known, separator):
            found = parted(mark)
            if {len(line) for line in found if line} == {len(found[0])} != {1}:
                return found
    return lines


def _csv_column(
    path: Path, lines: list[list[str]], usual: Sequence[str], rows: int | None, *, chosen: bool
) -> NDArray[Any]:
    if not lines:
        return np.asarray([], dtype=object)
    header = [word.strip() for word in lines[0]]
    name = pick(str(path), "column", usual[0] if chosen else None, usual, header)
    name = name if name in usual else None
    if name is None and len(header) == 1:
        values = [line[0].strip() if line else "" for line in lines]
        return numbers_in(values if len(values) == rows else values[1:])
    if name is None:
        raise InputError(
            f"{path} has the columns {', '.join(header)}: name one of them {usual[0]}; if these are values,"
            " not names, put a line of names above them"
        )
    place = header.index(name)
    short = [i + 2 for i, line in enumerate(lines[1:]) if len(line) <= place]
    if short:
        raise InputError(f"{path}, line {short[0]}, has no {name}")
    return numbers_in([line[place].strip() for line in lines[1:]])


def _by_id(path: Path, lines: list[list[str]], values: NDArray[Any], ids: Sequence[str]) -> NDArray[Any]:
    """Return the values of a .csv in the order of `ids`, as they are where it has no column of ids."""
    header = [word.strip() for word in lines[0]] if lines else []
    column = next((name for name in ID_NAMES if name in header), None)
    if column is None:
        return values
    place = header.index(column)
    names = [line[place].strip() if len(line) > place else "" for line in lines[1:]]
    if names == list(ids):
        return values
    rows = {name: row for row, name in enumerate(names)}
    missing = next((name for name in ids if name not in rows), None)
    twice = next((name for row, name in enumerate(names) if rows[name] != row), None)
    if missing is not None or twice is not None:
        wrong = f"lacks {missing!r}" if missing is not None else f"has {twice!r} twice"
        raise InputError(
            f"{path} {wrong} in its column {column}, which names the rows of the features: give each of them"
            f" one row, or leave the column {column} out where both have the same order"
        )
    return values[[rows[name] for name in ids]]


def label_words(values: NDArray[Any], place: str, names: Sequence[str] | None) -> list[str]:
    """Return labels as class names.

    Whole numbers are names themselves, 1.0 as 1, or places in `names` if that is given; text must then be
    one of them.  `InputError` naming `place` and rows for labels that are missing (empty, NaN, negative),
    fractions, dates or out of range.
    """
    if values.dtype.kind in "mM":
        raise InputError(f"{place} has dates or times for labels: save the classes that they mean as text")
    if names is not None:
        words = [word(value) for value in values.tolist()]
        code = {str(i): name for i, name in enumerate(names)} | {name: name for name in names}
        refuse_rows(place, "no label", [text is None for text in words], "give each row one")
        known = [str(text) for text in words]
        foreign = [text not in code for text in known]
        refuse_rows(place, "a label out of range", foreign, f"give 0..{len(names) - 1} or names", known)
        return [code[text] for text in known]
    words = class_words(values.tolist(), place)
    refuse_rows(place, "no label", [text is None for text in words], "give each row one")
    return [str(text) for text in words]


def split_words(values: NDArray[Any], place: str) -> list[str]:
    """Return splits as "train", "val", "test" or "calibration"; codes 0, 1, 2, 4 are read as well."""
    codes = {str(code): name for name, code in SPLITS.items() if name != "rejected"}
    words = [word(value) for value in values.tolist()]
    fix = "write train, val, test or calibration"
    refuse_rows(place, "no split", [text is None for text in words], fix)
    return [
        codes.get(str(text)) or split_name(str(text), f"{place}, row {row},")
        for row, text in enumerate(words)
    ]


def read_class_names(path: Path) -> list[str]:
    """Return the class names in a file, one per line."""
    names = [str(name) for name in read_column(path, ("class_name", "name", *LABEL_NAMES)).tolist()]
    if not names or not all(names) or len(set(names)) < len(names):
        raise InputError(f"{path} must hold a different class name in each line, and at least one")
    return names
