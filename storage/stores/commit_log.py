"""The commit log: numbered records that appear whole, one writer a number, none lost."""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from topline.storage.errors import ConflictError, IntegrityError, NotFoundError
from topline.storage.fingerprint import seal, unseal
from topline.storage.stores.base import Store
from topline.storage.stores.urls import join

_RECORD = re.compile(r"^(\d{8})\.json$")
_TRIES = 10_000


@dataclass(frozen=True)
class CommitLog:
    """Records <root>/<name>/00000001.json, 00000002.json, ... of one store.

    A number is taken by `Store.put_if_absent`, and only after all earlier records were read: the log has
    no gaps, and what `unique` names occurs once in it, however many writers race.  Every stored record has
    two more fields: "seq", its number, and "token", by which a writer knows its own record again when the
    answer to its write was lost on the way.
    """

    store: Store
    name: str
    root: str = "commits"

    @property
    def folder(self) -> str:
        """Where the records lie in the store."""
        return join(self.root, self.name)

    def append(self, record: Mapping[str, Any], *, unique: str | None = None) -> int:
        """Add `record` and return its number (from 1).

        `unique` names a field: if a record with the same value of it is there, its number is returned and
        nothing is added.
        """
        seen = 0
        for seq in self.numbers():
            if unique is not None and self.record(seq).get(unique) == record.get(unique):
                return seq
            seen = seq
        token = uuid.uuid4().hex
        for seq in range(seen + 1, seen + _TRIES):
            if self._put(seq, record, token):
                return seq
            if unique is not None and self.record(seq).get(unique) == record.get(unique):
                return seq
        raise self._crowded()

    def append_as(self, seq: int, record: Mapping[str, Any]) -> bool:
        """Add `record` as number `seq`, the one after those its maker has read; False if that is taken."""
        return self._put(seq, record, uuid.uuid4().hex)

    def revise(self, change: Callable[[Mapping[str, Any], int], Mapping[str, Any]]) -> dict[str, Any]:
        """Add `change(latest record, new number)` and return it; made again when somebody else was faster."""
        token = uuid.uuid4().hex
        for _ in range(_TRIES):
            latest = self.latest()
            seq = int(latest["seq"]) + 1
            if self._put(seq, change(latest, seq), token):
                return self.record(seq)
        raise self._crowded()

    def numbers(self) -> list[int]:
        """Return the numbers of all records, ascending; `IntegrityError` if one is missing between them."""
        names = self.store.list(self.folder)
        found = [int(match.group(1)) for name in names if (match := _RECORD.match(name))]
        for expected, seq in enumerate(found, start=1):
            if seq != expected:
                place = join(self.store.url, self._path(expected))
                raise IntegrityError(f"{place} is missing from the commit log; restore it from a copy")
        return found

    def record(self, seq: int) -> dict[str, Any]:
        """Record number `seq`; `NotFoundError`, or `IntegrityError` if it is damaged."""
        path = self._path(seq)
        place = join(self.store.url, path)
        record = unseal(self.store.read_bytes(path), place)
        if record.get("seq") != seq:
            raise IntegrityError(f"{place} is damaged: it is the record of number {record.get('seq')}")
        return record

    def records(self) -> list[dict[str, Any]]:
        """Return all records in the order of their numbers."""
        return [self.record(seq) for seq in self.numbers()]

    def latest(self) -> dict[str, Any]:
        """Return the newest record; `NotFoundError` if there is none yet."""
        numbers = self.numbers()
        if not numbers:
            raise NotFoundError(f"{self.store.url} holds no {self.name} yet")
        return self.record(numbers[-1])

    def _put(self, seq: int, record: Mapping[str, Any], token: str) -> bool:
        data = seal({**record, "seq": seq, "token": token})
        return self.store.put_if_absent(self._path(seq), data) or self.record(seq)["token"] == token

    def _path(self, seq: int) -> str:
        return join(self.folder, f"{seq:08d}.json")

    def _crowded(self) -> ConflictError:
        place = join(self.store.url, self.folder)
        return ConflictError(f"{place} takes no new record; too many writers race for it")
