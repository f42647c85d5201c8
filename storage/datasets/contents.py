"""Contents shared by versions of a dataset: features and manifest rows of units, stored by digest.

Contents stay as long as a dataset, committed or staged, refers to them.  A writer first marks the contents it
needs in its own folder; whoever removes contents first announces it and then reads the marks.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa

from topline.storage.datasets.manifest import dump_manifest, load_manifest
from topline.storage.errors import FormatError, IntegrityError, NotFoundError
from topline.storage.fingerprint import canonical_json, digest_bytes, digest_json
from topline.storage.schema import FILES_LIST, MARKS, manifest_path, mark_path, unit_folder
from topline.storage.stores import FileSet, Store, held_lease
from topline.storage.stores.files import PackedFile, dump_entries, load_entries
from topline.storage.stores.lease import tenant
from topline.storage.stores.sealed import sealed, unsealed
from topline.storage.stores.urls import join

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
