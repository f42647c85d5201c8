"""Parts: a unit's rows of the manifest together with the files that hold its features."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa

from topline.storage.datasets.manifest import dump_manifest, load_manifest
from topline.storage.errors import FormatError, IntegrityError, NotFoundError
from topline.storage.fingerprint import digest_bytes
from topline.storage.schema import PARTS, part_path
from topline.storage.stores.files import FileEntry, PackedFile, put_file
from topline.storage.stores.base import Store
from topline.storage.stores.urls import join


@dataclass(frozen=True)
class Part:
    """What the part file of `unit` says: manifest rows, feature files, stored numbers; `entry` is itself."""

    unit: int
    table: pa.Table
    entries: tuple[FileEntry, ...]
    nonzeros: int
    entry: FileEntry


def write_part(
    store: Store, folder: str, unit: int, table: pa.Table, entries: Sequence[FileEntry], nonzeros: int
) -> None:
    """Write the part file, which marks `unit` as done."""
    files = json.dumps([entry.to_json() for entry in entries])
    extra = {"unit": str(unit), "files": files, "nonzeros": str(nonzeros)}
    put_file(store, folder, PackedFile(part_path(unit), dump_manifest(table, extra)))


def read_part(store: Store, folder: str, unit: int) -> Part:
    """The part of `unit`; `NotFoundError` if there is none, `IntegrityError` if it cannot be read."""
    path = part_path(unit)
    place = join(store.url, folder, path)
    data = store.read_bytes(join(folder, path))
    table, extra = load_manifest(data, place)
    try:
        entries = tuple(FileEntry.from_json(record) for record in json.loads(extra["files"]))
        found, nonzeros = int(extra["unit"]), int(extra["nonzeros"])
    except (KeyError, ValueError, FormatError) as error:
        raise IntegrityError(f"{place} is damaged: it does not say which files it stands for") from error
    if found != unit:
        raise IntegrityError(f"{place} is damaged: it is the part of unit {found}")
    return Part(unit, table, entries, nonzeros, FileEntry(path, len(data), digest_bytes(data)))


def finished_part(store: Store, folder: str, unit: int) -> Part | None:
    """The part of `unit` if all files that it names have their sizes: then the unit is done.

    Otherwise None: whatever the reason, the mend is to write the unit again.
    """
    try:
        part = read_part(store, folder, unit)
        sizes_fit = all(store.size(join(folder, entry.path)) == entry.size for entry in part.entries)
    except (NotFoundError, IntegrityError):
        return None
    return part if sizes_fit else None


def part_units(store: Store, folder: str) -> list[int]:
    """Units that have a part file, done or not."""
    stems = [
        name.removesuffix(".parquet") for name in store.list(join(folder, PARTS)) if name.endswith(".parquet")
    ]
    return [int(stem) for stem in stems if stem.isdecimal()]
