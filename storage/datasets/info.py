"""What is known of a committed dataset without reading its arrays."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from topline.storage.arrays import ChunkPlan
from topline.storage.errors import FormatError, NotFoundError
from topline.storage.fingerprint import digest_bytes
from topline.storage.schema import DATASET_ENCODING, check_encoding, encoding
from topline.storage.stores import CommitLog, Store
from topline.storage.stores.urls import join


@dataclass(frozen=True)
class DatasetInfo:
    """Commit record of a dataset.

    `id` is "d" and the number `seq` of its commit, then the head of `digest`, the SHA-256 of the list of
    all its files with their own digests: a model that records id and digest has named every byte.
    `key` is the caller's name for the content (equal keys, equal content).  `counts` are rows per split,
    `features` says how the features were made, `folder` where they lie, `nonzeros` counts CSR entries.
    `label_sets` is the number of label sets where a row has several labels, None where it has one.
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

    @property
    def plan(self) -> ChunkPlan:
        """Where the rows are cut."""
        return ChunkPlan(self.n_rows, self.chunk_rows, self.shard_rows)

    def to_json(self) -> dict[str, Any]:
        """Return the record as a JSON object."""
        return {**asdict(self), "class_names": list(self.class_names), **encoding(DATASET_ENCODING)}

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> DatasetInfo:
        """Return the record from its JSON object; `FormatError` if it is not one."""
        check_encoding(record, DATASET_ENCODING, f"dataset record {record.get('id', '')}".strip())
        known = {field.name for field in fields(cls)}
        values = {name: value for name, value in record.items() if name in known}
        try:
            return cls(**{**values, "class_names": tuple(record["class_names"])})
        except (KeyError, TypeError) as error:
            raise FormatError(f"dataset record {record.get('id')} lacks a field: {error}") from error


def dataset_id(seq: int, digest: str) -> str:
    """Return the id of the dataset that commit `seq` made visible."""
    return f"d{seq:04d}-{digest[:8]}"


def dataset_folder(key: str) -> str:
    """Return the folder of the dataset of that key.

    The same for every writer of it, so that writing can be resumed.
    """
    return join("datasets", digest_bytes(key.encode())[:16])


def dataset_log(store: Store) -> CommitLog:
    """Return the log whose records make datasets visible."""
    return CommitLog(store, "datasets")


def info_of_commit(record: Mapping[str, Any]) -> DatasetInfo:
    """Return the dataset that a record of the log describes."""
    return DatasetInfo.from_json({**record, "id": dataset_id(record["seq"], record["digest"])})


def list_datasets(store: Store) -> list[DatasetInfo]:
    """Return all committed datasets, oldest first."""
    return [info_of_commit(record) for record in dataset_log(store).records()]


def find_by_key(store: Store, key: str) -> DatasetInfo | None:
    """Return the committed dataset of that key, if there is one."""
    return next((info for info in list_datasets(store) if info.key == key), None)


def find_dataset(store: Store, which: str = "latest") -> DatasetInfo:
    """Return the commit record of the newest dataset, or of the one with the id `which`."""
    log = dataset_log(store)
    if which == "latest":
        if not log.numbers():
            raise NotFoundError(
                f"{store.url} holds no datasets yet: add one with topline import or topline extract"
            )
        return info_of_commit(log.latest())
    infos = list_datasets(store)
    for info in infos:
        if which == info.id:
            return info
    known = f"it has {', '.join(info.id for info in infos[-5:])}" if infos else "it has none yet"
    raise NotFoundError(f"{store.url} has no dataset {which}; {known}")
