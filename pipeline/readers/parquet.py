"""Features in Parquet: a column of lists of one length, or a column for each feature; and clip-retrieval."""

from __future__ import annotations

import bisect
import re
from collections.abc import Iterator, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from topline.pipeline.errors import InputError
from topline.pipeline.readers.arrays import NpyFeatures
from topline.pipeline.readers.base import (
    FEATURE_NAMES,
    ID_NAMES,
    LABEL_NAMES,
    FeatureFile,
    StreamedFeatures,
    first_rows,
    named,
    pick,
)

BATCH_ROWS = 4096


class ParquetFeatures(StreamedFeatures):
    """A Parquet file, read batch by batch.

    The features are the column `features_name`, or the usual one of lists, or the only one of lists; where
    there are no lists, all columns of numbers but label, split and the index of a DataFrame.
    """

    def __init__(self, path: Path, features_name: str | None, labels_name: str | None) -> None:
        super().__init__(path)
        try:
            self._file = pq.ParquetFile(path)
        except (OSError, pa.ArrowException) as error:
            raise InputError(f"{path} cannot be read as Parquet: {error}") from error
        schema = self._file.schema_arrow
        self._label = pick_label(self.place, schema, labels_name)
        self._columns = self._feature_columns(schema, features_name)
        self._lists = _is_list(schema.field(self._columns[0]).type)
        self.n = self._file.metadata.num_rows
        if self.n < 1:
            raise InputError(f"{path} has no rows")
        self.d = next(self._arrays()).shape[1] if self._lists else len(self._columns)

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def labels(self) -> NDArray[Any] | None:
        """Return the column of labels."""
        return None if self._label is None else label_values(self.path, self._label)

    def splits(self) -> NDArray[Any] | None:
        """Return the column split."""
        return column_values(self.path, "split") if "split" in self._file.schema_arrow.names else None

    def ids(self) -> Sequence[str] | None:
        """Return the column sample_id."""
        return row_names(self.path)

    def columns(self) -> Sequence[str] | None:
        """Return the names of the columns, None where one of lists has all features."""
        return None if self._lists else self._columns

    def left_out(self) -> Sequence[str]:
        """Return the columns that are neither numbers, labels, splits nor names of rows."""
        schema = self._file.schema_arrow
        taken = {*self._columns, self._label, "split", *ID_NAMES, *pandas_index(schema)}
        return [name for name in schema.names if name not in taken]

    def _feature_columns(self, schema: pa.Schema, wanted: str | None) -> list[str]:
        lists = [field.name for field in schema if _is_list(field.type) and field.name != self._label]
        if wanted is not None or lists:
            name = pick(self.place, "column", wanted, FEATURE_NAMES, schema.names if wanted else lists)
            if name is None:
                raise InputError(
                    f"{self.place} has the lists {', '.join(lists)}: choose with --features-name"
                )
            return [name]
        others = {self._label, "split", *ID_NAMES, *pandas_index(schema)}
        found = [field.name for field in schema if _is_number(field.type) and field.name not in others]
        if not found:
            raise InputError(
                f"{self.place} has no column of numbers or of lists of numbers: it has {named(schema.names)}"
            )
        return found

    def _arrays(self) -> Iterator[NDArray[Any]]:
        start = 0
        try:
            for batch in self._file.iter_batches(BATCH_ROWS, columns=self._columns):
                yield self._matrix(batch, start)
                start += batch.num_rows
        except (OSError, pa.ArrowException) as error:
            raise InputError(f"{self.place} is damaged after row {start}: {error}") from error

    def _matrix(self, batch: pa.RecordBatch, start: int) -> NDArray[Any]:
        if not self._lists:
            # A null becomes NaN, which is then refused with its row.
            columns = [batch.column(name).cast(pa.float64()) for name in self._columns]
            return np.stack([column.to_numpy(zero_copy_only=False) for column in columns], axis=1)
        column = batch.column(self._columns[0])
        lengths = np.array(
            [-1 if value is None else value for value in pc.list_value_length(column).to_pylist()]
        )
        wanted = getattr(self, "d", lengths[0])
        wrong = np.flatnonzero((lengths != wanted) | (lengths < 1))
        if len(wrong):
            row = int(wrong[0])
            raise InputError(
                f"{self.place}: row {start + row} has {max(0, int(lengths[row]))} features, and others"
                f" {int(wanted)}: make all lists of one length"
            )
        values = column.flatten().cast(
            pa.float64() if column.type.value_type == pa.float64() else pa.float32()
        )
        return np.asarray(values.to_numpy(zero_copy_only=False)).reshape(len(lengths), -1)


