"""Numbered label sets of multilabel problems.

Real multilabel data repeat a few label sets.  So y stays one whole number per example, the number of its set,
and this table lists the sets: blocks, checkpoints and fingerprints are the same as for single labels.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from numbers import Integral
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from topline.solvers.errors import InvalidProblemError
from topline.solvers.typing import Float64Array, Int64Array, IntArray

#: A label set while the table is built: its labels, ascending.
_Labels = tuple[int, ...]


@dataclass(frozen=True, eq=False)
class LabelSets:
    """A table of distinct label sets; set s holds the labels ``indices[indptr[s]:indptr[s + 1]]``.

    Two tables are equal if they hold the same sets under the same numbers.  `indptr` (number of sets + 1,)
    int64 begins with 0 and does not fall; `indices` (labels in all,) int64 ascend within each set, from 0 to
    m - 1, m the number of labels (classes).  InvalidProblemError for other arrays, and for a set that occurs
    twice.

    Examples
    --------
    >>> import numpy as np
    >>> from topline import LabelSets
    >>> sets, codes = LabelSets.from_indicator(np.array([[1, 0, 1], [0, 1, 0], [1, 0, 1]]))
    >>> len(sets), codes, sets.labels(int(codes[0]))
    (2, array([0, 1, 0]), array([0, 2]))
    """

    indptr: Int64Array
    indices: Int64Array
    m: int

    def __post_init__(self) -> None:
        m: Any = self.m
        if isinstance(m, bool) or not isinstance(m, Integral) or m < 1:
            raise InvalidProblemError(f"m of the label sets is {m!r}; give the number of labels")
        object.__setattr__(self, "m", int(m))
        for name in ("indptr", "indices"):
            object.__setattr__(self, name, _whole_numbers(getattr(self, name), name))
        indptr, indices, m = self.indptr, self.indices, self.m
        if len(indptr) < 1 or indptr[0] != 0 or indptr[-1] != len(indices) or (np.diff(indptr) < 0).any():
            raise InvalidProblemError(
                f"indptr of the label sets must rise from 0 to the {len(indices)} labels there are"
            )
        wrong = indices[(indices < 0) | (indices >= m)]
        if wrong.size:
            raise InvalidProblemError(
                f"a label set holds the label {wrong[0]}; labels must lie between 0 and {m - 1}"
            )
        sets = np.repeat(np.arange(len(indptr) - 1), np.diff(indptr))
        unsorted = np.flatnonzero((np.diff(sets) == 0) & (np.diff(indices) <= 0))
        if unsorted.size:
            raise InvalidProblemError(
                f"the labels of label set {sets[unsorted[0]]} do not ascend; sort them and name each once"
            )
        seen: dict[bytes, int] = {}
        for s, (start, stop) in enumerate(pairwise(indptr.tolist())):
            first = seen.setdefault(indices[start:stop].tobytes(), s)
            if first != s:
                raise InvalidProblemError(f"label sets {first} and {s} are the same; name each set once")

    @classmethod
    def from_indicator(cls, Y: Any) -> tuple[LabelSets, Int64Array]:
        """Return the sets of an indicator matrix Y (n, m) of 0 and 1, dense or sparse, and their numbers.

        The numbers are (n,) int64, in ascending order of the sets' labels whatever the order of the rows.
        """
        matrix = _indicator(Y)
        ends, labels = matrix.indptr.tolist(), matrix.indices.tolist()
        return cls._numbered([tuple(labels[a:b]) for a, b in pairwise(ends)], matrix.shape[1])

    @classmethod
    def from_lists(cls, lists: Iterable[Iterable[int]], m: int) -> tuple[LabelSets, Int64Array]:
        """Return the distinct sets among lists of labels from 0 to m - 1, and each list's number (n,)."""
        return cls._numbered([tuple(sorted({int(label) for label in labels})) for labels in lists], m)

    @classmethod
    def _numbered(cls, rows: Sequence[_Labels], m: int) -> tuple[LabelSets, Int64Array]:
        sets = sorted(set(rows))
        number = {labels: s for s, labels in enumerate(sets)}
        indptr = np.concatenate([[0], np.cumsum([len(labels) for labels in sets])]).astype(np.int64)
        indices = np.fromiter((label for labels in sets for label in labels), np.int64, int(indptr[-1]))
        codes = np.fromiter((number[labels] for labels in rows), np.int64, len(rows))
        return cls(indptr, indices, m), codes

    def __len__(self) -> int:
        """Return the number of sets."""
        return len(self.indptr) - 1

    def __eq__(self, other: object) -> bool:
        return isinstance(other, LabelSets) and self.digest == other.digest

    def __hash__(self) -> int:
        return hash(self.digest)

    @cached_property
    def digest(self) -> str:
        """Hexadecimal SHA-256 of the table."""
        digest = hashlib.sha256(np.array([self.m, len(self)], dtype="<i8").tobytes())
        digest.update(self.indptr.astype("<i8").tobytes())
        digest.update(self.indices.astype("<i8").tobytes())
        return digest.hexdigest()

    @property
    def sizes(self) -> Int64Array:
        """Number of labels of each set, (number of sets,) int64."""
        return np.diff(self.indptr)

    def labels(self, code: int) -> Int64Array:
        """Return the labels of one set, ascending."""
        return self.indices[self.indptr[code] : self.indptr[code + 1]]

    def indicator(self, codes: IntArray) -> NDArray[np.bool_]:
        """Return a mask (n, m) of the labels in the sets numbered `codes` (n,)."""
        ones = np.ones(len(self.indices), dtype=np.bool_)
        sets = sparse.csr_array((ones, self.indices, self.indptr), shape=(len(self), self.m))
        return np.asarray(sets[np.asarray(codes, dtype=np.int64)].toarray())

    @cached_property
    def table(self) -> Float64Array:
        """The table as one row of float64, passed to compiled functions as their `margins`.

        It starts with the offset in the row of each set's first label, and of the end; all labels follow.
        """
        numbers = np.concatenate([len(self.indptr) + self.indptr, self.indices])
        return numbers.astype(np.float64)[None, :]

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return {"m": self.m, "indptr": self.indptr.tolist(), "indices": self.indices.tolist()}

    @classmethod
    def from_dict(cls, record: Mapping[str, Any]) -> LabelSets:
        """Make the table from its `to_dict` record."""
        missing = {"m", "indptr", "indices"} - set(record)
        if missing:
            raise InvalidProblemError(
                f"the label sets are described without {sorted(missing)}; give m, indptr and indices"
            )
        return cls(record["indptr"], record["indices"], record["m"])


def _whole_numbers(values: Any, name: str) -> Int64Array:
    array = np.asarray(values)
    if array.size == 0:
        array = array.astype(np.int64)
    if array.ndim != 1 or array.dtype.kind not in "iu":
        raise InvalidProblemError(
            f"{name} of the label sets has the shape {array.shape} and dtype {array.dtype}; give a sequence "
            "of whole numbers"
        )
    array = array.astype(np.int64)
    array.setflags(write=False)
    return array


def _indicator(Y: Any) -> Any:
    """Return an indicator matrix as CSR with sorted column indices."""
    matrix: Any = Y if sparse.issparse(Y) else np.asarray(Y)
    if matrix.ndim != 2 or matrix.shape[1] < 1:
        raise InvalidProblemError(
            f"the label indicator has the shape {matrix.shape}; give one row per example and one column per "
            "label"
        )
    if matrix.dtype.kind in "buif":
        matrix = sparse.csr_array(matrix, copy=True)
        matrix.sum_duplicates()
        matrix.eliminate_zeros()
    if matrix.dtype.kind not in "buif" or not (matrix.data == 1).all():
        raise InvalidProblemError("the label indicator holds other values than 0 and 1; give 1 for a label")
    return matrix
