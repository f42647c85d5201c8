"""Cached results derived from other things in a store: kernel matrices and predictions.

Everything here may be deleted at any time and is then recomputed.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from topline.storage.arrays import ArrayReader, ChunkPlan
from topline.storage.arrays.groups import (
    ArraySpec,
    packed_group,
    packed_metadata,
    packed_shard,
    whole_or_nothing,
    write_group,
)
from topline.storage.errors import NotFoundError, StorageError
from topline.storage.records import Finding, digest_json, now, plain
from topline.storage.schema import KERNEL_ENCODING, PREDICTIONS_ENCODING, encoding
from topline.storage.stores import FileEntry, FileSet, Store, check_files
from topline.storage.stores.files import put_files
from topline.storage.stores.sealed import put_own, read_record
from topline.storage.stores.urls import join

_RECORD = re.compile(r"^([0-9a-f]{16})\.json$")


def cache_key(facts: Mapping[str, Any]) -> str:
    """Return the key of a result determined by `facts`, plain JSON values: 16 hexadecimal digits."""
    return digest_json(plain(facts))[:16]


@dataclass(frozen=True)
class CacheKind:
    """Folder, record type and name in messages of one kind of entry."""

    folder: str
    encoding: str
    word: str
    remake: str
    """What to do to have one computed again."""

    def path(self, key: str) -> str:
        """Return the path of the record of `key`."""
        return join(self.folder, f"{key}.json")

    def new_folder(self, key: str) -> str:
        """Return a folder for files of `key` that nobody has used."""
        return join(self.folder, f"{key}-{uuid.uuid4().hex[:8]}")


class StoredEntry:
    """A visible entry, opened for reading.

    Pickles with its record, so that every process reads the same arrays even if the key gets a new entry.
    """

    kind: ClassVar[CacheKind]

    def __init__(self, store: Store, record: Mapping[str, Any]) -> None:
        self.store = store
        self._record = record
        self.key = str(record["key"])
        self.url = join(store.url, self.kind.folder, self.key)
        self.folder = str(record["folder"])
        self.facts: Mapping[str, Any] = record["facts"]
        self.files = FileSet.recorded(store, self.folder, record["files"], f"{self.kind.word} {self.key}")

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self.store, self._record)

    @classmethod
    def published(
        cls, store: Store, key: str, folder: str, files: Sequence[FileEntry], facts: Mapping[str, Any]
    ) -> Self:
        """Write the record that makes files in a folder visible; return the key's first entry."""
        record = {
            "key": key,
            "created": now(),
            "folder": folder,
            "files": [entry.to_json() for entry in sorted(files)],
            "facts": facts,
        }
        if not put_own(store, cls.kind.path(key), {**record, **encoding(cls.kind.encoding)}):
            store.delete_tree(folder)
        return cls.load(store, key)

    @classmethod
    def find(cls, store: Store, key: str) -> Self | None:
        """Return the entry of `key`, or None."""
        return cls.load(store, key) if store.exists(cls.kind.path(key)) else None

    @classmethod
    def load(cls, store: Store, key: str) -> Self:
        """Return the entry of `key`; `NotFoundError`, or `IntegrityError` if its record is damaged."""
        path = cls.kind.path(key)
        if not store.exists(path):
            raise NotFoundError(f"{store.url} has no {cls.kind.word} {key}: {cls.kind.remake}")
        return cls(store, read_record(store, path, cls.kind.encoding))

    @classmethod
    def keys(cls, store: Store) -> list[str]:
        """Return the keys of all visible entries."""
        names = store.list(cls.kind.folder)
        return sorted(match.group(1) for name in names if (match := _RECORD.match(name)))

    @classmethod
    def findings(cls, store: Store, *, deep: bool) -> Iterator[Finding]:
        """Yield the findings of a check of all entries."""
        fix = f"delete its record and folder: {cls.kind.remake}"
        named = set()
        for key in cls.keys(store):
            try:
                found = cls.load(store, key)
            except StorageError as error:
                yield Finding(cls.kind.word, cls.kind.path(key), str(error), fix)
                continue
            named.add(found.folder)
            yield from check_files(found.files, deep=deep, fix=fix)
        for name in store.list(cls.kind.folder):
            folder = join(cls.kind.folder, name)
            if not name.endswith(".json") and folder not in named:
                what = "it was begun and never finished"
                yield Finding("staging", folder, what, "delete it", harmless=True)

    def reader(self, name: str) -> ArrayReader:
        """Return the reader of the array `name`."""
        return ArrayReader.open(self.files, name, f"{name} of {self.files.owner}")


