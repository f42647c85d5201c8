"""The history of a run: one JSON line per record, append-only; the source of reports and dashboards.

storage/README.md specifies its files and the fields of every record.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import threading
import time
from collections.abc import Iterator, Mapping
from typing import Any, BinaryIO

from topline.storage.errors import (
    FULL_DISK,
    AccessError,
    DiskFullError,
    IntegrityError,
    NotFoundError,
    StorageError,
)
from topline.storage.records import plain
from topline.storage.runs.records import RUNS, read_run
from topline.storage.schema import HISTORY_ENCODING, check_encoding
from topline.storage.stores import Store
from topline.storage.stores.urls import join

_PART = re.compile(r"^history(?:\.(\d{5}))?\.jsonl$")
# Every flush rewrites an object whole, so parts do not grow much beyond this.
_PART_BYTES = 1 << 20
# Bytes per read, more than most lines; and a bound on the length of any line.
_CHUNK, _LONGEST = 1 << 20, 1 << 24


class HistoryWriter:
    """Appends to a run's history, from any thread, until it is closed.

    On a local disk `append` hands a line to the operating system before it returns, so it survives the
    process; it reaches the disk with the first `append` after `interval` seconds, with `flush` or `close`.
    On an object store the last part is rewritten at those moments.
    """

    def __init__(self, store: Store, run_id: str, *, interval: float = 1.0) -> None:
        self._store = store
        self._run_id = run_id
        self._part = _last_part(store, run_id)
        self._interval = interval
        self._synced = time.monotonic()
        self._lock = threading.Lock()
        self._closed = False
        self._file: BinaryIO | None = None
        self._lines = bytearray()
        end = _whole_end(store, self._path)
        if store.local_path is not None:
            self._file = self._reopened(end)
        elif end:
            self._lines += store.read_range(self._path, 0, end)

    def append(self, *records: Mapping[str, Any]) -> None:
        """Append records, all or none of them."""
        lines = b"".join(_line(record) for record in records)
        with self._lock:
            if self._closed:
                raise StorageError(f"the history {self._place} is closed")
            if self._file is not None:
                self._guarded(lines)
            else:
                self._collect(lines)
            if time.monotonic() - self._synced >= self._interval:
                self._sync()

    def flush(self) -> None:
        """Make everything appended so far survive a crash of the machine."""
        with self._lock:
            self._sync()

    def close(self) -> None:
        """Flush and close; may be called repeatedly."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            try:
                self._sync()
            finally:
                if self._file is not None:
                    self._file.close()

    @property
    def _path(self) -> str:
        return history_path(self._run_id, self._part)

    @property
    def _place(self) -> str:
        return join(self._store.url, self._path)

    def _reopened(self, end: int) -> BinaryIO:
        """Return the file, open for appending at `end`, dropping a torn line after it."""
        if not self._store.exists(self._path):
            self._store.write_bytes(self._path, b"")
        folder = self._store.local_path
        try:
            file = (folder / self._path).open("ab", buffering=0)  # type: ignore[operator]
            file.truncate(end)
        except OSError as error:
            raise AccessError(f"{self._place} cannot be written: {error.strerror}") from error
        return file

    def _guarded(self, lines: bytes) -> None:
        """Write lines completely, or remove the part that a full disk left."""
        file = self._file
        if file is None:
            return
        end = file.seek(0, os.SEEK_END)
        try:
            _write_whole(file, lines)
        except OSError as error:
            file.truncate(end)
            if error.errno in FULL_DISK:
                raise DiskFullError(
                    f"no space is left to write {self._place}; free some space and retry"
                ) from error
            raise AccessError(f"{self._place} cannot be written: {error.strerror}") from error

    def _collect(self, lines: bytes) -> None:
        """Keep lines for the next flush; write a full part for the last time first."""
        if len(self._lines) + len(lines) > _PART_BYTES and self._lines:
            self._sync()
            self._part += 1
            self._lines = bytearray()
        self._lines += lines

    def _sync(self) -> None:
        self._synced = time.monotonic()
        if self._file is not None:
            os.fsync(self._file.fileno())
        elif self._lines:
            self._store.write_bytes(self._path, bytes(self._lines))


