"""Tables in Parquet and text: features read batch by batch; labels, splits and lists of images as a whole."""

from __future__ import annotations

import csv
import gzip
import json
import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
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
    FeatureFile,
    Names,
    StreamedFeatures,
    named,
    pick,
    refuse_names,
)
from topline.pipeline.readers.files import cause, is_packed, opened, parquet_column, reading
from topline.pipeline.readers.words import as_given, is_number, numbers_in, objects

BATCH_ROWS = 4096
#: Bytes of text that are parsed at once; what is a number in the first of them is one in all.
_BLOCK_BYTES = 1 << 23
#: Lines behind the first that say whether numbers have commas.
_LOOKED_AT = 100
#: Numbers with a comma for their point, as spreadsheets write them where semicolons part the columns, and
#: with a point.
_COMMA = re.compile(r"[+-]?(\d+,\d*|,\d+)([eE][+-]?\d+)?")
_POINT = re.compile(r"[+-]?(\d+\.\d*|\.\d+)([eE][+-]?\d+)?")
#: What Arrow says of a word in a column of numbers: the column, the row with that of names, and the word.
_NO_NUMBER = re.compile(r"CSV column #(\d+): Row #(\d+): .*invalid value '(.*)'", re.DOTALL)


def _numbers_in(source: FeatureFile, schema: Collection[pa.Field], lists: str = "") -> list[str]:
    """Return the columns of numbers and truth values that have no known name, of which there must be some."""
    others = source.not_features()
    found = [one.name.strip() for one in schema if _is_number(one.type) and one.name.strip() not in others]
    if not found:
        raise InputError(f"{source.place} has no column of numbers{lists}: it has {named(source.names)}")
    return found


