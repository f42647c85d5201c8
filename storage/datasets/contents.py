"""The manifest, one row per example in the order of the features' rows, and contents that versions share.

Features and manifest rows of units are stored by digest, and stay as long as a dataset, committed or staged,
refers to them.  A writer first marks the contents it needs in its own folder; whoever removes contents first
announces it and then reads the marks.
"""

from __future__ import annotations

import io
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from topline.storage.errors import FormatError, IntegrityError, NotFoundError
from topline.storage.records import canonical_json, digest_bytes, digest_json
from topline.storage.schema import FILES_LIST, MARKS, NO_LABEL, SPLITS, manifest_path, mark_path, unit_folder
from topline.storage.stores import FileSet, Store, held_lease
from topline.storage.stores.files import PackedFile, dump_entries, load_entries
from topline.storage.stores.lease import tenant
from topline.storage.stores.sealed import sealed, unsealed
from topline.storage.stores.urls import join

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


PRUNE_LEASE = "prune"
"""Who holds it removes contents that nobody refers to."""
_PRUNE_SECONDS = 3600.0


@dataclass(frozen=True)
class UnitRef:
    """A unit of a dataset: its `rows` there, and the digests of its features and of its manifest rows.

    `nonzeros` counts the stored entries of a sparse unit; None for a dense one.  Both digests are "" if the
    contents are in the dataset's own folder (version 1).
    """

    rows: tuple[int, int]
    features: str
    manifest: str
    nonzeros: int | None = None

    @property
    def places(self) -> set[str]:
        """The folder and file of its contents, relative to the store's root."""
        return {unit_folder(self.features), manifest_path(self.manifest)}

    def to_json(self) -> dict[str, Any]:
        """Return the reference as a JSON object."""
        sparse = {} if self.nonzeros is None else {"nonzeros": self.nonzeros}
        return {"rows": list(self.rows), "features": self.features, "manifest": self.manifest, **sparse}

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> UnitRef:
        """Return the reference from its JSON object; `FormatError` if it is not one."""
        try:
            start, stop = (int(row) for row in record["rows"])
            nonzeros = record.get("nonzeros")
            counted = None if nonzeros is None else int(nonzeros)
            return cls((start, stop), str(record["features"]), str(record["manifest"]), counted)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise FormatError(f"{record!r} does not describe a unit") from error


@dataclass(frozen=True)
class PackedUnit:
    """A unit ready to be stored: the files of its features with their list, and its manifest rows."""

    files: tuple[PackedFile, ...]
    listing: bytes
    manifest: bytes

    @classmethod
    def of(cls, files: Iterable[PackedFile], table: pa.Table) -> PackedUnit:
        """Pack the files of the features, with rows counted from the unit's first, and the manifest rows."""
        packed = tuple(replace(file, rows=None) for file in files)
        return cls(packed, dump_entries(file.entry for file in packed), dump_manifest(table))

    def ref(self, rows: tuple[int, int], nonzeros: int | None) -> UnitRef:
        """Return the reference to it."""
        return UnitRef(rows, digest_bytes(self.listing), digest_bytes(self.manifest), nonzeros)

    def put(self, store: Store) -> None:
        """Store whatever is missing or damaged; mark its digests first, so that nobody removes it."""
        await_prune(store)
        folder = unit_folder(digest_bytes(self.listing))
        for file in self.files:
            _put(store, join(folder, file.path), file.data)
        _put(store, join(folder, FILES_LIST), self.listing)
        _put(store, manifest_path(digest_bytes(self.manifest)), self.manifest)


def _put(store: Store, path: str, data: bytes) -> None:
    try:
        there = store.size(path) == len(data) and store.read_bytes(path) == data
    except NotFoundError:
        there = False
    if not there:
        store.write_bytes(path, data)


def await_prune(store: Store) -> None:
    """Wait for any pruning that may not have seen the marks of this process."""
    if tenant(store, PRUNE_LEASE) is not None:
        with held_lease(store, PRUNE_LEASE, "a writer that waits", wait=_PRUNE_SECONDS):
            pass