class HistoryReader:
    """Reads a growing history, every record once, in bounded memory; leaves an incomplete last line."""

    def __init__(self, store: Store, run_id: str) -> None:
        self._store = store
        self._run_id = run_id
        self._part = self._offset = self._lines = 0
        #: Bytes of the records yielded so far, in all parts.
        self.bytes = 0

    def read_new(self) -> Iterator[dict[str, Any]]:
        """Yield the records appended since the last call, oldest first.

        Raises `IntegrityError` naming a bad line or a file that has become shorter, and `FormatError` for a
        history of a later version.
        """
        while True:
            yield from self._rest_of_part()
            if not self._store.exists(history_path(self._run_id, self._part + 1)):
                return
            # Read what was appended to this part before the next one was begun.
            yield from self._rest_of_part()
            self._part, self._offset, self._lines = self._part + 1, 0, 0

    def _rest_of_part(self) -> Iterator[dict[str, Any]]:
        length = _CHUNK
        while True:
            data = self._read(length)
            end = data.rfind(b"\n") + 1
            if not end and len(data) >= _LONGEST:
                raise self._damage("is longer than any record")
            for line in data[:end].split(b"\n")[:-1]:
                record = _parsed(line)
                if record is None:
                    if self._is_last(line):
                        return
                    raise self._damage("is damaged")
                if record.get("event") == "begin":
                    check_encoding(record, HISTORY_ENCODING, self._place)
                self._offset += len(line) + 1
                self.bytes += len(line) + 1
                self._lines += 1
                yield record
            if len(data) < length:
                return
            length = _CHUNK if end else 2 * length

    def _damage(self, what: str) -> IntegrityError:
        return IntegrityError(
            f"line {self._lines + 1} of {self._place} {what}; restore it from a copy or delete the line"
        )

    @property
    def _place(self) -> str:
        return join(self._store.url, history_path(self._run_id, self._part))

    def _read(self, length: int) -> bytes:
        path = history_path(self._run_id, self._part)
        try:
            data = self._store.read_range(path, self._offset, length)
            if not data and self._offset and self._store.size(path) < self._offset:
                raise IntegrityError(f"{self._place} is shorter than it was; read it from its start")
        except NotFoundError:
            return b""
        return data

    def _is_last(self, line: bytes) -> bool:
        """Return whether nothing follows the line at the offset."""
        end = self._offset + len(line) + 1
        return not self._store.read_range(history_path(self._run_id, self._part), end, 1)


def history_path(run_id: str, part: int = 0) -> str:
    """Return the path of a part of a run's history; a local disk has only part 0."""
    return RUNS.path(run_id, f"history.{part:05d}.jsonl" if part else "history.jsonl")


def read_history(store: Store, run_id: str) -> list[dict[str, Any]]:
    """Return all records of a run, oldest first, without a torn last line; `IntegrityError` for others."""
    return list(HistoryReader(store, run_id).read_new())


def _last_part(store: Store, run_id: str) -> int:
    parts = (_PART.match(name) for name in store.list(RUNS.path(run_id)))
    return max((int(found.group(1) or 0) for found in parts if found), default=0)


def _whole_end(store: Store, path: str) -> int:
    """Return the length up to the end of the last complete and parseable line."""
    try:
        size = store.size(path)
    except NotFoundError:
        return 0
    for length in (min(size, _CHUNK), size):
        start = size - length
        data = store.read_range(path, start, length)
        end = data.rfind(b"\n") + 1
        begin = data.rfind(b"\n", 0, max(end - 1, 0)) + 1
        if begin or not start:
            torn = end == len(data) and end and _parsed(data[begin : end - 1]) is None
            return start + (begin if torn else end)
    return 0


def _line(record: Mapping[str, Any]) -> bytes:
    return json.dumps(plain(record), ensure_ascii=False, allow_nan=False).encode() + b"\n"


def _write_whole(file: BinaryIO, lines: bytes) -> None:
    if file.write(lines) < len(lines):
        # The system wrote only what it had room for.
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def _parsed(line: bytes) -> dict[str, Any] | None:
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return record if isinstance(record, dict) else None


_HISTORY = "history"


def finish_run(store: Store, run_id: str, outcome: Mapping[str, Any]) -> None:
    """Record how a run ended, with length and digest of its history, replacing an earlier outcome."""
    read_run(store, run_id)
    size, digest = _history_digest(store, run_id, None)
    RUNS.finish(store, run_id, {**outcome, _HISTORY: {"bytes": size, "sha256": digest}})


def check_history(store: Store, run_id: str) -> dict[str, Any] | None:
    """Return the last record of a history, None without any.

    Raises `IntegrityError` if the history up to the run's outcome has changed, or continues in any way but a
    resumed run's.
    """
    outcome = read_run(store, run_id).outcome
    noted = None if outcome is None else outcome.get(_HISTORY)
    reader = HistoryReader(store, run_id)
    last, begins, sound = None, 0, True
    for last in reader.read_new():
        sound = sound and (noted is None or begins != noted["bytes"] or last.get("event") == "begin")
        begins = reader.bytes
    if noted is None:
        return last
    size, digest = _history_digest(store, run_id, int(noted["bytes"]))
    if not sound or (size, digest) != (noted["bytes"], noted["sha256"]):
        raise IntegrityError(
            f"{join(store.url, history_path(run_id))} is not the history that the run ended with;"
            " restore it from a copy"
        )
    return last


def _history_digest(store: Store, run_id: str, limit: int | None) -> tuple[int, str]:
    """Return length and SHA-256 of a history's first `limit` bytes, its parts concatenated."""
    digest, seen, part, offset = hashlib.sha256(), 0, 0, 0
    while limit is None or seen < limit:
        length = _CHUNK if limit is None else min(_CHUNK, limit - seen)
        try:
            data = store.read_range(history_path(run_id, part), offset, length)
        except NotFoundError:
            break
        if data:
            digest.update(data)
            seen, offset = seen + len(data), offset + len(data)
        else:
            part, offset = part + 1, 0
    return seen, digest.hexdigest()
