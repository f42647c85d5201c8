"""Which reader opens which file, several files as one, and files of labels, splits and class names.

Parts are read in the order of the numbers in their names.  Where rows have several labels, each distinct set
of labels gets a number.
"""

from __future__ import annotations

import bisect
import zipfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pyarrow.parquet as pq
from numpy.typing import NDArray
from scipy.sparse import load_npz

from topline.pipeline.errors import InputError
from topline.pipeline.readers import arrays
from topline.pipeline.readers.arrays import ArrayFeatures
from topline.pipeline.readers.base import (
    ID_NAMES,
    LABEL_NAMES,
    FeatureFile,
    Names,
    Rows,
    local_path,
    named,
    one_column,
    parts_of,
    pick,
    refuse_names,
    stacked,
)
from topline.pipeline.readers.columns import TABLE_SUFFIXES, CsvFeatures, ParquetFeatures, Table, read_table
from topline.pipeline.readers.files import check_not_empty, reading
from topline.pipeline.readers.texts import ArffFeatures, LibsvmFeatures
from topline.pipeline.readers.words import label_words, objects, refuse_rows, text_of
from topline.solvers.losses import LabelSets
from topline.storage.datasets import LabelSetTable

Found = TypeVar("Found")


@dataclass(frozen=True)
class Format:
    """A format of features, and what is read from it in words; of one without `open`, what to do instead."""

    name: str
    files: str
    open: Callable[[Path, Names], FeatureFile] | None
    features: str
    labels: str = ""

    @property
    def suffixes(self) -> tuple[str, ...]:
        """The suffixes of its files."""
        return tuple(self.files.split())


_UNPACK = "unpack it, or pack it with gzip"
_NPZ, _HDF, _TENSORS = "NumPy archive", "HDF5, MATLAB from 7.3", "safetensors"
_ZIP, _TEXTS = "a zip archive or what is kept in one", ".csv .csv.gz .tsv .tsv.gz"
_NUMBERS = "a column of lists or tensors, or all columns of numbers, decimals and truth values"
_COLUMN = "a column, also of lists; folders label=NAME; names of Hugging Face's datasets"
_MATRIX = "a matrix, by rows or by columns; a sparse one as SciPy saves it"
_ROWS, _VECTOR = "an array: one a row, or an indicator", "a vector, or an indicator"
#: Formats in the order in which they are tried; text that is none of them is LIBSVM's.
FORMATS = (
    Format("NumPy", ".npy", partial(ArrayFeatures, arrays.npy_arrays), "one matrix", "--labels"),
    Format(_NPZ, ".npz", partial(ArrayFeatures, arrays.npz_arrays), _MATRIX, _ROWS),
    Format("Parquet", ".parquet", ParquetFeatures, _NUMBERS, _COLUMN),
    Format(_HDF, ".h5 .hdf5 .hdf .mat", partial(ArrayFeatures, arrays.hdf_arrays), "a matrix", _VECTOR),
    Format("MATLAB up to 7", "", partial(ArrayFeatures, arrays.mat_arrays), "a matrix", "a vector"),
    Format(
        _TENSORS,
        ".safetensors",
        partial(ArrayFeatures, arrays.tensors),
        "a matrix, also of bfloat16",
        _VECTOR,
    ),
    Format("ARFF", ".arff .arff.gz", ArffFeatures, "attributes that are numbers", "attributes, also several"),
    Format("CSV", _TEXTS, CsvFeatures, "all columns of numbers and truth values", "a column"),
    Format("JSON lines", "", None, "write them as Parquet: pandas.read_json(FILE, lines=True)"),
    Format("Arrow", ".feather .arrow", None, "write the table as Parquet"),
    Format("a pickle", ".pkl .pickle", None, "reading it can run code: save the arrays with numpy.savez"),
    Format(_ZIP, ".xlsx .pt .zip", None, "write a spreadsheet as CSV, and tensors as safetensors"),
    Format("packed by bzip2", ".bz2", None, _UNPACK),
    Format("packed by xz", ".xz", None, _UNPACK),
    Format("packed by Zstandard", ".zst", None, _UNPACK),
    Format("LIBSVM text", "", LibsvmFeatures, "index:value pairs, sparse", "the first word, also several"),
)
_BY_NAME = {form.name: form for form in FORMATS}
#: Formats by bytes at the beginning of their files, which decide before the suffix; that decides among texts.
_MAGIC = {
    b"\x93NUMPY": "NumPy",
    b"PAR1": "Parquet",
    b"\x89HDF\r\n\x1a\n": _HDF,
    b"MATLAB 7.3": _HDF,
    b"MATLAB 5.0": "MATLAB up to 7",
    b'{"': "JSON lines",
    b"ARROW1": "Arrow",
    b"FEA1": "Arrow",
    **dict.fromkeys((b"\x80\x02", b"\x80\x03", b"\x80\x04", b"\x80\x05"), "a pickle"),
    b"PK\x03\x04": _ZIP,
    b"BZh": "packed by bzip2",
    b"\xfd7zXZ": "packed by xz",
    b"\x28\xb5\x2f\xfd": "packed by Zstandard",
}
#: Suffixes of files that are read from folders.
READABLE = tuple(suffix for form in FORMATS if form.open for suffix in form.suffixes)


