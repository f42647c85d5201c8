"""The commit log: numbered records that appear whole, one writer a number, none lost."""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from storage.errors import ConflictError, IntegrityError, NotFoundError
from storage.fingerprint import seal, unseal
from storage.stores import Store
from storage.urls import join

_RECORD = re.compile(r"^(\d{8})\.json$")
_TRIES = 10_000


@dataclass(frozen=True)
class CommitLog:
    """Records commits/<name>/00000001.json, 00000002.json, ... of one store.

    A number is taken by `Store.put_if_absent`, and only after all earlier records were read: the log has
    no gaps, and what `unique` names occurs once in it, however many writers race.
    """

    store: Store
    name: str

    @property
    def folder(self) -> str:
        """Where the records lie in the store."""
        return join("commits", self.name)

    def append(self, record: Mapping[str, Any], *, unique: str | None = None) -> int:
        """Add `record` and return its number (from 1); with `unique`, the number of the first with its value.

        `unique` names a field.  The stored record has two more fields: "seq", and "token", by which a
        writer knows its own record again when the answer to its write was lost on the way.
        """
        token = uuid.uuid4().hex
        seen = 0
        for seq, earlier in self._after(0):
            if unique is not None and earlier.get(unique) == record.get(unique):
                return seq
            seen = seq
        for seq in range(seen + 1, seen + _TRIES):
            if self.store.put_if_absent(self._path(seq), seal({**record, "seq": seq, "token": token})):
                return seq
            winner = self.record(seq)
            if winner["token"] == token or (unique is not None and winner.get(unique) == record.get(unique)):
                return seq
        raise ConflictError(f"{join(self.store.url, self.folder)} takes no new record; too many writers race for it")

    def numbers(self) -> list[int]:
        """Numbers of all records, ascending; `IntegrityError` if one is missing between them."""
        found = [int(match.group(1)) for name in self.store.list(self.folder) if (match := _RECORD.match(name))]
        for expected, seq in enumerate(found, start=1):
            if seq != expected:
                place = join(self.store.url, self._path(expected))
                raise IntegrityError(f"{place} is missing from the commit log; restore it from a copy")
        return found

    def record(self, seq: int) -> dict[str, Any]:
        """Record number `seq`; `NotFoundError`, or `IntegrityError` if it is damaged."""
        path = self._path(seq)
        record = unseal(self.store.read_bytes(path), join(self.store.url, path))
        if record.get("seq") != seq:
            raise IntegrityError(f"{join(self.store.url, path)} is the record of another number")
        return record

    def records(self) -> list[dict[str, Any]]:
        """All records in the order of their numbers."""
        return [record for _, record in self._after(0)]

    def latest(self) -> dict[str, Any]:
        """The newest record; `NotFoundError` if there is none yet."""
        numbers = self.numbers()
        if not numbers:
            raise NotFoundError(f"{self.store.url} holds no {self.name} yet")
        return self.record(numbers[-1])

    def _after(self, seq: int) -> Iterator[tuple[int, dict[str, Any]]]:
        for number in self.numbers():
            if number > seq:
                yield number, self.record(number)

    def _path(self, seq: int) -> str:
        return join(self.folder, f"{seq:08d}.json")
