"""One training a run: a lock that dies with the process that holds it."""

from __future__ import annotations

import fcntl
import json
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from storage.errors import AccessError, ConflictError
from storage.records import now
from storage.runs import run_folder
from storage.stores import Store

_LOCK = "lock"


@contextmanager
def run_lock(store: Store, run_id: str) -> Iterator[None]:
    """Hold `run_id` while a process works on it; `ConflictError` says who else does.

    The lock is the kernel's, on runs/<run>/lock: a killed process leaves the file and no lock.  Object stores
    have no such thing: there nobody is kept out.
    """
    root = store.local_path
    if root is None:
        yield
        return
    path = root / run_folder(run_id) / _LOCK
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    except OSError as error:
        raise AccessError(f"{path} cannot be written: {error.strerror}") from error
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise ConflictError(
                f"run {run_id} is already being trained{_holder(path)}: wait for it, or stop it first"
            ) from error
        _sign(descriptor)
        yield
    finally:
        os.close(descriptor)


def _sign(descriptor: int) -> None:
    """Leave word of who holds the lock; on a full disk the lock holds without it."""
    holder = {"process": os.getpid(), "host": socket.gethostname(), "since": now()}
    try:
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, json.dumps(holder).encode(), 0)
    except OSError:
        return


def _holder(path: Path) -> str:
    try:
        held = json.loads(path.read_bytes())
        return f" by process {held['process']} on {held['host']} since {held['since']}"
    except (OSError, ValueError, KeyError, TypeError):
        return ""
