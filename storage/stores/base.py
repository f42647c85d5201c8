"""The contract of every store.

A store holds files under relative paths with forward slashes.  Writes replace a file whole or not at
all; `put_if_absent` is the one primitive on which "visible in one step" and "no commit is lost" rest.
Stores travel to other processes by their URL.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from pathlib import Path

Names = list[str]
"""A list of names; `Store.list` hides the built-in's name inside the class."""


class Store(ABC):
    """Files under one root.  `url` opens the same store again, and holds no credentials.

    Every path goes through `topline.storage.stores.urls.clean_path`: what leads out of the root is an
    `UnsafePathError`. All methods may raise `AccessError` when the store cannot be reached or refuses.
    """

    url: str

    @property
    def local_path(self) -> Path | None:
        """Folder of a store on this machine's disk, None for all others."""
        return None

    @property
    def locks(self) -> bool:
        """Whether the kernel's locks on the store's files say who reads and writes them; else leases do."""
        return False

    @abstractmethod
    def exists(self, path: str) -> bool:
        """Return whether a file (not a folder) is stored at `path`."""

    @abstractmethod
    def size(self, path: str) -> int:
        """Return the bytes of the file at `path`; `NotFoundError` if there is none."""

    @abstractmethod
    def read_bytes(self, path: str) -> bytes:
        """Return the whole file; `NotFoundError` if there is none."""

    @abstractmethod
    def read_range(self, path: str, start: int, length: int) -> bytes:
        """Return `length` bytes from `start`, fewer where the file ends; `NotFoundError` if there is none."""

    @abstractmethod
    def write_bytes(self, path: str, data: bytes) -> None:
        """Put `data` at `path`, replacing what is there whole or not at all; `DiskFullError` without room."""

    @abstractmethod
    def put_if_absent(self, path: str, data: bytes) -> bool:
        """Put `data` at `path` only if nothing is there: True for exactly one of any racing writers."""

    @abstractmethod
    def list(self, path: str = "") -> Names:
        """Return the sorted names of the files and folders directly in the folder `path`.

        None if it is not there.
        """

    @abstractmethod
    def walk(self, path: str = "") -> Names:
        """Return the sorted paths, from the root, of all files anywhere below the folder `path`."""

    @abstractmethod
    def delete(self, path: str) -> None:
        """Remove the file at `path`, if there is one."""

    @abstractmethod
    def delete_tree(self, path: str) -> None:
        """Remove the folder `path` and all below it, if there is one."""

    def free_bytes(self) -> int | None:
        """Return the room left where the store lies, None where nobody knows."""
        return None

    def is_writable(self) -> bool:
        """Whether writing is worth a try: False where this process is known not to be let."""
        return True

    def used_bytes(self) -> int | None:
        """Return the bytes of all files, None where only a listing of every object would tell."""
        return None

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Store) and self.url == other.url

    def __hash__(self) -> int:
        return hash(self.url)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.url!r})"
