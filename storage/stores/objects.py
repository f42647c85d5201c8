"""Stores behind fsspec (memory://, s3:// and gs:// with their drivers), and opening any store by its URL."""

from __future__ import annotations

import errno
import importlib
import logging
import os
import re
import secrets
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import cache, partial
from pathlib import Path
from typing import Any

from topline.storage.errors import ConflictError, MissingExtraError, UnsupportedURLError
from topline.storage.stores.base import Names, Store
from topline.storage.stores.local import PARTIAL, LocalStore
from topline.storage.stores.urls import StoreURL, join, parse_url

logger = logging.getLogger(__name__)

_DRIVERS = {"memory": ("fsspec", ""), "s3": ("s3fs", "s3"), "gs": ("gcsfs", "gcs")}
_FAILURES: dict[str, tuple[str, ...]] = {
    "memory": (),
    "s3": ("botocore.exceptions:BotoCoreError", "botocore.exceptions:ClientError", "aiohttp:ClientError"),
    "gs": ("google.auth.exceptions:GoogleAuthError", "gcsfs.retry:HttpError", "aiohttp:ClientError"),
}
#: Loggers in which drivers report repeated requests.
_DRIVER_LOGS = ("s3fs", "botocore.retryhandler", "gcsfs")
#: Logs below these, which show as much as before.
_OTHER_LOGS = ("gcsfs.credentials", "gcsfs.zonal_file")
_REPEATED = re.compile(r"Retryable error|Retry needed|.*retrying after exception")
_SAID_AT = frozenset({1, 10, 100, 1000, 10_000})
_MEMORY_LOCK = threading.Lock()
#: Buckets that this process has seen refuse a conditional put.
_CONDITIONAL: set[str] = set()
_PRECONDITION_FAILED = 412
#: Contents of two concurrent puts that test whether a bucket lets only one through.
_RACERS = (b"one", b"another")
#: Time limit of a call to a bucket, the driver's retries included.
_CALL_SECONDS = 900.0
_CONFLICT_TRIES = 8
_CONFLICT_PAUSE = 0.05


