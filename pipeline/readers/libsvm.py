"""Sparse features as LIBSVM text: labels and index:value pairs a line, also gzipped."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_matrix

from topline.pipeline.errors import InputError
from topline.pipeline.readers.text_rows import TextFeatures, line_blocks

FORM = "a line is LABEL INDEX:VALUE INDEX:VALUE ... with rising indices"


@dataclass(frozen=True, eq=False)
class _Block:
    """Parsed lines: labels, entries in each row, columns as written, values.

    `bare` is the first of the lines without labels, None if each has some.
    """

    labels: list[str]
    lengths: NDArray[np.int64]
    indices: NDArray[np.int64]
    values: NDArray[np.float64]
    bare: int | None = None


class LibsvmFeatures(TextFeatures):
    """A file of LIBSVM text, read twice: once to count rows, columns and entries, once to store them.

    Columns count from 1, or from 0 if the file has a column 0.  Where a line has several labels, with commas
    between them (1,3,5), all lines have label sets, and one that begins with a pair has the empty one.  A
    first line of three numbers, as in the Extreme Classification Repository, says how many rows, columns and
    classes there are; columns and classes count from 0 then.
    """

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._sizes = _sizes(path)
        self._labels: list[str] = []
        low, high, entries, bare = 1, 0, 0, None
        for number, block in self._blocks():
            self._labels += block.labels
            if bare is None and block.bare is not None:
                bare = number + block.bare
            entries += len(block.values)
            if len(block.indices):
                low, high = min(low, int(block.indices.min())), max(high, int(block.indices.max()))
        if not self._labels:
            raise InputError(f"{path} has no rows")
        self._several = any("," in label for label in self._labels)
        if not self._several and bare is not None:
            raise InputError(f"{path}, line {bare + 1}: it does not begin with one label; {FORM}")
        self._base = 0 if low == 0 or self._sizes else 1
        self.n, self.d, self.nonzeros = len(self._labels), max(1, high + 1 - self._base), entries
        if self._sizes:
            self._check_sizes(*self._sizes)

    def share_columns(self, other: LibsvmFeatures) -> None:
        """Make both files count columns alike and have the same number of them."""
        base = min(self._base, other._base)
        self.d = other.d = max(file.d + file._base - base for file in (self, other))
        self._base = other._base = base

    def labels(self) -> NDArray[Any]:
        """First word of each line; a tuple of its parts where lines have several labels."""
        if not self._several:
            return np.asarray(self._labels)
        sets = np.empty(self.n, dtype=object)
        sets[:] = [tuple(part for part in label.split(",") if part) for label in self._labels]
        return sets

    def class_names(self) -> Sequence[str] | None:
        """Names of all classes where the first line says how many there are."""
        return [str(label) for label in range(self._sizes[2])] if self._sizes else None

    def matrices(self) -> Iterator[csr_matrix]:
        """All rows, block by block."""
        for _, block in self._blocks():
            indptr = np.concatenate([np.zeros(1, np.int64), np.cumsum(block.lengths)])
            shape = (len(block.lengths), self.d)
            yield csr_matrix((block.values, block.indices - self._base, indptr), shape=shape)

    def _check_sizes(self, n: int, d: int, m: int) -> None:
        """Take the number of columns from the first line, if what follows fits it."""
        if n != self.n or d < self.d:
            raise InputError(
                f"{self.path} begins with {n} {d} {m}, but has {self.n} rows and {self.d} columns: mend its"
                " first line or leave it out"
            )
        self.d, self._several = d, True

    def _blocks(self) -> Iterator[tuple[int, _Block]]:
        for number, lines in line_blocks(self.path, skipped=1 if self._sizes else 0):
            yield number, self._parsed(lines, number)

    def _parsed(self, lines: list[bytes], number: int) -> _Block:
        """Parse lines at once; if that fails, again one by one to name the line."""
        try:
            return _parse(lines)
        except ValueError:
            for i, line in enumerate(lines):
                try:
                    _parse([line])
                except ValueError as error:
                    raise InputError(f"{self.path}, line {number + i + 1}: {error}; {FORM}") from error
            raise


def _parse(lines: list[bytes]) -> _Block:
    labels, rests, lengths, bare = [], [], [], None
    for place, line in enumerate(lines):
        label, rest = _label_and_rest(line.partition(b"#")[0])
        if not label and not rest:
            continue
        if not label and bare is None:
            bare = place
        labels.append(label.decode("utf-8", "replace"))
        rests.append(rest)
        lengths.append(rest.count(b":"))
    words = b" ".join(rests).replace(b":", b" ").split()
    counts = np.asarray(lengths, dtype=np.int64)
    if len(words) != 2 * int(counts.sum()):
        raise ValueError("its words are not all INDEX:VALUE")
    numbers = np.array(words, dtype=np.bytes_).astype(np.float64) if words else np.zeros(0)
    indices = numbers[0::2].astype(np.int64)
    if (indices != numbers[0::2]).any() or (indices < 0).any():
        raise ValueError("an index is not a whole number from 0 on")
    # Falling is allowed only from one row to the next.
    falls = np.flatnonzero(np.diff(indices) <= 0) + 1
    if not np.isin(falls, np.cumsum(counts)).all():
        raise ValueError("its indices do not rise")
    return _Block(labels, counts, indices, numbers[1::2], bare)


def _sizes(path: Path) -> tuple[int, int, int] | None:
    """Rows, columns and classes, where the first line says nothing but these."""
    for _, lines in line_blocks(path):
        words = lines[0].split()
        if len(words) == 3 and all(word.isdigit() for word in words):
            return int(words[0]), int(words[1]), int(words[2])
        return None
    return None


def _label_and_rest(line: bytes) -> tuple[bytes, bytes]:
    """Split a line into its labels, empty where it begins with a pair, and its pairs."""
    words = line.split(None, 1)
    if not words:
        return b"", b""
    if b":" in words[0]:
        return b"", line
    return words[0], words[1] if len(words) > 1 else b""
