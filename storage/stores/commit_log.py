"""The commit log: numbered records that appear atomically, one writer per number, no silent loss."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from topline.storage.errors import ConflictError, IntegrityError, NotFoundError, StorageError
from topline.storage.records import RESTORE, Finding, digest_json
from topline.storage.stores.base import Store
from topline.storage.stores.sealed import marked, put_marked, sealed, unsealed
from topline.storage.stores.urls import join

_FILE = re.compile(r"^(\d{8})\.(json|head)$")
_TRIES = 10_000
#: Absent in records of version 0.1.0, which have no head either.
_PREVIOUS = "previous"


@dataclass(frozen=True)
class CommitLog:
    """Records <root>/<name>/00000001.json, 00000002.json, ... of one store, as storage/README.md specifies.

    A number is taken only after all earlier records were seen: the log has no gaps, and the value of a
    `unique` field occurs once, however many writers race.
    """

    store: Store
    name: str
    root: str = "commits"

    @property
    def folder(self) -> str:
        """Where the records lie in the store."""
        return join(self.root, self.name)

    @property
    def begun(self) -> bool:
        """Whether a record was ever put, readable or not."""
        return any(self._listed())

    def append(self, record: Mapping[str, Any], *, unique: str | None = None) -> int:
        """Append `record`, unless its field `unique` occurs already; return the record's number (from 1)."""
        seen = 0
        for seq in self.numbers():
            if unique is not None and self.record(seq).get(unique) == record.get(unique):
                self.store.settle(self.folder)
                return seq
            seen = seq
        for seq in range(seen + 1, seen + _TRIES):
            if self.append_as(seq, record):
                return seq
            if unique is not None and self.record(seq).get(unique) == record.get(unique):
                return seq
        raise self._crowded()

    def revise(self, change: Callable[[Mapping[str, Any], int], Mapping[str, Any]]) -> dict[str, Any]:
        """Append `change(latest record, new number)` and return it; repeat if another writer was faster."""
        for _ in range(_TRIES):
            latest = self.latest()
            seq = int(latest["seq"]) + 1
            if self.append_as(seq, change(latest, seq)):
                return self.record(seq)
        raise self._crowded()

    def numbers(self) -> list[int]:
        """Return the numbers of all records, ascending; `IntegrityError` if one is missing."""
        records, heads = self._listed()
        last = max([*records, *heads], default=0)
        for seq in range(1, last + 1):
            # Listing a growing folder may show a later file and miss an earlier one.
            if seq not in records and not self.store.exists(self._path(seq)):
                place = join(self.store.url, self._path(seq))
                raise IntegrityError(f"{place} is missing from the commit log; restore it from a copy")
        return list(range(1, last + 1))

    def record(self, seq: int) -> dict[str, Any]:
        """Return record `seq`; `NotFoundError`, or `IntegrityError` if it is damaged or misplaced."""
        path = self._path(seq)
        record = unsealed(self.store, path)
        if record.get("seq") != seq:
            place = join(self.store.url, path)
            raise IntegrityError(f"{place} is damaged: it is the record of number {record.get('seq')}")
        return record

    def records(self) -> Iterator[dict[str, Any]]:
        """Yield all records in order; `IntegrityError` if one does not follow its predecessor."""
        before: str | None = None
        for seq in self.numbers():
            record = self.record(seq)
            if record.get(_PREVIOUS, before) != before:
                place = join(self.store.url, self._path(seq))
                raise IntegrityError(f"{place} does not follow the record before it; {RESTORE}")
            before = digest_json(record)
            yield record

    def latest(self) -> dict[str, Any]:
        """Return the newest record; `NotFoundError` if there is none yet."""
        numbers = self.numbers()
        if not numbers:
            raise NotFoundError(f"{self.store.url} holds no {self.name} yet")
        return self.record(numbers[-1])

    def findings(self, kind: str) -> Iterator[Finding]:
        """Yield every record that is missing, damaged, or not the one its neighbours refer to."""
        records, heads = self._listed()
        before: str | None = None
        for seq in range(1, max([*records, *heads], default=0) + 1):
            path = self._path(seq)
            try:
                record = self.record(seq)
            except StorageError as error:
                missing = isinstance(error, NotFoundError)
                what = "it is missing from the commit log" if missing else str(error)
                yield Finding(kind, path, what, RESTORE)
                before = None
                continue
            if record.get(_PREVIOUS, before) != before and (before is not None or seq == 1):
                yield Finding(kind, path, "it does not follow the record before it", RESTORE)
            before = digest_json(record)
            if _PREVIOUS in record or seq in heads:
                yield from self._head_findings(kind, seq, before)

    def _head_findings(self, kind: str, seq: int, digest: str) -> Iterator[Finding]:
        path = self._head(seq)
        try:
            if unsealed(self.store, path).get("digest") != digest:
                what = f"it is the head of another record than {seq:08d}.json"
                yield Finding(kind, path, what, RESTORE)
        except NotFoundError:
            what = "the record's head is missing: its writer was killed, or the file was lost"
            yield Finding(kind, path, what, "nothing: the next record puts it again", harmless=True)
        except StorageError as error:
            yield Finding(kind, path, str(error), "delete it: the next record puts it again")

    def append_as(self, seq: int, record: Mapping[str, Any]) -> bool:
        """Append `record` as number `seq`, after those its maker has read; return False if that is taken."""
        path, before = self._path(seq), None
        if seq > 1:
            before = digest_json(self.record(seq - 1))
            # After a power cut no record and no head is there without the records before it.
            self.store.settle(self.folder)
            self._put_head(seq - 1, before)
        mine = marked({**record, "seq": seq, _PREVIOUS: before})
        if not put_marked(self.store, path, mine):
            return False
        self._put_head(seq, digest_json(mine))
        return True

    def _put_head(self, seq: int, digest: str) -> None:
        path = self._head(seq)
        self.store.put_if_absent(path, sealed(path, {"digest": digest}))

    def _listed(self) -> tuple[set[int], set[int]]:
        """Return the numbers of the existing records and heads."""
        found: dict[str, set[int]] = {"json": set(), "head": set()}
        for name in self.store.list(self.folder):
            if match := _FILE.match(name):
                found[match.group(2)].add(int(match.group(1)))
        following = max([*found["json"], *found["head"]], default=0) + 1
        # Listings may lag; reads do not.
        while self.store.exists(self._path(following)):
            found["json"].add(following)
            following += 1
        return found["json"], found["head"]

    def _path(self, seq: int) -> str:
        return join(self.folder, f"{seq:08d}.json")

    def _head(self, seq: int) -> str:
        return join(self.folder, f"{seq:08d}.head")

    def _crowded(self) -> ConflictError:
        place = join(self.store.url, self.folder)
        return ConflictError(f"{place} takes no new record; too many writers race for it")
