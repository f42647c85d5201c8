"""Files that hold features: which format a file has, and what every format offers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_matrix

from topline.pipeline.errors import InputError

FEATURE_NAMES = ("features", "X", "x", "embeddings", "embedding", "data", "arr_0")
LABEL_NAMES = ("labels", "label", "y", "Y", "targets", "target", "class")

Rows = NDArray[Any] | csr_matrix
#: What the labels of a row are that has several.
SEVERAL = (tuple, list, np.ndarray)


class FeatureFile(ABC):
    """Features (n, d) in a file that is read piece by piece, never as a whole; `close` ends it.

    `nonzeros` is None for dense ones.  `rows` is asked for in increasing order, and may be slow otherwise.
    `labels`, `splits`, `ids` and `class_names` are None where the file has none.  Labels are as the file has
    them: one value a row, or several as an indicator (n, m) of 0 and 1 or as tuples in an array of objects.
    """

    n: int
    d: int
    nonzeros: int | None = None

    def __init__(self, path: Path) -> None:
        self.path = path

    @property
    def place(self) -> str:
        """Where the features are, for messages."""
        return str(self.path)

    @abstractmethod
    def rows(self, start: int, stop: int) -> Rows:
        """Rows start..stop-1, shape (stop - start, d)."""

    def labels(self) -> NDArray[Any] | None:
        """Label of each row."""
        return None

    def class_names(self) -> Sequence[str] | None:
        """Names of all classes, in their order."""
        return None

    def splits(self) -> NDArray[Any] | None:
        """Split of each row."""
        return None

    def ids(self) -> Sequence[str] | None:
        """Name of each row."""
        return None

    def files(self) -> Sequence[Path]:
        """Files that all this comes from."""
        return (self.path,)

    def close(self) -> None:  # noqa: B027 - most files are open only while they are read
        """Let go of what is open."""


def open_features(
    path: Path,
    features_name: str | None,
    labels_name: str | None,
    label_attributes: Sequence[str] | None = None,
) -> FeatureFile:
    """The features at `path`, by its suffix; `InputError` where they cannot be read.

    .npy, .npz (dense, or CSR as SciPy saves it), .parquet, .h5 and .hdf5, .arff (also .arff.gz), anything
    else as LIBSVM text (also .gz); a folder in the layout of clip-retrieval (img_emb/*.npy,
    metadata/*.parquet).  `label_attributes` are those of an ARFF file that are labels.
    """
    from topline.pipeline.readers.arff import ArffFeatures
    from topline.pipeline.readers.arrays import HdfFeatures, NpyFeatures, open_npz
    from topline.pipeline.readers.libsvm import LibsvmFeatures
    from topline.pipeline.readers.tables import ClipFolder, ParquetFeatures

    if not path.exists():
        raise InputError(f"there are no features at {path}: check --features")
    suffix = path.suffix.lower()
    if suffix == ".arff" or path.name.lower().endswith(".arff.gz"):
        return ArffFeatures(path, labels_name, label_attributes)
    if label_attributes is not None:
        raise InputError(f"{path} is no ARFF file, and --labels names the label attributes of one")
    if path.is_dir():
        return ClipFolder(path, labels_name)
    if suffix == ".npy":
        return NpyFeatures(path)
    if suffix == ".npz":
        return open_npz(path, features_name, labels_name)
    if suffix == ".parquet":
        return ParquetFeatures(path, features_name, labels_name)
    if suffix in (".h5", ".hdf5", ".hdf", ".mat"):
        return HdfFeatures(path, features_name, labels_name)
    if suffix in (".csv", ".tsv", ".pkl", ".pickle", ".pt"):
        raise InputError(
            f"{path}: features are read from npy, npz, Parquet, HDF5, ARFF or LIBSVM, not {suffix}"
        )
    return LibsvmFeatures(path)


def pick(place: str, what: str, wanted: str | None, usual: Sequence[str], there: Sequence[str]) -> str | None:
    """Name of the array among `there`: the wanted one, a usual one, or the only one; None if none fits.

    `InputError` where the wanted one is not there.
    """
    if wanted is not None:
        if wanted not in there:
            raise InputError(f"{place} has no {what} {wanted!r}: it has {', '.join(there) or 'none'}")
        return wanted
    found = [name for name in usual if name in there]
    if found:
        return found[0]
    return there[0] if len(there) == 1 else None


def check_matrix(place: str, shape: Sequence[int], dtype: np.dtype[Any]) -> tuple[int, int]:
    """Rows and columns of an array of features; `InputError` where it is none."""
    if dtype.hasobject:
        raise InputError(f"{place} holds Python objects, which are never loaded: save numbers")
    if dtype.kind not in "fiub":
        raise InputError(f"{place} holds {dtype}, and features are real numbers")
    if len(shape) != 2 or min(shape) < 1:
        raise InputError(f"{place} has shape {tuple(shape)}, and features are (rows, columns)")
    return int(shape[0]), int(shape[1])
