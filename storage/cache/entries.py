"""What follows from other things in a store, and is kept lest it be computed again: kernels, predictions.

Each lies in a folder of its own, and is there for others once the record <kind>/<key>.json names that folder.
The key stands for everything that it follows from.  It can be deleted at any time.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from topline.storage.errors import NotFoundError, StorageError
from topline.storage.findings import Finding
from topline.storage.fingerprint import digest_json, seal, unseal
from topline.storage.records import now, plain
from topline.storage.schema import check_encoding, encoding
from topline.storage.stores import FileEntry, FileSet, Store, check_files
from topline.storage.stores.urls import join

_RECORD = re.compile(r"^([0-9a-f]{16})\.json$")


class CacheEntry(Protocol):
    """One of them, opened."""

    folder: str
    files: FileSet


def cache_key(facts: Mapping[str, Any]) -> str:
    """Name of what follows from `facts`, plain values for JSON."""
    return digest_json(plain(facts))[:16]


@dataclass(frozen=True)
class Cache:
    """All of one kind: where they lie, the type in their records, their word and the mend in messages."""

    folder: str
    encoding: str
    word: str
    mend: str

    def new_folder(self, key: str) -> str:
        """Give a folder that nobody else writes to."""
        return join(self.folder, f"{key}-{uuid.uuid4().hex[:8]}")

    def path(self, key: str) -> str:
        """Place of the record of `key`."""
        return join(self.folder, f"{key}.json")

    def publish(
        self, store: Store, key: str, folder: str, files: Sequence[FileEntry], facts: Mapping[str, Any]
    ) -> None:
        """Write the record that makes `folder` visible; the first one of a key wins, others are removed."""
        record = {
            **encoding(self.encoding),
            "key": key,
            "created": now(),
            "folder": folder,
            "files": [entry.to_json() for entry in sorted(files)],
            "facts": plain(facts),
        }
        if not store.put_if_absent(self.path(key), seal(record)):
            store.delete_tree(folder)

    def read(self, store: Store, key: str) -> Mapping[str, Any]:
        """The record of `key`; `NotFoundError`, or `IntegrityError` if it is damaged."""
        path = self.path(key)
        if not store.exists(path):
            raise NotFoundError(f"{store.url} has no {self.word} {key}: {self.mend}")
        place = join(store.url, path)
        record = unseal(store.read_bytes(path), place)
        check_encoding(record, self.encoding, place)
        return record

    def keys(self, store: Store) -> list[str]:
        """Keys of all that are visible."""
        return sorted(match.group(1) for name in store.list(self.folder) if (match := _RECORD.match(name)))

    def findings(
        self, store: Store, opened: Callable[[Store, str], CacheEntry], *, deep: bool
    ) -> Iterator[Finding]:
        """What a check of the store finds among them; `opened` opens the one of a key."""
        mend = f"delete its record and folder: {self.mend}"
        named = set()
        for key in self.keys(store):
            try:
                found = opened(store, key)
            except StorageError as error:
                yield Finding(self.word, self.path(key), str(error), mend)
                continue
            named.add(found.folder)
            yield from check_files(found.files, deep=deep, mend=mend)
        for name in store.list(self.folder):
            folder = join(self.folder, name)
            if not name.endswith(".json") and folder not in named:
                what = "it was begun and never finished"
                yield Finding("staging", folder, what, "delete it", harmless=True)
