"""Labels, label sets and splits of a dataset, the rules they obey, and their edits."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import ArrayLike, NDArray

from topline.storage.errors import FormatError, IntegrityError
from topline.storage.records import canonical_json, digest_bytes
from topline.storage.schema import GROUPS, LABEL_DTYPE, NO_LABEL, SPLIT_DTYPE, SPLITS, WEIGHTS


@dataclass(frozen=True, eq=False)
class LabelSetTable:
    """Distinct label sets, as the rows of a sparse matrix without values.

    Set s holds the classes indices[indptr[s]:indptr[s + 1]], ascending; `indptr` (sets + 1,) is int64,
    `indices` int32.  A set may be empty.
    """

    indptr: NDArray[np.int64]
    indices: NDArray[np.int32]

    def __len__(self) -> int:
        """Return the number of sets."""
        return len(self.indptr) - 1

    def __iter__(self) -> Iterator[NDArray[np.int32]]:
        return (self.indices[start:stop] for start, stop in pairwise(self.indptr.tolist()))

    def names(self, class_names: Sequence[str]) -> list[str]:
        """Return the name of each set: its class names joined by commas."""
        return [", ".join(class_names[c] for c in classes.tolist()) for classes in self]

    @classmethod
    def checked(cls, indptr: ArrayLike, indices: ArrayLike, m: int) -> LabelSetTable:
        """Make a table of sets of classes 0..m-1; `FormatError` naming an invalid or repeated set."""
        bounds, classes = _integers(indptr, "indptr"), _integers(indices, "indices")
        ends = (bounds[0], bounds[-1]) if len(bounds) else (-1, -1)
        if ends != (0, len(classes)) or (np.diff(bounds) < 0).any():
            raise FormatError(f"indptr of label sets rises from 0 to the {len(classes)} classes in them")
        owner = np.repeat(np.arange(len(bounds) - 1), np.diff(bounds))
        outside = (classes < 0) | (classes >= m)
        if outside.any():
            place = int(np.argmax(outside))
            raise FormatError(
                f"label set {owner[place]} holds {classes[place]}, and {m} classes have labels 0..{m - 1}"
            )
        falling = np.flatnonzero((np.diff(owner) == 0) & (np.diff(classes) <= 0))
        if len(falling):
            raise FormatError(f"the classes of label set {owner[falling[0]]} do not rise")
        table = cls(bounds, classes.astype(LABEL_DTYPE))
        first: dict[bytes, int] = {}
        for number, members in enumerate(table):
            earlier = first.setdefault(members.tobytes(), number)
            if earlier != number:
                raise FormatError(f"label sets {earlier} and {number} are the same; each is stored once")
        return table


def check_class_names(class_names: Sequence[str]) -> tuple[str, ...]:
    """Return the names, at least one, all text and distinct; otherwise `FormatError`."""
    names = tuple(class_names)
    if not names:
        raise FormatError("a dataset has at least one class")
    for name in names:
        if not isinstance(name, str) or not name:
            raise FormatError(f"a class name is a non-empty text, not {name!r}")
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise FormatError(f"two classes are named {twice!r}; class names must differ")
    return names


def check_labels_and_splits(
    labels: ArrayLike, split: ArrayLike, n_rows: int, m: int, label_sets: LabelSetTable | None = None
) -> tuple[NDArray[np.int32], NDArray[np.int8]]:
    """Return the labels as int32 and split as int8, both (n_rows,).

    Every row has a label 0..m-1, or the number of one of its `label_sets`, or -1 in the split "rejected".
    `FormatError` names the first row and the number of rows that break this.
    """
    what, count = ("classes", m) if label_sets is None else ("label sets", len(label_sets))
    y, s = _row_integers(labels, n_rows, "labels"), _row_integers(split, n_rows, "split")
    unknown = (s < 0) | (s >= len(SPLITS))
    if unknown.any():
        words = ", ".join(f"{code} ({name})" for name, code in SPLITS.items())
        raise FormatError(f"{_first(unknown, s)} is not a split; splits are {words}")
    rejected = s == SPLITS["rejected"]
    labelled = rejected & (y != NO_LABEL)
    if labelled.any():
        raise FormatError(f"{_first(labelled, y)} is the label of a rejected row, which has {NO_LABEL}")
    outside = ~rejected & ((y < 0) | (y >= count))
    if outside.any():
        raise FormatError(
            f"{_first(outside, y)} is a label out of range: {count} {what} have labels 0..{count - 1}"
        )
    return y.astype(LABEL_DTYPE), s.astype(SPLIT_DTYPE)


def check_rejected(table: pa.Table, split: NDArray[np.int8]) -> None:
    """Raise `FormatError` if a row rejected by the manifest is in another split."""
    status = pc.equal(table["status"], "rejected").to_numpy()
    wrong = status & (split != SPLITS["rejected"])
    if wrong.any():
        row = int(np.argmax(wrong))
        raise FormatError(
            f"row {row} ({table['sample_id'][row].as_py()}) is rejected, and its split is {split[row]};"
            f" it must be {SPLITS['rejected']} with label {NO_LABEL}"
        )


def split_counts(split: NDArray[np.int8]) -> dict[str, int]:
    """Return the number of rows of each split; calibration is listed only if it has rows."""
    counts = {name: int(np.count_nonzero(split == code)) for name, code in SPLITS.items()}
    return {name: count for name, count in counts.items() if count or name != "calibration"}


def _row_integers(values: ArrayLike, n_rows: int, name: str) -> NDArray[np.int64]:
    array = np.asarray(values)
    if array.shape != (n_rows,):
        raise FormatError(f"{name} have shape ({n_rows},), one for each row, not {array.shape}")
    if array.dtype.kind not in "iu" and array.size:
        raise FormatError(f"{name} are integers, not {array.dtype}")
    return array.astype(np.int64)


def _first(mask: NDArray[np.bool_], values: NDArray[np.int64]) -> str:
    row, count = int(np.argmax(mask)), int(np.count_nonzero(mask))
    others = f" and {count - 1} other rows" if count > 1 else ""
    return f"{values[row]} in row {row}{others}"


def _integers(values: ArrayLike, name: str) -> NDArray[np.int64]:
    array = np.asarray(values)
    if array.ndim != 1 or (array.dtype.kind not in "iu" and array.size):
        raise FormatError(f"{name} of label sets holds whole numbers, not {array.dtype} of {array.shape}")
    return array.astype(np.int64)


@dataclass(frozen=True)
class RecordedEdits:
    """Corrected labels and rows left out, by sample id.

    `labels` maps to the original label and the current one; `left_out` holds only digests of ids, since
    nothing else is kept of a row that is left out.
    """

    labels: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    left_out: frozenset[str] = frozenset()

    def __len__(self) -> int:
        return len(self.labels) + len(self.left_out)

    def leave_out(self, sample_id: str) -> bool:
        """Return whether the row of that id was left out."""
        return digest_of_id(sample_id) in self.left_out


@dataclass(frozen=True, eq=False)
class RowFacts:
    """Optional facts of the n rows of a dataset besides their labels.

    `groups` (n,) int32 number rows that no split may separate, and `weights` (n,) float64 are training
    weights.  `edits` are a version's changes relative to its images; a dataset stores them separately.
    """

    groups: NDArray[np.int32] | None = None
    weights: NDArray[np.float64] | None = None
    edits: RecordedEdits | None = None

    def take(self, rows: NDArray[np.int64]) -> RowFacts:
        """Return the facts of some rows."""
        groups, weights = self.groups, self.weights
        return RowFacts(None if groups is None else groups[rows], None if weights is None else weights[rows])

    def same_as(self, other: RowFacts) -> bool:
        """Return whether both hold the same facts of the same rows."""
        mine, theirs = self.arrays(), other.arrays()
        return mine.keys() == theirs.keys() and all(np.array_equal(mine[name], theirs[name]) for name in mine)

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Return the arrays by their names in the store."""
        named = {GROUPS: self.groups, WEIGHTS: self.weights}
        return {name: values for name, values in named.items() if values is not None}

    def checked(self, n: int) -> RowFacts:
        """Return the facts in their stored types; `FormatError` unless they cover n rows."""
        for name, values in self.arrays().items():
            if values.shape != (n,) or (name == WEIGHTS and not (np.isfinite(values) & (values >= 0)).all()):
                raise FormatError(f"{name} are n finite numbers from 0 on, not {values.shape} for {n} rows")
        groups = None if self.groups is None else np.asarray(self.groups, dtype=np.int32)
        return RowFacts(groups, None if self.weights is None else np.asarray(self.weights, dtype=np.float64))


def digest_of_id(sample_id: str) -> str:
    """Return the digest that identifies a row left out."""
    return digest_bytes(sample_id.encode())


def dump_edits(edits: RecordedEdits) -> bytes:
    """Return the JSON file of the edits."""
    labels = {name: list(pair) for name, pair in edits.labels.items()}
    return canonical_json({"labels": labels, "left_out": sorted(edits.left_out)})


def load_edits(data: bytes, place: str) -> RecordedEdits:
    """Return the edits that `dump_edits` wrote; `IntegrityError` naming `place` if unreadable."""
    try:
        found = json.loads(data)
        labels = {str(name): (str(then), str(now)) for name, (then, now) in found["labels"].items()}
        return RecordedEdits(labels, frozenset(map(str, found["left_out"])))
    except (ValueError, TypeError, LookupError, AttributeError) as error:
        raise IntegrityError(f"{place} is damaged: it is not a record of edits") from error
