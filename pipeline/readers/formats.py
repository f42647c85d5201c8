"""Which reader opens which file, and several files as one: parts in their order."""

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

from topline.pipeline.errors import InputError
from topline.pipeline.readers import arrays
from topline.pipeline.readers.arrays import ArrayFeatures
from topline.pipeline.readers.base import FeatureFile, Names, Rows, parts_of, refuse_names, stacked
from topline.pipeline.readers.columns import CsvFeatures, ParquetFeatures
from topline.pipeline.readers.files import check_not_empty, reading
from topline.pipeline.readers.texts import ArffFeatures, LibsvmFeatures

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
