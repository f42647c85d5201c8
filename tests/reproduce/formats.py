"""Files of the public data sets, each format as its source publishes it, gzipped or not."""

from __future__ import annotations

import csv
import gzip
import warnings
import zipfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from io import TextIOWrapper
from itertools import dropwhile
from pathlib import Path
from typing import Any, BinaryIO, TextIO

import numpy as np
from numpy.typing import NDArray
from scipy import io, sparse
from sklearn.datasets import load_svmlight_file

from topline.pipeline.errors import InputError


@dataclass(frozen=True, eq=False)
class Examples:
    """A data set.

    Attributes
    ----------
    X : (n, d) features in float64, dense or SciPy CSR.
    y : (n,) class numbers from 0, or targets in float64; or an indicator (n, m) of several labels per row.
    parts : sizes of the published parts (training, validation, test), whose rows follow one another; empty
        where the set is published in one piece.
    """

    X: Any
    y: NDArray[Any]
    parts: tuple[int, ...] = ()

    @property
    def m(self) -> int:
        """Number of classes."""
        return int(self.y.max()) + 1 if self.y.ndim == 1 else int(self.y.shape[1])


def codes(labels: Any) -> NDArray[np.int64]:
    """Number labels from 0 in sorted order."""
    return np.asarray(np.unique(np.asarray(labels), return_inverse=True)[1], dtype=np.int64)


_UNREADABLE = (
    ValueError, KeyError, IndexError, EOFError, OSError, UserWarning, zipfile.BadZipFile,
)  # fmt: skip


@contextmanager
def reading(path: Path, what: str) -> Iterator[None]:
    """Turn what can go wrong while a file is read into one sentence."""
    try:
        yield
    except _UNREADABLE as error:
        reason = " ".join(str(error).split())[:200]
        raise InputError(f"{path} is not readable as {what}: {reason}; fetch the file again") from error


def open_text(path: Path) -> TextIO:
    """Open text, gzipped or not, whatever the name says."""
    return TextIOWrapper(open_bytes(path), encoding="utf-8")


def open_bytes(path: Path) -> BinaryIO:
    """Open bytes, gzipped or not, whatever the name says."""
    with path.open("rb") as stream:
        packed = stream.read(2) == b"\x1f\x8b"
    return gzip.open(path, "rb") if packed else path.open("rb")  # type: ignore[return-value]


def columns(rows: Iterable[Sequence[str | float]], d: int) -> NDArray[np.float64]:
    """Return words as a table of numbers; raises ValueError for rows that are not d + 1 numbers."""
    table = np.array([[float(word) for word in row] for row in rows])
    if table.ndim != 2 or table.shape[1] != d + 1:
        raise ValueError(f"its rows do not have {d + 1} numbers")
    return table


def table_of_numbers(path: Path, what: str, columns: int, skip: int = 0) -> NDArray[np.float64]:
    """Read numbers separated by blanks, `columns` of them a row."""
    with reading(path, what), open_text(path) as lines, warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)  # of a file without rows
        table = np.loadtxt(lines, skiprows=skip, ndmin=2)
        if table.shape[1] != columns:
            raise ValueError(f"it has {table.shape[1]} columns where {columns} are expected")
        if not np.isfinite(table).all():
            raise ValueError("it holds values that are not finite")
    return table


def label_first(path: Path, what: str, d: int) -> Examples:
    """Read rows "label x_1 ... x_d"."""
    table = table_of_numbers(path, what, d + 1)
    return Examples(table[:, 1:], codes(table[:, 0]))


def target_table(path: Path, what: str, d: int) -> Examples:
    """Read a table of tabs whose header names the last column "target"."""
    with reading(path, what), open_text(path) as lines:
        rows = list(csv.reader(lines, delimiter="\t"))
        if not rows or rows[0][-1] != "target" or len(rows[0]) != d + 1:
            raise ValueError(f"its header does not name {d} features and a target")
        table = columns(rows[1:], d)
    return Examples(table[:, :-1], codes(table[:, -1]))