def format_of(path: Path) -> Format:
    """Return the format of a file, by its first bytes, its suffix, or as the text that is left."""
    with path.open("rb") as file:
        head = file.read(16)
    suffix = path.name.lower()
    if suffix.endswith(".npz") or (zipfile.is_zipfile(path) and _is_npz(path)):
        return _BY_NAME[_NPZ]
    if head[8:10] == b'{"' and int.from_bytes(head[:8], "little") < path.stat().st_size:
        return _BY_NAME[_TENSORS]
    by_name = next((form for form in FORMATS if form.suffixes and suffix.endswith(form.suffixes)), None)
    by_bytes = next((_BY_NAME[name] for magic, name in _MAGIC.items() if head.startswith(magic)), None)
    if by_name is not None and by_name.name in ("CSV", "ARFF") and head.isascii() and head[:2] != b'{"':
        # A first line such as PAR1,PAR2 begins as a file of Parquet does, whose next bytes are no text.
        by_bytes = by_bytes if any(byte < 9 for byte in head) else None
    return by_bytes or by_name or FORMATS[-1]


def _is_npz(path: Path) -> bool:
    with zipfile.ZipFile(path) as archive:
        return all(name.endswith(".npy") for name in archive.namelist())


def open_features(
    path: Path,
    features_name: str | None = None,
    labels_name: str | None = None,
    label_attributes: Sequence[str] | None = None,
    beside: tuple[str, ...] = (),
) -> FeatureFile:
    """Return the features at `path`, in one of `FORMATS`; `InputError` where they cannot be read.

    A folder or a pattern is all its files in the order of the numbers in their names; a folder may also be
    Zarr's, or clip-retrieval's (img_emb/*.npy, metadata/*.parquet).  `label_attributes` are those of an ARFF
    file that are labels, and `beside` columns that are no features.
    """
    names = Names(features_name, labels_name, label_attributes, beside)
    with reading(str(path)):
        if (path / "img_emb").is_dir():
            refuse_names(path, "a clip-retrieval folder", features_name=names.features)
            return Parts(path, _clip_parts(path, names))
        if any((path / name).is_file() for name in ("zarr.json", ".zarray", ".zgroup")):
            return partial(ArrayFeatures, arrays.zarr_arrays)(path, names)
        files = parts_of(path, READABLE)
        if not files:
            raise InputError(f"there are no features at {path}: check --features")
        parts = [_opened(file, names) for file in files]
        return parts[0] if len(parts) == 1 else Parts(path, parts)


def _opened(path: Path, names: Names) -> FeatureFile:
    check_not_empty(path)
    form = format_of(path)
    if names.label_attributes is not None and form.name != "ARFF":
        raise InputError(f"{path} is not an ARFF file, and --labels names the label attributes of one")
    if form.open is None:
        readable = ", ".join(one.name for one in FORMATS if one.open)
        raise InputError(f"{path} is {form.name}: {form.features}; features are read from {readable}")
    with reading(str(path)):
        return form.open(path, names)


