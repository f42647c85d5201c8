"""Features and label sets as ARFF, dense or sparse, also gzipped: the format of Weka, Mulan and MEKA."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_matrix

from topline.pipeline.errors import InputError
from topline.pipeline.readers.arff_header import (
    Attribute,
    read_header,
    set_attributes,
    single_attribute,
    split_values,
    unquoted,
)
from topline.pipeline.readers.text_rows import TextFeatures, line_blocks

FEATURE, MEMBER, SINGLE = range(3)


class ArffFeatures(TextFeatures):
    """An ARFF file, read twice; features are the attributes that are no labels.

    With `label_attributes` (Mulan's XML), or -C in the relation's name (MEKA), rows have label sets; else the
    attribute `labels_name`, or one that is called as labels usually are, holds one label a row.  `InputError`
    for attributes and values that are no numbers, and for missing ones (?).
    """

    def __init__(self, path: Path, labels_name: str | None, label_attributes: Sequence[str] | None) -> None:
        super().__init__(path)
        self._header = read_header(path)
        members = set_attributes(path, self._header, label_attributes)
        single = single_attribute(path, self._header, labels_name) if members is None else None
        self._members = members
        self._single = single
        kinds = np.full(len(self._header.attributes), FEATURE)
        kinds[members or []] = MEMBER
        kinds[[] if single is None else [single]] = SINGLE
        self._kinds = kinds
        # Place of each attribute among the features, or among the labels.
        self._places = np.cumsum(kinds == FEATURE) - 1
        self._places[members or []] = np.arange(len(members or []))
        self.d = int(np.count_nonzero(kinds == FEATURE))
        self._never_left_out: Attribute | None = None
        self._check_attributes()
        self.n, self.nonzeros = 0, 0
        self._labels: list[Any] = []
        for X, labels in self._blocks():
            self._labels += labels
            self.n, self.nonzeros = self.n + X.shape[0], self.nonzeros + X.nnz
        if not self.n:
            raise InputError(f"{path} has no rows")

    def labels(self) -> NDArray[Any] | None:
        """The label of each row, or a tuple of its labels."""
        if self._members is None and self._single is None:
            return None
        found = np.empty(self.n, dtype=object)
        found[:] = self._labels
        return found

    def class_names(self) -> Sequence[str] | None:
        """Names of the label attributes, or the values of a nominal one."""
        if self._members is not None:
            return [self._header.names[place] for place in self._members]
        return None if self._single is None else self._header.attributes[self._single].values or None

    def matrices(self) -> Iterator[csr_matrix]:
        """All rows, block by block."""
        return (X for X, _ in self._blocks())

    def _check_attributes(self) -> None:
        """Refuse attributes that are no numbers and are not said to be the label."""
        if not self.d:
            raise InputError(f"{self.path} has no attribute that is a feature: all are labels")
        for attribute, kind in zip(self._header.attributes, self._kinds.tolist(), strict=True):
            if kind != SINGLE and not attribute.numeric:
                what = "label" if kind == MEMBER else "feature"
                values = ", ".join(attribute.values[:3])
                raise InputError(
                    f"{self.path}: the {what} {attribute.name!r} has the values {values} ..., which are no"
                    " numbers: write numbers, or name the attribute of the labels with --labels-name"
                )
            if kind != SINGLE and float(attribute.zero) != 0.0:
                self._never_left_out = attribute

    def _blocks(self) -> Iterator[tuple[csr_matrix, list[Any]]]:
        """Features and labels of all rows, some thousand lines at a time."""
        for number, lines in line_blocks(self.path, skipped=self._header.lines):
            try:
                yield self._parsed(lines)
            except ValueError:
                for place, line in enumerate(lines):
                    try:
                        self._parsed([line])
                    except ValueError as error:
                        raise InputError(f"{self.path}, line {number + place + 1}: {error}") from error
                raise

    def _parsed(self, lines: list[bytes]) -> tuple[csr_matrix, list[Any]]:
        rows, columns, values, count = self._entries(lines)
        kinds, places = self._kinds[columns], self._places[columns]
        feature, member = kinds == FEATURE, kinds == MEMBER
        X = csr_matrix((_numbers(values[feature]), (rows[feature], places[feature])), shape=(count, self.d))
        X.eliminate_zeros()
        if self._members is not None:
            return X, self._sets(rows[member], places[member], _numbers(values[member]), count)
        if self._single is None:
            return X, []
        labels = [self._header.attributes[self._single].zero] * count
        for row, value in zip(rows[kinds == SINGLE].tolist(), values[kinds == SINGLE].tolist(), strict=True):
            labels[row] = unquoted(value.decode("utf-8", "replace"))
        return X, labels

    def _sets(self, rows: Any, places: Any, values: Any, count: int) -> list[tuple[str, ...]]:
        if not np.isin(values, (0.0, 1.0)).all():
            wrong = self._header.names[(self._members or [])[places[np.argmax(~np.isin(values, (0.0, 1.0)))]]]
            raise ValueError(f"the label {wrong!r} is neither 0 nor 1")
        names = self.class_names() or ()
        found: list[list[str]] = [[] for _ in range(count)]
        for row, place in zip(rows[values == 1.0].tolist(), places[values == 1.0].tolist(), strict=True):
            found[row].append(names[place])
        return [tuple(labels) for labels in found]

    def _entries(self, lines: list[bytes]) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any], int]:
        """Row, column and text of every value that stands in some lines, and the number of rows."""
        lengths, columns, values = list[int](), list[int](), list[bytes]()
        width = len(self._kinds)
        for line in lines:
            text = line.strip()
            if not text or text.startswith(b"%"):
                continue
            if text.startswith(b"{"):
                found = self._sparse(text)
                columns += [column for column, _ in found]
                values += [value for _, value in found]
                lengths.append(len(found))
            else:
                words = _split(text)
                if len(words) != width:
                    raise ValueError(f"it has {len(words)} values for {width} attributes")
                columns += range(width)
                values += words
                lengths.append(width)
        rows = np.repeat(np.arange(len(lengths)), lengths)
        return rows, np.asarray(columns, dtype=np.int64), np.asarray(values, dtype=np.bytes_), len(lengths)

    def _sparse(self, text: bytes) -> list[tuple[int, bytes]]:
        """Columns and values of a sparse row; what it leaves out must be 0."""
        unusual = self._never_left_out
        if unusual is not None:
            raise ValueError(
                f"a sparse row that leaves {unusual.name!r} out means {unusual.zero}, the first of its"
                " values: let them begin with 0"
            )
        return _sparse(text, len(self._kinds))


def _sparse(text: bytes, width: int) -> list[tuple[int, bytes]]:
    """Columns and values of {0 1.5, 7 1}."""
    if not text.endswith(b"}") or text.count(b"}") > 1:
        raise ValueError("a sparse row is {INDEX VALUE, INDEX VALUE, ...}, without a weight")
    found = []
    for word in _split(text[1:-1]):
        parts = word.split(None, 1)
        if len(parts) != 2 or not parts[0].isdigit() or int(parts[0]) >= width:
            shown = word.decode("utf-8", "replace")
            raise ValueError(f"{shown!r} is not INDEX VALUE with an index below {width}")
        found.append((int(parts[0]), parts[1]))
    if any(a >= b for (a, _), (b, _) in pairwise(found)):
        raise ValueError("its indices do not rise")
    return found


def _split(text: bytes) -> list[bytes]:
    if b"'" not in text and b'"' not in text:
        return [word.strip() for word in text.split(b",")] if text.strip() else []
    return [word.encode() for word in split_values(text.decode("utf-8", "replace"))]


def _numbers(values: NDArray[Any]) -> NDArray[np.float64]:
    if (values == b"?").any():
        raise ValueError("a value is missing (?): fill it in, or leave the row out")
    try:
        return values.astype(np.float64)
    except ValueError as error:
        raise ValueError(f"a value is no number: {error}") from error
