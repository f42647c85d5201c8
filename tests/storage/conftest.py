"""Stores to test on: a folder, memory, and S3 as moto serves it on the loopback."""

from __future__ import annotations

import errno
import fcntl
import itertools
import os
import stat
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.storage.bucket import served_bucket
from topline.storage.stores import Store, open_store

_numbers = itertools.count()


@pytest.fixture
def local_store() -> Iterator[Store]:
    """A folder, in memory where there is a RAM disk: waiting for a real disk shows these tests nothing."""
    ram = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=ram if ram.is_dir() and os.access(ram, os.W_OK) else None) as folder:
        yield open_store(Path(folder).resolve() / "store", create=True)


@pytest.fixture
def bare_store(local_store: Store, monkeypatch: pytest.MonkeyPatch) -> Store:
    """A folder of a file system without locks, hard links and folders that can be synced."""

    def refuse(number: int) -> Callable[..., None]:
        def refused(*_: object, **__: object) -> None:
            raise OSError(number, os.strerror(number))

        return refused

    fsync = os.fsync

    def synced(descriptor: int) -> None:
        (refuse(errno.EINVAL) if stat.S_ISDIR(os.fstat(descriptor).st_mode) else fsync)(descriptor)

    def locked(descriptor: int, _: int) -> None:
        # NFS lets a folder pass.
        if stat.S_ISREG(os.fstat(descriptor).st_mode):
            refuse(errno.ENOLCK)()

    monkeypatch.setattr(fcntl, "flock", locked)
    monkeypatch.setattr(os, "link", refuse(errno.EPERM))
    monkeypatch.setattr(os, "fsync", synced)
    return local_store


@pytest.fixture
def memory_store() -> Iterator[Store]:
    store = open_store(f"memory://test-{next(_numbers)}")
    yield store
    for path in store.walk():
        store.delete(path)


@pytest.fixture(scope="session")
def s3_bucket() -> Iterator[str]:
    """An empty bucket behind moto's server."""
    with served_bucket() as name:
        yield name


@pytest.fixture
def s3_store(s3_bucket: str) -> Store:
    return open_store(f"s3://{s3_bucket}/test-{next(_numbers)}")


@pytest.fixture(params=["local", "bare", "memory", "s3"])
def any_store(request: pytest.FixtureRequest) -> Store:
    store: Store = request.getfixturevalue(f"{request.param}_store")
    return store
