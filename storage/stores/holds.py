"""Holds: who reads something keeps it from being removed, by the kernel's shared lock on a file of it.

The lock is on a file that is there anyway and is opened for reading, so that readers need no right to write.
A killed process lets go at once.  Object stores have no such locks: there what is to be removed is first put
out of sight, and its bytes go later.
"""

from __future__ import annotations

import fcntl
import os
import weakref
from collections.abc import Iterator
from contextlib import contextmanager

from topline.storage.stores.base import Store


def hold_while(owner: object, store: Store, path: str) -> None:
    """Hold the file at `path` as long as `owner` lives; a file that is not there, or no disk, holds nothing.

    Waits while somebody is alone with it: the file may be gone then.
    """
    descriptor = _locked(store, path, fcntl.LOCK_SH)
    if descriptor is not None:
        weakref.finalize(owner, os.close, descriptor)


@contextmanager
def alone_with(store: Store, path: str) -> Iterator[bool]:
    """Yield whether nobody holds the file at `path`; if so, nobody can until the block ends."""
    if store.local_path is None or not store.exists(path):
        yield True
        return
    descriptor = _locked(store, path, fcntl.LOCK_EX | fcntl.LOCK_NB)
    try:
        yield descriptor is not None
    finally:
        if descriptor is not None:
            os.close(descriptor)


def _locked(store: Store, path: str, kind: int) -> int | None:
    """Return the descriptor of a lock, None where there is no disk or no file, or somebody else has it."""
    root = store.local_path
    if root is None:
        return None
    try:
        descriptor = os.open(root / path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        fcntl.flock(descriptor, kind)
    except OSError:
        os.close(descriptor)
        return None
    return descriptor