class ParquetFeatures(StreamedFeatures):
    """A Parquet file, read batch by batch; folders that are called name=value are columns too.

    The features are the column that is wanted, or the usual or only one of lists; where there are no lists,
    all columns of numbers but label, split and the index of a DataFrame.
    """

    def __init__(self, path: Path, wanted: Names) -> None:
        super().__init__(path, wanted)
        with reading(path, "Parquet"), pq.ParquetFile(path) as file:
            self._schema, self.n = file.schema_arrow, file.metadata.num_rows
        pairs = (part.split("=", 1) for part in path.parent.parts if part.count("=") == 1)
        self._fixed = {name: unquote(value) for name, value in pairs if name not in self._schema.names}
        self.names = [*self._schema.names, *self._fixed]
        # pandas keeps an index here that does not count the rows.
        known = (self._schema.pandas_metadata or {}).get("index_columns", ())
        self.index = [name for name in known if isinstance(name, str) and name in self._schema.names]
        name = self._lists()
        lists = " or of lists of numbers"
        self.taken = _numbers_in(self, self._schema, lists) if name is None else [name]
        self._has_lists = _in_lists(self._schema.field(self.taken[0]).type) is not None
        self.columns = None if self._has_lists else self.taken
        # Numbers that Hugging Face's datasets name.
        self.class_names = label_names(self._schema, self.label)
        if self.n < 1:
            raise InputError(f"{path} has no rows")
        self.d = next(self.parsed()).shape[1] if self._has_lists else len(self.taken)

    def column(self, name: str) -> NDArray[Any]:
        """Return a column as an array of objects."""
        if name in self._fixed:
            return np.full(self.n, self._fixed[name], dtype=object)
        return parquet_column(self.path, name) if name in self.names else super().column(name)

    def _lists(self) -> str | None:
        """Return the column that is wanted, or has lists of features; None where there is none."""
        others, wanted = self.not_features(), self.wanted.features
        lists = [one.name for one in self._schema if one.name not in others and _in_lists(one.type)]
        if wanted is None and not lists:
            return None
        name = pick(self.place, "column", wanted, FEATURE_NAMES, self._schema.names if wanted else lists)
        if name is None:
            raise InputError(f"{self.place} has the lists {', '.join(lists)}: choose with --features-name")
        kind = _in_lists(self._schema.field(name).type)
        if kind is not None and not _is_number(kind):
            raise InputError(
                f"{self.place} has lists of {kind} in {name}, and features are lists of numbers: write one"
                " flat list a row"
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


class CsvFeatures(StreamedFeatures):
    """A text table, parsed block by block; without names columns are called column 1, column 2, ..."""

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
        # Threads would find a bad row without its number.
        self._read = pacsv.ReadOptions(
            use_threads=False,
            block_size=max(_BLOCK_BYTES, 4 * max(map(len, lines))),
            column_names=[f"column {place + 1}" for place in range(count)] or None,
        )
        schema = self._first_block()
        #: The columns by their names, and as the file writes them.
        self._raw = {name.strip(): name for name in schema.names}
        self.names, self.index = list(self._raw), [name for name in self._raw if not name]
        self._refuse_late([field.name.strip() for field in schema if pa.types.is_null(field.type)])
        self.taken = _numbers_in(self, schema)
        # Names of ours say nothing of the features.
        self.columns = None if count else self.taken
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
        if found := _NO_NUMBER.search(said):
            name, row = list(self._raw)[int(found[1])], int(found[2]) - (1 if self._read.column_names else 2)
            form = " with a decimal comma" if self._decimal == "," else ""
            raise InputError(
                f"{self.place} has {found[3].strip()!r} in row {row} of the column {name!r}, and numbers"
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

    A DataFrame without names counts its columns from 0; a line of names and fractions would lose its row.
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


def _in_lists(kind: pa.DataType) -> pa.DataType | None:
    """Return the type of what lists, or tensors of one shape, hold; None of what is none."""
    kind = kind.storage_type if isinstance(kind, pa.BaseExtensionType) else kind
    checks = (pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list)
    return kind.value_type if any(check(kind) for check in checks) else None


def _is_number(kind: pa.DataType) -> bool:
    checks = (pa.types.is_floating, pa.types.is_integer, pa.types.is_boolean, pa.types.is_decimal)
    return any(check(kind) for check in checks)


#: What may separate the columns of a text table, by its suffix; the usual one first.
DELIMITERS = {".csv": ",;\t", ".tsv": "\t,;"}
TABLE_SUFFIXES = (*DELIMITERS, ".parquet")


@dataclass(frozen=True, eq=False)
class Table:
    """Rows of a table, the names of their columns, "" for one without, and the place of each for messages."""

    path: Path
    names: tuple[str, ...]
    rows: Sequence[Sequence[object]]
    places: Sequence[str]
    kind = "column"

    def column(self, name: str) -> list[Any]:
        """Return the values of a column, None where a row ends before it."""
        place = self.names.index(name)
        return [row[place] if len(row) > place else None for row in self.rows]

    def values(self, name: str) -> NDArray[Any]:
        """Return the values of a column (n,), those of a text as numbers where all are."""
        found = self.column(name)
        if self.path.suffix.lower() == ".parquet":
            return objects(found)
        return numbers_in([text if text is None else str(text).strip() for text in found])


def read_table(
    path: Path, usual: Collection[str], separator: str | None = None, rows: int | None = None
) -> Table:
    """Return a table in Parquet, or in text with a first line of names; `InputError` for what is none.

    Columns are separated by what leaves one of the `usual` names, and not by `separator`, which parts the
    labels of a cell.  One column needs no name above as many lines as `rows`; a text that is no table is its
    lines.
    """
    with reading(path):
        if path.suffix.lower() == ".parquet":
            names = tuple(pq.read_schema(path).names)
            columns = [parquet_column(path, name) for name in names]
            found = list(zip(*columns, strict=True))
            return Table(path, names, found, [f"{path}, row {row + 1}," for row in range(len(found))])
        if path.suffix.lower() not in DELIMITERS:
            text = path.read_text(encoding="utf-8-sig").splitlines()
            return Table(path, ("",), [[line] for line in text], [""] * len(text))
        lines = _cells(path, usual, separator, rows)
        head = tuple(word.strip() for word in lines[0][1]) if lines else ()
        if len(head) == 1 and head[0] not in usual and len(lines) == rows:
            return Table(path, ("",), [row or [""] for _, row in lines], [""] * len(lines))
        kept = [(number, row) for number, row in lines[1:] if row]
        return Table(path, head, [row for _, row in kept], [f"{path}, line {number}," for number, _ in kept])


def _cells(
    path: Path, usual: Collection[str], separator: str | None, rows: int | None
) -> list[tuple[int, list[str]]]:
    """Return the cells of each line of a text table, and the number of the line in which they end.

    A single column may be several that another mark parts, where every line has as many; not so in a .tsv of
    `rows` lines without a header, whose labels may hold commas.
    """
    with path.open(encoding="utf-8-sig", newline="") as file:

        def parted(mark: str) -> list[tuple[int, list[str]]]:
            file.seek(0)
            reader = csv.reader(file, delimiter=mark, strict=True)
            return [(reader.line_num, list(map(as_given, line))) for line in reader]

        header, marks = file.readline().rstrip("\r\n"), DELIMITERS[path.suffix.lower()]
        known = delimiter_of(marks, header, usual) or marks[0]
        lines = parted(known)
        if any(len(line) > 1 for _, line in lines) or (path.suffix.lower() == ".tsv" and len(lines) == rows):
            return lines
        for mark in marks:
            if mark in header and mark not in (known, separator):
                found = parted(mark)
                if {len(line) for _, line in found if line} == {len(found[0][1])} != {1}:
                    return found
        return lines


def delimiter_of(marks: str, header: str, known: Collection[str]) -> str | None:
    """Return which of `marks` separates columns: what leaves a known name in the first line, else None."""
    parted = ((mark, [word.strip().strip('"') for word in header.split(mark)]) for mark in marks)
    return next((mark for mark, names in parted if not set(names).isdisjoint(known)), None)
