"""A version of a dataset with rows left out or labels corrected, and its corrections in the next one too."""

from __future__ import annotations

import csv
import difflib
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from topline.pipeline.errors import InputError
from topline.pipeline.readers import named, read_table, reading, row_name, text_of, word
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
from topline.storage.fingerprint import digest_json
from topline.storage.stores import Store

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