def last_column_csv(path: Path, what: str, d: int) -> Examples:
    """Read comma-separated numbers under a header; the last column is what is to be predicted."""
    with reading(path, what), open_text(path) as lines:
        table = columns(list(csv.reader(lines))[1:], d)
    return Examples(table[:, :-1], table[:, -1])


def abalone(path: Path, what: str, d: int) -> Examples:
    """Read UCI's abalone: the sex M, F or I as -1, 0 or 1, seven sizes, and the rings to predict."""
    sexes = {"M": -1.0, "F": 0.0, "I": 1.0}
    with reading(path, what), open_text(path) as lines:
        table = columns(([sexes[row[0].strip()], *row[1:]] for row in csv.reader(lines) if row), d)
    return Examples(table[:, :-1], table[:, -1])


def statlog(path: Path, what: str, d: int) -> Examples:
    """Read numbers separated by blanks under a header, or under none; the last column is the class."""
    with reading(path, what), open_text(path) as lines:
        first = lines.readline().split()
        skip = 0 if all(_is_number(word) for word in first) else 1
    table = table_of_numbers(path, what, d + 1, skip)
    return Examples(table[:, :-1], codes(table[:, -1]))


def keel(path: Path, what: str, d: int) -> Examples:
    """Read a KEEL file: comma-separated rows after @data, the class last."""
    with reading(path, what), open_text(path) as lines:
        rows = [line.split(",") for line in lines]
        table = columns((row for row in rows if len(row) == d + 1 and all(map(_is_number, row))), d)
    return Examples(table[:, :-1], codes(table[:, -1]))


def as_it_is(path: Path, _what: str, _d: int) -> Path:
    """Leave a file to the one who joins it with others."""
    return path


def several_labels(arff: Path, xml: Path, d: int) -> Examples:
    """Read Mulan's ARFF file, whose labels the XML file names, in the order of that."""
    from topline.pipeline.readers import read_label_names
    from topline.pipeline.readers.base import Names
    from topline.pipeline.readers.texts import ArffFeatures

    names = read_label_names(xml)
    features = ArffFeatures(arff, Names(label_attributes=names))
    if features.d != d:
        raise InputError(f"{arff} has {features.d} features where {d} are expected: is it another data set?")
    place = {name: column for column, name in enumerate(names)}
    Y = np.zeros((features.n, len(names)), dtype=np.int64)
    sets: Any = features.labels()
    for row, labels in enumerate(sets):
        Y[row, [place[label] for label in labels]] = 1
    return Examples(features.rows(0, features.n), Y)


def libsvm_rows(path: Path, what: str, d: int) -> Examples:
    """Read LIBSVM text "target index:value ..." with indices from 1; the targets are numbers to predict."""
    with reading(path, what), open_bytes(path) as stream:
        X, y = load_svmlight_file(stream, n_features=d, zero_based=False)
    return Examples(X.toarray(), y)


def libsvm_classes(path: Path, what: str, d: int) -> Examples:
    """Read LIBSVM text whose targets are classes."""
    found = libsvm_rows(path, what, d)
    return Examples(found.X, codes(found.y))


def class_first_arff(path: Path, what: str, d: int) -> Examples:
    """Read an ARFF file of numbered categories whose first attribute is the class."""
    with reading(path, what), open_text(path) as lines:
        texts = dropwhile(lambda text: text.lower() != "@data", map(str.strip, lines))
        table = columns((text.split(",") for text in texts if text and text[0] not in "%@"), d)
    return Examples(table[:, 1:], codes(table[:, 0]))


def usps_digits(path: Path, what: str, d: int) -> Examples:
    """Read X_train, y_train, X_test, y_test of an npz file; whole numbers are thousandths."""
    with reading(path, what), np.load(path) as arrays:
        X = np.concatenate([arrays["X_train"], arrays["X_test"]])
        y = np.concatenate([arrays["y_train"], arrays["y_test"]])
        if X.ndim != 2 or X.shape[1] != d:
            raise ValueError(f"its features have the shape {X.shape} where {d} columns are expected")
        scale = 1000.0 if np.issubdtype(X.dtype, np.integer) else 1.0
        return Examples(X / scale, codes(y), (len(arrays["y_train"]), len(arrays["y_test"])))


