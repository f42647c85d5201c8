"""What may be removed from a store under a policy, and its removal while nobody reads it.

Each step is atomic, and the next pruning finishes an interrupted one.  On a disk, kernel locks show who
reads.  Object stores and some file systems have no locks: there datasets, models and uncommitted work are
first hidden by a record, and their bytes removed `GRACE` later, when earlier readers are done.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import product
from typing import Any

from topline.storage.cache import StoredKernel, StoredPredictions
from topline.storage.datasets import Dataset, DatasetInfo, UnitRef, read_catalog, remove_dataset
from topline.storage.datasets.contents import PRUNE_LEASE
from topline.storage.datasets.info import Catalog, writers_folder
from topline.storage.datasets.writer import listed_units
from topline.storage.errors import FormatError, IntegrityError, NotFoundError, StorageError
from topline.storage.models import (
    DecisionRecord,
    ModelRecord,
    Standing,
    deleted_models,
    list_models,
    model_folder,
    read_standing,
    record_decision,
    remove_model,
)
from topline.storage.runs import RunRecord, list_runs, run_names
from topline.storage.runs.records import RUNS, SWEEPS, list_sweeps, sweep_folder
from topline.storage.schema import FILES_LIST, MANIFESTS, MARKS, STAGING, UNITS
from topline.storage.stores import Lease, Store, held_lease
from topline.storage.stores.lease import alone_with
from topline.storage.stores.local import PARTIAL, LocalStore
from topline.storage.stores.sealed import TOMBSTONE, bury, delete_inside, unsealed
from topline.storage.stores.urls import join


@dataclass(frozen=True)
class RetentionPolicy:
    """What stays: the newest `keep` of each kind, and everything younger than `days`.

    Also kept are models that are champion, would be after a rollback, or are pinned; the runs of kept models;
    the datasets of kept models, runs and sweeps; and anything in use.
    """

    keep: int = 10
    days: float = 30.0

    def kept(self, created: Mapping[str, str], now: datetime) -> set[str]:
        """Return which names are new or young enough; `created` maps names, oldest first, to their times."""
        oldest = now - timedelta(days=self.days)
        newest = list(created)[-self.keep :]
        return {*newest, *(name for name, when in created.items() if is_after(when, oldest))}


def is_after(when: str, oldest: datetime) -> bool:
    """Return whether a record's time is later than another; True if unreadable."""
    try:
        return datetime.fromisoformat(when) > oldest
    except (TypeError, ValueError):
        return True


# Longer than any write takes: older leftovers come from killed writers.
_WRITING = 86400.0
_FOLDERS = {"model": model_folder, "run": RUNS.path, "sweep": sweep_folder}
_LEASE_OF_RUN = re.compile(r"^train-(r\d+)$")


