"""Holds: a reader prevents removal by the kernel's shared lock on a file of what it reads.

The file exists anyway and is opened for reading, so that readers need no write permission.  A killed process
releases its hold at once.  Object stores and some file systems have no such locks: there, what is to be
removed is first hidden, and its bytes are removed later.
"""

from __future__ import annotations

import fcntl
import logging
import os
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from topline.storage.errors import AccessError, LeaseHeldError
from topline.storage.stores.base import Store
from topline.storage.stores.urls import join

logger = logging.getLogger(__name__)

#: How long a lock is waited for, after how much of it that is said, and how often it is tried, in seconds.
_LOCK_SECONDS, _TOLD_SECONDS, _TRY_SECONDS = 120.0, 1.0, 0.05


@dataclass(frozen=True)
class Clock:
    """Time for leases and locks, in seconds; tests pass one that they advance themselves.

    `monotonic` never jumps, `wall` counts from 1970 in UTC, `sleep` waits, and `wait` does too, but returns
    True as soon as its event is set.
    """

    monotonic: Callable[[], float] = time.monotonic
    wall: Callable[[], float] = time.time
    sleep: Callable[[float], None] = time.sleep
    wait: Callable[[threading.Event, float], bool] = threading.Event.wait


CLOCK = Clock()


def hold_while(owner: object, store: Store, path: str, clock: Clock = CLOCK) -> None:
    """Hold the file at `path` as long as `owner` lives; does nothing for a missing file or without locks.

    Waits while another process has it exclusively, after which the file may be gone.  `AccessError` if it
    cannot be held, since what is read then could be removed, and `LeaseHeldError` if it is not free in time.
    """
    held = ExitStack()
    held.enter_context(kernel_lock(store, path, fcntl.LOCK_SH, clock=clock))
    weakref.finalize(owner, held.close)


def wait_for_lock(descriptor: int, kind: int, busy: str, clock: Clock = CLOCK) -> None:
    """Lock an open file with a `fcntl` kind; `LeaseHeldError`, saying `busy`, if it is not free in time."""
    begun, told = clock.monotonic(), False
    late = f"{busy}, and did not end within {_LOCK_SECONDS:g} s: end it, or run this again later"
    while True:
        try:
            return fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
        except BlockingIOError:
            waited = clock.monotonic() - begun
        if waited >= _LOCK_SECONDS:
            raise LeaseHeldError(late)
        if waited >= _TOLD_SECONDS and not told:
            told = True
            logger.warning("%s: waiting up to %g s", busy, _LOCK_SECONDS)
        clock.sleep(_TRY_SECONDS)


@contextmanager
def alone_with(store: Store, path: str) -> Iterator[bool]:
    """Yield whether nobody holds the file at `path`; if so, nobody can until the block ends."""
    if not store.locks or not store.exists(path):
        yield True
        return
    with kernel_lock(store, path, fcntl.LOCK_EX | fcntl.LOCK_NB) as descriptor:
        yield descriptor is not None


@contextmanager
def kernel_lock(
    store: Store, path: str, kind: int, *, create: bool = False, clock: Clock = CLOCK
) -> Iterator[int | None]:
    """Yield the descriptor of a file locked with a `fcntl` kind; None if another process has the lock.

    Also None without locks, if the file is absent, and, with LOCK_NB and no `create`, if it cannot be read.
    `AccessError` if it cannot be used otherwise; without LOCK_NB `LeaseHeldError` if it is not free in time.
    """
    descriptor = _locked(store, path, kind, create, clock)
    try:
        yield descriptor
    finally:
        if descriptor is not None:
            os.close(descriptor)


def _locked(store: Store, path: str, kind: int, create: bool, clock: Clock) -> int | None:
    if (root := store.local_path) is None or not store.locks:
        return None
    if create:
        store.put_if_absent(path, b"")
    # Readers may lack write permission; NFS needs a file open for writing to lock it exclusively.
    flags, place = os.O_RDWR if kind & fcntl.LOCK_EX else os.O_RDONLY, join(store.url, path)
    try:
        descriptor = os.open(root / path, flags | os.O_CLOEXEC)
    except OSError as error:
        # A file just created and already gone belongs to a number that others have had.
        if isinstance(error, FileNotFoundError) or (kind & fcntl.LOCK_NB and not create):
            return None
        raise AccessError(f"{place} cannot be {'written' if create else 'read'}: {error.strerror}") from error
    try:
        if kind & fcntl.LOCK_NB:
            fcntl.flock(descriptor, kind)
        else:
            wait_for_lock(descriptor, kind, f"another process is removing {place} and what it lists", clock)
    except BaseException as error:
        os.close(descriptor)
        if isinstance(error, BlockingIOError):
            return None
        if isinstance(error, LeaseHeldError) or not isinstance(error, OSError):
            raise
        raise AccessError(f"{place} cannot be locked: {error.strerror}") from error
    return descriptor
