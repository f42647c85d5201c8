"""Holds: a reader prevents removal by the kernel's shared lock on a file of what it reads.

The file exists anyway and is opened for reading, so that readers need no write permission.  A killed process
releases its hold at once.  Object stores and some file systems have no such locks: there, what is to be
removed is first hidden, and its bytes are removed later.
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
    """Hold the file at `path` as long as `owner` lives; does nothing for a missing file or without locks.

    Waits while another process has it exclusively, after which the file may be gone.  `AccessError` if it
    cannot be held, since what is read then could be removed.
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
    """Return the descriptor of a file locked with a `fcntl` kind; None if another process has the lock.

    Also None without locks, if the file is absent, and, with LOCK_NB and no `create`, if it cannot be read.
    `AccessError` if it cannot be used otherwise.
    """
    root = store.local_path
    if root is None or not store.locks:
        return None
    if create:
        store.put_if_absent(path, b"")
    # Readers may lack write permission; NFS needs a file open for writing to lock it exclusively.
    flags = os.O_RDWR if kind & fcntl.LOCK_EX else os.O_RDONLY
    try:
        descriptor = os.open(root / path, flags | os.O_CLOEXEC)
    except OSError as error:
        # A file just created and already gone belongs to a number that others have had.
        if isinstance(error, FileNotFoundError) or (kind & fcntl.LOCK_NB and not create):
            return None
        done = "written" if create else "read"
        raise AccessError(f"{join(store.url, path)} cannot be {done}: {error.strerror}") from error
    try:
        fcntl.flock(descriptor, kind)
    except OSError as error:
        os.close(descriptor)
        if isinstance(error, BlockingIOError):
            return None
        raise AccessError(f"{join(store.url, path)} cannot be locked: {error.strerror}") from error
    return descriptor
