"""Features in Parquet and CSV: columns of numbers, or one of lists of one length, read batch by batch."""

from __future__ import annotations

import gzip
import json
import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from io import TextIOWrapper
from itertools import islice
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pacsv
import pyarrow.parquet as pq
from numpy.typing import NDArray

from topline.pipeline.errors import InputError
from topline.pipeline.readers.base import (
    FEATURE_NAMES,
    ID_NAMES,
    LABEL_NAMES,
    Names,
    StreamedFeatures,
    named,
    pick,
    refuse_names,
)
from topline.pipeline.readers.files import cause, is_packed, opened, reading
from topline.pipeline.readers.tables import DELIMITERS, delimiter_of, parquet_column
from topline.pipeline.readers.words import is_number, objects

BATCH_ROWS = 4096
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


class ColumnFeatures(StreamedFeatures):
    """A table whose features are its columns of numbers or truth values, but for those of a known name."""

    def _numbers_in(self, schema: Collection[pa.Field]) -> list[str]:
        """Return the columns of numbers; `InputError` where there are none."""
        others = self.not_features()
        found = [
            one.name.strip() for one in schema if _is_number(one.type) and one.name.strip() not in others
        ]
        if not found:
            lists = "" if isinstance(self, CsvFeatures) else " or of lists of numbers"
            raise InputError(f"{self.place} has no column of numbers{lists}: it has {named(self.names)}")
        return found

    def columns(self) -> Sequence[str] | None:
        """Return the names of the columns, None where these are ours or one column has all features."""
        return self.taken


class ParquetFeatures(ColumnFeatures):
    """A Parquet file, read batch by batch.

    The features are the column `wanted.features`, or the usual one of lists, or the only one of lists; where
    there are no lists, all columns of numbers but label, split and the index of a DataFrame.  Folders that
    are called name=value are columns too.
    """

    def __init__(self, path: Path, wanted: Names) -> None:
        super().__init__(path, wanted)
        with reading(path, "Parquet"), pq.ParquetFile(path) as file:
            self._schema, self.n = file.schema_arrow, file.metadata.num_rows
        pairs = (part.split("=", 1) for part in path.parent.parts if part.count("=") == 1)
        self._fixed = {name: unquote(value) for name, value in pairs if name not in self._schema.names}
        self.names = [*self._schema.names, *self._fixed]
        name = self._lists()
        self.taken = self._numbers_in(self._schema) if name is None else [name]
        self._has_lists = is_list(self._schema.field(self.taken[0]).type)
        if self.n < 1:
            raise InputError(f"{path} has no rows")
        self.d = next(self.parsed()).shape[1] if self._has_lists else len(self.taken)

    def column(self, name: str) -> NDArray[Any]:
        """Return a column as an array of objects."""
        if name in self._fixed:
            return np.full(self.n, self._fixed[name], dtype=object)
        return parquet_column(self.path, name) if name in self.names else super().column(name)

    def class_names(self) -> Sequence[str] | None:
        """Return the names of the labels' numbers that Hugging Face's datasets keep with the file."""
        return label_names(self._schema, self.label)

    def columns(self) -> Sequence[str] | None:
        """Return the names of the columns, None where one of lists has all features."""
        return None if self._has_lists else self.taken

    def not_features(self) -> set[str]:
        """Return the columns that are something else than features, the index of a DataFrame among them."""
        return super().not_features().union(self._index_columns())

    def _index_columns(self) -> list[str]:
        """Return the columns in which pandas keeps the index of a DataFrame that does not count its rows."""
        known = (self._schema.pandas_metadata or {}).get("index_columns", ())
        return [name for name in known if isinstance(name, str) and name in self._schema.names]

    def _index(self) -> Sequence[Any]:
        names = self._index_columns()
        return self.column(names[0]).tolist() if len(names) == 1 else ()

    def _lists(self) -> str | None:
        """Return the column that is wanted, or has lists of features; None where there is none."""
        others, wanted = self.not_features(), self.wanted.features
        lists = [field.name for field in self._schema if field.name not in others and is_list(field.type)]
        if wanted is None and not lists:
            return None
        name = pick(self.place, "column", wanted, FEATURE_NAMES, self._schema.names if wanted else lists)
        if name is None:
            raise InputError(f"{self.place} has the lists {', '.join(lists)}: choose with --features-name")
        values = _storage(self._schema.field(name).type)
        if is_list(values) and not _is_number(values.value_type):
            raise InputError(
                f"{self.place} has lists of {values.value_type} in {name}, and features are lists of numbers:"
                " write one flat list a row"
            )
        return name

    def parsed(self) -> Iterator[NDArray[Any]]:
        """Yield all rows, batch by batch."""
        start = 0
        try:
            with pq.ParquetFile(self.path) as file:
                for batch in file.iter_batches(BATCH_ROWS, columns=self.taken):
                    yield (
                        self._lists_of(batch, start) if self._has_lists else _matrix(batch.select(self.taken))
                    )
                    start += batch.num_rows
        except (OSError, pa.ArrowException) as error:
            raise InputError(f"{self.place} is damaged after row {start}: {cause(error)}") from error

    def _lists_of(self, batch: pa.RecordBatch, start: int) -> NDArray[Any]:
        column = batch.column(self.taken[0])
        column = getattr(column, "storage", column)
        lengths = pc.fill_null(pc.list_value_length(column), -1).to_numpy(zero_copy_only=False)
        wanted = getattr(self, "d", lengths[0])
        wrong = np.flatnonzero((lengths != wanted) | (lengths < 1))
        if len(wrong):
            row = int(wrong[0])
            raise InputError(
                f"{self.place}: row {start + row} has {max(0, int(lengths[row]))} features, and others"
                f" {int(wanted)}: make all lists of one length"
            )
        kind = pa.float32() if column.type.value_type in (pa.float16(), pa.float32()) else pa.float64()
        values = column.flatten().cast(kind)
        return np.asarray(values.to_numpy(zero_copy_only=False)).reshape(len(lengths), -1)


