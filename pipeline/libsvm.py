"""Sparse features as LIBSVM text: a label and index:value pairs a line, also gzipped."""

from __future__ import annotations

import gzip
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_matrix

from pipeline.errors import InputError
from pipeline.feature_files import FeatureFile

BLOCK_LINES = 4096


@dataclass(frozen=True, eq=False)
class _Block:
    """Parsed lines: labels, entries in each row, columns as written, values."""

    labels: list[bytes]
    lengths: NDArray[np.int64]
    indices: NDArray[np.int64]
    values: NDArray[np.float64]


class LibsvmFeatures(FeatureFile):
    """A file of LIBSVM text, read twice: once to count rows, columns and entries, once to store them.

    Columns count from 1, or from 0 if the file has a column 0.
    """

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        labels: list[bytes] = []
        low, high, entries = 1, 0, 0
        for block in self._blocks():
            labels += block.labels
            entries += len(block.values)
            if len(block.indices):
                low, high = min(low, int(block.indices.min())), max(high, int(block.indices.max()))
        if not labels:
            raise InputError(f"{path} has no rows")
        self._labels = np.asarray([label.decode("utf-8", "replace") for label in labels])
        self._base = 0 if low == 0 else 1
        self.n, self.d, self.nonzeros = len(labels), max(1, high + 1 - self._base), entries
        self._reader: Iterator[_Block] | None = None
        self._kept: list[tuple[int, csr_matrix]] = []
        self._next = 0

    def rows(self, start: int, stop: int) -> csr_matrix:
        """The next rows; going back begins again."""
        if self._reader is None or start < (self._kept[0][0] if self._kept else self._next):
            self._reader, self._kept, self._next = self._blocks(), [], 0
        while self._next < stop:
            matrix = self._matrix(next(self._reader))
            self._kept.append((self._next, matrix))
            self._next += matrix.shape[0]
        self._kept = [(first, matrix) for first, matrix in self._kept if first + matrix.shape[0] > start]
        parts = [matrix[max(0, start - first) : max(0, stop - first)] for first, matrix in self._kept]
        return _stacked(parts, self.d)

    def labels(self) -> NDArray[Any]:
        """First word of each line."""
        return self._labels

    def _matrix(self, block: _Block) -> csr_matrix:
        indptr = np.concatenate([np.zeros(1, np.int64), np.cumsum(block.lengths)])
        shape = (len(block.lengths), self.d)
        return csr_matrix((block.values, block.indices - self._base, indptr), shape=shape)

    def _blocks(self) -> Iterator[_Block]:
        number = 0
        try:
            with self._open() as file:
                while lines := list(islice(file, BLOCK_LINES)):
                    yield self._parsed(lines, number)
                    number += len(lines)
        except (OSError, EOFError) as error:
            raise InputError(f"{self.path} cannot be read after line {number}: {error}") from error

    def _open(self) -> IO[bytes] | gzip.GzipFile:
        if self.path.suffix == ".gz":
            return gzip.GzipFile(self.path)
        return self.path.open("rb")

    def _parsed(self, lines: list[bytes], number: int) -> _Block:
        """Parse lines at once; if that fails, again one by one to name the line."""
        try:
            return _parse(lines)
        except ValueError:
            for i, line in enumerate(lines):
                try:
                    _parse([line])
                except ValueError as error:
                    raise InputError(
                        f"{self.path}, line {number + i + 1}: {error}; a line is LABEL INDEX:VALUE"
                        " INDEX:VALUE ... with rising indices"
                    ) from error
            raise


def _parse(lines: list[bytes]) -> _Block:
    labels, rests, lengths = [], [], []
    for line in lines:
        words = line.partition(b"#")[0].split(None, 1)
        if not words:
            continue
        labels.append(words[0])
        rest = words[1] if len(words) > 1 else b""
        rests.append(rest)
        lengths.append(rest.count(b":"))
    if any(b":" in label or b"," in label for label in labels):
        raise ValueError("it does not begin with one label")
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
    return _Block(labels, counts, indices, numbers[1::2])


def _stacked(parts: list[csr_matrix], d: int) -> csr_matrix:
    lengths = np.concatenate([np.zeros(1, np.int64), *(np.diff(part.indptr) for part in parts)])
    indices = np.concatenate([np.zeros(0, np.int64), *(part.indices for part in parts)])
    data = np.concatenate([np.zeros(0), *(part.data for part in parts)])
    return csr_matrix((data, indices, np.cumsum(lengths)), shape=(len(lengths) - 1, d))
