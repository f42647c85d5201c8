"""What is known of a committed dataset without reading its arrays."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from storage.chunking import ChunkPlan
from storage.stores import Store


@dataclass(frozen=True)
class DatasetInfo:
    """Commit record of a dataset.

    `id` is "d" and the number `seq` of its commit, then the head of `digest`, the SHA-256 of the list of
    all its files with their own digests: a model that records id and digest has named every byte.
    `key` is the caller's name for the content (equal keys, equal content).  `counts` are rows per split,
    `features` says how the features were made, `folder` where they lie, `nonzeros` counts CSR entries.
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

    @property
    def plan(self) -> ChunkPlan:
        """Where the rows are cut."""
        return ChunkPlan(self.n_rows, self.chunk_rows, self.shard_rows)

    def to_json(self) -> dict[str, Any]:
        """The record as a JSON object."""
        raise NotImplementedError

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> DatasetInfo:
        """The record from its JSON object; `FormatError` if it is none."""
        raise NotImplementedError


def list_datasets(store: Store) -> list[DatasetInfo]:
    """All committed datasets, oldest first."""
    raise NotImplementedError


def find_by_key(store: Store, key: str) -> DatasetInfo | None:
    """The committed dataset of that key, if there is one."""
    raise NotImplementedError
