"""Which reader opens which file, and two files as one: rows for training, then rows for testing."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_matrix, vstack

from topline.pipeline.errors import InputError
from topline.pipeline.readers.arff import ArffFeatures
from topline.pipeline.readers.arrays import HdfFeatures, NpyFeatures, open_npz
from topline.pipeline.readers.base import SEVERAL, FeatureFile, Rows, refuse_names
from topline.pipeline.readers.damage import check_not_empty, reading
from topline.pipeline.readers.delimited import CsvFeatures
from topline.pipeline.readers.libsvm import LibsvmFeatures
from topline.pipeline.readers.parquet import ClipFolder, ParquetFeatures


@dataclass(frozen=True)
class ArrayNames:
    """Names of what to read inside a file: arrays or columns, and an ARFF file's label attributes."""

    features: str | None = None
    labels: str | None = None
    label_attributes: Sequence[str] | None = None


def _npy(path: Path, names: ArrayNames) -> FeatureFile:
    refuse_names(path, "one array", features_name=names.features, labels_name=names.labels)
    return NpyFeatures(path)


def _arff(path: Path, names: ArrayNames) -> FeatureFile:
    refuse_names(path, "ARFF, where all attributes but labels are features", features_name=names.features)
    if names.label_attributes is not None:
        refuse_names(path, "ARFF whose labels the XML of --labels names", labels_name=names.labels)
    return ArffFeatures(path, names.labels, names.label_attributes)


def _csv(path: Path, names: ArrayNames) -> FeatureFile:
    refuse_names(path, "CSV, where all columns of numbers are features", features_name=names.features)
    return CsvFeatures(path, names.labels)


#: Suffixes, each with the reader of its format; a folder is clip-retrieval's, all else LIBSVM text.
READERS: Mapping[str, Callable[[Path, ArrayNames], FeatureFile]] = {
    ".npy": _npy,
    ".npz": lambda path, names: open_npz(path, names.features, names.labels),
    ".parquet": lambda path, names: ParquetFeatures(path, names.features, names.labels),
    **dict.fromkeys(
        (".h5", ".hdf5", ".hdf", ".mat"), lambda path, names: HdfFeatures(path, names.features, names.labels)
    ),
    **dict.fromkeys((".arff", ".arff.gz"), _arff),
    **dict.fromkeys((".csv", ".csv.gz", ".tsv", ".tsv.gz"), _csv),
}
#: Suffixes of tables and archives that hold no features that could be read.
OTHER_SUFFIXES = (".xlsx", ".feather", ".pkl", ".pickle", ".pt")


def open_features(
    path: Path,
    features_name: str | None = None,
    labels_name: str | None = None,
    label_attributes: Sequence[str] | None = None,
) -> FeatureFile:
    """Return the features at `path`, opened by the suffix; `InputError` where they cannot be read.

    .npy, .npz (dense, or CSR as SciPy saves it), .parquet, .h5 and .hdf5, .csv, .tsv and .arff (also .gz),
    anything else as LIBSVM text (also .gz); a folder in the layout of clip-retrieval (img_emb/*.npy,
    metadata/*.parquet).  `label_attributes` are those of an ARFF file that are labels.
    """
    if not path.exists():
        raise InputError(f"there are no features at {path}: check --features")
    suffixes = (path.suffix.lower(), "".join(path.suffixes[-2:]).lower())
    if label_attributes is not None and READERS.get(suffixes[0], READERS.get(suffixes[1])) is not _arff:
        raise InputError(f"{path} is not an ARFF file, and --labels names the label attributes of one")
    check_not_empty(path)
    with reading(str(path)):
        return _opened(path, suffixes, ArrayNames(features_name, labels_name, label_attributes))


def _opened(path: Path, suffixes: Sequence[str], names: ArrayNames) -> FeatureFile:
    if path.is_dir():
        refuse_names(path, "a clip-retrieval folder", features_name=names.features)
        return ClipFolder(path, names.labels)
    for suffix in suffixes:
        if suffix in READERS:
            return READERS[suffix](path, names)
    if suffixes[0] in OTHER_SUFFIXES:
        raise InputError(
            f"{path}: features are read from npy, npz, Parquet, CSV, HDF5, ARFF or LIBSVM, not {suffixes[0]};"
            " pandas writes a table as Parquet with DataFrame.to_parquet"
        )
    refuse_names(path, "LIBSVM text", features_name=names.features, labels_name=names.labels)
    return LibsvmFeatures(path)