@dataclass(frozen=True)
class Going:
    """Something that may be removed: its `kind` (a room of the store), name, reason, and own bytes."""

    kind: str
    name: str
    path: str
    why: str
    bytes: int

    def to_json(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return {name: getattr(self, name) for name in self.__dataclass_fields__}

    def __str__(self) -> str:
        return f"{self.kind} {self.name}: {self.why}"


@dataclass(frozen=True)
class PruningPlan:
    """Everything that may be removed, in order of removal, and the names of what stays by kind."""

    going: tuple[Going, ...]
    staying: dict[str, tuple[str, ...]]

    @property
    def bytes(self) -> int:
        """Bytes of everything that may be removed."""
        return sum(item.bytes for item in self.going)

    def of(self, kind: str) -> tuple[Going, ...]:
        """Return what may be removed of one kind."""
        return tuple(item for item in self.going if item.kind == kind)


def plan_pruning(store: Store, policy: RetentionPolicy, now: datetime) -> PruningPlan:
    """Return what the policy releases from `store` at `now`; `IntegrityError` for damaged records."""
    return _Plan(store, policy, now).made()


class _Plan:
    """Builder of a plan: for each kind, what stays because of the kinds before it."""

    def __init__(self, store: Store, policy: RetentionPolicy, now: datetime) -> None:
        self.store = store
        self.policy = policy
        self.now = now
        self.standing: Standing = read_standing(store)
        self.models: list[ModelRecord] = list_models(store)
        self.runs: list[RunRecord] = list_runs(store)
        self.sweeps = list_sweeps(store)
        self.catalog = read_catalog(store)

    def made(self) -> PruningPlan:
        models = self._models_kept()
        runs = self._runs_kept(models)
        sweeps = self.policy.kept({sweep.id: sweep.created for sweep in self.sweeps}, self.now)
        datasets = self._datasets_kept(models, runs, sweeps)
        going = [
            *self._models(models),
            *self._released("run", self.runs, runs),
            *self._released("sweep", self.sweeps, sweeps),
            *self._datasets(datasets),
            *self._staging(),
            *self._contents(datasets),
            *self._cached(models, datasets),
            *self._reports(models),
            *self._leases(),
            *self._partials(),
        ]
        staying = {"model": models, "run": runs, "sweep": sweeps, "dataset": datasets}
        return PruningPlan(tuple(going), {kind: tuple(sorted(names)) for kind, names in staying.items()})

    def _models_kept(self) -> set[str]:
        kept = self.policy.kept({record.id: record.created for record in self.models}, self.now)
        special = {self.standing.champion, self.standing.previous, *self.standing.pinned}
        return kept | {record.id for record in self.models if record.id in special}

    def _runs_kept(self, models: Collection[str]) -> set[str]:
        kept = self.policy.kept({run.id: run.created for run in self.runs}, self.now)
        return kept | {record.run for record in self.models if record.id in models and record.run}

    def _datasets_kept(
        self, models: Collection[str], runs: Collection[str], sweeps: Collection[str]
    ) -> set[str]:
        infos = self.catalog.datasets
        kept = self.policy.kept({info.id: info.created for info in infos}, self.now)
        kept |= {record.dataset for record in self.models if record.id in models}
        kept |= {run.dataset for run in self.runs if run.id in runs}
        kept |= {sweep.dataset for sweep in self.sweeps if sweep.id in sweeps}
        return kept.intersection(info.id for info in infos)

    def _released(self, kind: str, records: Iterable[Any], kept: Collection[str]) -> Iterator[Going]:
        for one in records:
            if one.id not in kept:
                why = (
                    f"made {one.created}, not among the newest {self.policy.keep},"
                    f" older than {self.policy.days:g} days"
                )
                path = one.folder if kind == "dataset" else _FOLDERS[kind](one.id)
                yield self._folder(kind, one.id, path, why)

    def _models(self, kept: Collection[str]) -> Iterator[Going]:
        yield from self._released("model", self.models, kept)
        for name in deleted_models(self.store):
            if self.store.list(join(model_folder(name), "arrays")):
                yield self._folder("model", name, model_folder(name), "it was deleted, and files are left")

    def _datasets(self, kept: Collection[str]) -> Iterator[Going]:
        yield from self._released("dataset", self.catalog.datasets, kept)
        for name, removal in self.catalog.removed.items():
            if self.store.list(removal.folder):
                yield self._folder("dataset", name, removal.folder, f"it was removed: {removal.reason}")

    def _staging(self) -> Iterator[Going]:
        # Without locks nothing shows whether somebody writes to a store.
        least = 0.0 if self.store.locks else 1.0
        oldest = self.now - timedelta(days=max(self.policy.days, least))
        for name, folder in _uncommitted(self.store, self.catalog):
            if self.store.list(folder) == [TOMBSTONE]:
                continue
            begun = _staged(self.store, folder).get("begun", "")
            buried = self.store.exists(join(writers_folder(folder), TOMBSTONE))
            if buried or not is_after(begun, oldest):
                yield self._folder("staging", name, folder, f"it was begun {begun} and never committed")

    def _contents(self, kept: Collection[str]) -> Iterator[Going]:
        gone = {info.folder for info in self.catalog.datasets if info.id not in kept}
        gone |= {removal.folder for removal in self.catalog.removed.values()}
        gone |= {item.path for item in self._staging()}
        referred = referred_contents(self.store, but=gone)
        yield from (item for item in contents(self.store) if item.path not in referred)

    def _cached(self, models: Collection[str], datasets: Collection[str]) -> Iterator[Going]:
        known = {info.id for info in self.catalog.datasets} | set(self.catalog.removed)
        gone = known.difference(datasets) | {record.id for record in self.models}.difference(models)
        yield from (item for item in cached_results(self.store) if item.name in gone)

    def _reports(self, models: Collection[str]) -> Iterator[Going]:
        there = {record.id for record in self.models} | set(deleted_models(self.store))
        for name in self.store.list("reports"):
            model = name.partition(".")[0]
            if model in there and model not in models:
                yield self._folder("report", name, join("reports", name), f"it is of {model}")

    def _leases(self) -> Iterator[Going]:
        runs = run_names(self.store)
        for name in self.store.list("leases"):
            run = _LEASE_OF_RUN.match(name)
            if run and run.group(1) not in runs:
                yield self._folder("lease", name, join("leases", name), "its run is gone")

    def _partials(self) -> Iterator[Going]:
        store = self.store
        if not isinstance(store, LocalStore):
            return
        for path in store.walk():
            # A file that vanishes meanwhile was being written.
            with suppress(NotFoundError):
                if path.endswith(PARTIAL) and self.now.timestamp() - store.written(path) > _WRITING:
                    yield self._folder("partial", path, path, "a killed writer left it")

    def _folder(self, kind: str, name: str, path: str, why: str) -> Going:
        return Going(kind, name, path, why, size_of(self.store, path))


def contents(store: Store) -> Iterator[Going]:
    """Yield all shared contents, as candidates for removal if nothing refers to them."""
    for root, kind in ((UNITS, "unit"), (MANIFESTS, "manifest")):
        for name in store.list(root):
            path = join(root, name)
            if not name.endswith(PARTIAL):
                yield Going(kind, name, path, "no dataset refers to it", size_of(store, path))


def cached_results(store: Store) -> Iterator[Going]:
    """Yield record and folder of every cached result, once for its dataset and once for its model."""
    for kind in (StoredKernel, StoredPredictions):
        for key in kind.keys(store):
            found = kind.load(store, key)
            sources = (found.facts.get("dataset"), str(found.facts.get("model", "")).rpartition("/")[2])
            for source, path in product(filter(None, sources), (kind.kind.path(key), found.folder)):
                yield Going("cached", str(source), path, f"it follows from {source}", size_of(store, path))


def referred_contents(store: Store, but: Collection[str] = ()) -> set[str]:
    """Return the places of contents that datasets, committed or staged, refer to, except those in `but`.

    `but` are folders of datasets.  Removed datasets count while their files exist, and so do listed units not
    yet committed.  Marks are read before the log: a dataset that loses its mark meanwhile is visible in the
    log.  One that is removed meanwhile is passed over: whoever holds the lease `prune` has lost it by then.
    """
    found: set[str] = set()
    for path in store.walk("datasets"):
        folder, _, name = path.partition(f"/{MARKS}/")
        if name.endswith(".json") and folder not in but:
            try:
                found |= UnitRef.from_json(unsealed(store, path)).places
            except NotFoundError:
                continue
    catalog = read_catalog(store)
    for info in catalog.datasets:
        if info.folder not in but:
            try:
                found |= _shared(Dataset(store, info))
            except (NotFoundError, IntegrityError):
                if info.id not in read_catalog(store).removed:
                    raise
    # Removed datasets, and uncommitted ones whose marks another writer may replace.
    folders = {join("datasets", name) for name in store.list("datasets")}
    for folder in folders.difference(but, (info.folder for info in catalog.datasets)):
        found = found.union(*(unit.places for unit in listed_units(store, folder)))
    return found


def _shared(dataset: Dataset) -> set[str]:
    """Return the places of the contents that a dataset shares or may share with others."""
    if dataset.shares_nothing:
        return set()
    return set[str]().union(*(unit.places for unit in dataset.units))


def _uncommitted(store: Store, catalog: Catalog) -> Iterator[tuple[str, str]]:
    """Yield names and folders of what was staged and is no dataset, nor was one."""
    known = {info.folder for info in catalog.datasets} | {gone.folder for gone in catalog.removed.values()}
    for name in store.list("datasets"):
        if join("datasets", name) not in known:
            yield name, join("datasets", name)


def _staged(store: Store, folder: str) -> Mapping[str, Any]:
    """Return the description of what is staged in a folder, empty where it cannot be read."""
    try:
        return unsealed(store, join(folder, STAGING))
    except StorageError:
        return {}


def staged_lately(store: Store, key: str, now: datetime) -> tuple[str, ...]:
    """Return the folders staged less than `GRACE` before `now` for datasets whose keys begin with `key`."""
    staged = ((folder, _staged(store, folder)) for _, folder in _uncommitted(store, read_catalog(store)))
    mine = ((folder, one.get("begun", "")) for folder, one in staged if one.get("key", "").startswith(key))
    return tuple(folder for folder, begun in mine if is_after(begun, now - GRACE))


def size_of(store: Store, path: str) -> int:
    """Return the bytes of a file or of all files below a folder; 0 for what vanishes meanwhile."""
    total = 0
    for inside in [path] if store.exists(path) else store.walk(path):
        with suppress(NotFoundError):
            total += store.size(inside)
    return total


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
        standing = read_standing(self.store, settled=True)
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
