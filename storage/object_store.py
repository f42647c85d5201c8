"""Stores behind fsspec: memory:// within a process, s3:// and gs:// with their drivers."""

from __future__ import annotations

import importlib
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from storage.errors import AccessError, MissingExtraError, NotFoundError, StorageError, UnsafePathError
from storage.stores import Store
from storage.urls import StoreURL, clean_path, join

if TYPE_CHECKING:
    from zarr.abc.store import Store as ZarrStore

_DRIVERS = {"memory": ("fsspec", ""), "s3": ("s3fs", "s3"), "gs": ("gcsfs", "gcs")}
_ERRORS = {
    "memory": (),
    "s3": ("botocore.exceptions:BotoCoreError", "botocore.exceptions:ClientError"),
    "gs": ("google.auth.exceptions:GoogleAuthError", "gcsfs.retry:HttpError", "aiohttp:ClientError"),
}
_MEMORY_LOCK = threading.Lock()
_CONFLICT_TRIES = 8


class ObjectStore(Store):
    """A bucket and prefix (or a folder in memory).  One write is one object: it appears whole."""

    def __init__(self, address: StoreURL) -> None:
        self.url = str(address)
        self._address = address
        module, extra = _DRIVERS[address.scheme]
        try:
            importlib.import_module(module)
        except ImportError as error:
            raise MissingExtraError(
                f"{self.url} needs {module}; run: pip install 'topline[{extra}]'"
            ) from error
        self._failures = (OSError, *(_load(name) for name in _ERRORS[address.scheme]))
        self._opened: tuple[int, Any] | None = None

    @property
    def _fs(self) -> Any:
        """The driver, made once a process: its event loop does not survive a fork."""
        if self._opened is None or self._opened[0] != os.getpid():
            import fsspec

            self._opened = os.getpid(), fsspec.filesystem(self._address.scheme, use_listings_cache=False)
        return self._opened[1]

    def exists(self, path: str) -> bool:
        """Whether an object is stored at `path`."""
        with self._translated(path):
            return bool(self._fs.isfile(self._key(path)))

    def size(self, path: str) -> int:
        """Bytes of the object."""
        with self._translated(path):
            return int(self._fs.info(self._key(path))["size"])

    def read_bytes(self, path: str) -> bytes:
        """The whole object."""
        with self._translated(path):
            return bytes(self._fs.cat_file(self._key(path)))

    def read_range(self, path: str, start: int, length: int) -> bytes:
        """Part of the object in one request."""
        if length <= 0:
            return b""
        with self._translated(path):
            return bytes(self._fs.cat_file(self._key(path), start=start, end=start + length))

    def write_bytes(self, path: str, data: bytes) -> None:
        """Put the object."""
        with self._translated(path):
            self._fs.pipe_file(self._key(path), data)

    def put_if_absent(self, path: str, data: bytes) -> bool:
        """Put the object on condition that there is none (If-None-Match, or generation 0 on Google's)."""
        raise NotImplementedError

    def list(self, path: str = "") -> list[str]:
        """Names directly below the prefix."""
        raise NotImplementedError

    def walk(self, path: str = "") -> list[str]:
        """All objects below the prefix."""
        raise NotImplementedError

    def delete(self, path: str) -> None:
        """Remove the object, if it is there."""
        raise NotImplementedError

    def delete_tree(self, path: str) -> None:
        """Remove all objects below the prefix."""
        raise NotImplementedError

    def free_bytes(self) -> None:
        """Nobody knows."""
        return

    def zarr_store(self, path: str, *, read_only: bool = True) -> ZarrStore:
        """Zarr's fsspec store over the prefix."""
        from zarr.storage import FsspecStore

        return FsspecStore.from_url(f"{self._address.scheme}://{self._key(path)}", read_only=read_only)

    def _key(self, path: str) -> str:
        return join(self._address.root, clean_path(path))

    @contextmanager
    def _translated(self, path: str) -> Iterator[None]:
        place = join(self.url, path)
        try:
            yield
        except StorageError:
            raise
        except FileNotFoundError as error:
            raise NotFoundError(f"{place} does not exist") from error
        except self._failures as error:
            # The driver's own words may quote requests, signatures and keys: only the kind is passed on.
            raise AccessError(f"{place} cannot be used ({type(error).__name__})") from None


def _load(name: str) -> type[Exception]:
    module, _, attribute = name.partition(":")
    found: type[Exception] = getattr(importlib.import_module(module), attribute)
    return found