def idx_array(path: Path, what: str, _d: int) -> NDArray[np.uint8]:
    """Read bytes in the IDX format of MNIST: two zeros, 8, the number of sizes, the sizes, the bytes."""
    with reading(path, what), open_bytes(path) as stream:
        head = stream.read(4)
        if head[:3] != b"\x00\x00\x08":
            raise ValueError("it does not begin with the IDX mark of unsigned bytes")
        sizes = np.frombuffer(stream.read(4 * head[3]), ">i4")
        found = np.frombuffer(stream.read(), np.uint8)
        if len(found) != np.prod(sizes):
            raise ValueError(f"it holds {len(found):,} bytes where its sizes are {sizes.tolist()}")
    return found.reshape(sizes)


def mnist_digits(parts: Sequence[NDArray[np.uint8]], d: int) -> Examples:
    """Join images and labels, images and labels: training digits, then those for tests, in [0, 1]."""
    images, labels = parts[::2], parts[1::2]
    if any(len(X) != len(y) or y.ndim != 1 or X[0].size != d for X, y in zip(images, labels, strict=True)):
        shapes = ", ".join(str(part.shape) for part in parts)
        raise InputError(f"the arrays of MNIST have the shapes {shapes}: images, labels, images, labels fit")
    X = np.concatenate([part.reshape(len(part), d) for part in images]) / 255.0
    return Examples(X, codes(np.concatenate(labels)), tuple(len(part) for part in labels))


def word_counts(path: Path, what: str, d: int) -> Examples:
    """Read a CSR matrix of counts from an npz file with data, indices, indptr, shape and y."""
    with reading(path, what), np.load(path) as arrays:
        csr = (arrays["data"].astype(np.float64), arrays["indices"], arrays["indptr"])
        X = sparse.csr_matrix(csr, shape=tuple(arrays["shape"]))
        if X.shape[1] < d or X.shape[0] != len(arrays["y"]):
            raise ValueError(f"its matrix has the shape {X.shape} for {len(arrays['y'])} labels")
        return Examples(X, codes(arrays["y"]))


def silhouettes(path: Path, what: str, d: int) -> Examples:
    """Read the .mat file of Caltech 101 Silhouettes with its published three parts."""
    with reading(path, what):
        table = io.loadmat(path)
        names = ("train", "val", "test")
        parts = [(table[f"{part}_data"], table[f"{part}_labels"].ravel()) for part in names]
        if any(X.shape[1] != d for X, _ in parts):
            raise ValueError(f"its images do not have {d} pixels")
        X = np.concatenate([X for X, _ in parts]).astype(np.float64)
        sizes = tuple(len(y) for _, y in parts)
        return Examples(X, codes(np.concatenate([y for _, y in parts])), sizes)


def points_and_signs(path: Path, what: str, d: int) -> Examples:
    """Read x (n, d) and signs y (n, 1) of a .mat file; other arrays in it are left alone."""
    with reading(path, what):
        table = io.loadmat(path, variable_names=("x", "y"))
        X, y = np.asarray(table["x"], np.float64), np.asarray(table["y"]).ravel()
        if X.ndim != 2 or X.shape != (len(y), d):
            raise ValueError(f"its points have the shape {X.shape} for {len(y)} signs of {d} coordinates")
        if not np.isin(y, (-1, 1)).all() or not np.isfinite(X).all():
            raise ValueError("its y are not the signs -1 and 1, or its x not finite")
    return Examples(X, y.astype(np.float64))


def _is_number(word: str) -> bool:
    try:
        float(word)
    except ValueError:
        return False
    return True


#: How a file becomes examples.
Reader = Callable[[Path, str, int], Examples]
