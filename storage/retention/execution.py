"""Removal of what a plan names: only what nobody holds, and in an order that is safe to interrupt.

Each step is atomic, and the next pruning finishes an interrupted one.  On a disk, kernel locks show who
reads.  Object stores and some file systems have no locks: there datasets, models and uncommitted work are
first hidden by a record, and their bytes removed `GRACE` later, when earlier readers are done.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from topline.storage.datasets import DatasetInfo, read_catalog, remove_dataset
from topline.storage.datasets.contents import PRUNE_LEASE
from topline.storage.datasets.info import writers_folder
from topline.storage.errors import FormatError
from topline.storage.models import DecisionRecord, read_standing, record_decision, remove_model
from topline.storage.retention.plan import (
    Going,
    RetentionPolicy,
    cached_results,
    contents,
    is_after,
    plan_pruning,
    referred_contents,
    size_of,
)
from topline.storage.runs.records import RUNS
from topline.storage.runs.sweeps import SWEEPS
from topline.storage.schema import FILES_LIST, STAGING
from topline.storage.stores import Lease, Store, held_lease
from topline.storage.stores.holds import alone_with
from topline.storage.stores.numbered_folders import TOMBSTONE, bury, delete_inside
from topline.storage.stores.urls import join

GRACE = timedelta(days=1)
_WAIT_SECONDS = 60.0
#: Files held while something in their folder is read or worked on.
_HELD = {"model": "begun.json", "run": "lock", "dataset": FILES_LIST, "staging": STAGING}


@dataclass(frozen=True)
class Pruned:
    """What was removed, and what stays, though released, because it is or may be in use."""

    gone: tuple[Going, ...]
    in_use: tuple[Going, ...]

    @property
    def bytes(self) -> int:
        """Bytes removed."""
        return sum(item.bytes for item in self.gone)

    def to_json(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        gone, in_use = ([item.to_json() for item in items] for items in (self.gone, self.in_use))
        return {"gone": gone, "in_use": in_use, "bytes": self.bytes}


def prune(store: Store, policy: RetentionPolicy, now: datetime, by: str = "topline prune") -> Pruned:
    """Remove what the policy releases at the time `now`; one process at a time.

    Writers of datasets wait until it ends; readers keep what they read.  Raises `LeaseHeldError` if another
    pruning takes longer than a minute.
    """
    with held_lease(store, PRUNE_LEASE, by, wait=_WAIT_SECONDS) as lease:
        return _Pruning(store, now, by, lease).run(policy)


def remove_now(store: Store, datasets: Sequence[DatasetInfo], reason: str, by: str, now: datetime) -> Pruned:
    """Remove datasets at once, whatever the policy, with the results computed from them.

    Those being read on a local disk are hidden at once and listed in `in_use`; the next pruning removes their
    files.
    """
    with held_lease(store, PRUNE_LEASE, by, wait=_WAIT_SECONDS) as lease:
        return _Pruning(store, now, by, lease).remove(datasets, reason)


class _Pruning:
    """A pruning in progress, which holds the store's lease."""

    def __init__(self, store: Store, now: datetime, by: str, lease: Lease) -> None:
        self.store = store
        self.now = now
        self.by = by
        self.lease = lease
        self.gone: list[Going] = []
        self.in_use: list[Going] = []

    def run(self, policy: RetentionPolicy) -> Pruned:
        steps = {
            "model": self._model,
            "run": lambda item: RUNS.remove(self.store, item.name, item.why),
            "sweep": lambda item: SWEEPS.remove(self.store, item.name, item.why),
            "dataset": self._dataset,
            "staging": self._staging,
        }
        plan = plan_pruning(self.store, policy, self.now)
        for item in plan.going:
            if item.kind in ("unit", "manifest"):
                continue
            self.lease.check()
            with self._alone(item) as alone:
                if not alone:
                    self.in_use.append(item)
                else:
                    steps.get(item.kind, self._files)(item)
                    self.gone.append(item)
        self._contents()
        return Pruned(tuple(self.gone), tuple(self.in_use))

    def remove(self, datasets: Sequence[DatasetInfo], reason: str) -> Pruned:
        """Remove datasets and the cached results computed from them."""
        ids = {info.id for info in datasets}
        for info in datasets:
            item = Going("dataset", info.id, info.folder, reason, size_of(self.store, info.folder))
            self.lease.check()
            with alone_with(self.store, join(info.folder, FILES_LIST)) as alone:
                self._remove_dataset(item)
                if alone:
                    self._files(item)
                (self.gone if alone else self.in_use).append(item)
        for item in cached_results(self.store):
            if item.name in ids:
                self._files(item)
                self.gone.append(item)
        self._contents()
        return Pruned(tuple(self.gone), tuple(self.in_use))

    @contextmanager
    def _alone(self, item: Going) -> Iterator[bool]:
        """Yield whether something is unused; if so, it stays so until the block ends."""
        name = _HELD.get(item.kind)
        with ExitStack() as stack:
            held = name is None or stack.enter_context(alone_with(self.store, join(item.path, name)))
            yield held and not self._may_be_read(item) and not self._committed_meanwhile(item)

    def _committed_meanwhile(self, item: Going) -> bool:
        """Return whether something staged when the plan was made has been committed since."""
        if item.kind != "staging":
            return False
        return any(info.folder == item.path for info in read_catalog(self.store).datasets)

    def _may_be_read(self, item: Going) -> bool:
        """Hide something in a store without locks; return whether somebody may still use it."""
        if self.store.locks or item.kind not in ("dataset", "model", "staging"):
            return False
        if item.kind == "dataset":
            self._remove_dataset(item)
            since = read_catalog(self.store).removed[item.name].when
        elif item.kind == "model":
            self._decided_to_delete(item)
            since = bury(self.store, item.path, item.why)
        else:
            catalog, folder = read_catalog(self.store), writers_folder(item.path)
            taken = [info.folder for info in catalog.datasets]
            taken += [removal.folder for removal in catalog.removed.values()]
            if folder in map(writers_folder, taken):
                # A writer beside committed data comes too late.
                return False
            since = bury(self.store, folder, item.why)
        return is_after(since, self.now - GRACE)

    def _model(self, item: Going) -> None:
        self._decided_to_delete(item)
        remove_model(self.store, item.name, item.why)

    def _decided_to_delete(self, item: Going) -> None:
        """Record the decision to delete a model, unless recorded already."""
        standing = read_standing(self.store)
        if item.name not in standing.deleted:
            if item.name in (standing.champion, standing.previous, *standing.pinned):
                raise FormatError(f"{item.name} was chosen while {self.by} was about to delete it: try again")
            entry = DecisionRecord("delete", item.name, item.why, self.by)
            record_decision(self.store, standing, entry)

    def _dataset(self, item: Going) -> None:
        self._remove_dataset(item)
        self._files(item)

    def _staging(self, item: Going) -> None:
        """Delete staged files; the record that the folder was given up stays."""
        if self.store.exists(join(item.path, TOMBSTONE)):
            delete_inside(self.store, item.path, but=(TOMBSTONE,))
        else:
            self._files(item)

    def _remove_dataset(self, item: Going) -> None:
        catalog = read_catalog(self.store)
        info = next((info for info in catalog.datasets if info.id == item.name), None)
        if info is not None:
            remove_dataset(self.store, info, item.why, self.by)

    def _files(self, item: Going) -> None:
        if self.store.exists(item.path):
            self.store.delete(item.path)
        else:
            self.store.delete_tree(item.path)

    def _contents(self) -> None:
        """Delete contents that nobody refers to, after the released datasets are gone.

        They are listed first: anything stored later already has its mark.
        """
        listed = list(contents(self.store))
        referred = referred_contents(self.store)
        for item in listed:
            if item.path not in referred:
                self.lease.check()
                self._files(item)
                self.gone.append(item)
