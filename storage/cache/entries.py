"""Cached results: drafts that many processes write, and entries that are visible once they are whole.

Each lies in a folder of its own, and is visible once the record <kind>/<key>.json names that folder.  The key
stands for everything that the result follows from.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Self

from numpy.typing import NDArray

from topline.storage.arrays import ArrayReader, ChunkPlan
from topline.storage.arrays.writer import ArraySpec, packed_group, packed_metadata, packed_shard
from topline.storage.errors import NotFoundError, StorageError
from topline.storage.findings import Finding
from topline.storage.fingerprint import digest_json
from topline.storage.records import now, plain
from topline.storage.schema import encoding
from topline.storage.stores import FileEntry, FileSet, Store, check_files
from topline.storage.stores.files import put_file
from topline.storage.stores.sealed import put_own, read_record
from topline.storage.stores.urls import join

_RECORD = re.compile(r"^([0-9a-f]{16})\.json$")


def cache_key(facts: Mapping[str, Any]) -> str:
    """Return the key of what follows from `facts`, plain values for JSON: 16 hexadecimal digits."""
    return digest_json(plain(facts))[:16]


@dataclass(frozen=True)
class CacheKind:
    """Where entries of one kind lie, the type in their records, and what messages call them."""

    folder: str
    encoding: str
    word: str
    remake: str
    """What to do to have one computed again."""

    def path(self, key: str) -> str:
        """Return the path of the record of `key`."""
        return join(self.folder, f"{key}.json")


@dataclass(frozen=True)
class Draft:
    """An entry that is being written; pickles, so that workers write its shards, one writer each."""

    kind: ClassVar[CacheKind]

    store: Store
    folder: str
    specs: Mapping[str, ArraySpec] = field(hash=False)

    @classmethod
    def new(cls, store: Store, key: str, specs: Mapping[str, ArraySpec]) -> Self:
        """Return a draft for `key` in a folder that nobody else writes to."""
        return cls(store, join(cls.kind.folder, f"{key}-{uuid.uuid4().hex[:8]}"), specs)

    @property
    def plan(self) -> ChunkPlan:
        """How the rows are cut into units."""
        return next(iter(self.specs.values())).plan

    def write_arrays(self, unit: int, arrays: Mapping[str, NDArray[Any]]) -> list[FileEntry]:
        """Write one unit's rows of every array."""
        files = (packed_shard(name, spec, unit, arrays[name]) for name, spec in self.specs.items())
        return [put_file(self.store, self.folder, file) for file in files]

    def publish_files(self, key: str, entries: Sequence[FileEntry], facts: Mapping[str, Any]) -> None:
        """Write the record that makes the draft visible; of two drafts of a key the first wins."""
        group = [packed_metadata(name, spec) for name, spec in self.specs.items()]
        group.append(packed_group("", encoding(self.kind.encoding)))
        files = [*entries, *(put_file(self.store, self.folder, file) for file in group)]
        record = {
            "key": key,
            "created": now(),
            "folder": self.folder,
            "files": [entry.to_json() for entry in sorted(files)],
            "facts": facts,
        }
        path = self.kind.path(key)
        if not put_own(self.store, path, {**record, **encoding(self.kind.encoding)}):
            self.discard()

    def discard(self) -> None:
        """Remove what was written."""
        self.store.delete_tree(self.folder)


class StoredEntry:
    """A visible entry, opened for reading.

    Pickles with its record, so that every process reads the same arrays, whatever its key stands for
    by then.
    """

    kind: ClassVar[CacheKind]

    def __init__(self, store: Store, record: Mapping[str, Any]) -> None:
        self.store = store
        self._record = record
        self.key = str(record["key"])
        self.url = join(store.url, self.kind.folder, self.key)
        self.folder = str(record["folder"])
        self.facts: Mapping[str, Any] = record["facts"]
        entries = [FileEntry.from_json(item) for item in record["files"]]
        self.files = FileSet(store, self.folder, entries, f"{self.kind.word} {self.key}")

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self.store, self._record)

    @classmethod
    def find(cls, store: Store, key: str) -> Self | None:
        """Return the entry of `key`, or None."""
        return cls.load(store, key) if store.exists(cls.kind.path(key)) else None

    @classmethod
    def load(cls, store: Store, key: str) -> Self:
        """Return the entry of `key`; `NotFoundError`, or `IntegrityError` if its record is damaged."""
        path = cls.kind.path(key)
        if not store.exists(path):
            raise NotFoundError(f"{store.url} has no {cls.kind.word} {key}: {cls.kind.remake}")
        return cls(store, read_record(store, path, cls.kind.encoding))

    @classmethod
    def keys(cls, store: Store) -> list[str]:
        """Return the keys of all visible entries."""
        names = store.list(cls.kind.folder)
        return sorted(match.group(1) for name in names if (match := _RECORD.match(name)))

    @classmethod
    def findings(cls, store: Store, *, deep: bool) -> Iterator[Finding]:
        """Yield what a check of the store finds among the entries."""
        fix = f"delete its record and folder: {cls.kind.remake}"
        named = set()
        for key in cls.keys(store):
            try:
                found = cls.load(store, key)
            except StorageError as error:
                yield Finding(cls.kind.word, cls.kind.path(key), str(error), fix)
                continue
            named.add(found.folder)
            yield from check_files(found.files, deep=deep, fix=fix)
        for name in store.list(cls.kind.folder):
            folder = join(cls.kind.folder, name)
            if not name.endswith(".json") and folder not in named:
                what = "it was begun and never finished"
                yield Finding("staging", folder, what, "delete it", harmless=True)

    def reader(self, name: str) -> ArrayReader:
        """Return the reader of the array `name`."""
        return ArrayReader.open(self.files, name, f"{name} of {self.files.owner}")
