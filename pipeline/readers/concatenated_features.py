"""Two files of features as one: rows for training, then rows for testing."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_matrix, vstack

from topline.pipeline.errors import InputError
from topline.pipeline.readers.features import SEVERAL, FeatureFile, Rows
from topline.pipeline.readers.libsvm import LibsvmFeatures


class ConcatenatedFeatures(FeatureFile):
    """The rows of `train` and, after them, those of `test`; closes both.

    LIBSVM files may have different columns, as each leaves out its zeros; all others have the same.
    """

    def __init__(self, train: FeatureFile, test: FeatureFile) -> None:
        super().__init__(train.path)
        self._parts = (train, test)
        if isinstance(train, LibsvmFeatures) and isinstance(test, LibsvmFeatures):
            train.share_columns(test)
        elif train.d != test.d:
            raise InputError(
                f"{train.place} has {train.d:,} features a row and {test.place} {test.d:,}: give files of the"
                " same features"
            )
        names = [part.class_names() for part in self._parts]
        if names[0] != names[1]:
            raise InputError(f"{train.place} and {test.place} have other class names: give files that agree")
        self.n, self.d = train.n + test.n, train.d
        counts = [part.nonzeros for part in self._parts]
        self.nonzeros = None if None in counts else sum(count or 0 for count in counts)

    @property
    def place(self) -> str:
        """Both files."""
        return " and ".join(part.place for part in self._parts)

    def rows(self, start: int, stop: int) -> Rows:
        """Rows across the files."""
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
        """Labels of both; None where a file has none."""
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
        """Names of all classes, which both agree on."""
        return self._parts[0].class_names()

    def splits(self) -> NDArray[Any]:
        """Say "train" of the first file's rows and "test" of the second's."""
        return np.repeat(np.array(["train", "test"], dtype=object), [part.n for part in self._parts])

    def files(self) -> Sequence[Path]:
        """Files of both."""
        return [path for part in self._parts for path in part.files()]

    def close(self) -> None:
        """Close both."""
        for part in self._parts:
            part.close()


def _has_several(labels: NDArray[Any]) -> bool:
    """Whether rows have lists of labels, as LIBSVM, ARFF and Parquet give them."""
    return labels.dtype == object and any(isinstance(value, SEVERAL) for value in labels)


def _as_lists(labels: NDArray[Any]) -> NDArray[Any]:
    """Give each row a list of labels; a single one is a list of one."""
    found = np.empty(len(labels), dtype=object)
    found[:] = [value if isinstance(value, SEVERAL) else (value,) for value in labels.tolist()]
    return found
