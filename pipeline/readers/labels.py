"""Labels, splits and class names: from small files to words, and several a row to numbered sets."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import load_npz

from topline.pipeline.errors import InputError
from topline.pipeline.readers import arrays
from topline.pipeline.readers.base import (
    ID_NAMES,
    LABEL_NAMES,
    local_path,
    named,
    one_column,
    parts_of,
    pick,
    refuse_names,
)
from topline.pipeline.readers.columns import TABLE_SUFFIXES, Table, read_table
from topline.pipeline.readers.files import check_not_empty, reading
from topline.pipeline.readers.words import label_words, objects, refuse_rows, text_of
from topline.solvers.losses import LabelSets
from topline.storage.datasets import LabelSetTable

#: Files whose arrays may be labels.
_ARRAYS = {
    ".npy": arrays.npy_arrays,
    ".npz": arrays.npz_arrays,
    ".h5": arrays.hdf_arrays,
    ".hdf5": arrays.hdf_arrays,
    ".safetensors": arrays.tensors,
}


def read_labels(
    path: Path,
    rows: int | None = None,
    name: str | None = None,
    ids: Sequence[str] | None = None,
    separator: str | None = None,
) -> NDArray[Any]:
    """Return the labels of a small file, or of a folder or pattern of them in the order of their numbers.

    They are one a row, or an indicator (n, m) of several, which .npz may hold as a sparse matrix of SciPy.
    """
    files = parts_of(local_path(str(path)), (*_ARRAYS, *TABLE_SUFFIXES, ".txt"))
    if not files:
        raise InputError(
            f"there is no file of labels at {path}: check --labels; labels inside the features' own file"
            " are named by --labels-name"
        )
    if len(files) > 1:
        return np.concatenate([read_labels(file, None, name, None, separator) for file in files])
    check_not_empty(files[0])
    return read_column(files[0], LABEL_NAMES, rows, ids, separator, name=name)


def read_column(
    path: Path,
    usual: Sequence[str],
    rows: int | None = None,
    ids: Sequence[str] | None = None,
    separator: str | None = None,
    *,
    name: str | None = None,
) -> NDArray[Any]:
    """Return one value a row: an array, the lines of a text file, or a column of a table.

    The column is the one called `name`, or one of `usual`, or the only one, which needs no header above as
    many lines as `rows`.  Where rows have `ids` and a table a column of them, each row gets the value beside
    its id.  What parts the labels of a cell, `separator`, parts no columns.
    """
    suffix = path.suffix.lower()
    if suffix == ".gz":
        raise InputError(f"{path} is gzipped, which only features may be: unpack it")
    with reading(str(path)):
        if suffix in _ARRAYS:
            found = _ARRAYS[suffix](path)
            with found.stack:
                if "indptr" in found.names and name is None:
                    return np.asarray(load_npz(path).toarray())
                return one_column(found.values(_chosen(path, found, name, usual)))
        table = read_table(path, usual if name is None else (name,), separator, rows)
        if not table.names:
            return np.asarray([], dtype=object)
        values = table.values(_chosen(path, table, name, usual))
        return values if ids is None else _by_id(table, values, ids)


def _chosen(path: Path, found: Table | arrays.Arrays, name: str | None, usual: Sequence[str]) -> str:
    """Return the name of the column or array that holds the values."""
    if list(found.names) == [""]:
        refuse_names(path, "one column without a name", labels_name=name)
        return ""
    chosen = pick(str(path), found.kind, name, usual, found.names)
    if chosen is None:
        text = "; if these are values, not names, put a line of names above them" * isinstance(found, Table)
        raise InputError(
            f"{path} has the {found.kind}s {named(found.names)}: name one of them {usual[0]}{text}"
        )
    return chosen


def _by_id(table: Table, values: NDArray[Any], ids: Sequence[str]) -> NDArray[Any]:
    """Return the values of a table in the order of `ids`, as they are where it has no column of ids."""
    column = next((name for name in ID_NAMES if name in table.names), None)
    if column is None:
        return values
    names = [text_of(name) or "" for name in table.column(column)]
    if names == list(ids):
        return values
    rows = {name: row for row, name in enumerate(names)}
    missing = next((name for name in ids if name not in rows), None)
    twice = next((name for row, name in enumerate(names) if rows[name] != row), None)
    if missing is not None or twice is not None:
        wrong = f"lacks {missing!r}" if missing is not None else f"has {twice!r} twice"
        raise InputError(
            f"{table.path} {wrong} in its column {column}, which names the rows of the features: give each of"
            f" them one row, or leave the column {column} out where both have the same order"
        )
    return values[[rows[name] for name in ids]]


def read_class_names(path: Path) -> list[str]:
    """Return the class names in a file, one per line."""
    names = [str(name) for name in read_column(path, ("class_name", "name", *LABEL_NAMES)).tolist()]
    if not names or not all(names) or len(set(names)) < len(names):
        raise InputError(f"{path} must hold a different class name in each line, and at least one")
    return names


#: Types of the labels of a row that has several.
_SEVERAL = (tuple, list, np.ndarray)


@dataclass(frozen=True, eq=False)
class LabelLists:
    """The labels of each row as words, and the names of all labels in their order, where that is known."""

    rows: list[tuple[str, ...]]
    names: tuple[str, ...] | None


def label_lists(
    found: NDArray[Any], place: str, names: Sequence[str] | None, separator: str | None = None
) -> LabelLists | None:
    """Return the labels of rows that have several each; None where `found` holds one label per row.

    Several are an indicator (n, m) of 0 and 1, lists, or words with `separator` between them; numbers are
    places in `names`.  `InputError` names rows whose labels are missing, foreign or given twice.
    """
    lists = found.dtype == object and any(isinstance(value, _SEVERAL) for value in found)
    if separator is not None and (lists or found.ndim == 2):
        raise InputError(f"{place} has several labels per row already: leave --label-separator out")
    if found.ndim == 2:
        return _of_indicator(found, place, names)
    if found.ndim != 1:
        raise InputError(f"{place} has labels of shape {found.shape}: give (rows,) or (rows, classes)")
    if separator is not None:
        found, lists = objects([_parts(text_of(cell) or "", separator) for cell in found]), True
    if not lists:
        return None
    rows = [
        () if value is None else tuple(value) if isinstance(value, _SEVERAL) else (value,) for value in found
    ]
    first: dict[Any, int] = {}
    for row, labels in enumerate(rows):
        for label in labels:
            first.setdefault(label, row)
    spelled = dict(zip(first, label_words(list(first), place, names, list(first.values())), strict=True))
    words = [tuple(spelled[label] for label in labels) for labels in rows]
    twice = [len(set(labels)) < len(labels) for labels in words]
    refuse_rows(place, "a label twice", twice, "give each of its labels once")
    return LabelLists(words, None if names is None else tuple(names))


def label_set_table(
    lists: Sequence[tuple[str, ...]], names: Sequence[str]
) -> tuple[LabelSetTable, NDArray[np.int64]]:
    """Return the table of distinct sets, and the number of each row's set (n,)."""
    code = {name: i for i, name in enumerate(names)}
    sets, codes = LabelSets.from_lists([[code[label] for label in labels] for labels in lists], len(names))
    return LabelSetTable.checked(sets.indptr, sets.indices, len(names)), codes


