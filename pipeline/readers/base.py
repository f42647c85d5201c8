"""What every file of features offers, and how arrays inside one are found and checked."""

from __future__ import annotations

import difflib
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_matrix

from topline.pipeline.errors import InputError
from topline.pipeline.images import NAMED_ROWS

FEATURE_NAMES = ("features", "X", "x", "embeddings", "embedding", "data", "arr_0")
ID_NAMES = ("sample_id", "image_path", "key")
LABEL_NAMES = ("labels", "label", "y", "Y", "targets", "target", "class")

Rows = NDArray[Any] | csr_matrix
#: Names that a message lists at most.
NAMED_COLUMNS = 8
#: Types of the labels of a row that has several.
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
    _labels: NDArray[Any] | None = None

    def __init__(self, path: Path) -> None:
        self.path = path

    @property
    def place(self) -> str:
        """Where the features are, for messages."""
        return str(self.path)

    @abstractmethod
    def rows(self, start: int, stop: int) -> Rows:
        """Return rows start..stop-1, shape (stop - start, d)."""

    def labels(self) -> NDArray[Any] | None:
        """Return the label of each row."""
        return self._labels

    def class_names(self) -> Sequence[str] | None:
        """Return the names of all classes, in their order."""
        return None

    def splits(self) -> NDArray[Any] | None:
        """Return the split of each row."""
        return None

    def ids(self) -> Sequence[str] | None:
        """Return the name of each row."""
        return None

    def columns(self) -> Sequence[str] | None:
        """Return the names of the features, in their order."""
        return None

    def left_out(self) -> Sequence[str]:
        """Return the columns that are taken for nothing."""
        return ()

    def files(self) -> Sequence[Path]:
        """Return the files that all this comes from."""
        return (self.path,)

    def share_columns(self, other: FeatureFile) -> None:
        """Make both files have the same columns; `InputError` where they differ."""
        if self.d != other.d:
            raise InputError(
                f"{self.place} has {self.d:,} features per row and {other.place} {other.d:,}: give files of"
                " the same features"
            )
        columns, others = self.columns(), other.columns()
        if columns is not None and others is not None:
            check_columns(self.place, columns, other.place, others)

    def close(self) -> None:  # noqa: B027 - most files are open only while they are read
        """Close what is open."""


class StreamedFeatures(FeatureFile):
    """Dense features that are parsed from the start, batch by batch."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._batches: Iterator[NDArray[Any]] | None = None
        self._kept = np.zeros((0, 0), dtype=np.float32)
        self._kept_from = 0

    @abstractmethod
    def _arrays(self) -> Iterator[NDArray[Any]]:
        """Yield all rows, some at a time."""

    def rows(self, start: int, stop: int) -> NDArray[Any]:
        """Return the next rows; going back begins again."""
        if self._batches is None or start < self._kept_from:
            self._batches, self._kept_from = self._arrays(), 0
            self._kept = np.zeros((0, self.d), dtype=np.float32)
        parts = []
        while True:
            end = self._kept_from + len(self._kept)
            parts.append(self._kept[max(0, start - self._kept_from) : max(0, stop - self._kept_from)])
            if stop <= end:
                return np.concatenate(parts)
            self._kept_from, self._kept = end, next(self._batches)


def pick(place: str, what: str, wanted: str | None, usual: Sequence[str], there: Sequence[str]) -> str | None:
    """Return the name of an array among `there`: the wanted one, a usual one, or the only one; else None.

    `InputError` where the wanted one is not there.
    """
    if wanted is not None:
        if wanted not in there:
            raise InputError(f"{place} has no {what} {wanted!r}: {_choice(wanted, there)}")
        return wanted
    found = [name for name in usual if name in there]
    if found:
        return found[0]
    return there[0] if len(there) == 1 else None


def _choice(wanted: str, there: Sequence[str]) -> str:
    """Return what there is in the place of a name that is not there, a similar one before others."""
    close = difflib.get_close_matches(wanted, there, n=1)
    found = f"it has {named(there)}" if there else "it has none"
    return f"did you mean {close[0]!r}? {found}" if close else found


def named(names: Sequence[str]) -> str:
    """Return names with commas between them, of many the first and the last ones."""
    if len(names) <= NAMED_COLUMNS:
        return ", ".join(names)
    first, last = names[: NAMED_COLUMNS - 2], names[-2:]
    return f"{', '.join(first)} ... {', '.join(last)} ({len(names):,} in all)"


def one_column(labels: NDArray[Any]) -> NDArray[Any]:
    """Return labels (n, 1) or (1, n) as (n,): one label a row, and no indicator of a single class."""
    return labels.ravel() if labels.ndim == 2 and 1 in labels.shape else labels


def check_matrix(place: str, shape: Sequence[int], dtype: np.dtype[Any]) -> tuple[int, int]:
    """Return rows and columns of an array of features; `InputError` where it is not a matrix of numbers."""
    if dtype.hasobject:
        raise InputError(f"{place} holds Python objects, which are never loaded: save numbers")
    if dtype.kind not in "fiub":
        raise InputError(f"{place} holds {dtype}, and features are real numbers")
    if len(shape) == 2 and min(shape) < 1:
        what = "rows" if shape[0] < 1 else "columns"
        raise InputError(f"{place} has no {what}: its shape is {tuple(shape)}; write the features again")
    if len(shape) != 2:
        raise InputError(f"{place} has shape {tuple(shape)}, and features are (rows, columns)")
    return int(shape[0]), int(shape[1])


def check_columns(place: str, columns: Sequence[str], other: str, others: Sequence[str]) -> None:
    """Raise `InputError` where the features of two files, or of a model and a file, are not the same."""
    if list(columns) == list(others):
        return
    missing = [name for name in columns if name not in set(others)]
    foreign = [name for name in others if name not in set(columns)]
    if missing and foreign:
        raise InputError(
            f"{place} has the features {named(missing)}, and {other} {named(foreign)} in their place: give"
            " files of the same features"
        )
    if missing or foreign:
        more, less = (place, other) if missing else (other, place)
        raise InputError(
            f"{more} has the features {named(missing or foreign)}, which {less} does not have: give files of"
            " the same features"
        )
    raise InputError(
        f"{place} and {other} have the same features in different orders: write the columns in one order"
    )


def refuse_names(place: object, what: str, **given: str | None) -> None:
    """Raise `InputError` where an option names something in a file of a kind, `what`, that has no names."""
    for option, name in given.items():
        if name is not None:
            flag = "--" + option.replace("_", "-")
            raise InputError(f"{flag} {name} names nothing in {place}, which is {what}: leave {flag} out")


def first_rows(rows: Sequence[int]) -> str:
    """Return the first of some rows for a message: "row 4", "rows 4, 9, 30 ..."."""
    named = ", ".join(map(str, rows[:NAMED_ROWS])) + (" ..." if len(rows) > NAMED_ROWS else "")
    return f"row{'s' if len(rows) > 1 else ''} {named}"
