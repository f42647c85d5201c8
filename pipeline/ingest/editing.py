"""Versions of a dataset without some rows or with corrected labels, and rows that are forgotten.

Corrections hold in the next version too.  Forgotten rows leave every version of every dataset, what follows
from them, and the disk.  An audit then says what in the store still names them, and which models learned
them, by the digests that each keeps: nothing takes a row out of the weights of a model but training without
it.
"""

from __future__ import annotations

import csv
import difflib
import io
import logging
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from topline.pipeline.errors import InputError
from topline.pipeline.readers import named, read_table, reading, row_name, text_of, word
from topline.pipeline.rows import LEARNED, digests_of
from topline.solvers.counts import how_many
from topline.storage.arrays import ChunkPlan
from topline.storage.datasets import (
    CsrDatasetWriter,
    Dataset,
    DatasetInfo,
    DatasetWriter,
    RecordedEdits,
    digest_of_id,
    find_dataset,
    list_datasets,
)
from topline.storage.errors import StorageError
from topline.storage.models import list_models, load_model
from topline.storage.records import digest_json
from topline.storage.retention import remove_now, staged_lately
from topline.storage.stores import Store, open_store
from topline.storage.stores.urls import join

logger = logging.getLogger(__name__)

#: How the key of a dataset begins that edits made, and no images or files.
EDITED = "edited "

_ID, _LABEL = "sample_id", "label"


@dataclass(frozen=True)
class Edits:
    """Rows to leave out, and new labels, by sample id."""

    without: frozenset[str]
    labels: Mapping[str, str]

    @classmethod
    def read(cls, without: str | None, labels_from: Path | None) -> Edits:
        """Return edits of ids or their file and of a table ("" leaves the row out), or raise `InputError`."""
        out = set() if without is None else set(_ids(without))
        labels: dict[str, str] = {}
        for row in [] if labels_from is None else _table(labels_from, (_ID, _LABEL)):
            name, label = row[_ID], row[_LABEL].strip()
            if labels.setdefault(name, label) != label:
                raise InputError(f"{labels_from} has two labels of {name}: leave one of them out")
        out |= {name for name, label in labels.items() if not label}
        return cls(frozenset(out), {name: label for name, label in labels.items() if name not in out})

    def by(self, ids: Sequence[str]) -> Edits:
        """Return the edits by the ids of a dataset: numbers in Parquet were 1.0 before version 0.2."""
        known = set(ids)

        def as_there(name: str) -> str:
            whole = name.removesuffix(".0")
            forms = (name, whole, f"{whole}.0") if whole.isdecimal() else (name,)
            return next((form for form in forms if form in known), name)

        labels = {as_there(name): label for name, label in self.labels.items()}
        return Edits(frozenset(map(as_there, self.without)), labels)


def edited_dataset(dataset: Dataset, edits: Edits, *, forget: bool = False) -> DatasetInfo:
    """Store the version of `dataset` that the edits make, or find it; without any change it is `dataset`.

    It has the digests of the ids of rows that are left out, by which a retraining leaves them out again,
    unless they are to be forgotten.  `InputError` for ids and labels that the dataset does not have.
    """
    if dataset.info.label_sets is not None and edits.labels:
        raise InputError(
            f"dataset {dataset.info.id} has several labels per row, and tables of corrections have one:"
            " import it again with other labels"
        )
    ids = dataset.sample_ids()
    edits = edits.by(ids)
    unknown = [] if forget else sorted((edits.without | set(edits.labels)) - set(ids))
    if unknown:
        more = f" and {how_many(len(unknown) - 1, 'others')}" * (len(unknown) > 1)
        raise InputError(
            f"dataset {dataset.info.id} has no row {unknown[0]!r}{more}: use ids from topline inspect, and"
            " put one that holds a comma in double quotes"
        )
    labels = _corrected(dataset, edits, ids)
    kept = np.flatnonzero([name not in edits.without for name in ids])
    recorded = _recorded(dataset, edits, labels, forget=forget)
    changed = len(kept) < len(ids) or not np.array_equal(labels, dataset.labels())
    if not changed and (recorded == dataset.edits() or not forget):
        return dataset.info
    if not len(kept):
        raise InputError(f"nothing is left of dataset {dataset.info.id} without {len(ids):,} rows: keep some")
    chosen = {"edits of": dataset.info.digest, "kept": kept.tolist(), "labels": labels[kept].tolist()}
    key = digest_json({**chosen, "forgotten": True} if forget else chosen)
    return _written(dataset, kept, labels[kept], EDITED + key, recorded)