class ClipFolder(FeatureFile):
    """A folder of clip-retrieval: img_emb/img_emb_0.npy, ... and metadata/metadata_0.parquet, ..."""

    def __init__(self, folder: Path, labels_name: str | None) -> None:
        super().__init__(folder)
        self._arrays = [NpyFeatures(path) for path in _numbered(folder / "img_emb", ".npy")]
        if not self._arrays:
            raise InputError(
                f"{folder} has no img_emb/*.npy: name a file, or a clip-retrieval folder; images become"
                " features by topline extract --images"
            )
        self._tables = _numbered(folder / "metadata", ".parquet")
        self._labels_name = labels_name
        widths = {array.d for array in self._arrays}
        if len(widths) > 1:
            raise InputError(
                f"the files in {folder / 'img_emb'} have {sorted(widths)} columns, and must agree"
            )
        self.d = widths.pop()
        self._starts = [0, *accumulate(array.n for array in self._arrays)]
        self.n = self._starts[-1]
        self._check_pairs()

    def _check_pairs(self) -> None:
        """Raise `InputError` where an array and the table of its number are not there together or differ."""
        arrays = {_number(array.path): array for array in self._arrays}
        tables = {_number(table): table for table in self._tables}
        if not tables:
            return
        alone = [*(arrays[number].path for number in arrays.keys() - tables.keys())]
        alone += [tables[number] for number in tables.keys() - arrays.keys()]
        if alone or len(arrays) < len(self._arrays) or len(tables) < len(self._tables):
            name = min(alone).relative_to(self.path) if alone else "a number that comes twice"
            raise InputError(
                f"{self.path} has {name} without its counterpart: img_emb/img_emb_N.npy and"
                " metadata/metadata_N.parquet belong together, row by row; bring back what is missing"
            )
        for number, array in arrays.items():
            rows = pq.ParquetFile(tables[number]).metadata.num_rows
            if rows != array.n:
                raise InputError(
                    f"{tables[number]} has {rows:,} rows, and {array.path.name} {array.n:,}: they must agree"
                )

    def rows(self, start: int, stop: int) -> NDArray[Any]:
        """Return rows across the files."""
        parts = []
        first = bisect.bisect_right(self._starts, start) - 1
        for array, begin in zip(self._arrays[first:], self._starts[first:], strict=False):
            if begin >= stop:
                break
            parts.append(array.rows(max(0, start - begin), min(array.n, stop - begin)))
        return np.concatenate(parts)

    def labels(self) -> NDArray[Any] | None:
        """Return the metadata's column of labels."""
        names = [pick_label(str(table), pq.read_schema(table), self._labels_name) for table in self._tables]
        if not names or None in names:
            return None
        columns = [label_values(table, str(name)) for table, name in zip(self._tables, names, strict=True)]
        return np.concatenate(columns)

    def ids(self) -> Sequence[str] | None:
        """Return the metadata's image paths, behind the names of their tables where two tables share one."""
        names = [row_names(table) for table in self._tables]
        if not names or any(part is None for part in names):
            return None
        found = [name for part in names for name in part or ()]
        if len(set(found)) == sum(len(set(part or ())) for part in names):
            return found
        pairs = zip(self._tables, names, strict=True)
        return [f"{table.stem}/{name}" for table, part in pairs for name in part or ()]

    def files(self) -> Sequence[Path]:
        """Return all arrays and tables."""
        return [*(path for array in self._arrays for path in array.files()), *self._tables]


def pick_label(place: str, schema: pa.Schema, wanted: str | None) -> str | None:
    """Return the name of the column of labels, if there is one."""
    found = pick(place, "column", wanted, LABEL_NAMES, schema.names)
    return found if wanted or found in LABEL_NAMES else None


def label_values(path: Path, name: str) -> NDArray[Any]:
    """Return a column of labels; `InputError` for dates and times, which NumPy would give as numbers."""
    kind = pq.read_schema(path).field(name).type
    if pa.types.is_temporal(kind):
        raise InputError(
            f"{path} has dates or times in its column of labels {name}: save the classes that they mean as"
            " text"
        )
    return column_values(path, name)


def column_values(path: Path, name: str) -> NDArray[Any]:
    """Return a column as an array of numbers or of objects (text, None, truth values); times as text."""
    column = pq.read_table(path, columns=[name])[name]
    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    if pa.types.is_temporal(column.type):
        column = column.cast(pa.string())
    return np.asarray(column.to_numpy())


def row_names(path: Path) -> Sequence[str] | None:
    """Return the column that names rows, or the text that a DataFrame has for an index; None without one."""
    schema = pq.read_schema(path)
    name = next((name for name in ID_NAMES if name in schema.names), None)
    if name is not None:
        _refuse_unnamed(path, name)
        return [str(value) for value in column_values(path, name).tolist()]
    index = pandas_index(schema)
    values = column_values(path, index[0]).tolist() if len(index) == 1 else []
    # An index may repeat itself or be of numbers, which name no row.
    named = len(set(values)) == len(values) > 0 and all(isinstance(value, str) for value in values)
    return values if named else None


def _refuse_unnamed(path: Path, name: str) -> None:
    """Raise `InputError` where the column that names rows has rows without a name."""
    column = pq.read_table(path, columns=[name])[name]
    missing = np.array(column.is_null(nan_is_null=True))
    if pa.types.is_string(column.type) or pa.types.is_large_string(column.type):
        missing |= np.array(pc.equal(pc.utf8_trim_whitespace(column.fill_null("")), ""))
    if missing.any():
        raise InputError(
            f"{path} has no {name} in {first_rows(np.flatnonzero(missing).tolist())}: name every row, or"
            f" leave the column {name} out"
        )


def pandas_index(schema: pa.Schema) -> list[str]:
    """Return the columns in which pandas keeps the index of a DataFrame, none where it counts the rows."""
    known = schema.pandas_metadata or {}
    return [name for name in known.get("index_columns", ()) if isinstance(name, str) and name in schema.names]


def _numbered(folder: Path, suffix: str) -> list[Path]:
    """Return files of `folder` by the numbers in their names: img_emb_2 before img_emb_10."""
    found = list(folder.glob(f"*{suffix}")) if folder.is_dir() else []
    return sorted(found, key=lambda path: (_number(path), path.name))


def _number(path: Path) -> tuple[int, ...]:
    """Return the numbers in the name of a file."""
    return tuple(int(word) for word in re.findall(r"\d+", path.stem))


def _is_list(kind: pa.DataType) -> bool:
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind))


def _is_number(kind: pa.DataType) -> bool:
    return bool(pa.types.is_floating(kind) or pa.types.is_integer(kind) or pa.types.is_boolean(kind))