class CsvFeatures(ColumnFeatures):
    """A text table, parsed block by block.

    A first line of numbers alone is a row, and the columns are then called column 1, column 2 and so on.
    """

    has_types = False

    def __init__(self, path: Path, wanted: Names) -> None:
        super().__init__(path, wanted)
        refuse_names(path, "CSV, where all columns of numbers are features", features_name=wanted.features)
        with self._parsing(), TextIOWrapper(opened(path), encoding="utf-8-sig", newline="") as file:
            lines = list(islice(file, 1 + _LOOKED_AT))
        if not lines:
            raise InputError(f"{path} has no rows")
        mark = _mark(path, lines[0], {str(wanted.labels), "split", *LABEL_NAMES, *ID_NAMES})
        self._parse = pacsv.ParseOptions(delimiter=mark, newlines_in_values=True)
        values = [value for line in lines for value in _words(line, mark)]
        commas = any(map(_COMMA.fullmatch, values)) and not any(map(_POINT.fullmatch, values))
        self._decimal = "," if mark != "," and commas else "."
        count = _unnamed(path, [word.replace(self._decimal, ".") for word in _words(lines[0], mark)])
        #: Whether the names are ours, which say nothing of the features.
        self._made_up = count > 0
        # Threads would find a bad row without its number.
        self._read = pacsv.ReadOptions(
            use_threads=False,
            block_size=max(_BLOCK_BYTES, 4 * max(map(len, lines))),
            column_names=[f"column {place + 1}" for place in range(count)] or None,
        )
        schema = self._first_block()
        #: The columns by their names, and as the file writes them.
        self._raw = {name.strip(): name for name in schema.names}
        self.names = list(self._raw)
        self._refuse_late([field.name.strip() for field in schema if pa.types.is_null(field.type)])
        self.taken = self._numbers_in(schema)
        truths = {field.name.strip() for field in schema if pa.types.is_boolean(field.type)}
        self._kinds = {name: pa.bool_() if name in truths else pa.float64() for name in self.taken}
        self.d = len(self.taken)
        self.n = sum(len(block) for block in self._blocks({self.taken[0]: pa.string()}))
        if self.n < 1:
            raise InputError(f"{path} has no rows")

    def column(self, name: str) -> NDArray[Any]:
        """Return the texts of a column as they are: 1.1 and 1.10 are two names of rows, and two groups."""
        if name not in self.names:
            return super().column(name)
        return objects([text for block in self._blocks({name: pa.string()}) for text in _texts(block, 0)])

    def _index(self) -> Sequence[Any]:
        texts = self.column("").tolist() if "" in self.names else []
        return () if any(is_number(str(text)) for text in texts) else texts

    def columns(self) -> Sequence[str] | None:
        """Return the names of the features, None where the file gives them none."""
        return None if self._made_up else self.taken

    def parsed(self) -> Iterator[NDArray[Any]]:
        """Yield all rows, block by block."""
        try:
            yield from map(_matrix, self._blocks(self._kinds))
        except InputError as error:
            self._refuse_word(str(error.__cause__))
            raise

    def _refuse_late(self, empty: Sequence[str]) -> None:
        """Refuse a column that is empty in the first block, and of numbers later: it would be left out."""
        waiting, start = dict.fromkeys(set(empty) - self.not_features(), pa.string()), 0
        for block in self._blocks(waiting, missing=True) if waiting else ():
            for place, name in enumerate(block.schema.names):
                found = enumerate(_texts(block, place) if name.strip() in waiting else ())
                row, text = next(((row, text) for row, text in found if text), (0, ""))
                if is_number(text.replace(self._decimal, ".")):
                    raise InputError(
                        f"{self.place} has nothing in the column {name.strip()!r} before row {start + row},"
                        f" and {text!r} there: fill it for every row, or leave the column out"
                    )
                if text:
                    del waiting[name.strip()]  # a column of words
            start += len(block)

    def _refuse_word(self, said: str) -> None:
        """Name the row of a word among numbers, where that is what Arrow says."""
        found = _NO_NUMBER.search(said)
        if found is None:
            return
        name, word = list(self._raw)[int(found[1])], found[2].strip()
        texts = [text for block in self._blocks({name: pa.string()}) for text in _texts(block, 0)]
        if word in texts:
            form = " with a decimal comma" if self._decimal == "," else ""
            raise InputError(
                f"{self.place} has {word!r} in row {texts.index(word)} of the column {name!r}, and numbers"
                f" above it: write a number{form} there, or leave the column out"
            )

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


