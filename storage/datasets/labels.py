"""Label sets of a dataset whose rows have several labels each: its labels are then numbers of these sets."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import ArrayLike, NDArray

from topline.storage.errors import FormatError
from topline.storage.schema import LABEL_DTYPE


@dataclass(frozen=True, eq=False)
class LabelSetTable:
    """Distinct label sets, in rows of a sparse matrix without values.

    Set s holds the classes indices[indptr[s]:indptr[s + 1]], rising; `indptr` (sets + 1,) is int64, `indices`
    int32.  A set may be empty.
    """

    indptr: NDArray[np.int64]
    indices: NDArray[np.int32]

    def __len__(self) -> int:
        """Give the number of sets."""
        return len(self.indptr) - 1

    def __iter__(self) -> Iterator[NDArray[np.int32]]:
        return (self.indices[start:stop] for start, stop in pairwise(self.indptr.tolist()))

    def names(self, class_names: Sequence[str]) -> list[str]:
        """Name of each set: those of its classes, with commas between them."""
        return [", ".join(class_names[c] for c in classes.tolist()) for classes in self]

    @classmethod
    def checked(cls, indptr: ArrayLike, indices: ArrayLike, m: int) -> LabelSetTable:
        """Make a table of sets of the classes 0..m-1; `FormatError` naming the set that is none, or twice."""
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


def _integers(values: ArrayLike, name: str) -> NDArray[np.int64]:
    array = np.asarray(values)
    if array.ndim != 1 or (array.dtype.kind not in "iu" and array.size):
        raise FormatError(f"{name} of label sets holds whole numbers, not {array.dtype} of {array.shape}")
    return array.astype(np.int64)