def _of_indicator(found: NDArray[Any], place: str, names: Sequence[str] | None) -> LabelLists:
    m = found.shape[1]
    if found.dtype.kind not in "biuf":
        raise InputError(
            f"{place} has a matrix of {found.dtype} for labels: give 0 and 1, one column per class"
        )
    wrong = ~np.isin(found, (0, 1))
    if wrong.any():
        what = "a number that is neither 0 nor 1 in its matrix of labels"
        odd = found[np.arange(len(found)), wrong.argmax(axis=1)].tolist()
        refuse_rows(place, what, np.any(wrong, axis=1).tolist(), "give 1 for each label, else 0", odd)
    if names is not None and len(names) != m:
        raise InputError(f"{place} has {m} columns of labels, and {len(names)} class names are given")
    known = tuple(names) if names is not None else tuple(map(str, range(m)))
    rows, columns = np.nonzero(found)
    ends = np.searchsorted(rows, np.arange(len(found) + 1)).tolist()
    words = [known[column] for column in columns.tolist()]
    return LabelLists([tuple(words[a:b]) for a, b in pairwise(ends)], known)


def split_labels(text: str | None, separator: str) -> tuple[str, ...]:
    """Return the different labels of a text, in their order."""
    return tuple(dict.fromkeys(part for part in _parts(text or "", separator) if part))


def _parts(text: str, separator: str) -> tuple[str, ...]:
    """Return the words of a cell; an empty one has none."""
    return tuple(part.strip() for part in text.split(separator)) if text.strip() else ()
