"""Runs and sweeps as they are recorded, and the lock by which one process at a time trains a run.

sweeps/s0001/sweep.json             the grid and its dataset, sealed
sweeps/s0001/answers/000000.json    one answer each, sealed, numbered in order and never changed
sweeps/s0001/outcome.json           how it ended, once it has
"""

from __future__ import annotations

import fcntl
import json
import os
import socket
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from topline.storage.errors import ConflictError, StorageError
from topline.storage.records import Finding, now
from topline.storage.schema import RUN_ENCODING, SWEEP_ENCODING
from topline.storage.stores import DEFAULT_TERMS, Lease, LeaseHeldError, LeaseTerms, Store, held_lease, tenant
from topline.storage.stores.lease import kernel_lock
from topline.storage.stores.sealed import RecordedFolders, put_own, unsealed
from topline.storage.stores.urls import join


@dataclass(frozen=True)
class RunRecord:
    """A run: `id` "r0001", `config` as resolved, the dataset's id; a resume must match `fingerprint`.

    `outcome` is None until `finish_run` sets it, with length and digest of the history.
    """

    id: str
    created: str
    config: Mapping[str, Any]
    dataset: str
    fingerprint: Mapping[str, Any]
    outcome: Mapping[str, Any] | None = None


RUNS = RecordedFolders("runs", "r", "run.json", RUN_ENCODING, RunRecord)
read_run, list_runs, run_names = RUNS.read, RUNS.all, RUNS.recorded


def create_run(
    store: Store,
    config: Mapping[str, Any],
    *,
    dataset: str = "",
    fingerprint: Mapping[str, Any] | None = None,
) -> str:
    """Record a new run and return its id; its URL is <store>/runs/<id>."""
    return RUNS.create(store, {"config": config, "dataset": dataset, "fingerprint": fingerprint or {}})


_ANSWERS, _COUNT = "answers", "answer_count"


@dataclass(frozen=True)
class SweepRecord:
    """A sweep: `id` "s0001", `config` as resolved, the dataset's id and digest; `outcome` once it ended."""

    id: str
    created: str
    config: Mapping[str, Any]
    dataset: str
    dataset_digest: str
    outcome: Mapping[str, Any] | None = None


SWEEPS = RecordedFolders("sweeps", "s", "sweep.json", SWEEP_ENCODING, SweepRecord)
read_sweep, list_sweeps, sweep_folder = SWEEPS.read, SWEEPS.all, SWEEPS.path


def create_sweep(store: Store, config: Mapping[str, Any], dataset: str, dataset_digest: str) -> str:
    """Record a new sweep and return its id."""
    return SWEEPS.create(store, {"config": config, "dataset": dataset, "dataset_digest": dataset_digest})


def add_answer(store: Store, sweep_id: str, number: int, answer: Mapping[str, Any]) -> None:
    """Add answer `number`; `ConflictError` if another process has already added it."""
    path = SWEEPS.path(sweep_id, _ANSWERS, f"{number:06d}.json")
    if not put_own(store, path, answer):
        raise ConflictError(f"another process works on sweep {sweep_id}: wait for it, or stop it first")


def read_answers(store: Store, sweep_id: str, first: int = 0) -> list[dict[str, Any]]:
    """Return the answers from number `first` on, in order; `NotFoundError` naming a missing one."""
    folder = SWEEPS.path(sweep_id, _ANSWERS)
    count = sum(name.endswith(".json") for name in store.list(folder))
    return [unsealed(store, join(folder, f"{number:06d}.json")) for number in range(first, count)]


def finish_sweep(store: Store, sweep_id: str, outcome: Mapping[str, Any]) -> None:
    """Record how a sweep ended and how many answers it has, replacing an earlier outcome."""
    SWEEPS.finish(store, sweep_id, {**outcome, _COUNT: len(read_answers(store, sweep_id))})


def sweep_findings(store: Store) -> Iterator[Finding]:
    """Yield what is wrong with the sweeps."""
    fix = "restore it from a copy, or start a new sweep"
    for name in SWEEPS.recorded(store):
        try:
            sweep, answers = read_sweep(store, name), read_answers(store, name)
        except StorageError as error:
            yield Finding("sweep", sweep_folder(name), str(error), fix)
            continue
        if sweep.outcome is None:
            what = "it has not ended: it was stopped, or its outcome is lost"
            path = join(sweep_folder(name), "outcome.json")
            yield Finding("sweep", path, what, "continue it with topline sweep --resume", harmless=True)
        wanted = (sweep.outcome or {}).get(_COUNT, len(answers))
        if wanted != len(answers):
            what = f"it has {len(answers)} answers, and ended with {wanted}"
            yield Finding("sweep", join(sweep_folder(name), _ANSWERS), what, fix)


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
