"""Features in CSV: a column for each feature, and columns of labels, splits and names of rows beside them."""

from __future__ import annotations

import gzip
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import contextmanager
from io import TextIOWrapper
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv as pacsv
from numpy.typing import NDArray

from topline.pipeline.errors import InputError
from topline.pipeline.readers.base import ID_NAMES, LABEL_NAMES, Names, StreamedFeatures, named, refuse_names
from topline.pipeline.readers.damage import cause
from topline.pipeline.readers.tables import DELIMITERS
from topline.pipeline.readers.text import is_packed, opened
from topline.pipeline.readers.words import is_number, numbers_in

#: Bytes of text that are parsed at once; what is a number in the first of them is one in all.
_BLOCK_BYTES = 1 << 23
#: Lines behind the first that say whether numbers have commas.
_LOOKED_AT = 100
#: Numbers with a comma for their point, as spreadsheets write them where semicolons part the columns, and
#: with a point.
_COMMA = re.compile(r"[+-]?(\d+,\d*|,\d+)([eE][+-]?\d+)?")
_POINT = re.compile(r"[+-]?(\d+\.\d*|\.\d+)([eE][+-]?\d+)?")
#: What Arrow says of a word in a column of numbers: which column, and the word.
_NO_NUMBER = re.compile(r"CSV column #(\d+): .*invalid value '(.*)'", re.DOTALL)


class CsvFeatures(StreamedFeatures):
    """A text table, parsed block by block.

    The features are all columns of numbers or truth values but label, split and those that name rows.  A
    first line of numbers alone is a row, and the columns are then called column 1, column 2 and so on.
    """

    def __init__(self, path: Path, wanted: Names) -> None:
        super().__init__(path, wanted)
        refuse_names(path, "CSV, where all columns of numbers are features", features_name=wanted.features)
        with self._parsing(), TextIOWrapper(opened(path), encoding="utf-8-sig", newline="") as file:
            lines = list(islice(file, 1 + _LOOKED_AT))
        if not lines:
            raise InputError(f"{path} has no rows")
        first = lines[0]
        mark = _mark(path, first, {str(wanted.labels), "split", *LABEL_NAMES, *ID_NAMES})
        self._parse = pacsv.ParseOptions(delimiter=mark, newlines_in_values=True)
        values = [value for line in lines for value in _words(line, mark)]
        commas = any(map(_COMMA.fullmatch, values)) and not any(map(_POINT.fullmatch, values))
        self._decimal = "," if mark != "," and commas else "."
        count = _unnamed(path, [word.replace(self._decimal, ".") for word in _words(first, mark)])
        #: Whether the names are ours, which say nothing of the features.
        self._made_up = count > 0
        self._read = pacsv.ReadOptions(
            block_size=max(_BLOCK_BYTES, 4 * max(map(len, lines))),
            column_names=[f"column {place + 1}" for place in range(count)] or None,
        )
        schema = self._first_block()
        #: The columns by their names, and as the file writes them.
        self._raw = {name.strip(): name for name in schema.names}
        self.names = list(self._raw)
        others = self.not_features()
        found = {one.name.strip(): one.type for one in schema if one.name.strip() not in others}
        self.taken = [name for name, kind in found.items() if _is_number(kind)]
        self._truths = {name for name in self.taken if pa.types.is_boolean(found[name])}
        self._refuse_late([name for name, kind in found.items() if pa.types.is_null(kind)])
        if not self.taken:
            raise InputError(f"{self.place} has no column of numbers: it has {named(self.names)}")
        self.d = len(self.taken)
        self.n = sum(len(block) for block in self._blocks({self.taken[0]: pa.string()}))
        if self.n < 1:
            raise InputError(f"{path} has no rows")

    def column(self, name: str) -> NDArray[Any]:
        """Return the texts of a column."""
        if name not in self.names:
            return super().column(name)
        blocks = self._blocks({name: pa.string()})
        texts = [text.strip() for block in blocks for text in block.column(0).to_pylist()]
        return np.array(texts, dtype=object)

    def labels(self) -> NDArray[Any] | None:
        """Return the column of labels."""
        return None if self.label is None else numbers_in(self.column(self.label).tolist())

    def _index(self) -> Sequence[Any]:
        texts = self.column("").tolist() if "" in self.names else []
        return () if any(map(is_number, texts)) else texts

    def columns(self) -> Sequence[str] | None:
        """Return the names of the features, None where the file gives them none."""
        return None if self._made_up else self.taken

    def parsed(self) -> Iterator[NDArray[Any]]:
        """Yield all rows, block by block."""
        kinds = {name: pa.bool_() if name in self._truths else pa.float64() for name in self.taken}
        try:
            for block in self._blocks(kinds):
                # A missing value becomes NaN, which is then refused with its row.
                columns = [column.cast(pa.float64()) for column in block.columns]
                yield np.stack([column.to_numpy(zero_copy_only=False) for column in columns], axis=1)
        except InputError as error:
            self._refuse_word(str(error.__cause__))
            raise

    def _refuse_late(self, empty: Sequence[str]) -> None:
        """Refuse a column that is empty in the first block, and of numbers later: it would be left out."""
        waiting, start = dict.fromkeys(empty, pa.string()), 0
        for block in self._blocks(waiting, missing=True) if empty else ():
            for name, column in zip(empty, block.columns, strict=True):
                texts = ((text or "").strip() for text in column.to_pylist() if name in waiting)
                row, text = next(((row, text) for row, text in enumerate(texts) if text), (0, ""))
                if is_number(text.replace(self._decimal, ".")):
                    raise InputError(
                        f"{self.place} has nothing in the column {name!r} before row {start + row}, and"
                        f" {text!r} there: fill it for every row, or leave the column out"
                    )
                if text:
                    del waiting[name]  # a column of words
            start += len(block)

    def _refuse_word(self, said: str) -> None:
        """Name the row of a word among numbers, where that is what Arrow says."""
        found = _NO_NUMBER.search(said)
        if found is None:
            return
        name, start = list(self._raw)[int(found[1])], 0
        for block in self._blocks({name: pa.string()}):
            texts = [text.strip() for text in block.column(0).to_pylist()]
            if found[2].strip() in texts:
                row = start + texts.index(found[2].strip())
                form = " with a decimal comma" if self._decimal == "," else ""
                raise InputError(
                    f"{self.place} has {found[2]!r} in row {row} of the column {name.strip()!r}, and numbers"
                    f" above it: write a number{form} there, or leave the column out"
                )
            start += len(block)

    def _first_block(self) -> pa.Schema:
        """Return the columns with the types that the first rows have."""
        with self._parsing(), self._opened(pacsv.ConvertOptions(decimal_point=self._decimal)) as reader:
            schema = reader.schema
        counts = Counter(name.strip() for name in schema.names)
        twice = next((name for name, count in counts.items() if count > 1), None)
        if twice is not None:
            raise InputError(f"{self.place} has two columns {twice!r}: give each a name of its own")
        return schema

    def _blocks(self, types: Mapping[str, pa.DataType], *, missing: bool = False) -> Iterator[pa.RecordBatch]:
        """Yield some columns as these types, block by block; with `missing`, NA and its like are no texts."""
        options = pacsv.ConvertOptions(
            include_columns=[self._raw[name] for name in types],
            column_types={self._raw[name]: kind for name, kind in types.items()},
            decimal_point=self._decimal,
            strings_can_be_null=missing,
        )
        with self._parsing(), self._opened(options) as reader:
            yield from reader

    def _opened(self, options: pacsv.ConvertOptions) -> pacsv.CSVStreamingReader:
        packed = "gzip" if is_packed(self.path) else None
        source = pa.input_stream(str(self.path), compression=packed)
        return pacsv.open_csv(source, self._read, self._parse, options)

    @contextmanager
    def _parsing(self) -> Iterator[None]:
        try:
            yield
        except gzip.BadGzipFile as error:
            raise InputError(f"{self.place} is not gzipped, as its name says: name it without .gz") from error
        except (UnicodeDecodeError, pa.ArrowException) as error:
            raise InputError(f"{self.place} cannot be read as CSV: {cause(error)}") from error


