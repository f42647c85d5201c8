"""Published models: a sealed record, its revisions, and named arrays that are written once.

Calibration arrays lie beside the model's own and are named by its newest record.  The model's stage follows
from the decisions in `topline.storage.models.decisions`.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from numpy.typing import NDArray

from topline.storage.arrays import DualSource, StoredDuals
from topline.storage.arrays.duals import stored_rows
from topline.storage.arrays.groups import ArrayGroup, whole_or_nothing, write_group
from topline.storage.errors import FormatError, IncompleteError, IntegrityError, NotFoundError
from topline.storage.records import from_fields, now, plain
from topline.storage.schema import CALIBRATION_ENCODING, MODEL_ENCODING, check_encoding, encoding
from topline.storage.stores import CommitLog, FileEntry, FileSet, Store, open_store, split_url
from topline.storage.stores.holds import alone_with, hold_while
from topline.storage.stores.numbered_folders import TOMBSTONE, NumberedFolders, bury
from topline.storage.stores.sealed import unsealed
from topline.storage.stores.urls import join

_MODELS = NumberedFolders("models", "m")
_CHANGEABLE = frozenset({"result", "certificate", "evaluation", "threshold", "calibration"})


@dataclass(frozen=True)
class ModelRecord:
    """Everything known of a model besides its arrays.

    `save_model` sets `id` and `created`; `revision` counts from 1 and grows with every `update_record`.
    `loss` is the loss's own dictionary, `features` the features' specification (so that new images become the
    same features), `transforms` those fitted on the training split.  `class_weights` (m,) multiply the
    examples of each class, None for 1.  With a `kernel`, dual variables replace the weights.  `parents` are
    the ids of the models that training started from.  A `multilabel` model predicts the labels that score
    above the value of its `threshold`, which records how it was chosen.  `calibration` describes the map from
    scores to probabilities, and where its arrays are.
    """

    dataset: str
    dataset_digest: str
    config: Mapping[str, Any]
    loss: Mapping[str, Any]
    lam: float
    C: float
    smoothing: float
    method: str
    n: int
    d: int
    m: int
    class_names: tuple[str, ...]
    features: Mapping[str, Any]
    transforms: tuple[Mapping[str, Any], ...] = ()
    result: Mapping[str, Any] = field(default_factory=dict)
    certificate: Mapping[str, Any] | None = None
    evaluation: Mapping[str, Any] | None = None
    run: str | None = None
    code_version: str = ""
    parents: tuple[str, ...] = ()
    kernel: Mapping[str, Any] | None = None
    smoothing_kind: str = "moreau"
    class_weights: tuple[float, ...] | None = None
    multilabel: bool = False
    threshold: Mapping[str, Any] | None = None
    calibration: Mapping[str, Any] | None = None
    id: str = ""
    created: str = ""
    revision: int = 0

    @property
    def version(self) -> int:
        """Number of the model in its store: ascending and never reused."""
        return int(self.id.removeprefix(_MODELS.letter) or 0)

    @property
    def lineage(self) -> dict[str, Any]:
        """Origin of the model: data, code, configuration, run, and the models it started from."""
        names = ("dataset", "dataset_digest", "code_version", "config", "run", "parents")
        return {"version": self.version, **plain({name: getattr(self, name) for name in names})}

    def to_json(self) -> dict[str, Any]:
        """Return the record as a JSON object."""
        return {**plain(asdict(self)), **encoding(MODEL_ENCODING)}

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> ModelRecord:
        """Return the record from its JSON object; `FormatError` if it is not one."""
        place = f"model record {record.get('id', '')}".strip()
        check_encoding(record, MODEL_ENCODING, place)
        found = from_fields(cls, record, place)
        if found.m != len(found.class_names):
            raise FormatError(
                f"{place} has m = {found.m} and the names of {len(found.class_names)} classes:"
                " restore it from a copy"
            )
        return found


class Model:
    """A published model, opened for reading; pickles by its URL, and is not pruned while open on a disk."""

    def __init__(self, store: Store, record: ModelRecord, entries: list[FileEntry]) -> None:
        hold_while(self, store, _MODELS.reservation(record.id))
        self.store = store
        self.record = record
        self.url = join(store.url, _MODELS.path(record.id))
        self.files = FileSet(store, _arrays_folder(record.id), entries, f"model {record.id}")
        self._group = ArrayGroup(self.files)

    def __reduce__(self) -> tuple[object, ...]:
        return load_model, (self.url,)

    @property
    def arrays(self) -> tuple[str, ...]:
        """Names of its arrays, without the duals."""
        return self._group.names

    def array(self, name: str) -> NDArray[Any]:
        """Return the array `name` after checking its digest; `NotFoundError` if there is none."""
        return self._group.array(name)

    @property
    def has_duals(self) -> bool:
        """Whether the dual variables were stored with it."""
        return self._group.has_duals

    def dual_blocks(self) -> StoredDuals:
        """Return all dual variables, readable by rows; `NotFoundError` if none were stored."""
        return self._group.duals

    def duals(self, start: int, stop: int) -> NDArray[Any]:
        """Return rows start..stop-1 of the dual matrix A (n x m); `NotFoundError` if none were stored."""
        return self._group.duals.rows(start, stop)


def save_model(
    store: Store, record: ModelRecord, arrays: Mapping[str, NDArray[Any]], duals: DualSource | None = None
) -> str:
    """Publish a model and return its URL, <store>/models/m0001; it is invisible until completely stored.

    `duals` writes the dual matrix A (n x m) in parts; use `topline.storage.arrays.duals.from_rows` for a
    local one.  Files are removed again if writing fails.
    """
    name = _MODELS.reserve(store)
    with whole_or_nothing(store, _arrays_folder(name)):
        entries = write_group(store, _arrays_folder(name), MODEL_ENCODING, arrays, duals)
        _check_dual_rows(entries, record.n)
    published = replace(record, id=name, created=now(), revision=1)
    files = [entry.to_json() for entry in entries]
    # An error here does not mean that the record was not put, so the files it names stay.
    model_log(store, name).append({**published.to_json(), "files": files})
    return join(store.url, _MODELS.path(name))


def load_model(url: str) -> Model:
    """Return the model at `url`; `NotFoundError`, or `IncompleteError` if its writer never finished."""
    root, name = split_url(url, _MODELS.folder)
    store = open_store(root)
    record = _latest(store, name)
    return Model(
        store, ModelRecord.from_json(record), [FileEntry.from_json(item) for item in record["files"]]
    )


def update_record(url: str, **changes: Any) -> ModelRecord:
    """Add a revision of the model's record with some fields changed, of those set after training.

    Concurrent updates are all kept, each on top of the one before.  `FormatError` for other fields.
    """
    foreign = sorted(set(changes) - _CHANGEABLE)
    if foreign:
        raise FormatError(f"{foreign[0]} of a model never changes; {', '.join(sorted(_CHANGEABLE))} may")
    root, name = split_url(url, _MODELS.folder)
    store = open_store(root)
    _latest(store, name)

    def revise(previous: Mapping[str, Any], seq: int) -> dict[str, Any]:
        return {**previous, **plain(changes), "revision": seq}

    return ModelRecord.from_json(model_log(store, name).revise(revise))


def list_models(store: Store) -> list[ModelRecord]:
    """Return the newest revision of every published model, by id."""
    found = []
    for name in published_models(store):
        try:
            found.append(ModelRecord.from_json(_latest(store, name)))
        except NotFoundError:
            # Skip a model deleted since it was listed.
            if not _is_deleted(store, name):
                raise
    return found


def readable_models(store: Store) -> tuple[list[ModelRecord], dict[str, str]]:
    """Return the newest revisions of the readable models, and the errors of the others, by id."""
    found, damaged = [], {}
    for name in published_models(store):
        try:
            found.append(ModelRecord.from_json(_latest(store, name)))
        except NotFoundError as error:
            if not _is_deleted(store, name):
                damaged[name] = str(error)
        except (FormatError, IntegrityError) as error:
            damaged[name] = str(error)
    return found, damaged


def published_models(store: Store) -> list[str]:
    """Return the names of visible models, damaged ones included."""
    names = _MODELS.names(store)
    return [name for name in names if not _is_deleted(store, name) and model_log(store, name).begun]


def unfinished_models(store: Store) -> list[str]:
    """Return the names of models whose writer is still at work or was killed."""
    published = set(published_models(store))
    names = _MODELS.names(store)
    return [name for name in names if name not in published and not _is_deleted(store, name)]


def delete_model(url: str, reason: str) -> None:
    """Delete a model: it becomes invisible at once, and its number is never reused.

    Its files go at once only if locks show that nobody reads them; otherwise pruning deletes them.  Calling
    it again finishes an interrupted deletion.  Whether a model may be deleted is decided by
    `topline.storage.models.decisions`.
    """
    root, name = split_url(url, _MODELS.folder)
    store = open_store(root)
    if name not in _MODELS.names(store):
        raise _MODELS.unknown(store, name)
    with alone_with(store, _MODELS.reservation(name)) as alone:
        if alone and store.locks:
            remove_model(store, name, reason)
        else:
            bury(store, _MODELS.path(name), reason)


def remove_model(store: Store, name: str, reason: str) -> None:
    """Remove a model that nobody reads, with its files."""
    _MODELS.remove(store, name, reason)


def deleted_models(store: Store) -> list[str]:
    """Return the names of deleted models."""
    return [name for name in _MODELS.names(store) if _is_deleted(store, name)]


def _latest(store: Store, name: str) -> dict[str, Any]:
    log = model_log(store, name)
    if _is_deleted(store, name):
        stone = unsealed(store, _MODELS.path(name, TOMBSTONE))
        raise NotFoundError(
            f"model {name} was deleted from {store.url} at {stone['deleted']}: {stone['reason']}"
        )
    if log.begun:
        try:
            record = log.latest()
        except (NotFoundError, IntegrityError):
            if not _is_deleted(store, name):
                raise
            # The model was deleted since it was listed, and its records vanish one by one.
            return _latest(store, name)
        if record.get("id") != name:
            place = join(store.url, _MODELS.path(name))
            raise IntegrityError(f"{place} holds the record of {record.get('id')}; restore it from a copy")
        return record
    if name in _MODELS.names(store):
        raise IncompleteError(
            f"{join(store.url, _MODELS.path(name))} was begun and never finished; train again"
        )
    raise _MODELS.unknown(store, name)


def _is_deleted(store: Store, name: str) -> bool:
    return store.exists(_MODELS.path(name, TOMBSTONE))


def model_log(store: Store, name: str) -> CommitLog:
    """Return the log of a model's revisions."""
    return CommitLog(store, name, _MODELS.folder)


