"""Stores behind fsspec: memory:// within a process, s3:// and gs:// with their drivers."""

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
from typing import Any

from topline.storage.errors import (
    ConflictError,
    MissingExtraError,
    UnsupportedURLError,
)
from topline.storage.stores.base import Names, Store
from topline.storage.stores.local import PARTIAL
from topline.storage.stores.urls import StoreURL, join

logger = logging.getLogger(__name__)

_DRIVERS = {"memory": ("fsspec", ""), "s3": ("s3fs", "s3"), "gs": ("gcsfs", "gcs")}
_FAILURES: dict[str, tuple[str, ...]] = {
    "memory": (),
    "s3": ("botocore.exceptions:BotoCoreError", "botocore.exceptions:ClientError", "aiohttp:ClientError"),
    "gs": ("google.auth.exceptions:GoogleAuthError", "gcsfs.retry:HttpError", "aiohttp:ClientError"),
}
#: Where drivers say that they repeat a request, and how.
_DRIVER_LOGS = ("s3fs", "botocore.retryhandler", "gcsfs")
_REPEATED = re.compile(r"Retryable error|Retry needed|.*retrying after exception")
_SAID_AT = frozenset({1, 10, 100, 1000, 10_000})
_MEMORY_LOCK = threading.Lock()
#: Buckets that were seen to refuse a conditional put, in this process.
_CONDITIONAL: set[str] = set()
_PRECONDITION_FAILED = 412
#: What two writers at once put to see which of them a bucket lets through.
_RACERS = (b"one", b"another")
#: What a call to a bucket may take, its driver's own repetitions included.
_CALL_SECONDS = 900.0
_CONFLICT_TRIES = 8
_CONFLICT_PAUSE = 0.05


class _Repetitions(logging.Filter):
    """Counts requests that drivers repeat, which they say in their logs for debugging alone."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0
        for name in _DRIVER_LOGS:
            driver = logging.getLogger(name)
            self._shown = driver.getEffectiveLevel()
            driver.addFilter(self)
            driver.setLevel(logging.DEBUG)

    def filter(self, record: logging.LogRecord) -> bool:
        """Take note of a record, and let through what the log would show without this."""
        if _REPEATED.match(record.getMessage()):
            self.count += 1
            if self.count in _SAID_AT:
                logger.warning("the bucket does not answer at once: %d requests repeated", self.count)
        return record.levelno >= self._shown


_repetitions = cache(_Repetitions)


def repeated_requests() -> int:
    """Return how many requests to buckets were repeated in this process, by their drivers."""
    return _repetitions().count


class _Bounded:
    """A driver whose calls end within a time: the wait for a free connection has no limit of its own."""

    def __init__(self, driver: Any) -> None:
        self._driver = driver

    def __getattr__(self, name: str) -> Any:
        return partial(getattr(self._driver, name), timeout=_CALL_SECONDS)


class ObjectStore(Store):
    """A bucket and prefix, or a folder in memory.  One write is one object: it appears whole.

    What is in memory:// belongs to this process alone, and is gone with it.
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
        self._failures = (
            OSError,
            *(_load(name) for name in _FAILURES[address.scheme]),
        )
        self._opened: tuple[int, Any] | None = None

    def __reduce__(self) -> tuple[object, ...]:
        return ObjectStore, (self._address,)

    @property
    def _fs(self) -> Any:
        """The driver, made once a process: its event loop does not survive a fork."""
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
            # S3 refuses a range that begins behind the end; a file would give no bytes.
            if error.errno == errno.EINVAL and self._size(path) <= start:
                return b""
            raise

    def _write_bytes(self, path: str, data: bytes) -> None:
        self._fs.pipe_file(self._key(path), data)

    def _put_if_absent(self, path: str, data: bytes) -> bool:
        """Put the object on condition that there is none (If-None-Match, or generation 0 on Google's)."""
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
                # 409: another conditional write to the name is under way; S3 asks to try again.
                if error.errno != errno.EBUSY:
                    raise
                time.sleep(_CONFLICT_PAUSE * 2**attempt)
            else:
                return True
        raise ConflictError(f"{self._address.scheme}://{key} is being written by somebody else; try again")

    def _check_conditions(self) -> None:
        """See once a process and bucket that of two conditional puts at once one is refused, and one after.

        Some servers ignore the header, or look first and put then: of two writers each would believe to be
        the first.  What is refused must leave the bytes that are there.
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
            # Where neither won, one of them was put by a request of ours whose answer was lost.
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
        # The driver's own words may quote requests, signatures and keys: only the kind is passed on.
        return f" ({type(error).__name__}); check its address, network and credentials"


def _is_refused(error: OSError) -> bool:
    """Return whether a conditional put was refused, in whatever words: s3fs knows those of AWS alone."""
    answer = getattr(error.__cause__, "response", None) or {}
    return bool(answer.get("ResponseMetadata", {}).get("HTTPStatusCode") == _PRECONDITION_FAILED)


def _load(name: str) -> type[Exception]:
    module, _, attribute = name.partition(":")
    found: type[Exception] = getattr(importlib.import_module(module), attribute)
    return found
