"""Holds: who reads something keeps it from being removed, by the kernel's shared lock on a file of it.

The lock is on a file that is there anyway and is opened for reading, so that readers need no right to write.
A killed process lets go at once.  Object stores have no such locks, nor do some file systems: there what is
to be removed is first put out of sight, and its bytes go later.
"""

from __future__ import annotations

import fcntl
import os
import weakref
from collections.abc import Iterator
from contextlib import contextmanager

from topline.storage.errors import AccessError
from topline.storage.stores.base import Store
from topline.storage.stores.urls import join


def hold_while(owner: object, store: Store, path: str) -> None:
    """Hold the file at `path` as long as `owner` lives; a file that is not there, or no disk, holds nothing.

    Waits while somebody is alone with it: the file may be gone then.
    """
    descriptor = kernel_lock(store, path, fcntl.LOCK_SH)
    if descriptor is not None:
        weakref.finalize(owner, os.close, descriptor)


@contextmanager
def alone_with(store: Store, path: str) -> Iterator[bool]:
    """Yield whether nobody holds the file at `path`; if so, nobody can until the block ends."""
    if not store.locks or not store.exists(path):
        yield True
        return
    descriptor = kernel_lock(store, path, fcntl.LOCK_EX | fcntl.LOCK_NB)
    try:
        yield descriptor is not None
    finally:
        if descriptor is not None:
            os.close(descriptor)


def kernel_lock(store: Store, path: str, kind: int, *, create: bool = False) -> int | None:
    """Return the descriptor of a file with a lock of a kind of `fcntl`; None where somebody else has it.

    None as well where files have no locks, and where there is no such file, unless it is to be made.
    `AccessError` where it cannot be used.
    """
    root = store.local_path
    if root is None or not store.locks:
        return None
    if create:
        store.put_if_absent(path, b"")
    # To read, for who looks may not write there; NFS locks a file for one alone only if it is open to write.
    flags = os.O_RDWR if kind & fcntl.LOCK_EX else os.O_RDONLY
    try:
        descriptor = os.open(root / path, flags | os.O_CLOEXEC)
    except OSError as error:
        # One that was just made and is gone belongs to a number that others have had.
        if not create or isinstance(error, FileNotFoundError):
            return None
        raise AccessError(f"{join(store.url, path)} cannot be written: {error.strerror}") from error
    try:
        fcntl.flock(descriptor, kind)
    except OSError as error:
        os.close(descriptor)
        if isinstance(error, BlockingIOError):
            return None
        raise AccessError(f"{join(store.url, path)} cannot be locked: {error.strerror}") from error
    return descriptor
