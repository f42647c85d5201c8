"""The history of a run: one JSON line a record, appended; the truth that reports and dashboards read."""

from __future__ import annotations

import errno
import json
import os
import threading
import time
from collections.abc import Mapping
from typing import Any, BinaryIO, Self

from storage.errors import AccessError, DiskFullError, IntegrityError, NotFoundError, StorageError
from storage.records import plain
from storage.runs import run_folder
from storage.stores import Store
from storage.urls import join

_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


class HistoryWriter:
    """Appends to runs/<run>/history.jsonl; also a context manager that closes itself; threads may share it.

    On a local disk a line is with the operating system when `append` returns, so that it survives the
    process, and on the disk with the first `append` after `interval` seconds, with `flush` or `close`.  On
    an object store the file is rewritten whole, at the same moments.  Numbers that JSON cannot hold (NaN,
    infinities) are written as null.
    """

    def __init__(self, store: Store, run_id: str, *, interval: float = 1.0) -> None:
        self._store = store
        self._path = history_path(run_id)
        self._interval = interval
        self._synced = time.monotonic()
        self._lock = threading.Lock()
        self._closed = False
        whole, torn = _whole_lines(store, self._path)
        self._file: BinaryIO | None = None
        self._lines = bytearray(whole)
        if store.local_path is not None:
            self._file = self._reopened(whole if torn else None)

    def append(self, record: Mapping[str, Any]) -> None:
        """Add one record."""
        line = json.dumps(plain(record), ensure_ascii=False, allow_nan=False).encode() + b"\n"
        with self._lock:
            if self._closed:
                raise StorageError(f"the history {self._place} is closed")
            if self._file is not None:
                self._guarded(line)
            else:
                self._lines += line
            if time.monotonic() - self._synced >= self._interval:
                self._sync()

    def flush(self) -> None:
        """Bring everything appended so far to where it survives a crash of the machine."""
        with self._lock:
            self._sync()

    def close(self) -> None:
        """Flush and close; more than once is harmless."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            try:
                self._sync()
            finally:
                if self._file is not None:
                    self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def _place(self) -> str:
        return join(self._store.url, self._path)

    def _reopened(self, whole: bytes | None) -> BinaryIO:
        """The file, open for appending; rewritten as `whole` first, where a crash had torn its last line."""
        if whole is not None or not self._store.exists(self._path):
            self._store.write_bytes(self._path, whole or b"")
        folder = self._store.local_path
        try:
            return (folder / self._path).open("ab", buffering=0)  # type: ignore[operator]
        except OSError as error:
            raise AccessError(f"{self._place} cannot be written: {error.strerror}") from error

    def _guarded(self, line: bytes) -> None:
        """Write a line whole; a part of one, left by a full disk, is taken back."""
        file = self._file
        if file is None:
            return
        end = file.seek(0, os.SEEK_END)
        try:
            _write_line(file, line)
        except OSError as error:
            file.truncate(end)
            if error.errno in _FULL:
                raise DiskFullError(
                    f"no room is left to write {self._place}; free some space and resume"
                ) from error
            raise AccessError(f"{self._place} cannot be written: {error.strerror}") from error

    def _sync(self) -> None:
        self._synced = time.monotonic()
        if self._file is not None:
            os.fsync(self._file.fileno())
        elif self._lines:
            self._store.write_bytes(self._path, bytes(self._lines))


def _write_line(file: BinaryIO, line: bytes) -> None:
    if file.write(line) < len(line):
        # The system wrote what it had room for.
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def history_path(run_id: str) -> str:
    """Path of a run's history in its store."""
    return join(run_folder(run_id), "history.jsonl")


def read_history(store: Store, run_id: str) -> list[dict[str, Any]]:
    """All records of a run, oldest first; none if it has no history yet.

    A last line that a crash has torn is left out; any other bad line is an `IntegrityError` naming it.
    """
    path = history_path(run_id)
    whole, _ = _whole_lines(store, path)
    records = []
    for number, line in enumerate(whole.splitlines(), start=1):
        record = _parsed(line)
        if record is None:
            raise IntegrityError(
                f"line {number} of {join(store.url, path)} is damaged; restore it or delete the line"
            )
        records.append(record)
    return records


def _whole_lines(store: Store, path: str) -> tuple[bytes, bool]:
    """Bytes of the finished lines, and whether a torn one follows: a line without its end or its sense."""
    try:
        data = store.read_bytes(path)
    except NotFoundError:
        return b"", False
    whole = data[: data.rfind(b"\n") + 1]
    last = whole[whole.rfind(b"\n", 0, -1) + 1 :]
    if len(whole) == len(data) and last and _parsed(last) is None:
        whole = whole[: -len(last)]
    return whole, len(whole) < len(data)


def _parsed(line: bytes) -> dict[str, Any] | None:
    try:
        record = json.loads(line)
    except ValueError:
        return None
    return record if isinstance(record, dict) else None
