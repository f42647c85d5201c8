"""Forgetting rows: they leave every version of every dataset, what follows from them, and the disk.

An audit then says what in the store still names them, and which models learned them, by the digests that each
keeps: nothing takes a row out of the weights of a model but training without it.
"""

from __future__ import annotations

import io
import re
from collections.abc import Collection, Iterator
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from itertools import chain
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from topline.pipeline.errors import InputError
from topline.pipeline.ingest.editing import EDITED, Edits, edited_dataset
from topline.pipeline.rows import LEARNED, digests_of
from topline.storage.datasets import Dataset, DatasetInfo, list_datasets
from topline.storage.models import list_models, load_model
from topline.storage.retention import remove_now, staged_lately
from topline.storage.stores import Store, open_store
from topline.storage.stores.urls import join

_SHA256 = re.compile(r"[0-9a-f]{64}")
_TABLES, _TEXTS = (".parquet",), (".json", ".jsonl", ".html", ".csv")


@dataclass(frozen=True)
class Forgotten:
    """What was forgotten, and what the audit found.

    `rows` counts them in all versions; `removed` are the datasets that held them or digests of their ids,
    `kept_as` the one in the newest's place.  `models` learned them, `mentions` are files that name them, and
    datasets `in_use`, or edits that may be, stay on the disk until nobody reads them.
    """

    store: str
    rows: int
    removed: tuple[str, ...]
    kept_as: str | None
    models: tuple[str, ...]
    mentions: tuple[str, ...]
    in_use: tuple[str, ...]
    bytes: int
    deleted_models: tuple[str, ...] = ()

    @property
    def clean(self) -> bool:
        """Whether nothing of them is left in the store, nor in what models learned."""
        return not self.mentions and not self.in_use and not self.models

    def to_dict(self) -> dict[str, Any]:
        """Return the object that `topline forget --json` prints."""
        return {**asdict(self), "clean": self.clean}


def forget(url: str, ids: Collection[str], reason: str, by: str = "topline forget") -> Forgotten:
    """Remove some rows, and all with the same content, from everything that a store holds of them.

    An id may be the SHA-256 of a content.  The newest dataset is stored anew without them; older ones that
    hold them go as a whole.  `InputError` where no dataset has one of the ids, nor a model learned it.
    """
    store = open_store(url)
    infos = list_datasets(store)
    contents, missing = _contents(store, infos, ids)
    unknown = [name for name in sorted(missing) if not _learned_by(store, infos, {name}, contents & {name})]
    if unknown:
        raise InputError(
            f"no dataset of {store.url} has a row {unknown[0]!r}, and no model learned one: use ids from its"
            " manifest, or from topline inspect, or a file's SHA-256, and put one that holds a comma in"
            " double quotes"
        )
    held = {info.id: found for info in infos if (found := _rows(Dataset(store, info), ids, contents))}
    names = {*ids, *(name for found in held.values() for name in found)}
    gone = [info for info in infos if info.id in held or _leaves_out(Dataset(store, info), names)]
    # Before the datasets go, which say it of models that keep no digests.
    models = _learned_by(store, infos, names, contents)
    kept_as = None
    if infos and infos[-1] in gone:
        kept_as = edited_dataset(Dataset(store, infos[-1]), Edits(frozenset(names), {}), forget=True).id
    at = datetime.now(UTC)
    pruned = remove_now(store, gone, reason, by, at)
    # Without locks nothing shows whether an edit that began before reads on, and stores rows of them.
    staged = () if store.locks else staged_lately(store, EDITED, at)
    return Forgotten(
        store=store.url,
        rows=sum(map(len, held.values())),
        removed=tuple(info.id for info in gone),
        kept_as=kept_as,
        models=models,
        mentions=tuple(_mentions(store, names, contents)),
        in_use=(*(item.name for item in pruned.in_use), *staged),
        bytes=pruned.bytes,
    )


def _learned_by(
    store: Store, infos: Collection[DatasetInfo], names: Collection[str], contents: Collection[str]
) -> tuple[str, ...]:
    """Return the models that learned some rows; without digests or dataset, nobody can rule it out."""
    wanted, known = digests_of(names, contents), {info.id: info for info in infos}
    found = []
    for record in list_models(store):
        model = load_model(join(store.url, "models", record.id))
        if LEARNED in model.arrays:
            learned = bool(np.isin(wanted, model.array(LEARNED), assume_unique=True).any())
        elif record.dataset in known:
            learned = bool(_rows(Dataset(store, known[record.dataset]), names, contents))
        else:
            learned = True
        found += [record.id] if learned else []
    return tuple(found)


def _contents(
    store: Store, infos: Collection[DatasetInfo], ids: Collection[str]
) -> tuple[set[str], set[str]]:
    """Return the digests of the contents that rows of these ids have in any version, and ids of no row."""
    found, missing = set(filter(_SHA256.fullmatch, ids)), set(ids)
    for name, digest in chain.from_iterable(_named(Dataset(store, info)) for info in infos):
        missing -= {name, digest}
        if digest is not None and name in ids:
            found.add(digest)
    return found, missing


def _named(dataset: Dataset) -> Iterator[tuple[str, str | None]]:
    """Return id and content of each row of a dataset."""
    table = dataset.shared_manifest()
    return zip(table["sample_id"].to_pylist(), table["sha256"].to_pylist(), strict=True)


def _rows(dataset: Dataset, ids: Collection[str], contents: Collection[str]) -> list[str]:
    """Return the ids of the rows of a dataset that are among `ids` or have one of the contents."""
    return [name for name, digest in _named(dataset) if name in ids or digest in contents]


def _leaves_out(dataset: Dataset, names: Collection[str]) -> bool:
    """Return whether a dataset has the digest of one of the ids, as that of a row that was left out."""
    edits = dataset.edits()
    return edits is not None and any(edits.leave_out(name) for name in names)


def _mentions(store: Store, names: Collection[str], contents: Collection[str]) -> Iterator[str]:
    """Yield the files of a store in which an id or a digest still stands."""
    words = "|".join(re.escape(text) for text in sorted({*names, *contents}))
    named = re.compile(rf"(?<![\w.-])({words})(?![\w.-])")
    for path in store.walk():
        if path.endswith((*_TABLES, *_TEXTS)) and named.search(_text(store.read_bytes(path), path)):
            yield path


def _text(data: bytes, path: str) -> str:
    if not path.endswith(_TABLES):
        return data.decode(errors="replace")
    table = pq.read_table(io.BytesIO(data))
    columns = (table[field.name] for field in table.schema if pa.types.is_string(field.type))
    return "\n".join(str(value) for column in columns for value in column.to_pylist() if value is not None)
