"""Corrections that outlive a retraining: what an edited version has otherwise is done to the next one too."""

from __future__ import annotations

import logging

from topline.pipeline.ingest.editing import EDITED, Edits, edited_dataset, labels_changed
from topline.pipeline.readers import row_name
from topline.solvers.counts import how_many
from topline.storage.datasets import Dataset, DatasetInfo, list_datasets
from topline.storage.errors import StorageError
from topline.storage.stores import Store

logger = logging.getLogger(__name__)


def newest_edited(store: Store, kind: str = "images") -> DatasetInfo | None:
    """Return the newest version of a store's images, or imported features, that edits made; else None."""
    of_kind = (info for info in reversed(list_datasets(store)) if info.features.get("kind") == kind)
    return next((info for info in of_kind if info.key.startswith(EDITED)), None)


def warn_of_edits_not_made(dataset: Dataset) -> None:
    """Warn where newly imported features have rows that an edited version before had corrected or left out.

    Whoever imports features gives their labels, so that nothing is edited again here.
    """
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
    table = dataset.manifest()
    labels = dict(zip(table["sample_id"].to_pylist(), table["class_name"].to_pylist(), strict=True))
    wrong = sum(labels.get(name) == then for name, (then, _) in recorded.labels.items())
    # Rows that are numbered take the names of those that are left out of the files.
    there = 0 if row_name(0) in labels else sum(map(recorded.leave_out, labels))
    said = [f"{how_many(wrong, 'labels')} corrected"] * bool(wrong)
    said += [f"{how_many(there, 'rows')} left out"] * bool(there)
    if said:
        logger.warning(
            "%s has the labels of its files, without the edits of %s (%s): give topline train --labels-from"
            " the same corrections once more, or correct the files",
            dataset.info.id,
            edited.id,
            ", ".join(said),
        )


def with_edits_of(dataset: Dataset, edited: DatasetInfo) -> DatasetInfo:
    """Return the version of `dataset` with the corrections of an edited one, by the ids of the rows.

    A label is corrected where the images say what they said before the correction; what cannot be repeated
    is said by its number.  Where the edits cannot be read, or an earlier version of topline did not record
    them, a warning says that they are undone.
    """
    # Later ones would say again what cannot be repeated.
    first = dataset.info.seq == edited.seq + 1
    try:
        source = Dataset(dataset.store, edited)
        recorded = source.edits()
        if recorded is None:
            if first:
                _tell_undone(source, dataset)
            return dataset.info
    except StorageError as error:
        logger.warning(
            "the edits of %s are undone, for they cannot be read (%s): %s takes labels from the images",
            edited.id,
            error,
            dataset.info.id,
        )
        return dataset.info
    table = dataset.manifest()
    labels = dict(zip(table["sample_id"].to_pylist(), table["class_name"].to_pylist(), strict=True))
    known = set(dataset.class_names)
    without = frozenset(name for name in labels if recorded.leave_out(name))
    again = {
        name: now
        for name, (then, now) in recorded.labels.items()
        if labels.get(name) == then and now in known and name not in without
    }
    settled = sum(labels.get(name) == now for name, (_, now) in recorded.labels.items())
    lost = len(recorded) - len(without) - len(again) - settled
    said = [f"{how_many(len(again), 'labels')} corrected"] * bool(again)
    said += [f"{how_many(len(without), 'rows')} left out"] * bool(without)
    done = f"{' and '.join(said) or 'nothing is left to edit'}, as in {edited.id}"
    if lost:
        done += (
            f"; {how_many(lost, 'edits')} could not be repeated: their images are gone or of another class"
        )
    if said or first:
        logger.info("edits: %s", done)
    return edited_dataset(dataset, Edits(without, again)) if said else dataset.info


def _tell_undone(edited: Dataset, dataset: Dataset) -> None:
    """Warn that labels are those of the images' folders or table again, and rows that were left out back."""
    changed = labels_changed(dataset, edited)
    logger.warning(
        "%s takes labels from the images again, and not the edits of %s%s: move or remove the image files"
        " themselves, or pass the corrections to topline train --labels-from once more",
        dataset.info.id,
        edited.info.id,
        f" ({how_many(changed, 'labels')} of the same rows)" if changed else "",
    )