class ConcatenatedFeatures(FeatureFile):
    """The rows of `train` and, after them, those of `test`; closes both.

    LIBSVM files may have different columns, as each leaves out its zeros; all others have the same.
    """

    def __init__(self, train: FeatureFile, test: FeatureFile) -> None:
        super().__init__(train.path)
        self._parts = (train, test)
        train.share_columns(test)
        names = [part.class_names() for part in self._parts]
        if names[0] != names[1]:
            raise InputError(
                f"{train.place} and {test.place} have different class names: give files that agree"
            )
        self.n, self.d = train.n + test.n, train.d
        counts = [part.nonzeros for part in self._parts]
        self.nonzeros = None if None in counts else sum(count or 0 for count in counts)

    @property
    def place(self) -> str:
        """Both files."""
        return " and ".join(part.place for part in self._parts)

    def rows(self, start: int, stop: int) -> Rows:
        """Return rows start..stop-1 across the files."""
        parts, cut = [], self._parts[0].n
        if start < cut:
            parts.append(self._parts[0].rows(start, min(stop, cut)))
        if stop > cut:
            parts.append(self._parts[1].rows(max(start, cut) - cut, stop - cut))
        if len(parts) == 1:
            return parts[0]
        sparse = [part for part in parts if isinstance(part, csr_matrix)]
        if sparse:
            return csr_matrix(vstack(sparse, format="csr"))
        return np.concatenate([np.asarray(part) for part in parts])

    def labels(self) -> NDArray[Any] | None:
        """Return the labels of both; None where a file has none."""
        found = [part.labels() for part in self._parts]
        kept = [labels for labels in found if labels is not None]
        if len(kept) < 2:
            return None
        if any(map(_has_several, kept)):
            kept = [_as_lists(labels) for labels in kept]
        if kept[0].shape[1:] != kept[1].shape[1:]:
            raise InputError(f"{self.place} have labels of shapes {kept[0].shape} and {kept[1].shape}")
        return np.concatenate(kept)

    def class_names(self) -> Sequence[str] | None:
        """Return the names of all classes, which both agree on."""
        return self._parts[0].class_names()

    def splits(self) -> NDArray[Any]:
        """Return "train" for the first file's rows and "test" for the second's."""
        return np.repeat(np.array(["train", "test"], dtype=object), [part.n for part in self._parts])

    def ids(self) -> Sequence[str] | None:
        """Return the names of the rows where both files have some, behind the split where they share one."""
        train, test = (part.ids() for part in self._parts)
        if train is None or test is None:
            return None
        if set(train).isdisjoint(test):
            return [*train, *test]
        return [*(f"train/{name}" for name in train), *(f"test/{name}" for name in test)]

    def columns(self) -> Sequence[str] | None:
        """Return the names of the features, which both agree on."""
        return self._parts[0].columns()

    def left_out(self) -> Sequence[str]:
        """Return the columns that are taken for nothing in either file."""
        return list(dict.fromkeys(name for part in self._parts for name in part.left_out()))

    def files(self) -> Sequence[Path]:
        """Return the files of both."""
        return [path for part in self._parts for path in part.files()]

    def close(self) -> None:
        """Close both."""
        for part in self._parts:
            part.close()


def _has_several(labels: NDArray[Any]) -> bool:
    """Return whether rows have lists of labels, as LIBSVM, ARFF and Parquet hold them."""
    return labels.dtype == object and any(isinstance(value, SEVERAL) for value in labels)


def _as_lists(labels: NDArray[Any]) -> NDArray[Any]:
    """Return a list of labels for each row; a single one becomes a list of one."""
    found = np.empty(len(labels), dtype=object)
    found[:] = [value if isinstance(value, SEVERAL) else (value,) for value in labels.tolist()]
    return found
