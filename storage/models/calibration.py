"""What held-out rows say of a published model's scores: arrays beside its own, named by its newest record."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from typing import Any

from numpy.typing import NDArray

from topline.storage.arrays.groups import ArrayGroup, whole_or_nothing, write_group
from topline.storage.errors import NotFoundError
from topline.storage.models.records import Model, ModelRecord, update_record
from topline.storage.schema import CALIBRATION_ENCODING
from topline.storage.stores import FileEntry, FileSet
from topline.storage.stores.urls import join


def save_calibration(
    model: Model, facts: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]
) -> ModelRecord:
    """Write the arrays into a new folder of the model and add a revision that names them; return it.

    `facts` are plain values for the record's field `calibration`.  Of racing writers the last one's counts.
    """
    folder = f"calibration-{uuid.uuid4().hex[:8]}"
    place = join("models", model.record.id, folder)
    with whole_or_nothing(model.store, place):
        entries = write_group(model.store, place, CALIBRATION_ENCODING, arrays, None)
        files = [entry.to_json() for entry in entries]
        return update_record(model.url, calibration={**facts, "folder": folder, "files": files})


def calibration_files(model: Model) -> FileSet | None:
    """Return the files of the model's calibration, None where it has none."""
    record = model.record.calibration
    if record is None:
        return None
    entries = [FileEntry.from_json(item) for item in record["files"]]
    place = join("models", model.record.id, str(record["folder"]))
    return FileSet(model.store, place, entries, f"the calibration of model {model.record.id}")


def calibration_array(model: Model, name: str) -> NDArray[Any]:
    """Return an array of the model's calibration, with its digest checked; `NotFoundError` without one."""
    files = calibration_files(model)
    if files is None:
        raise NotFoundError(f"model {model.record.id} has no calibration")
    return ArrayGroup(files).array(name)
