"""Predictions as a table in a file: Parquet, or CSV that a spreadsheet opens without running anything."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa
import pyarrow.parquet as pq

from topline.pipeline.pages import harmless
from topline.storage.errors import DiskFullError, StorageError

Key = Literal["sample_id", "path"]
WriteTable = Callable[[pa.Table], None]


def table_schema(key: Key, *, sets: bool) -> pa.Schema:
    """Return the columns of a table of predictions, a row each image or row of a dataset.

    `label` and `split` are null where they are not known, the lists null where nothing was predicted: of a
    rejected row.  The lists have the best class first.  `probabilities` are null where the model has none,
    and an empty `set` says that the row is like none of the classes.
    """
    columns = [
        (key, pa.string()),
        ("label", pa.string()),
        ("split", pa.string()),
        ("classes", pa.list_(pa.string())),
        ("scores", pa.list_(pa.float32())),
        ("probabilities", pa.list_(pa.float32())),
    ]
    return pa.schema([*columns, ("set", pa.list_(pa.string()))] if sets else columns)


@contextmanager
def table_writer(path: Path, schema: pa.Schema) -> Iterator[WriteTable]:
    """Write tables of `schema` one after the other to `path`, which appears whole at the end or not at all.

    CSV where the name ends so, Parquet otherwise.  `DiskFullError` where the file cannot be written.
    """
    waiting = path.with_name(f".{path.name}.partial")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with (_csv if path.suffix.lower() == ".csv" else _parquet)(waiting, schema) as write:
            yield write
        waiting.replace(path)
    except StorageError:
        # It is not the file that fails, but what is to be written to it.
        raise
    except OSError as error:
        raise DiskFullError(f"{path} cannot be written: {error.strerror or error}") from error
    finally:
        waiting.unlink(missing_ok=True)


@contextmanager
def _parquet(path: Path, schema: pa.Schema) -> Iterator[WriteTable]:
    with pq.ParquetWriter(path, schema) as writer:
        yield writer.write_table


@contextmanager
def _csv(path: Path, schema: pa.Schema) -> Iterator[WriteTable]:
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(schema.names)

        def write(table: pa.Table) -> None:
            columns = [_cells(column) for column in table.select(schema.names).columns]
            writer.writerows(zip(*columns, strict=True))

        yield write


def _cells(column: pa.ChunkedArray) -> list[str]:
    """Return a column as text: lists as JSON, what is not known as nothing."""
    if not pa.types.is_list(column.type):
        return ["" if value is None else harmless(str(value)) for value in column.to_pylist()]
    decimal = pa.types.is_floating(column.type.value_type)
    return ["" if value is None else _json(value, decimal=decimal) for value in column.to_pylist()]


def _json(values: list[Any], *, decimal: bool) -> str:
    # A float32 has seven digits; Python would write what its conversion adds to them.
    shown = [float(f"{value:.7g}") for value in values] if decimal else values
    return json.dumps(shown, ensure_ascii=False)
