"""Commit records of datasets, and the log that they make up."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from topline.storage.arrays import ChunkPlan
from topline.storage.errors import IntegrityError, NotFoundError
from topline.storage.records import digest_bytes, from_fields, now
from topline.storage.schema import DATASET_ENCODING, REMOVAL_ENCODING, VERSIONS, check_encoding, encoding
from topline.storage.stores import CommitLog, Store
from topline.storage.stores.sealed import TOMBSTONE
from topline.storage.stores.urls import join


@dataclass(frozen=True)
class DatasetInfo:
    """Commit record of a dataset.

    `id` is "d", the number `seq` of its commit and the head of `digest`, the SHA-256 of the list of all its
    files with their digests: id and digest pin every byte.  `key` is the caller's name for the content (equal
    keys, equal content).  `counts` are rows per split, `features` specifies how the features were made,
    `folder` is their place, and `nonzeros` counts CSR entries.  `label_sets` is the number of label sets of a
    multilabel dataset, else None.  Datasets of format `version` 1 keep features and manifest in their own
    folder.
    """

    id: str
    seq: int
    key: str
    n_rows: int
    d: int
    m: int
    dtype: str
    layout: str
    class_names: tuple[str, ...]
    chunk_rows: int
    shard_rows: int
    counts: Mapping[str, int]
    features: Mapping[str, Any]
    created: str
    digest: str
    folder: str
    nonzeros: int | None = None
    label_sets: int | None = None
    version: str = VERSIONS[DATASET_ENCODING]

    @property
    def plan(self) -> ChunkPlan:
        """Where the rows are cut."""
        return ChunkPlan(self.n_rows, self.chunk_rows, self.shard_rows)

    def to_json(self) -> dict[str, Any]:
        """Return the record as a JSON object."""
        values = {name: value for name, value in asdict(self).items() if name != "version"}
        return {**values, "class_names": list(self.class_names), **encoding(DATASET_ENCODING)}

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> DatasetInfo:
        """Return the record from its JSON object; `FormatError` if it is not one."""
        check_encoding(record, DATASET_ENCODING, f"dataset record {record.get('id', '')}".strip())
        version = record["encoding-version"]
        return from_fields(cls, {**record, "version": version}, f"dataset record {record.get('id')}")


@dataclass(frozen=True)
class Removal:
    """The log record that hides a dataset: why, by whom and when."""

    dataset: str
    reason: str
    by: str
    when: str
    folder: str
    key: str

    def to_json(self) -> dict[str, Any]:
        """Return the record as a JSON object."""
        # Version 0.1.0 reports a dataset that it cannot read by this digest.
        return {**asdict(self), "digest": self.dataset.partition("-")[2], **encoding(REMOVAL_ENCODING)}


@dataclass(frozen=True)
class Catalog:
    """The state of the log of datasets: those present, oldest first, and the removals."""

    datasets: tuple[DatasetInfo, ...]
    removed: Mapping[str, Removal]

    def of_key(self, key: str) -> DatasetInfo | None:
        """Return the dataset of that key, if there is one."""
        return next((info for info in self.datasets if info.key == key), None)

    def generation(self, key: str) -> int:
        """Return how many datasets of that key were removed."""
        return sum(removal.key == key for removal in self.removed.values())


def dataset_folder(key: str, generation: int) -> str:
    """Return the folder shared by a key's writers, after `generation` earlier ones were given up."""
    again = f" {generation}" if generation else ""
    return join("datasets", digest_bytes(f"{key}{again}".encode())[:16])


def dataset_log(store: Store) -> CommitLog:
    """Return the log whose records make datasets visible and hide them."""
    return CommitLog(store, "datasets")


def info_of_commit(record: Mapping[str, Any]) -> DatasetInfo:
    """Return the dataset that a record of the log describes."""
    return DatasetInfo.from_json({**record, "id": f"d{record['seq']:04d}-{record['digest'][:8]}"})


def removal_of_commit(record: Mapping[str, Any], place: str) -> Removal | None:
    """Return the removal that a log record describes; None for a dataset."""
    if record.get("encoding-type") != REMOVAL_ENCODING:
        return None
    check_encoding(record, REMOVAL_ENCODING, place)
    return from_fields(Removal, record, place)


def read_catalog(store: Store) -> Catalog:
    """Return the state of the log of datasets; `IntegrityError` if it is damaged or inconsistent."""
    datasets: dict[str, DatasetInfo] = {}
    removed: dict[str, Removal] = {}
    log = dataset_log(store)
    for record in log.records():
        place = join(store.url, log.folder, f"{record['seq']:08d}.json")
        removal = removal_of_commit(record, place)
        if removal is None:
            info = info_of_commit(record)
            datasets[info.id] = info
        elif datasets.pop(removal.dataset, None) is None:
            raise IntegrityError(f"{place} removes {removal.dataset}, which was not there")
        else:
            removed[removal.dataset] = removal
    return Catalog(tuple(datasets.values()), removed)


def list_datasets(store: Store) -> list[DatasetInfo]:
    """Return all committed datasets that were not removed, oldest first."""
    return list(read_catalog(store).datasets)


def find_by_key(store: Store, key: str) -> DatasetInfo | None:
    """Return the committed dataset of that key, if there is one."""
    return read_catalog(store).of_key(key)


def writers_folder(folder: str) -> str:
    """Return the common folder of a key's writers, given one in which any of them lists its files."""
    return folder.partition("-")[0]


def folder_to_write(store: Store, key: str, catalog: Catalog) -> str:
    """Return the folder shared by the writers of a key: the first not given up.

    A folder is given up when its dataset is removed or pruning buries it.  Nobody writes there again, so a
    late deletion of its content never hits a later writer.
    """
    gone = {writers_folder(removal.folder) for removal in catalog.removed.values()}
    generation = catalog.generation(key)
    while True:
        folder = dataset_folder(key, generation)
        if folder not in gone and not store.exists(join(folder, TOMBSTONE)):
            return folder
        generation += 1


def find_dataset(store: Store, which: str = "latest") -> DatasetInfo:
    """Return the commit record of the newest dataset, or of the one with the id `which`."""
    if which == "latest":
        log = dataset_log(store)
        newest = log.latest() if log.numbers() else None
        if newest is not None and newest.get("encoding-type") != REMOVAL_ENCODING:
            return info_of_commit(newest)
    catalog = read_catalog(store)
    if which == "latest" and catalog.datasets:
        return catalog.datasets[-1]
    if which == "latest":
        raise NotFoundError(
            f"{store.url} holds no datasets yet: add one with topline import or topline extract"
        )
    for info in catalog.datasets:
        if which == info.id:
            return info
    known = ", ".join(info.id for info in catalog.datasets[-5:])
    there = f"it has {known}" if known else "it has none yet"
    gone = catalog.removed.get(which)
    if gone is not None:
        raise NotFoundError(
            f"dataset {which} was removed from {store.url} at {gone.when}: {gone.reason}; {there}"
        )
    raise NotFoundError(f"{store.url} has no dataset {which}; {there}")


def remove_dataset(store: Store, info: DatasetInfo, reason: str, by: str) -> Removal:
    """Hide a dataset; its bytes are removed once nobody reads them."""
    removal = Removal(info.id, reason, by, now(), info.folder, info.key)
    dataset_log(store).append(removal.to_json(), unique="dataset")
    return removal
