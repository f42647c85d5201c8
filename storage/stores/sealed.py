"""Sealed records, which hold their own digest and place and, with a key, a signature; and numbered folders.

Of any concurrent writers one gets each number of a folder (models/m0001, runs/r0001).
"""

from __future__ import annotations

import hashlib
import hmac
import os
import re
import uuid
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from topline.storage.errors import ConflictError, IntegrityError, NotFoundError
from topline.storage.records import canonical_json, from_fields, now, plain, seal, unseal
from topline.storage.schema import check_encoding, encoding
from topline.storage.stores.base import Store
from topline.storage.stores.urls import join

#: Environment variable of the key with which records are signed and, if set, must be signed.
STORE_KEY = "TOPLINE_STORE_KEY"
_WRITER = "token"
_PLACE, _SIGNATURE = "place", "signature"


def write_record(store: Store, path: str, kind: str, fields: Mapping[str, Any]) -> None:
    """Write a sealed record of type `kind`, replacing what is at `path`."""
    store.write_bytes(path, sealed(path, {**fields, **encoding(kind)}))


def put_own(store: Store, path: str, record: Mapping[str, Any]) -> bool:
    """Put a sealed record if there is none; return whether the one now there is this call's.

    A driver that lost the answer to a write repeats it and finds the name taken by this very record.  An
    unreadable record counts as another's.
    """
    return put_marked(store, path, marked(record))


def marked(record: Mapping[str, Any]) -> dict[str, Any]:
    """Return a record with a token by which `put_marked` recognises it."""
    return {**plain(record), _WRITER: uuid.uuid4().hex}


def put_marked(store: Store, path: str, record: Mapping[str, Any]) -> bool:
    """Put a record as `put_own` does, with its token from `marked`."""
    if store.put_if_absent(path, sealed(path, record)):
        return True
    try:
        return bool(unsealed(store, path).get(_WRITER) == record[_WRITER])
    except (NotFoundError, IntegrityError):
        return False


def read_record(store: Store, path: str, kind: str) -> dict[str, Any]:
    """Return the record at `path`.

    Raises `NotFoundError`, `IntegrityError` for a damaged or misplaced one, and `FormatError` for another
    type or version.
    """
    record = unsealed(store, path)
    check_encoding(record, kind, join(store.url, path))
    return record


def sealed(path: str, record: Mapping[str, Any]) -> bytes:
    """Return the bytes of a record for `path`, relative to the store's root."""
    body = {**plain(record), _PLACE: path}
    key = os.environ.get(STORE_KEY)
    return seal({**body, _SIGNATURE: _signature(body, key)} if key else body)


def unsealed(store: Store, path: str) -> dict[str, Any]:
    """Return the record at `path` that `sealed` encoded.

    Raises `NotFoundError`, and `IntegrityError` if it was changed, is misplaced, or is not signed with the
    key of the environment.
    """
    place = join(store.url, path)
    record = unseal(store.read_bytes(path), place)
    signature = record.pop(_SIGNATURE, None)
    key = os.environ.get(STORE_KEY)
    if key and not hmac.compare_digest(str(signature), _signature(record, key)):
        raise IntegrityError(f"{place} is not signed with the key in {STORE_KEY}; restore it from a copy")
    # Records of version 0.1.0 do not name their place; their readers check what they describe.
    belongs = record.pop(_PLACE, path)
    if belongs != path:
        raise IntegrityError(f"{place} is a record of {belongs}, not its own; restore it from a copy")
    return record


def _signature(body: Mapping[str, Any], key: str) -> str:
    return hmac.new(key.encode(), canonical_json(body), hashlib.sha256).hexdigest()


T = TypeVar("T")

_TRIES = 10_000
_RESERVATION = "begun.json"
_OUTCOME = "outcome.json"
TOMBSTONE = "deleted.json"


def bury(store: Store, folder: str, reason: str) -> str:
    """Record that a folder must not be used from now on; return when that was first recorded."""
    stone = join(folder, TOMBSTONE)
    store.put_if_absent(stone, sealed(stone, {"deleted": now(), "reason": reason}))
    return str(unsealed(store, stone)["deleted"])


def delete_inside(store: Store, folder: str, but: Collection[str]) -> None:
    """Delete everything in a folder except these names."""
    for inside in store.list(folder):
        path = join(folder, inside)
        if inside not in but:
            (store.delete if store.exists(path) else store.delete_tree)(path)