def model_folder(name: str) -> str:
    """Return the folder of a model in its store; an open model holds begun.json in it."""
    return _MODELS.path(name)


def _arrays_folder(name: str) -> str:
    return _MODELS.path(name, "arrays")


def _check_dual_rows(entries: list[FileEntry], n: int) -> None:
    rows = stored_rows(entries)
    if rows not in (0, n):
        raise FormatError(f"the model has {n} examples, and dual variables of {rows} were given")


def save_calibration(
    model: Model, facts: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]
) -> ModelRecord:
    """Write the arrays into a new folder of the model, and return the new revision that names them.

    `facts` are plain values for the record's field `calibration`.  Among concurrent writers the last wins.
    """
    folder = f"calibration-{uuid.uuid4().hex[:8]}"
    place = join("models", model.record.id, folder)
    with whole_or_nothing(model.store, place):
        entries = write_group(model.store, place, CALIBRATION_ENCODING, arrays, None)
    files = [entry.to_json() for entry in entries]
    return update_record(model.url, calibration={**facts, "folder": folder, "files": files})


def calibration_files(model: Model) -> FileSet | None:
    """Return the files of the model's calibration, None without one."""
    record = model.record.calibration
    if record is None:
        return None
    place = join("models", model.record.id, str(record["folder"]))
    owner = f"the calibration of model {model.record.id}"
    return FileSet.recorded(model.store, place, record["files"], owner)


def calibration_array(model: Model, name: str) -> NDArray[Any]:
    """Return an array of the model's calibration after checking its digest; `NotFoundError` without one."""
    files = calibration_files(model)
    if files is None:
        raise NotFoundError(f"model {model.record.id} has no calibration")
    return ArrayGroup(files).array(name)
