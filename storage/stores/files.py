"""Files with their sizes and digests: the lists behind every integrity check."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeVar

from topline.storage.errors import FormatError, IntegrityError, NotFoundError, StorageError
from topline.storage.records import Finding, canonical_json, digest_bytes
from topline.storage.stores.base import Store
from topline.storage.stores.urls import clean_path, join

T = TypeVar("T")


@dataclass(frozen=True, order=True)
class FileEntry:
    """A file: `path` relative to its folder, `size` in bytes, SHA-256, and its rows start..stop-1."""

    path: str
    size: int
    sha256: str
    rows: tuple[int, int] | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the entry as a JSON object."""
        rows = {} if self.rows is None else {"rows": list(self.rows)}
        return {"path": self.path, "size": self.size, "sha256": self.sha256, **rows}

    @classmethod
    def from_json(cls, record: dict[str, Any]) -> FileEntry:
        """Return the entry from its JSON object; `FormatError` if it is not one."""
        try:
            rows = record.get("rows")
            span = None if rows is None else (int(rows[0]), int(rows[1]))
            return cls(clean_path(str(record["path"])), int(record["size"]), str(record["sha256"]), span)
        except (KeyError, TypeError, IndexError, ValueError, AttributeError) as error:
            raise FormatError(f"{record!r} does not describe a file") from error


@dataclass(frozen=True)
class PackedFile:
    """A file ready to be stored: `path` relative to its folder, its bytes, and its rows."""

    path: str
    data: bytes
    rows: tuple[int, int] | None = None

    @cached_property
    def entry(self) -> FileEntry:
        """Its entry in the list of files."""
        return FileEntry(self.path, len(self.data), digest_bytes(self.data), self.rows)


def put_file(store: Store, folder: str, file: PackedFile) -> FileEntry:
    """Write a file to `folder` and return its entry."""
    store.write_bytes(join(folder, file.path), file.data)
    return file.entry


def put_files(store: Store, folder: str, files: Iterable[PackedFile]) -> list[FileEntry]:
    """Write files to `folder` in order, and return their entries."""
    return [put_file(store, folder, file) for file in files]


def dump_entries(entries: Iterable[FileEntry]) -> bytes:
    """Return the list as canonical text, whose digest stands for the contents of all files."""
    return canonical_json([entry.to_json() for entry in sorted(entries, key=lambda entry: entry.path)])


def load_entries(data: bytes) -> list[FileEntry]:
    """Return the list that `dump_entries` wrote."""
    return [FileEntry.from_json(record) for record in json.loads(data)]


@dataclass(frozen=True)
class FileSet:
    """Recorded files below `folder` of a store; `owner` names what they belong to, in messages."""

    store: Store
    folder: str
    entries: Sequence[FileEntry]
    owner: str

    @classmethod
    def recorded(cls, store: Store, folder: str, files: Iterable[dict[str, Any]], owner: str) -> FileSet:
        """Return the files that a record lists in the form of `FileEntry.to_json`."""
        return cls(store, folder, [FileEntry.from_json(item) for item in files], owner)

    @cached_property
    def by_path(self) -> dict[str, FileEntry]:
        """Entries by path."""
        return {entry.path: entry for entry in self.entries}

    def place(self, path: str) -> str:
        """Return the path of a file relative to the store's root."""
        return join(self.folder, path)

    def broken(self, subject: str, problem: str, rows: tuple[int, int] | None = None) -> IntegrityError:
        """Return the error for `subject` (a file or a shard) of this owner, with its rows and the fix."""
        where = f" (rows {rows[0]}-{rows[1] - 1})" if rows else ""
        return IntegrityError(f"{subject} {problem}{where}; run `topline fsck {self.store.url}`")

    def read(self, path: str, *, subject: str | None = None) -> bytes:
        """Return a whole file after checking its size and digest."""
        subject = subject or f"{self.owner}: {path}"
        data = self._checked(path, subject, self.store.read_bytes, len)
        entry = self.by_path[path]
        return self._digested(data, entry.sha256, subject, entry.rows)

    def named_by(self, digest: str, path: str, subject: str, rows: tuple[int, int]) -> bytes:
        """Return an unlisted file that has this digest; `IntegrityError` if it has another."""
        try:
            data = self.store.read_bytes(self.place(path))
        except NotFoundError:
            raise self.broken(subject, "is missing", rows) from None
        return self._digested(data, digest, subject, rows)

    def _digested(self, data: bytes, digest: str, subject: str, rows: tuple[int, int] | None) -> bytes:
        if digest_bytes(data) != digest:
            raise self.broken(subject, "is damaged: its SHA-256 is not the recorded one", rows)
        return data

    def check_size(self, path: str, *, subject: str) -> None:
        """Check that a file exists with its recorded size: cheap, and rules out fill values."""
        self._checked(path, subject, self.store.size, int)

    def _checked(self, path: str, subject: str, look: Callable[[str], T], size_of: Callable[[T], int]) -> T:
        """Return the result of `look` at a recorded path after checking its size."""
        entry = self.by_path.get(path)
        if entry is None:
            raise self.broken(subject, "was never recorded")
        try:
            found = look(self.place(path))
        except NotFoundError:
            raise self.broken(subject, "is missing", entry.rows) from None
        if size_of(found) != entry.size:
            raise self.broken(subject, wrong_size(size_of(found), entry.size), entry.rows)
        return found


def wrong_size(found: int, recorded: int) -> str:
    """Return the message for a file of `found` bytes that should have `recorded`."""
    if found == 0:
        return f"is empty, and {recorded} bytes were written"
    return f"has {found} bytes, and {recorded} were written"


def check_files(files: FileSet, *, deep: bool, fix: str) -> list[Finding]:
    """Return findings of files that are missing or of another size or, with `deep`, another SHA-256."""
    problems = ((entry, _file_problem(files, entry, deep=deep)) for entry in files.entries)
    return [
        Finding(problem[0], files.place(entry.path), f"{problem[1]}, in {files.owner}", fix, entry.rows)
        for entry, problem in problems
        if problem is not None
    ]


def _file_problem(files: FileSet, entry: FileEntry, *, deep: bool) -> tuple[str, str] | None:
    place = files.place(entry.path)
    try:
        data = files.store.read_bytes(place) if deep else b""
        size = len(data) if deep else files.store.size(place)
    except FileNotFoundError:
        return "missing", "the file is missing"
    except StorageError as error:
        return "unreadable", str(error)
    if size != entry.size:
        return "wrong-size", f"the file {wrong_size(size, entry.size)}"
    if deep and digest_bytes(data) != entry.sha256:
        return "wrong-digest", "the file's SHA-256 is not the recorded one"
    return None
