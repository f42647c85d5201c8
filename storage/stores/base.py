"""The contract of every store.

A store holds files under relative paths with forward slashes.  Writes replace a file completely or not at
all; `put_if_absent` is the one primitive behind atomic visibility and lossless commits.  Stores travel to
other processes by their URL.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from topline.storage.errors import (
    FULL_DISK,
    AccessError,
    DiskFullError,
    NotFoundError,
    StorageError,
    UnsafePathError,
)
from topline.storage.stores.urls import clean_path, join

Names = list[str]
"""A list of names; `Store.list` hides the built-in's name inside the class."""


class Store:
    """Files under one root.  `url` opens the same store again, and holds no credentials.

    Every path goes through `topline.storage.stores.urls.clean_path`; one that leaves the root is an
    `UnsafePathError`.  Any method may raise `AccessError` if the store cannot be reached or denies access.
    Subclasses implement the methods with one underscore.
    """

    url: str
    #: Errors of the driver, and the message for one, without secrets.
    _failures: tuple[type[Exception], ...] = (OSError,)
    _refusal: Callable[[Exception], str]
    _exists: Callable[[str], bool]
    _size: Callable[[str], int]
    _read_bytes: Callable[[str], bytes]
    _read_range: Callable[[str, int, int], bytes]
    _write_bytes: Callable[[str, bytes], object]
    _put_if_absent: Callable[[str, bytes], bool]
    _list: Callable[[str], Names]
    _walk: Callable[[str], Names]
    _delete: Callable[[str], object]
    _delete_tree: Callable[[str], object]

    @property
    def local_path(self) -> Path | None:
        """Folder of a store on a local disk, None for all others."""
        return None

    def place(self, path: str) -> str:
        """Return where a person finds a file: its path on a local disk, else its URL."""
        return join(self.url, path) if self.local_path is None else str(self.local_path / path)

    @property
    def locks(self) -> bool:
        """Whether kernel locks on the store's files show who reads and writes; otherwise leases do."""
        return False

    def exists(self, path: str) -> bool:
        """Return whether a file (not a folder) is stored at `path`."""
        with self._translated(path):
            return self._exists(clean_path(path))

    def size(self, path: str) -> int:
        """Return the bytes of the file at `path`; `NotFoundError` if there is none."""
        with self._translated(path):
            return self._size(clean_path(path))

    def read_bytes(self, path: str) -> bytes:
        """Return the whole file; `NotFoundError` if there is none."""
        with self._translated(path):
            return self._read_bytes(clean_path(path))

    def read_range(self, path: str, start: int, length: int) -> bytes:
        """Return `length` bytes from `start`, fewer where the file ends; `NotFoundError` if there is none."""
        with self._translated(path):
            return self._read_range(clean_path(path), start, length)

    def write_bytes(self, path: str, data: bytes) -> None:
        """Write `data` to `path`, replacing a file wholly or not at all; `DiskFullError` without room."""
        with self._translated(path):
            self._write_bytes(_named(path), data)

    def put_if_absent(self, path: str, data: bytes) -> bool:
        """Write `data` to `path` only if nothing is there: True for exactly one of any concurrent writers.

        `UnsupportedURLError`, before the first such write, if the store cannot guarantee that.
        """
        with self._translated(path):
            return self._put_if_absent(_named(path), data)

    def list(self, path: str = "") -> Names:
        """Return the sorted names of the files and folders directly in the folder `path`; empty if absent."""
        with self._translated(path):
            return sorted(self._list(clean_path(path)))

    def walk(self, path: str = "") -> Names:
        """Return the sorted paths, from the root, of all files anywhere below the folder `path`.

        Symbolic links to folders are not followed.
        """
        with self._translated(path):
            return sorted(self._walk(clean_path(path)))

    def delete(self, path: str) -> None:
        """Remove the file at `path`, if there is one."""
        with self._translated(path):
            self._delete(_named(path))

    def delete_tree(self, path: str) -> None:
        """Remove the folder `path` and all below it, if there is one."""
        with self._translated(path):
            self._delete_tree(_named(path))

    def free_bytes(self) -> int | None:
        """Return the free bytes where the store lies, None if unknown."""
        return None

    def is_writable(self) -> bool:
        """Return whether writing may succeed: False if this process is known to lack permission."""
        return True

    def settle(self, path: str) -> None:
        """Let what is listed in the folder `path` survive a power cut, whoever put it there."""

    def used_bytes(self) -> int | None:
        """Return the bytes of all files, None if only a listing of every object would tell."""
        return None

    @contextmanager
    def _translated(self, path: str) -> Iterator[None]:
        """Turn driver errors into the store's own, without their text, which may hold secrets."""
        try:
            yield
        except StorageError:
            raise
        except FileNotFoundError:
            raise NotFoundError(f"{join(self.url, path)} does not exist") from None
        except self._failures as error:
            place = join(self.url, path)
            if isinstance(error, OSError) and error.errno in FULL_DISK:
                raise DiskFullError(f"no space is left to write {place}; free some space and retry") from None
            raise AccessError(f"{place} cannot be used{self._refusal(error)}") from None

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Store) and self.url == other.url

    def __hash__(self) -> int:
        return hash(self.url)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.url!r})"


def _named(path: str) -> str:
    if not path:
        raise UnsafePathError("a whole store is not written or deleted through itself")
    return clean_path(path)