def is_stored(store: Store, ref: UnitRef) -> bool:
    """Return whether all files of a unit are there, with their recorded sizes."""
    try:
        files = unit_files(store, ref, "a unit")
        store.size(manifest_path(ref.manifest))
        return all(store.size(files.place(entry.path)) == entry.size for entry in files.entries)
    except (NotFoundError, IntegrityError):
        return False


def unit_files(store: Store, ref: UnitRef, owner: str, subject: str = "a unit") -> FileSet:
    """Return the files of a unit's features; `IntegrityError` naming `subject` and rows if damaged."""
    known = FileSet(store, unit_folder(ref.features), (), owner)
    listed = load_entries(known.named_by(ref.features, FILES_LIST, subject, ref.rows))
    return replace(known, entries=[replace(entry, rows=ref.rows) for entry in listed])


def unit_table(store: Store, ref: UnitRef, owner: str) -> pa.Table:
    """Return the manifest rows of a unit; `IntegrityError` if they are missing or damaged."""
    path = manifest_path(ref.manifest)
    known, subject = FileSet(store, "", (), owner), f"{owner}: {path}"
    table = load_manifest(known.named_by(ref.manifest, path, subject, ref.rows), path)
    if table.num_rows != ref.rows[1] - ref.rows[0]:
        raise known.broken(subject, f"has {table.num_rows} rows", ref.rows)
    return table


def dump_units(units: Sequence[UnitRef]) -> bytes:
    """Return the list of a dataset's units as canonical text."""
    return canonical_json([unit.to_json() for unit in units])


def load_units(data: bytes, n_rows: int, owner: str) -> tuple[UnitRef, ...]:
    """Return the list that `dump_units` wrote; `FormatError` unless the units are consecutive."""
    units = tuple(UnitRef.from_json(record) for record in json.loads(data))
    ends = [0, *(unit.rows[1] for unit in units)]
    if [unit.rows[0] for unit in units] != ends[:-1] or ends[-1] != n_rows:
        raise FormatError(f"the units of {owner} do not hold its {n_rows} rows one after the other")
    return units


def write_mark(store: Store, folder: str, unit: int, ref: UnitRef) -> None:
    """Mark the contents of `unit` before they are stored, so that nobody removes them.

    A mark of other contents is kept beside it: their writer may have stored them, and this one be killed.
    """
    path = join(folder, mark_path(unit))
    if store.put_if_absent(path, _mark(path, unit, ref)):
        return
    found = _marked(store, path)
    if found == ref:
        return
    for one in filter(None, (found, ref)):
        beside = join(folder, mark_path(unit, digest_json(one.to_json())[:8]))
        store.write_bytes(beside, _mark(beside, unit, one))
    store.write_bytes(path, _mark(path, unit, ref))


def _mark(path: str, unit: int, ref: UnitRef) -> bytes:
    return sealed(path, {"unit": unit, **ref.to_json()})


def finished_unit(store: Store, folder: str, unit: int) -> UnitRef | None:
    """Return the reference of a unit that is marked and completely stored; otherwise None.

    Whatever the reason for None, the fix is to write the unit again.
    """
    first = join(folder, mark_path(unit))
    ref = _marked(store, first)
    if ref is not None and is_stored(store, ref):
        return ref
    names = store.list(join(folder, MARKS)) if store.exists(first) else []
    others = (join(folder, MARKS, name) for name in names if name.startswith(f"{unit:05d}-"))
    refs = (_marked(store, path) for path in others)
    return next((ref for ref in refs if ref is not None and is_stored(store, ref)), None)


def _marked(store: Store, path: str) -> UnitRef | None:
    """Return what a mark refers to; None if it is missing or damaged."""
    try:
        return UnitRef.from_json(unsealed(store, path))
    except (NotFoundError, IntegrityError, FormatError):
        return None


def marked_units(store: Store, folder: str) -> list[int]:
    """Return the marked units, finished or not."""
    names = store.list(join(folder, MARKS))
    stems = [name.removesuffix(".json") for name in names if name.endswith(".json")]
    return [int(stem) for stem in stems if stem.isdecimal()]