def tell_edits(before: Dataset, after: Dataset) -> None:
    """Log how many rows of `before` have another label in `after`, or are not in it any more."""
    if after.info == before.info:
        logger.info("no label differs from those of %s, and no row is left out", before.info.id)
        return
    gone, changed = before.info.n_rows - after.info.n_rows, labels_changed(before, after)
    told = _told("changed", changed, gone, ", ")
    logger.info("dataset %s, made of %s: %s", after.info.id, before.info.id, told)


def labels_changed(before: Dataset, after: Dataset) -> int:
    """Return how many rows of both, by their ids, have another label in one than in the other."""
    then, now = _classes(before), _classes(after)
    return sum(then[name] != now[name] for name in then.keys() & now.keys())


def _classes(dataset: Dataset) -> dict[str, str | None]:
    """Return the class of each row by its id."""
    table = dataset.manifest()
    return dict(zip(table["sample_id"].to_pylist(), table["class_name"].to_pylist(), strict=True))


def _told(done: str, labels: int, rows: int, mark: str) -> str:
    """Return how many labels and rows edits touch, "" where none."""
    said = [f"{how_many(labels, 'labels')} {done}"] * bool(labels)
    return mark.join(said + [f"{how_many(rows, 'rows')} left out"] * bool(rows))


def _recorded(
    dataset: Dataset, edits: Edits, labels: NDArray[np.int32], *, forget: bool
) -> RecordedEdits | None:
    """Return all edits up to these; None where an earlier version of topline did not record them."""
    earlier = dataset.edits()
    if earlier is None and dataset.info.key.startswith(EDITED):
        return None
    earlier = earlier or RecordedEdits()
    found, names, then = dict(earlier.labels), dataset.class_names, dataset.labels()
    ids = dataset.sample_ids()
    for place in np.flatnonzero(labels != then).tolist():
        before, _ = found.get(ids[place], (names[then[place]], ""))
        found[ids[place]] = (before, names[labels[place]])
    found = {name: pair for name, pair in found.items() if name not in edits.without and pair[0] != pair[1]}
    gone = {digest_of_id(name) for name in edits.without}
    return RecordedEdits(found, earlier.left_out - gone if forget else earlier.left_out | gone)


def _written(
    dataset: Dataset,
    kept: NDArray[np.int64],
    labels: NDArray[np.int32],
    key: str,
    recorded: RecordedEdits | None,
) -> DatasetInfo:
    info = dataset.info
    plan = ChunkPlan(len(kept), info.chunk_rows, info.shard_rows)
    kind = CsrDatasetWriter if info.layout == "csr" else DatasetWriter
    # A unit of which no row goes is the same as before, and is not stored again.
    starts = [unit.rows[0] for unit in dataset.units]
    cuts = sorted({*np.searchsorted(kept, starts).tolist(), len(kept)})
    writer = kind.begin(dataset.store, key, info.d, info.dtype, plan, info.features, cuts=cuts)
    if writer.committed is not None:
        return writer.committed
    # Whoever forgets rows of it sees from here on that this is at work, or has removed it before.
    find_dataset(dataset.store, info.id)
    manifest = dataset.shared_manifest()
    for unit in sorted(set(range(writer.units)) - writer.done_units()):
        span = writer.bounds(unit)
        rows = kept[span.start : span.stop]
        first = int(rows[0])
        stored = dataset.rows(first, int(rows[-1]) + 1)[rows - first]
        writer.write_unit(unit, stored, manifest.take(pa.array(rows)))
    return writer.commit(
        labels,
        dataset.split()[kept],
        info.class_names,
        dataset.manifest().take(pa.array(kept)),
        label_sets=dataset.label_sets(),
        facts=replace(dataset.facts().take(kept), edits=recorded),
    )


def _corrected(dataset: Dataset, edits: Edits, ids: Sequence[str]) -> NDArray[np.int32]:
    """Return the labels of all rows after the corrections; a rejected row keeps none."""
    codes = {name: code for code, name in enumerate(dataset.class_names)}
    labels = dataset.labels().copy()
    places = {name: place for place, name in enumerate(ids)}
    for name, given in edits.labels.items():
        label = given if given in codes else word(given) or given
        if label not in codes:
            close = difflib.get_close_matches(label, codes, n=1)
            raise InputError(
                f"the label {label!r} of {name} is not one of the {len(codes)} classes of dataset"
                f" {dataset.info.id}: "
                + (f"did you mean {close[0]!r}? An" if close else "give one of them; an")
                + " empty label leaves the row out"
            )
        if labels[places[name]] >= 0:
            labels[places[name]] = codes[label]
    return labels