class Parts(FeatureFile):
    """The rows of several files, one after the other; with `splits` the rows of each are in one of these."""

    def __init__(self, path: Path, parts: Sequence[FeatureFile], splits: Sequence[str] | None = None) -> None:
        super().__init__(path)
        self._parts, self._splits = parts, splits
        for one, other in [*pairwise(parts), *reversed(list(pairwise(parts)))]:
            one.share_columns(other)
            if one.class_names != other.class_names:
                raise InputError(
                    f"{one.place} and {other.place} have different class names: give files that agree"
                )
        self._starts = [0, *accumulate(part.n for part in parts)]
        self.n, self.d = self._starts[-1], parts[0].d
        counts = [part.nonzeros for part in parts]
        self.nonzeros = None if None in counts else sum(count or 0 for count in counts)
        self.names = [name for name in parts[0].names if all(name in part.names for part in parts)]
        self.names += ["split"] * (splits is not None and "split" not in self.names)
        self.kind, self.first_column = parts[0].kind, parts[0].first_column
        self.class_names, self.columns = parts[0].class_names, parts[0].columns

    @property
    def place(self) -> str:
        """The folder or pattern, or the two files."""
        return str(self.path) if self._splits is None else " and ".join(part.place for part in self._parts)

    def _of_all(self, of: Callable[[FeatureFile], Found | None]) -> list[Found] | None:
        """Return what each part has; None where one has nothing."""
        found = [one for one in map(of, self._parts) if one is not None]
        return found if len(found) == len(self._parts) else None

    def rows(self, start: int, stop: int) -> Rows:
        """Return rows start..stop-1 across the files."""
        first = max(0, bisect.bisect_right(self._starts, start) - 1)
        found = [
            part.rows(max(0, start - begin), min(part.n, stop - begin))
            for part, begin in zip(self._parts[first:], self._starts[first:-1], strict=True)
            if begin < max(stop, start + 1)
        ]
        return stacked(found or [self._parts[-1].rows(0, 0)])

    def column(self, name: str) -> NDArray[Any]:
        """Return the values of all files, and the split of each part where it has one."""
        if name == "split" and self._splits is not None:
            return np.repeat(np.array(self._splits, dtype=object), [part.n for part in self._parts])
        return np.concatenate([part.column(name) for part in self._parts])

    def labels(self) -> NDArray[Any] | None:
        """Return the labels of all; None where a file has none."""
        found = self._of_all(lambda part: part.labels())
        if found is not None and len({labels.shape[1:] for labels in found}) > 1:
            raise InputError(
                f"{self.place} have labels of shapes {' and '.join(str(one.shape) for one in found)}"
            )
        return None if found is None else np.concatenate(found)

    def ids(self) -> Sequence[str] | None:
        """Return the names of rows where all files have some, behind their part's where two share one."""
        names = self._of_all(lambda part: part.ids())
        if names is None:
            return None
        found = [name for part in names for name in part]
        if len(set(found)) == sum(len(set(part)) for part in names):
            return found
        prefixes = self._splits or [part.files()[-1].stem for part in self._parts]
        return [f"{prefix}/{name}" for prefix, part in zip(prefixes, names, strict=True) for name in part]

    def left_out(self) -> Sequence[str]:
        """Return the columns that are taken for nothing in some file."""
        return list(dict.fromkeys(name for part in self._parts for name in part.left_out()))

    def as_trained(self, model: str, first: int | None, d: int) -> None:
        """Let all parts count columns as training did."""
        for part in self._parts:
            part.as_trained(model, first, d)
        self.d = self._parts[0].d

    def files(self) -> Sequence[Path]:
        """Return the files of all."""
        return [path for part in self._parts for path in part.files()]

    def close(self) -> None:
        """Close all."""
        for part in self._parts:
            part.close()


def _clip_parts(folder: Path, names: Names) -> list[FeatureFile]:
    """Return the arrays of clip-retrieval's folder, each beside the table of its number."""
    found = parts_of(folder / "img_emb", (".npy",))
    tables = parts_of(folder / "metadata", (".parquet",)) if (folder / "metadata").is_dir() else []
    arrays = [_opened(array, replace(names, labels=None)) for array in found]
    numbers = [[path.stem.rpartition("_")[2] for path in paths] for paths in (found, tables)]
    lonely = set(numbers[0]).symmetric_difference(numbers[1])
    if tables and (lonely or len(found) != len(tables)):
        paths = [path for path in (*found, *tables) if path.stem.rpartition("_")[2] in lonely]
        name = min(paths).relative_to(folder) if paths else "a number that comes twice"
        raise InputError(
            f"{folder} has {name} without its counterpart: img_emb/img_emb_N.npy and"
            " metadata/metadata_N.parquet belong together, row by row; bring back what is missing"
        )
    for array, table in zip(arrays, tables, strict=False):
        with pq.ParquetFile(table) as file:
            rows, array.names = file.metadata.num_rows, file.schema_arrow.names
        # Metadata are no features, and none is left out.
        array.table, array.taken, array.wanted = table, array.names, names
        if rows != array.n:
            raise InputError(f"{table} has {rows:,} rows, and {array.path.name} {array.n:,}: they must agree")
    return arrays


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