@dataclass(frozen=True)
class NumberedFolders:
    """The folders <folder>/<letter>0001, <letter>0002, ... of a store."""

    folder: str
    letter: str

    def path(self, name: str, *parts: str) -> str:
        """Return the path of a folder, or of something in it."""
        return join(self.folder, name, *parts)

    def names(self, store: Store) -> list[str]:
        """Return the names of the folders, finished or not, by number."""
        pattern = re.compile(rf"^{self.letter}(\d{{4,}})$")
        listed = store.list(self.folder)
        found = [(int(match.group(1)), name) for name in listed if (match := pattern.match(name))]
        return [name for _, name in sorted(found)]

    def reserve(self, store: Store) -> str:
        """Take the next number and return its name; it stays taken even if nothing is stored there."""
        names = self.names(store)
        first = int(names[-1][1:]) + 1 if names else 1
        for number in range(first, first + _TRIES):
            name = f"{self.letter}{number:04d}"
            path = self.reservation(name)
            if put_own(store, path, {"created": now()}):
                return name
        raise ConflictError(
            f"{join(store.url, self.folder)} takes no new entry: too many writers race for it; try again"
        )

    def reservation(self, name: str) -> str:
        """Return the path of the file that reserves a name."""
        return self.path(name, _RESERVATION)

    def remove(self, store: Store, name: str, reason: str) -> None:
        """Remove a folder's files, except those that reserve its number and say why it is gone.

        It becomes invisible at once; calling it again finishes an interrupted removal.
        """
        bury(store, self.path(name), reason)
        delete_inside(store, self.path(name), but=(TOMBSTONE, _RESERVATION))

    def unknown(self, store: Store, name: str) -> NotFoundError:
        """Return the error for an unknown name, listing the known ones."""
        names = self.names(store)
        known = f"it has {', '.join(names[-5:])}" if names else "it has none yet"
        return NotFoundError(f"{store.url} has no {self.folder.rstrip('s')} {name}; {known}")


@dataclass(frozen=True)
class RecordedFolders(NumberedFolders, Generic[T]):
    """Numbered folders that each have a sealed record of type `kind`, and an outcome once ended.

    They are read as the dataclass `made`, with `id` the name and `outcome` None before the end.
    """

    record: str
    kind: str
    made: type[T]

    def create(self, store: Store, fields: Mapping[str, Any]) -> str:
        """Write a new record with `id`, `created` and the fields; concurrent callers get different names."""
        name = self.reserve(store)
        write_record(store, self.path(name, self.record), self.kind, {"id": name, "created": now(), **fields})
        return name

    def recorded(self, store: Store) -> list[str]:
        """Return the names of the folders that have a record, by number."""
        return [
            name
            for name in self.names(store)
            if store.exists(self.path(name, self.record)) and not store.exists(self.path(name, TOMBSTONE))
        ]

    def removed(self, store: Store) -> list[str]:
        """Return the names of the removed folders."""
        return [name for name in self.names(store) if store.exists(self.path(name, TOMBSTONE))]

    def all(self, store: Store) -> list[T]:
        """Return all records."""
        return [self.read(store, name) for name in self.recorded(store)]

    def read(self, store: Store, name: str) -> T:
        """Return the record with its outcome; `NotFoundError` listing the known names if there is none."""
        stone = self.path(name, TOMBSTONE)
        if store.exists(stone):
            gone = unsealed(store, stone)
            what = f"{self.folder.rstrip('s')} {name} was removed from {store.url} at {gone['deleted']}"
            raise NotFoundError(f"{what}: {gone['reason']}")
        try:
            record = read_record(store, self.path(name, self.record), self.kind)
        except NotFoundError:
            raise self.unknown(store, name) from None
        if record.get("id") != name:
            place = join(store.url, self.path(name, self.record))
            raise IntegrityError(f"{place} is the record of {record.get('id')}; restore it from a copy")
        path = self.path(name, _OUTCOME)
        try:
            outcome = unsealed(store, path)
        except NotFoundError:
            outcome = None
        return from_fields(self.made, {**record, "outcome": outcome}, join(store.url, self.path(name)))

    def finish(self, store: Store, name: str, outcome: Mapping[str, Any]) -> None:
        """Write the outcome, replacing an earlier one."""
        path = self.path(name, _OUTCOME)
        store.write_bytes(path, sealed(path, {"finished": now(), **outcome}))