def _ids(text: str) -> list[str]:
    """Return ids with commas between them, in double quotes where they hold some, or those in a file."""
    path = Path(text).expanduser()
    if path.suffix.lower() in (".csv", ".parquet"):
        return [row[_ID] for row in _table(path, (_ID,))]
    if path.is_file() or path.suffix.lower() == ".txt":
        with reading(str(path)):
            return [line.strip() for line in path.read_text("utf-8-sig").splitlines() if line.strip()]
    parts = next(csv.reader([text], skipinitialspace=True), [])
    return [part.strip() for part in parts if part.strip()]


def _table(path: Path, columns: Sequence[str]) -> list[dict[str, str]]:
    """Return some columns of a table as text."""
    table = read_table(path, columns)
    missing = [name for name in columns if name not in table.names]
    wanted = f"give a table with the columns {' and '.join(columns)}"
    if table.names and missing:
        raise InputError(
            f"{path} has no column {missing[0]}, its first line has {named(table.names)}: {wanted}"
        )
    if not table.rows:
        raise InputError(f"{path} has no rows: {wanted}")
    # Numbers of Parquet are named as the rows of its features are.
    rows = zip(*map(table.column, columns), strict=True)
    found = ([one if isinstance(one, str) else text_of(one) or "" for one in row] for row in rows)
    return [dict(zip(columns, row, strict=True)) for row in found]


def newest_edited(store: Store, kind: str = "images") -> DatasetInfo | None:
    """Return the newest version of a store's images, or imported features, that edits made; else None."""
    of_kind = (info for info in reversed(list_datasets(store)) if info.features.get("kind") == kind)
    return next((info for info in of_kind if info.key.startswith(EDITED)), None)


def warn_of_edits_not_made(dataset: Dataset) -> None:
    """Warn where newly imported features have rows that were corrected or left out before."""
    edited = newest_edited(dataset.store, "imported")
    if edited is None or (edited.d, edited.class_names) != (dataset.info.d, dataset.info.class_names):
        return
    try:
        recorded = Dataset(dataset.store, edited).edits()
    except StorageError as error:
        logger.warning("what was edited in %s cannot be read: %s", edited.id, error)
        return
    if recorded is None:
        return
    labels = _classes(dataset)
    # Rows that the version before 0.2 named 1.0.
    labels |= {f"{name}.0": label for name, label in labels.items() if name.isdecimal()}
    wrong = sum(labels.get(name) == then for name, (then, _) in recorded.labels.items())
    # Rows that are numbered take the names of those that are left out of the files.
    there = 0 if row_name(0) in labels else sum(map(recorded.leave_out, labels))
    if wrong or there:
        logger.warning(
            "%s has the labels of its files, without the edits of %s (%s): give topline train --labels-from"
            " the same corrections once more, or correct the files",
            dataset.info.id,
            edited.id,
            _told("corrected", wrong, there, ", "),
        )


def with_edits_of(dataset: Dataset, edited: DatasetInfo) -> DatasetInfo:
    """Return the version of `dataset` with the corrections of an edited one, by the ids of the rows.

    A label is corrected where the images say what they said before; what cannot be repeated is said.
    """
    # Later ones would say again what cannot be repeated.
    first = dataset.info.seq == edited.seq + 1
    try:
        source = Dataset(dataset.store, edited)
        recorded = source.edits()
        if recorded is None:
            changed = labels_changed(dataset, source) if first else 0
            if first:
                logger.warning(
                    "%s takes labels from the images again, and not the edits of %s%s: move or remove the"
                    " image files, or pass the corrections to topline train --labels-from once more",
                    dataset.info.id,
                    edited.id,
                    f" ({how_many(changed, 'labels')} of the same rows)" if changed else "",
                )
            return dataset.info
    except StorageError as error:
        logger.warning(
            "the edits of %s are undone, for they cannot be read (%s): %s takes labels from the images",
            edited.id,
            error,
            dataset.info.id,
        )
        return dataset.info
    labels = _classes(dataset)
    known = set(dataset.class_names)
    without = frozenset(name for name in labels if recorded.leave_out(name))
    again = {
        name: now
        for name, (then, now) in recorded.labels.items()
        if labels.get(name) == then and now in known and name not in without
    }
    settled = sum(labels.get(name) == now for name, (_, now) in recorded.labels.items())
    lost = len(recorded) - len(without) - len(again) - settled
    said = _told("corrected", len(again), len(without), " and ")
    done = f"{said or 'nothing is left to edit'}, as in {edited.id}"
    if lost:
        done += (
            f"; {how_many(lost, 'edits')} could not be repeated: their images are gone or of another class"
        )
    if said or first:
        logger.info("edits: %s", done)
    return edited_dataset(dataset, Edits(without, again)) if said else dataset.info


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
