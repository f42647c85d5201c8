"""Sparse features as LIBSVM text: labels and index:value pairs a line, also gzipped.

scikit-learn parses the pairs.  Labels are read here: words, several a line or none, and a line of sizes at
the top are more than its reader takes.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_matrix

from topline.pipeline.errors import InputError
from topline.pipeline.readers.base import FeatureFile, Names, StreamedFeatures, refuse_names
from topline.pipeline.readers.files import line_blocks, parsed_blocks

MOST_COLUMNS = 2**31 - 1
_NUMBER = re.compile(r"[+-]?[0-9]{1,15}(\.0*)?")
FORM = "; a line is LABEL INDEX:VALUE INDEX:VALUE ... with rising indices"


@dataclass(frozen=True, eq=False)
class _Block:
    """Parsed lines: labels, and a matrix with columns as written.

    `bare` is the first of the lines without labels, None if each has some.
    """

    labels: list[str]
    X: csr_matrix
    bare: int | None = None


class LibsvmFeatures(StreamedFeatures):
    """A file of LIBSVM text, read twice: once to count rows, columns and entries, once to store them.

    Columns count from 1, or from 0 if the file has a column 0.  Where a line has several labels, with commas
    between them (1,3,5), all lines have label sets, and one that begins with a pair has the empty one.  A
    first line of three numbers, as in the Extreme Classification Repository, says how many rows, columns and
    classes there are; columns and classes count from 0 then.
    """

    first_column: int

    def __init__(self, path: Path, wanted: Names) -> None:
        super().__init__(path, wanted)
        refuse_names(path, "LIBSVM text", features_name=wanted.features, labels_name=wanted.labels)
        self._sizes = _sizes(path)
        self._words: list[str] = []
        low, high, entries, bare = 1, 0, 0, None
        for number, block in self._blocks():
            self._words += block.labels
            if bare is None and block.bare is not None:
                bare = number + block.bare
            entries += block.X.nnz
            if block.X.nnz:
                low, high = min(low, int(block.X.indices.min())), max(high, block.X.shape[1] - 1)
        if not self._words:
            raise InputError(f"{path} has no rows")
        self._columns = (low, high)
        if not entries:
            raise InputError(f"{path} has no index:value pair, and is no LIBSVM text; a table is called .csv")
        self._several = any("," in label for label in self._words)
        if not self._several and bare is not None:
            raise InputError(f"{path}, line {bare + 1}: it does not begin with one label{FORM}")
        self.first_column = 0 if low == 0 or self._sizes else 1
        self.n, self.d, self.nonzeros = len(self._words), max(1, high + 1 - self.first_column), entries
        if self._sizes:
            self._check_sizes(*self._sizes)

    def share_columns(self, other: FeatureFile) -> None:
        """Make both files count columns alike and have the same number of them."""
        if not isinstance(other, LibsvmFeatures):
            super().share_columns(other)
            return
        base = min(self.first_column, other.first_column)
        self.d = other.d = max(file.d + file.first_column - base for file in (self, other))
        self.first_column = other.first_column = base

    def as_trained(self, model: str, first: int | None, d: int) -> None:
        """Count columns from `first`, and have `d` of them."""
        if first is None:
            raise InputError(
                f"{self.path} is LIBSVM text, and {model} was trained on a file that does not number its"
                " columns: save the rows as .npz with scipy.sparse.save_npz, or as .npy"
            )
        low, high = self._columns
        if self._sizes is None and (low < first or high >= first + d):
            raise InputError(
                f"{self.path} has the columns {low} to {high}, and {model} takes {first} to"
                f" {first + d - 1}: give the features that it was trained on"
            )
        self.first_column, self.d = (0 if self._sizes else first), d

    def labels(self) -> NDArray[Any]:
        """Return the first word of each line, or a tuple of its parts where lines have several labels."""
        if not self._several:
            return np.asarray(self._words)
        sets = np.empty(self.n, dtype=object)
        sets[:] = [tuple(part for part in label.split(",") if part) for label in self._words]
        return sets

    def class_names(self) -> Sequence[str] | None:
        """Return the names of all classes where the first line says how many there are."""
        return [str(label) for label in range(self._sizes[2])] if self._sizes else None

    def parsed(self) -> Iterator[csr_matrix]:
        """Return all rows, block by block."""
        for _, block in self._blocks():
            X = block.X
            yield csr_matrix((X.data, X.indices - self.first_column, X.indptr), shape=(X.shape[0], self.d))

    def _check_sizes(self, n: int, d: int, m: int) -> None:
        """Take the number of columns from the first line, if what follows fits it."""
        if n != self.n or d < self.d:
            raise InputError(
                f"{self.path} begins with {n} {d} {m}, but has {self.n} rows and {self.d} columns: fix its"
                " first line or leave it out"
            )
        self.d, self._several = d, True

    def _blocks(self) -> Iterator[tuple[int, _Block]]:
        return parsed_blocks(self.path, _parse, 1 if self._sizes else 0, FORM)


def _parse(lines: list[bytes]) -> _Block:
    from sklearn.datasets import load_svmlight_file

    labels, rows, bare = list[str](), list[bytes](), None
    for place, line in enumerate(lines):
        if b"\0" in line:
            raise ValueError("this is no text")
        label, pairs = _label_and_pairs(line.partition(b"#")[0])
        if not label and not pairs:
            continue
        if not label and bare is None:
            bare = place
        labels.append(_checked_label(label.decode("utf-8", "replace")))
        rows.append(b"0 " + pairs.strip())
    if any(b"qid:" in row for row in rows):
        raise ValueError("it has a query id, which only rankings have")
    if not rows:
        return _Block([], csr_matrix((0, 0)))
    try:
        X, _ = load_svmlight_file(io.BytesIO(b"\n".join(rows)), zero_based=True)
    except OverflowError as error:
        raise ValueError(f"an index is too large: columns go up to {MOST_COLUMNS:,}") from error
    if X.shape[1] > MOST_COLUMNS:
        raise ValueError(f"an index is too large: columns go up to {MOST_COLUMNS:,}")
    return _Block(labels, X, bare)


def _checked_label(text: str) -> str:
    """Return labels as they are; ValueError for one that looks like a number and is not one."""
    for part in text.split(","):
        if part[:1] and (part[0] in "+-." or part[0].isnumeric()) and not _NUMBER.fullmatch(part):
            raise ValueError(
                f"the label {part!r} is not a whole number: write digits 0 to 9, or begin with a letter"
            )
    return text


def _sizes(path: Path) -> tuple[int, int, int] | None:
    """Return rows, columns and classes, where the first line says nothing but these."""
    for _, lines in line_blocks(path):
        words = lines[0].split()
        if len(words) == 3 and all(word.isdigit() for word in words):
            return int(words[0]), int(words[1]), int(words[2])
        return None
    return None


def _label_and_pairs(line: bytes) -> tuple[bytes, bytes]:
    """Split a line into its labels, empty where it begins with a pair, and its pairs."""
    words = line.split(None, 1)
    if not words:
        return b"", b""
    if b":" in words[0]:
        return b"", line
    return words[0], words[1] if len(words) > 1 else b""