class _Repetitions(logging.Filter):
    """Counts requests repeated by drivers, which report them only in debug logs."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0
        for other in map(logging.getLogger, _OTHER_LOGS):
            other.setLevel(other.getEffectiveLevel())
        for name in _DRIVER_LOGS:
            driver = logging.getLogger(name)
            self._shown = driver.getEffectiveLevel()
            driver.addFilter(self)
            driver.setLevel(logging.DEBUG)

    def filter(self, record: logging.LogRecord) -> bool:
        """Count a record, and pass on what the log would show without this filter."""
        if _REPEATED.match(record.getMessage()):
            self.count += 1
            if self.count in _SAID_AT:
                logger.warning("the bucket does not answer at once: %d requests repeated", self.count)
        return record.levelno >= self._shown


_repetitions = cache(_Repetitions)


def repeated_requests() -> int:
    """Return the number of requests to buckets repeated by drivers in this process."""
    return _repetitions().count


class _Bounded:
    """A driver whose calls have a time limit: waiting for a free connection has none of its own."""

    def __init__(self, driver: Any) -> None:
        self._driver = driver

    def __getattr__(self, name: str) -> Any:
        return partial(getattr(self._driver, name), timeout=_CALL_SECONDS)


class ObjectStore(Store):
    """A bucket and prefix, or a folder in memory.  Each write is one object, which appears atomically.

    The content of memory:// belongs to this process alone and vanishes with it.
    """

    def __init__(self, address: StoreURL) -> None:
        self.url = str(address)
        self._address = address
        module, extra = _DRIVERS[address.scheme]
        try:
            importlib.import_module(module)
        except ImportError as error:
            raise MissingExtraError(
                f"{self.url} needs {module}, which is not installed; run: pip install 'topline[{extra}]'"
            ) from error
        self._failures = (OSError, *(_load(name) for name in _FAILURES[address.scheme]))
        self._opened: tuple[int, Any] | None = None

    def __reduce__(self) -> tuple[object, ...]:
        return ObjectStore, (self._address,)

    @property
    def _fs(self) -> Any:
        """The driver, made once per process: its event loop does not survive a fork."""
        opened = self._opened
        if opened is None or opened[0] != os.getpid():
            import fsspec

            # Listings are never cached: other processes write to the same store.
            driver = fsspec.filesystem(self._address.scheme, use_listings_cache=False)
            _repetitions()
            opened = os.getpid(), _Bounded(driver) if hasattr(driver, "loop") else driver
            self._opened = opened
        return opened[1]

    def _exists(self, path: str) -> bool:
        return bool(self._fs.isfile(self._key(path)))

    def _size(self, path: str) -> int:
        found = self._fs.info(self._key(path))
        if found["type"] != "file":
            raise FileNotFoundError(path)
        return int(found["size"])

    def _read_bytes(self, path: str) -> bytes:
        return bytes(self._fs.cat_file(self._key(path)))

    def _read_range(self, path: str, start: int, length: int) -> bytes:
        try:
            return bytes(self._fs.cat_file(self._key(path), start=start, end=start + max(length, 1)))[:length]
        except OSError as error:
            # S3 refuses a range that begins past the end; a file would give no bytes.
            if error.errno == errno.EINVAL and self._size(path) <= start:
                return b""
            raise

    def _write_bytes(self, path: str, data: bytes) -> None:
        self._fs.pipe_file(self._key(path), data)

    def _put_if_absent(self, path: str, data: bytes) -> bool:
        """Put the object if absent (If-None-Match, or generation 0 on Google Cloud Storage)."""
        key = self._key(path)
        if self._address.scheme == "memory":
            with _MEMORY_LOCK:
                if self._fs.exists(key):
                    return False
                self._fs.pipe_file(key, data)
                return True
        self._check_conditions()
        return self._created(key, data)

    def _created(self, key: str, data: bytes) -> bool:
        for attempt in range(_CONFLICT_TRIES):
            try:
                self._fs.pipe_file(key, data, mode="create")
            except FileExistsError:
                return False
            except OSError as error:
                if _is_refused(error):
                    return False
                # 409: another conditional write to the name is in progress; S3 asks to retry.
                if error.errno != errno.EBUSY:
                    raise
                time.sleep(_CONFLICT_PAUSE * 2**attempt)
            else:
                return True
        raise ConflictError(f"{self._address.scheme}://{key} is being written by somebody else; try again")

    def _check_conditions(self) -> None:
        """Check, once per process and bucket, that one of two concurrent conditional puts is refused.

        Some servers ignore the header, or check first and put then, so that both writers would believe to be
        first.  A put after the first must be refused as well, and leave the stored bytes unchanged.
        """
        bucket = self._address.root.partition("/")[0]
        if self._address.scheme != "s3" or bucket in _CONDITIONAL:
            return
        probe = self._key(f"probe.{secrets.token_hex(6)}{PARTIAL}")
        try:
            with ThreadPoolExecutor(2) as pool:
                answers = zip(_RACERS, pool.map(partial(self._created, probe), _RACERS), strict=True)
                winners = [data for data, created in answers if created]
            later = self._created(probe, b"later")
            # If neither won, one of them was put by a request of ours whose answer was lost.
            kept = bytes(self._fs.cat_file(probe)) in (winners or _RACERS)
        finally:
            self._fs.rm_file(probe)
        if later or len(winners) > 1 or not kept:
            raise UnsupportedURLError(
                f"s3://{bucket} does not keep to the header If-None-Match, so that writers overwrite each"
                " other: use a server that does, as AWS S3 and MinIO do, or a store on a disk"
            )
        _CONDITIONAL.add(bucket)

    def _list(self, path: str) -> Names:
        key = self._key(path)
        try:
            found = self._fs.ls(key, detail=False)
        except (FileNotFoundError, NotADirectoryError):
            return []
        names = {str(name).rstrip("/").rpartition("/")[2] for name in found if str(name).strip("/") != key}
        return [*(names - {""})]

    def _walk(self, path: str) -> Names:
        head = len(self._address.root) + 1
        try:
            found = self._fs.find(self._key(path), detail=False)
        except FileNotFoundError:
            return []
        return [str(name).lstrip("/")[head:] for name in found if not str(name).endswith("/")]

    def _delete(self, path: str) -> None:
        with suppress(FileNotFoundError):
            self._fs.rm_file(self._key(path))

    def _delete_tree(self, path: str) -> None:
        with suppress(FileNotFoundError):
            self._fs.rm(self._key(path), recursive=True)

    def _key(self, path: str) -> str:
        return join(self._address.root, path)

    def _refusal(self, error: Exception) -> str:
        # The driver's text may quote requests, signatures and keys: pass on only the error's type.
        return f" ({type(error).__name__}); check its address, network and credentials"


def _is_refused(error: OSError) -> bool:
    """Return whether a conditional put was refused; s3fs recognises only AWS's wording."""
    answer = getattr(error.__cause__, "response", None) or {}
    return bool(answer.get("ResponseMetadata", {}).get("HTTPStatusCode") == _PRECONDITION_FAILED)


def _load(name: str) -> type[Exception]:
    module, _, attribute = name.partition(":")
    found: type[Exception] = getattr(importlib.import_module(module), attribute)
    return found


def open_store(url: str | Path, *, create: bool = False) -> Store:
    """Return the store at `url`: a local path, or a file://, memory://, s3:// or gs:// URL.

    With `create`, a local folder that does not exist is made; without, it is a `NotFoundError`.  Raises
    `UnsupportedURLError` if it is not a store's address, `MissingExtraError` if s3fs or gcsfs is missing.

    >>> from topline import open_store
    >>> store = open_store("memory://example")
    >>> store.put_if_absent("notes/one.txt", b"the first")
    True
    >>> store.put_if_absent("notes/one.txt", b"the second")
    False
    >>> store.list("notes"), store.read_bytes("notes/one.txt")
    (['one.txt'], b'the first')
    """
    address = parse_url(str(url))
    if address.scheme == "file":
        return LocalStore(Path(address.root), create=create)
    return ObjectStore(address)