_KERNELS = CacheKind("kernels", KERNEL_ENCODING, "kernel", "train again")
_MATRIX, _FACTOR = "matrix", "factor"


class StoredKernel(StoredEntry):
    """A kernel matrix (n, n) and its factor (n, r).

    The factor of an equal matrix may use another basis, so workers open the entry whose record they were
    sent.
    """

    kind = _KERNELS

    @classmethod
    def write(
        cls, store: Store, key: str, K: NDArray[np.float64], F: NDArray[np.float32], facts: Mapping[str, Any]
    ) -> StoredKernel:
        """Write a matrix (n, n) and its factor (n, r); return the key's first entry."""
        folder = cls.kind.new_folder(key)
        with whole_or_nothing(store, folder):
            files = write_group(store, folder, cls.kind.encoding, {_MATRIX: K, _FACTOR: F}, None)
            return cls.published(store, key, folder, files, facts)

    @cached_property
    def matrix(self) -> ArrayReader:
        """The matrix, by rows."""
        return self.reader(_MATRIX)

    @cached_property
    def factor(self) -> ArrayReader:
        """The factor, by rows."""
        return self.reader(_FACTOR)


_PREDICTIONS = CacheKind("predictions", PREDICTIONS_ENCODING, "predictions", "run topline predict again")


@dataclass(frozen=True)
class PredictionsDraft:
    """Predictions being written: best classes (n, k) in int32 and their scores (n, k) in float32.

    Optionally also their probabilities (n, k) in float32, and the classes of sets as bits (n, b) in uint8,
    the first class in the highest bit of the first byte.  Pickles: workers write its units, one writer each.
    """

    store: Store
    folder: str
    specs: Mapping[str, ArraySpec] = field(hash=False)

    @classmethod
    def begin(
        cls,
        store: Store,
        key: str,
        plan: ChunkPlan,
        top_k: int,
        *,
        probabilities: bool = False,
        set_classes: int = 0,
    ) -> PredictionsDraft:
        """Begin predictions of rows cut by `plan`, in a new folder; `set_classes` is 0 without sets."""
        whole = ChunkPlan(plan.n_rows, plan.shard_rows, plan.shard_rows)
        kinds: dict[str, Any] = {"classes": (top_k, np.int32), "scores": (top_k, np.float32)}
        if probabilities:
            kinds["probabilities"] = (top_k, np.float32)
        if set_classes:
            kinds["sets"] = (-(-set_classes // 8), np.uint8)
        specs = {name: ArraySpec(whole, (width,), np.dtype(kind)) for name, (width, kind) in kinds.items()}
        return cls(store, _PREDICTIONS.new_folder(key), specs)

    @property
    def plan(self) -> ChunkPlan:
        """How the rows are cut into units."""
        return self.specs["classes"].plan

    def write_arrays(self, unit: int, arrays: Mapping[str, NDArray[Any]]) -> list[FileEntry]:
        """Write one unit's rows of every array."""
        files = (packed_shard(name, spec, unit, arrays[name]) for name, spec in self.specs.items())
        return put_files(self.store, self.folder, files)

    def publish(self, key: str, entries: Sequence[FileEntry], facts: Mapping[str, Any]) -> StoredPredictions:
        """Write the record that makes them visible; return the key's first entry."""
        group = [packed_metadata(name, spec) for name, spec in self.specs.items()]
        group.append(packed_group("", encoding(PREDICTIONS_ENCODING)))
        files = [*entries, *put_files(self.store, self.folder, group)]
        return StoredPredictions.published(self.store, key, self.folder, files, facts)

    def discard(self) -> None:
        """Remove what was written."""
        self.store.delete_tree(self.folder)


class StoredPredictions(StoredEntry):
    """Predictions, read by rows of the dataset."""

    kind = _PREDICTIONS

    @cached_property
    def classes(self) -> ArrayReader:
        """Best classes (n, k), the best first; -1 in rows without a prediction."""
        return self.reader("classes")

    @cached_property
    def scores(self) -> ArrayReader:
        """Their scores (n, k); NaN in rows without a prediction."""
        return self.reader("scores")

    @cached_property
    def probabilities(self) -> ArrayReader | None:
        """Their probabilities (n, k); None if the model has none."""
        return self._optional("probabilities")

    @cached_property
    def sets(self) -> ArrayReader | None:
        """Bits of the classes in each row's set (n, b); None without sets."""
        return self._optional("sets")

    def _optional(self, name: str) -> ArrayReader | None:
        there = any(path.startswith(f"{name}/") for path in self.files.by_path)
        return self.reader(name) if there else None
