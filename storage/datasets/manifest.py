"""The manifest: one row per image (or example), in the order of the features' rows."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from topline.storage.errors import FormatError, IntegrityError
from topline.storage.schema import NO_LABEL, SPLITS

STATUSES = ("ok", "rejected", "duplicate")

MANIFEST_SCHEMA = pa.schema(
    [
        pa.field("sample_id", pa.string(), nullable=False),
        pa.field("path", pa.string()),
        pa.field("label", pa.int32()),
        pa.field("class_name", pa.string()),
        pa.field("split", pa.string()),
        pa.field("sha256", pa.string()),
        pa.field("size", pa.int64()),
        pa.field("width", pa.int32()),
        pa.field("height", pa.int32()),
        pa.field("status", pa.string(), nullable=False),
        pa.field("error", pa.string()),
    ]
)
"""size in bytes of the file, width and height in pixels, error the reason of a rejection."""

OF_A_VERSION = ("label", "class_name", "split")
"""Columns that follow from a dataset's arrays."""
OVERRIDDEN = ("status", "error")
"""Columns in which a version may differ from the manifest rows that it shares with others."""


def conform(table: pa.Table) -> pa.Table:
    """Return `table` with exactly the manifest's columns; missing ones are null, "status" is "ok".

    Raises `FormatError` for a column of another name or type, and for a row without a sample id.
    """
    foreign = sorted(set(table.column_names) - set(MANIFEST_SCHEMA.names))
    if foreign:
        raise FormatError(
            f"the manifest has no column {foreign[0]!r}; it has {', '.join(MANIFEST_SCHEMA.names)}"
        )
    columns = [_column(table, name) for name in MANIFEST_SCHEMA.names]
    result = pa.Table.from_arrays(columns, schema=MANIFEST_SCHEMA)
    for name in ("sample_id", "status"):
        if result[name].null_count:
            raise FormatError(f"a row of the manifest has no {name}")
    unknown = set(result["status"].unique().to_pylist()) - set(STATUSES)
    if unknown:
        raise FormatError(f"a manifest's status is one of {', '.join(STATUSES)}, not {min(unknown)!r}")
    return result


def _column(table: pa.Table, name: str) -> pa.ChunkedArray | pa.Array:
    kind = MANIFEST_SCHEMA.field(name).type
    if name not in table.column_names:
        if name == "status":
            return pa.repeat(pa.scalar("ok", pa.string()), table.num_rows)
        return pa.nulls(table.num_rows, kind)
    try:
        return table[name].cast(kind)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise FormatError(f"the manifest's column {name!r} is {table[name].type}, not {kind}") from error


def empty_manifest(sample_ids: Sequence[str]) -> pa.Table:
    """Return the manifest of rows with nothing but ids (imported features)."""
    return conform(pa.table({"sample_id": pa.array(list(sample_ids), pa.string())}))


def with_labels_and_splits(
    table: pa.Table, labels: NDArray[np.int32], split: NDArray[np.int8], class_names: Sequence[str]
) -> pa.Table:
    """Return `table` with label, class_name and split columns taken from the dataset's arrays."""
    names = pa.array(list(class_names), pa.string())
    known = pa.array(labels, pa.int32(), mask=labels == NO_LABEL)
    words = pa.array(list(SPLITS), pa.string())
    columns = {
        "label": pa.array(labels, pa.int32()),
        "class_name": names.take(known),
        "split": words.take(pa.array(split, pa.int8())),
    }
    return _replaced(table, columns)


def _replaced(table: pa.Table, columns: Mapping[str, pa.Array]) -> pa.Table:
    """Return a manifest with some columns replaced."""
    for name, values in columns.items():
        table = table.set_column(MANIFEST_SCHEMA.get_field_index(name), MANIFEST_SCHEMA.field(name), values)
    return table


def shared_columns(table: pa.Table) -> pa.Table:
    """Return `table` without the columns specific to a version: labels, class names and splits."""
    kinds = {name: MANIFEST_SCHEMA.field(name).type for name in OF_A_VERSION}
    return _replaced(table, {name: pa.nulls(table.num_rows, kind) for name, kind in kinds.items()})


def overrides_of(shared: pa.Table, table: pa.Table) -> pa.Table | None:
    """Return the rows of `table` whose status or error differs from the units' rows; None if none does.

    `FormatError` if another column differs: the units were written with those.
    """
    if table.num_rows != shared.num_rows:
        raise FormatError(f"the manifest has {table.num_rows} rows, and the dataset {shared.num_rows}")
    for name in MANIFEST_SCHEMA.names:
        if name not in (*OF_A_VERSION, *OVERRIDDEN) and not table[name].equals(shared[name]):
            raise FormatError(f"the manifest has another {name} than the units were written with")
    pairs = (
        np.array([a != b for a, b in zip(table[name].to_pylist(), shared[name].to_pylist(), strict=True)])
        for name in OVERRIDDEN
    )
    rows = np.flatnonzero(np.logical_or.reduce(list(pairs)))
    if not len(rows):
        return None
    return table.take(pa.array(rows)).select(OVERRIDDEN).add_column(0, "row", pa.array(rows, pa.int64()))


def overridden(shared: pa.Table, overrides: pa.Table) -> pa.Table:
    """Return the units' rows with the overriding status and error."""
    rows, columns = overrides["row"].to_pylist(), {}
    for name in OVERRIDDEN:
        values = shared[name].to_pylist()
        for row, value in zip(rows, overrides[name].to_pylist(), strict=True):
            values[row] = value
        columns[name] = pa.array(values, MANIFEST_SCHEMA.field(name).type)
    return _replaced(shared, columns)


def dump_manifest(table: pa.Table) -> bytes:
    """Return the Parquet file of the table."""
    return dump_overrides(table.cast(MANIFEST_SCHEMA))


def dump_overrides(table: pa.Table) -> bytes:
    """Return the Parquet file of the rows that `overrides_of` found."""
    sink = io.BytesIO()
    # Statistics of hashes and paths would take a third of the file and serve nobody.
    pq.write_table(table.replace_schema_metadata(None), sink, compression="zstd", write_statistics=False)
    return sink.getvalue()


def _read(data: bytes) -> pa.Table:
    # `read_table` would spend half a second importing pyarrow's datasets and pandas.
    return pq.ParquetFile(pa.BufferReader(data)).read()


def load_manifest(data: bytes, place: str) -> pa.Table:
    """Return the table of a Parquet file; `IntegrityError` naming `place` if unreadable."""
    try:
        return conform(_read(data))
    except (pa.ArrowException, OSError, FormatError) as error:
        raise IntegrityError(f"{place} is damaged: it is not a manifest in Parquet") from error


def load_overrides(data: bytes, place: str) -> pa.Table:
    """Return the table that `dump_overrides` wrote; `IntegrityError` naming `place` if unreadable."""
    try:
        return _read(data).select(["row", *OVERRIDDEN])
    except (pa.ArrowException, OSError, KeyError) as error:
        raise IntegrityError(f"{place} is damaged: it is not a table in Parquet") from error
