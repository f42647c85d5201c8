"""Features in Parquet: a column of lists of one length, or a column for each feature."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from topline.pipeline.errors import InputError
from topline.pipeline.readers.base import FEATURE_NAMES, Names, StreamedFeatures, named, pick
from topline.pipeline.readers.damage import cause, reading

BATCH_ROWS = 4096


class ParquetFeatures(StreamedFeatures):
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
        self.taken = self._feature_columns(wanted.features)
        self._lists = is_list(self._schema.field(self.taken[0]).type)
        if self.n < 1:
            raise InputError(f"{path} has no rows")
        self.d = next(self.parsed()).shape[1] if self._lists else len(self.taken)

    def column(self, name: str) -> NDArray[Any]:
        """Return a column as an array of numbers or of objects; times as text."""
        if name in self._fixed:
            return np.full(self.n, self._fixed[name], dtype=object)
        return parquet_column(self.path, name, self.label) if name in self.names else super().column(name)

    def class_names(self) -> Sequence[str] | None:
        """Return the names of the labels' numbers that Hugging Face's datasets keep with the file."""
        return label_names(self._schema, self.label)

    def columns(self) -> Sequence[str] | None:
        """Return the names of the columns, None where one of lists has all features."""
        return None if self._lists else self.taken

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

    def _feature_columns(self, wanted: str | None) -> list[str]:
        others = self.not_features()
        fields = [field for field in self._schema if field.name not in others]
        lists = [field.name for field in fields if is_list(field.type)]
        if wanted is not None or lists:
            name = pick(self.place, "column", wanted, FEATURE_NAMES, self._schema.names if wanted else lists)
            if name is None:
                raise InputError(
                    f"{self.place} has the lists {', '.join(lists)}: choose with --features-name"
                )
            values = _storage(self._schema.field(name).type)
            if is_list(values) and not _is_number(values.value_type):
                raise InputError(
                    f"{self.place} has lists of {values.value_type} in {name}, and features are lists of"
                    " numbers: write one flat list a row"
                )
            return [name]
        found = [field.name for field in fields if _is_number(field.type)]
        if not found:
            raise InputError(
                f"{self.place} has no column of numbers or of lists of numbers: it has {named(self.names)}"
            )
        return found

    def parsed(self) -> Iterator[NDArray[Any]]:
        """Yield all rows, batch by batch."""
        start = 0
        try:
            with pq.ParquetFile(self.path) as file:
                for batch in file.iter_batches(BATCH_ROWS, columns=list(self.taken)):
                    yield self._matrix(batch, start)
                    start += batch.num_rows
        except (OSError, pa.ArrowException) as error:
            raise InputError(f"{self.place} is damaged after row {start}: {cause(error)}") from error

    def _matrix(self, batch: pa.RecordBatch, start: int) -> NDArray[Any]:
        if not self._lists:
            # A null becomes NaN, which is then refused with its row.
            columns = [batch.column(name).cast(pa.float64()) for name in self.taken]
            return np.stack([column.to_numpy(zero_copy_only=False) for column in columns], axis=1)
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


def parquet_column(path: Path, name: str, label: str | None) -> NDArray[Any]:
    """Return a column as an array of numbers or of objects (text, None, truth values); times as text.

    `InputError` for dates and times in the column of labels, `label`.
    """
    column = pq.read_table(path, columns=[name], partitioning=None)[name]
    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    if pa.types.is_temporal(column.type):
        if name == label:
            raise InputError(
                f"{path} has dates or times in its column of labels {name}: save the classes that they"
                " mean as text"
            )
        column = column.cast(pa.string())  # NumPy would give some of them as numbers
    return np.asarray(column.to_numpy())


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
