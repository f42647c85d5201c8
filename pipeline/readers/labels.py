"""Labels, splits and class names from small files, as words; what is missing or foreign is named by row."""

from __future__ import annotations

from collections.abc import Sequence
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
    one_column,
    parts_of,
    pick,
    refuse_names,
)
from topline.pipeline.readers.damage import check_not_empty, reading
from topline.pipeline.readers.tables import DELIMITERS, cells, read_table
from topline.pipeline.readers.words import (
    class_words,
    is_number,
    numbers_in,
    refuse_rows,
    split_name,
    text_of,
    word,
)
from topline.storage.schema import SPLITS

#: Files whose arrays may be labels.
_ARRAYS = {
    ".npy": arrays.npy_arrays,
    ".npz": arrays.npz_arrays,
    ".h5": arrays.hdf_arrays,
    ".hdf5": arrays.hdf_arrays,
    ".safetensors": arrays.safetensors_arrays,
}
_READABLE = (*_ARRAYS, *DELIMITERS, ".parquet", ".txt")


def read_labels(
    path: Path,
    rows: int | None = None,
    name: str | None = None,
    ids: Sequence[str] | None = None,
    separator: str | None = None,
) -> NDArray[Any]:
    """Return the labels of a small file, or of a folder or pattern of them in the order of their numbers.

    They are one a row, or an indicator matrix (n, m) of several: a dense one, or in .npz a sparse one as
    SciPy saves it.  `name` is that of the array or column, where there are others; `rows`, `ids` and
    `separator` are as for `read_column`.
    """
    files = parts_of(local_path(str(path)), _READABLE)
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

    The column is the one called `name`, or one of `usual`, or the only one; that needs no header where a text
    table has as many lines as `rows` are expected.  Where rows have `ids` and a table a column of them, each
    row gets the value beside its id, in whatever order the file has them.  What parts the labels of a cell,
    `separator`, parts no columns.
    """
    suffix = path.suffix.lower()
    with reading(str(path)):
        if suffix in _ARRAYS:
            return _array(path, name)
        if suffix == ".gz":
            raise InputError(f"{path} is gzipped, which only features may be: unpack it")
        if suffix == ".parquet":
            table = read_table(path, usual)
            header = list(table.names)
            lines: list[list[Any]] = [list(row) for row in table.rows]
        elif suffix in DELIMITERS:
            found = cells(path, usual if name is None else (name,), separator, rows)
            header = [text.strip() for text in found[0][1]] if found else []
            lines = [[text.strip() for text in line] for _, line in found[1:]]
        else:
            refuse_names(path, "a label per line", labels_name=name)
            text = path.read_text(encoding="utf-8-sig")
            return numbers_in([line.strip() for line in text.splitlines()])
        if not header:
            return np.asarray([], dtype=object)
        column = pick(str(path), "column", name, usual, header)
        if name is None and len(header) == 1 and column not in usual:
            alone = [header, *lines] if len(lines) + 1 == rows and suffix in DELIMITERS else lines
            return _typed([line[0] if line else "" for line in alone], suffix)
        if column is None:
            raise InputError(
                f"{path} has the columns {', '.join(header)}: name one of them {usual[0]}; if these are"
                " values, not names, put a line of names above them"
            )
        place = header.index(column)
        short = [row + 2 for row, line in enumerate(lines) if len(line) <= place]
        if short:
            raise InputError(f"{path}, line {short[0]}, has no {column}")
        values = _typed([line[place] for line in lines], suffix)
        return values if ids is None else _by_id(path, header, lines, values, ids)


def _typed(values: Sequence[Any], suffix: str) -> NDArray[Any]:
    """Return values of a table; those of text, which has no types, as numbers where all are."""
    if suffix in DELIMITERS:
        return numbers_in(values)
    found = np.empty(len(values), dtype=object)
    found[:] = values
    return found


def _array(path: Path, name: str | None) -> NDArray[Any]:
    found = _ARRAYS[path.suffix.lower()](path)
    with found.stack:
        names = list(found.arrays)
        if names == [""]:
            refuse_names(path, "one array", labels_name=name)
        if "indptr" in names and name is None:
            return np.asarray(load_npz(path).toarray())
        usual = LABEL_NAMES if found.kind != "array" else ()
        column = pick(str(path), found.kind, name, usual, names)
        if column is None:
            raise InputError(f"{path} holds {', '.join(names)}: say which are the labels with --labels-name")
        return one_column(arrays.values_of(found.arrays[column]))


def _by_id(
    path: Path, header: list[str], lines: list[list[Any]], values: NDArray[Any], ids: Sequence[str]
) -> NDArray[Any]:
    """Return the values of a table in the order of `ids`, as they are where it has no column of ids."""
    column = next((name for name in ID_NAMES if name in header), None)
    if column is None:
        return values
    place = header.index(column)
    names = [str(line[place]) if len(line) > place else "" for line in lines]
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


def row_weights(values: Sequence[object], place: str) -> NDArray[np.float64]:
    """Return how often each row counts in training, (n,); `InputError` naming rows without such a number."""
    texts = [text_of(value) or "" for value in values]
    found = np.array([float(text) if is_number(text) else np.nan for text in texts])
    refuse_rows(
        place, "no weight, a number from 0 on,", (~(found >= 0)).tolist(), "give each row one", values
    )
    return found


def read_class_names(path: Path) -> list[str]:
    """Return the class names in a file, one per line."""
    names = [str(name) for name in read_column(path, ("class_name", "name", *LABEL_NAMES)).tolist()]
    if not names or not all(names) or len(set(names)) < len(names):
        raise InputError(f"{path} must hold a different class name in each line, and at least one")
    return names