def _mark(path: Path, first: str, known: AbstractSet[str]) -> str:
    """Return what parts the columns: what leaves a known name in the first line, or else what is in it."""
    marks = DELIMITERS[path.with_suffix("").suffix.lower() if is_packed(path) else path.suffix.lower()]
    for mark in marks:
        if not known.isdisjoint(word.strip().strip('"') for word in first.split(mark)):
            return mark
    # Between semicolons or tabs, commas may be those of numbers.
    return next((mark for mark in (*marks[1:], marks[0]) if mark in first), marks[0])


def _words(line: str, mark: str) -> list[str]:
    return [word.strip().strip('"') for word in line.split(mark)]


def _unnamed(path: Path, words: Sequence[str]) -> int:
    """Return how many columns have no names, as their first line is numbers; 0 where it names them.

    A DataFrame without names counts its columns from 0.  A line of names and of fractions is refused: its
    row would be lost.
    """
    if words == list(map(str, range(len(words)))) and len(words) > 1:
        return 0
    if all(map(is_number, words)):
        return len(words)
    if any(map(_POINT.fullmatch, words)):
        raise InputError(
            f"{path} has numbers in its first line, which names the columns: put names above them"
        )
    return 0


def _is_number(kind: pa.DataType) -> bool:
    return bool(pa.types.is_floating(kind) or pa.types.is_integer(kind) or pa.types.is_boolean(kind))
