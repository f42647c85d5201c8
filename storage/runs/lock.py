"""One training per run: a lock that is released when its process dies, or soon after."""

from __future__ import annotations

import fcntl
import json
import os
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from topline.storage.records import now
from topline.storage.runs.records import RUNS
from topline.storage.stores import DEFAULT_TERMS, Lease, LeaseHeldError, LeaseTerms, Store, held_lease, tenant
from topline.storage.stores.holds import kernel_lock

_LOCK = "lock"


@dataclass(frozen=True)
class RunLock:
    """The right to work on a run; call `check` before writing what no other training may write."""

    lease: Lease | None = None

    def check(self) -> None:
        """Raise `LeaseLostError` if this process missed its heartbeats and another has taken over."""
        if self.lease is not None:
            self.lease.check()


@contextmanager
def run_lock(store: Store, run_id: str, *, terms: LeaseTerms = DEFAULT_TERMS) -> Iterator[RunLock]:
    """Hold `run_id` while a process works on it; `LeaseHeldError` names another holder.

    Where files have locks it is the kernel's, on runs/<run>/lock, which a killed process releases.  Elsewhere
    it is a lease that a thread renews; after a kill, a candidate waits `terms.expiry` seconds to be sure that
    it is no longer renewed.
    """
    root = store.local_path
    if root is None or not store.locks:
        with _lease(store, run_id, terms) as lease:
            yield RunLock(lease)
        return
    path = RUNS.path(run_id, _LOCK)
    with kernel_lock(store, path, fcntl.LOCK_EX | fcntl.LOCK_NB, create=True) as descriptor:
        if descriptor is None:
            raise LeaseHeldError(_held(run_id, _holder(root / path)))
        _sign(descriptor)
        yield RunLock()


@contextmanager
def _lease(store: Store, run_id: str, terms: LeaseTerms) -> Iterator[Lease]:
    name = f"train-{run_id}"
    with ExitStack() as stack:
        try:
            lease = stack.enter_context(held_lease(store, name, f"another training of {run_id}", terms=terms))
        except LeaseHeldError as error:
            who = tenant(store, name)
            by = "" if who is None else f" by {who.where(terms.clock.wall())}"
            killed = f"; if it was killed, its lock ends within {2 * terms.expiry:g} s"
            raise LeaseHeldError(_held(run_id, by) + killed) from error
        yield lease


def _sign(descriptor: int) -> None:
    """Write who holds the lock into its file; on a full disk the lock holds without it."""
    holder = {"process": os.getpid(), "host": socket.gethostname(), "since": now()}
    try:
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, json.dumps(holder).encode(), 0)
    except OSError:
        return


def _holder(path: Path) -> str:
    """Return who holds a lock from its file, "" if unreadable."""
    try:
        left = json.loads(path.read_bytes())
        return f" by process {left['process']} on {left['host']} since {left['since']}"
    except (OSError, ValueError, LookupError, TypeError):
        return ""


def _held(run_id: str, by: str) -> str:
    return f"run {run_id} is already being trained{by}: wait for it, or stop it first"