def _matrix(batch: pa.RecordBatch) -> NDArray[np.float64]:
    """Return columns of numbers side by side; a missing value becomes NaN, which is then refused by row."""
    columns = [column.cast(pa.float64()).to_numpy(zero_copy_only=False) for column in batch.columns]
    return np.stack(columns, axis=1)


def _texts(block: pa.RecordBatch, place: int) -> list[str]:
    return [(text or "").strip() for text in block.column(place).to_pylist()]


def _mark(path: Path, first: str, known: Collection[str]) -> str:
    """Return what parts the columns: what leaves a known name in the first line, or else what is in it."""
    marks = DELIMITERS[path.with_suffix("").suffix.lower() if is_packed(path) else path.suffix.lower()]
    # Between semicolons or tabs, commas may be those of numbers.
    found = next((mark for mark in (*marks[1:], marks[0]) if mark in first), marks[0])
    return delimiter_of(marks, first, known) or found


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


def label_names(schema: pa.Schema, label: str | None) -> Sequence[str] | None:
    """Return the names of the classes 0, 1, ... that Hugging Face's datasets keep in a schema."""
    try:
        known = json.loads((schema.metadata or {}).get(b"huggingface", b"{}"))
        names = known["info"]["features"][label]["names"]
    except (ValueError, KeyError, TypeError):
        return None
    return [str(name) for name in names] if isinstance(names, list) else None


def _storage(kind: pa.DataType) -> pa.DataType:
    """Return the type in which a tensor of a fixed shape is stored, any other as it is."""
    return kind.storage_type if isinstance(kind, pa.BaseExtensionType) else kind


def is_list(kind: pa.DataType) -> bool:
    """Whether a column has lists, or tensors of one shape."""
    kind = _storage(kind)
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind))


def _is_number(kind: pa.DataType) -> bool:
    checks = (pa.types.is_floating, pa.types.is_integer, pa.types.is_boolean, pa.types.is_decimal)
    return any(check(kind) for check in checks)
