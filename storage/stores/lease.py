"""Leases and holds: one holder of a lease at a time, and readers that prevent removal.

A lease works on any kind of store and is freed if its holder dies; storage/README.md specifies its files.  A
hold is the kernel's shared lock on a file of what is read, which exists anyway and is opened for reading, so
that readers need no write permission; a killed process releases it at once.  Object stores and some file
systems have no such locks: there, what is to be removed is first hidden, and its bytes are removed later.
"""

from __future__ import annotations

import fcntl
import json
import logging
import os
import re
import socket
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from topline.storage.errors import (
    AccessError,
    ConflictError,
    DiskFullError,
    LeaseHeldError,
    NotFoundError,
    StorageError,
)
from topline.storage.records import now
from topline.storage.stores.base import Store
from topline.storage.stores.sealed import put_own, unsealed
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


_TENURE = re.compile(r"^(\d{8})\.json$")
_POLL_SECONDS = 1.0


@dataclass(frozen=True)
class LeaseTerms:
    """Timing of a lease: renewed every `beat` seconds, free after `expiry` seconds without a beat."""

    beat: float = 10.0
    expiry: float = 60.0
    clock: Clock = CLOCK


DEFAULT_TERMS = LeaseTerms()


@dataclass(frozen=True)
class Tenant:
    """Holder of a lease and time of its last renewal, in seconds since 1970 by the holder's clock."""

    by: str
    process: int
    host: str
    since: str
    renewed: float

    def is_silent(self, now: float) -> bool:
        """Return whether three renewals are overdue at the time `now`: the holder was killed or hangs."""
        return now - self.renewed > 3 * DEFAULT_TERMS.beat

    def where(self, now: float) -> str:
        """Return the holder's process, and how long ago it renewed the lease."""
        age = f"renewed {max(0.0, now - self.renewed):.0f} s ago"
        if self.is_silent(now):
            last = datetime.fromtimestamp(self.renewed, UTC)
            age = f"not heard of since {last.isoformat(timespec='seconds')}"
        return f"process {self.process} on {self.host} since {self.since}, {age}"

    def words(self, now: float) -> str:
        """Return who holds the lease, where and since when."""
        return f"{self.by} ({self.where(now)})"


class LeaseLostError(ConflictError):
    """Another process has taken over the lease, because this one sent no heartbeat for too long."""


@dataclass
class Lease:
    """A tenure of this process; call `check` before anything that others must not do meanwhile."""

    store: Store
    name: str
    number: int
    _lost: threading.Event = field(default_factory=threading.Event)

    def check(self) -> None:
        """Raise `LeaseLostError` if another process has taken over."""
        if self._lost.is_set() or not self.is_held():
            self._lost.set()
            raise LeaseLostError(
                f"{self.store.url} was taken over by {self._taker()}: this process sent no heartbeat for too"
                " long, and stops"
            )

    def is_held(self) -> bool:
        """Return whether nobody has the next number, by a read, since listings may lag."""
        return not self.store.exists(_path(self.name, self.number + 1, "json"))

    def _taker(self) -> str:
        try:
            return holder(self.store, self.name) or "somebody else"
        except StorageError:
            return "somebody whose record is damaged"


@contextmanager
def held_lease(
    store: Store, name: str, by: str, *, wait: float = 0.0, terms: LeaseTerms = DEFAULT_TERMS
) -> Iterator[Lease]:
    """Hold the lease `name` for `by`, waiting up to `wait` seconds; `LeaseHeldError` names the holder."""
    with ExitStack() as held:
        lease = _taken(store, name, by, wait, terms, held)
        over = threading.Event()
        thread = threading.Thread(
            target=_keep, args=(lease, over, terms), name=f"topline-{name}", daemon=True
        )
        thread.start()
        try:
            yield lease
        finally:
            over.set()
            thread.join(terms.beat)
            try:
                store.put_if_absent(_path(name, lease.number, "done"), b"")
            except (AccessError, DiskFullError) as error:
                # The lease expires by itself; the outcome of the work must not be masked.
                logger.warning("the lease %s is not given back: %s", name, error)
    _tidy(store, name, lease.number)


def _taken(store: Store, name: str, by: str, wait: float, terms: LeaseTerms, held: ExitStack) -> Lease:
    """Return the next tenure once this process has it, putting its kernel lock on `held`."""
    clock = terms.clock
    deadline = clock.monotonic() + wait
    watched = _Watched(terms)
    while True:
        number = _newest(store, name)
        if number == 0 or _is_free(store, name, number, watched):
            with ExitStack() as attempt:
                lease = Lease(store, name, number + 1)
                if _is_taken(lease, by, clock, attempt):
                    held.push(attempt.pop_all())
                    return lease
        elif clock.monotonic() >= deadline and not watched.in_doubt():
            raise LeaseHeldError(
                f"{holder(store, name, clock)} holds {store.url} for {name}: wait for it, or stop it first"
            )
        elif not watched.told and (who := holder(store, name, clock)):
            watched.told, most = True, max(wait, terms.expiry if watched.doubtful else 0.0)
            logger.warning("%s holds %s for %s: waiting up to %g s", who, store.url, name, most)
        clock.sleep(min(_POLL_SECONDS, terms.beat / 4))


def _is_taken(lease: Lease, by: str, clock: Clock, attempt: ExitStack) -> bool:
    """Try to take the tenure after a finished one; return whether this process has it."""
    store, number = lease.store, lease.number
    path = _path(lease.name, number, "lock")
    lock = attempt.enter_context(kernel_lock(store, path, fcntl.LOCK_EX | fcntl.LOCK_NB, create=True))
    # If another candidate has the lock, it gets the number.
    alone = lock is not None or not store.locks
    if not alone or not put_own(store, _path(lease.name, number, "json"), _signature(by)):
        return False
    _beat(lease, 0, clock)
    return lease.is_held()


def holder(store: Store, name: str, clock: Clock = DEFAULT_TERMS.clock) -> str | None:
    """Return who holds the lease as text, None if its last tenure has ended."""
    who = tenant(store, name)
    return None if who is None else who.words(clock.wall())


def tenant(store: Store, name: str) -> Tenant | None:
    """Return who holds the lease, None if its tenure has ended; without locks dead holders count."""
    number = _newest(store, name)
    if number == 0 or store.exists(_path(name, number, "done")):
        return None
    if _lock_is_free(store, _path(name, number, "lock")):
        return None
    try:
        signed = unsealed(store, _path(name, number, "json"))
    except NotFoundError:
        # The tenure ended meanwhile and the next one began.
        return tenant(store, name)
    facts = {key: signed[key] for key in ("by", "process", "host", "since")}
    beat = _seconds(_read(store, _path(name, number, "beat")))
    return Tenant(**facts, renewed=beat or datetime.fromisoformat(facts["since"]).timestamp())


@dataclass
class _Watched:
    """The last beat seen of a tenure, and when it was first seen."""

    terms: LeaseTerms
    number: int = 0
    beat: bytes = b""
    since: float = 0.0
    alive: bool = False
    doubtful: bool = False
    told: bool = False

    def silent(self, number: int, beat: bytes) -> float:
        """Return the seconds since the last new beat, by this process's clock."""
        if (number, beat) != (self.number, self.beat):
            self.alive = number == self.number
            self.number, self.beat, self.since = number, beat, self.terms.clock.monotonic()
        return self.terms.clock.monotonic() - self.since

    def in_doubt(self) -> bool:
        """Return whether the holder looks dead and a little more waiting will tell."""
        age = self.terms.clock.monotonic() - self.since
        return self.doubtful and not self.alive and age < self.terms.expiry


def _is_free(store: Store, name: str, number: int, watched: _Watched) -> bool:
    """Return whether a tenure has ended, or its holder is dead.

    Clocks of two machines differ and may jump, so an old-looking beat is watched for as long as a lease lasts
    before its holder counts as dead.
    """
    if store.exists(_path(name, number, "done")):
        return True
    if _lock_is_free(store, _path(name, number, "lock")):
        return True
    beat = _read(store, _path(name, number, "beat"))
    silent = watched.silent(number, beat)
    terms = watched.terms
    watched.doubtful = not 0.0 <= terms.clock.wall() - _seconds(beat) < terms.expiry
    return silent >= terms.expiry


def _keep(lease: Lease, over: threading.Event, terms: LeaseTerms) -> None:
    """Renew the lease until it is over or lost."""
    count = 0
    while not terms.clock.wait(over, terms.beat):
        count += 1
        try:
            lease.check()
            _beat(lease, count, terms.clock)
        except LeaseLostError:
            return
        except StorageError as error:
            logger.warning("the lease on %s is not renewed: %s", lease.store.url, error)


def _beat(lease: Lease, count: int, clock: Clock) -> None:
    data = json.dumps({"count": count, "at": clock.wall()}).encode()
    lease.store.write_bytes(_path(lease.name, lease.number, "beat"), data)


def _seconds(beat: bytes) -> float:
    try:
        return float(json.loads(beat)["at"])
    except (ValueError, KeyError, TypeError):
        return 0.0


def _signature(by: str) -> dict[str, Any]:
    return {"by": by, "process": os.getpid(), "host": socket.gethostname(), "since": now()}


def _read(store: Store, path: str) -> bytes:
    try:
        return store.read_bytes(path)
    except NotFoundError:
        return b""


def _newest(store: Store, name: str) -> int:
    found = (_TENURE.match(entry) for entry in store.list(join("leases", name)))
    number = max((int(match.group(1)) for match in found if match), default=0)
    # Listings may lag; reads do not.
    while store.exists(_path(name, number + 1, "json")):
        number += 1
    return number


def _path(name: str, number: int, kind: str) -> str:
    return join("leases", name, f"{number:08d}.{kind}")


def _tidy(store: Store, name: str, number: int) -> None:
    """Remove all files of earlier tenures but their records, so that numbers are never reused."""
    for entry in store.list(join("leases", name)):
        head, _, kind = entry.partition(".")
        if kind in ("beat", "done", "lock") and head.isdecimal() and int(head) < number:
            store.delete(join("leases", name, entry))


def _lock_is_free(store: Store, path: str) -> bool:
    """Return whether no live process has the lock; False without locks or without the file."""
    # A shared lock, so that observers do not take one another for the holder.
    with kernel_lock(store, path, fcntl.LOCK_SH | fcntl.LOCK_NB) as free:
        return free is not None
