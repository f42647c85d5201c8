"""Published models and the decisions on them.

A model is a sealed record, its revisions, and named arrays that are written once.  Calibration arrays lie
beside the model's own and are named by its newest record.  The model's stage follows from the decisions.

Each decision is a sealed record under the next number of the log commits/registry, put only if that number is
free: of two concurrent decisions on the same standing one wins, and the other learns which.  Nothing is ever
rewritten.  A damaged or contradictory log is refused, naming the entry.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from typing import Any

from numpy.typing import NDArray

from topline.storage.arrays import DualSource
from topline.storage.arrays.duals import stored_rows
from topline.storage.arrays.groups import ArrayGroup, whole_or_nothing, write_group
from topline.storage.errors import (
    ConflictError,
    FormatError,
    IncompleteError,
    IntegrityError,
    NotFoundError,
    StorageError,
)
from topline.storage.records import RESTORE, Finding, from_fields, now, plain
from topline.storage.schema import (
    CALIBRATION_ENCODING,
    DECISION_ENCODING,
    MODEL_ENCODING,
    PIN_VERSION,
    check_encoding,
    encoding,
)
from topline.storage.stores import CommitLog, FileEntry, FileSet, Store, open_store, split_url
from topline.storage.stores.lease import alone_with, hold_while
from topline.storage.stores.sealed import TOMBSTONE, NumberedFolders, bury, unsealed
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


class Model(ArrayGroup):
    """A published model, opened for reading; pickles by its URL, and is not pruned while open on a disk."""

    def __init__(self, store: Store, record: ModelRecord, entries: list[FileEntry]) -> None:
        hold_while(self, store, _MODELS.reservation(record.id))
        self.store = store
        self.record = record
        self.url = join(store.url, _MODELS.path(record.id))
        super().__init__(FileSet(store, _arrays_folder(record.id), entries, f"model {record.id}"))

    def __reduce__(self) -> tuple[object, ...]:
        return load_model, (self.url,)

    def duals(self, start: int, stop: int) -> NDArray[Any]:
        """Return rows start..stop-1 of the dual matrix A (n x m); `NotFoundError` if none were stored."""
        return self.dual_blocks().rows(start, stop)


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
        rows = stored_rows(entries)
        if rows not in (0, record.n):
            raise FormatError(f"the model has {record.n} examples, and dual variables of {rows} were given")
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
    model = Model(
        store, ModelRecord.from_json(record), [FileEntry.from_json(item) for item in record["files"]]
    )
    if store.locks and _is_deleted(store, name):
        # It went between the reading of its record and the hold: the error says why.
        _latest(store, name)
    return model


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
    """Return the newest revision of every published model, by id; the error of the first damaged one."""
    found, damaged = readable_models(store)
    for error in damaged.values():
        raise error
    return found


def readable_models(store: Store) -> tuple[list[ModelRecord], dict[str, StorageError]]:
    """Return the newest revisions of the readable models, and the errors of the others, by id."""
    found: list[ModelRecord] = []
    damaged: dict[str, StorageError] = {}
    for name in published_models(store):
        try:
            found.append(ModelRecord.from_json(_latest(store, name)))
        except (NotFoundError, FormatError, IntegrityError) as error:
            # A model that was deleted since it was listed is skipped.
            if not (isinstance(error, NotFoundError) and _is_deleted(store, name)):
                damaged[name] = error
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
    it again finishes an interrupted deletion.
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
    # Before the mark of a deletion, which is there before the records go.
    begun = log.begun
    if _is_deleted(store, name):
        stone = unsealed(store, _MODELS.path(name, TOMBSTONE))
        raise NotFoundError(
            f"model {name} was deleted from {store.url} at {stone['deleted']}: {stone['reason']}"
        )
    if begun:
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
        place = join(store.url, _MODELS.path(name))
        raise IncompleteError(f"{place} was begun and never finished; train again")
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


_DONE = {
    "promote": "promoted",
    "keep": "kept out",
    "rollback": "brought back",
    "archive": "archived",
    "delete": "deleted",
    "pin": "pinned",
    "unpin": "unpinned",
}
ACTIONS = tuple(_DONE)


@dataclass(frozen=True)
class DecisionRecord:
    """One decision: what happened to `model`, who was champion before, why and on what evidence.

    `action` "keep" means that the champion stays after comparison with a challenger.  `by` is a run's id or
    another origin of the decision; `evidence` is plain JSON (metrics, certificate, drift).  `forced`: a guard
    was overridden.  `kinds` name the conditions of the rule that decided, and `repeated` counts how often in
    a row they kept a champion.
    """

    action: str
    model: str
    reason: str
    by: str
    evidence: Mapping[str, Any] = field(default_factory=dict)
    forced: bool = False
    champion_before: str | None = None
    when: str = ""
    seq: int = 0
    kinds: tuple[str, ...] = ()
    repeated: int = 0

    def to_json(self) -> dict[str, Any]:
        """Return the entry as a JSON object; version 0.1.0 refuses pins by their version."""
        version = {"encoding-version": PIN_VERSION} if self.action in ("pin", "unpin") else {}
        return {**plain(asdict(self)), **encoding(DECISION_ENCODING), **version}

    @classmethod
    def from_json(cls, record: Mapping[str, Any], place: str) -> DecisionRecord:
        """Return the entry from its JSON object; `FormatError` naming `place` if it is not one."""
        check_encoding(record, DECISION_ENCODING, place)
        return from_fields(cls, record, place)

    def __str__(self) -> str:
        return f"{self.model} was {_DONE[self.action]} by {self.by} at {self.when} ({self.reason})"


@dataclass(frozen=True)
class Reign:
    """A period as champion: from decision `seq` until the next change, None while it lasts."""

    model: str
    seq: int
    since: str
    by: str
    reason: str
    until: str | None = None


@dataclass(frozen=True)
class Standing:
    """The state that the decisions so far lead to.

    `former` are the champions that rollbacks would restore, the next one last; `pinned` models stay until
    they are unpinned.
    """

    entries: tuple[DecisionRecord, ...] = ()
    champion: str | None = None
    former: tuple[str, ...] = ()
    archived: frozenset[str] = frozenset()
    deleted: frozenset[str] = frozenset()
    pinned: frozenset[str] = frozenset()

    @property
    def seq(self) -> int:
        """Number of the last decision, 0 before the first."""
        return len(self.entries)

    @property
    def previous(self) -> str | None:
        """The champion that a rollback would restore."""
        return self.former[-1] if self.former else None

    def stage(self, model: str) -> str:
        """Return the stage of a model: candidate, champion, archived or deleted."""
        if model == self.champion:
            return "champion"
        if model in self.deleted:
            return "deleted"
        return "archived" if model in self.archived else "candidate"

    def of(self, model: str) -> tuple[DecisionRecord, ...]:
        """Return the decisions on one model, oldest first."""
        return tuple(entry for entry in self.entries if entry.model == model)

    @cached_property
    def reigns(self) -> tuple[Reign, ...]:
        """Return the periods of all champions, oldest first."""
        found: list[Reign] = []
        standing = Standing()
        for entry in self.entries:
            before, standing = standing.champion, standing.after(entry)
            if standing.champion == before:
                continue
            if before is not None:
                found[-1] = replace(found[-1], until=entry.when)
            if standing.champion is not None:
                found.append(Reign(standing.champion, entry.seq, entry.when, entry.by, entry.reason))
        return tuple(found)

    def after(self, entry: DecisionRecord) -> Standing:
        """Return the standing after `entry`; `FormatError` if it is not allowed."""
        refusal = self._refusal(entry)
        if refusal is not None:
            raise FormatError(refusal)
        entries, model = (*self.entries, entry), entry.model
        if entry.action == "promote":
            former = (*self.former, self.champion) if self.champion is not None else self.former
            return self._crowned(entries, model, former)
        if entry.action == "rollback":
            return self._crowned(entries, model, self.former[:-1])
        if entry.action == "archive":
            return replace(self, entries=entries, archived=self.archived | {model})
        if entry.action == "delete":
            champion = None if model == self.champion else self.champion
            former = _without_repeats([name for name in self.former if name != model], champion)
            gone = self.deleted | {model}
            pinned = self.pinned - {model}
            return replace(
                self, entries=entries, champion=champion, former=former, deleted=gone, pinned=pinned
            )
        if entry.action in ("pin", "unpin"):
            pinned = self.pinned | {model} if entry.action == "pin" else self.pinned - {model}
            return replace(self, entries=entries, pinned=pinned)
        return replace(self, entries=entries)

    def _crowned(self, entries: tuple[DecisionRecord, ...], model: str, former: tuple[str, ...]) -> Standing:
        stepped_down = self.archived if self.champion is None else self.archived | {self.champion}
        return replace(self, entries=entries, champion=model, former=former, archived=stepped_down - {model})

    def _refusal(self, entry: DecisionRecord) -> str | None:
        """Return why an entry is not allowed here, None if it is."""
        action, model = entry.action, entry.model
        if action not in ACTIONS:
            return f"a decision is one of {', '.join(ACTIONS)}, not {action!r}"
        if entry.champion_before != self.champion:
            return f"{action} of {model} was decided under {entry.champion_before}, not {self.champion}"
        if model in self.deleted:
            return f"model {model} was deleted; there is nothing left to {action}"
        if action in ("promote", "archive", "keep") and model == self.champion:
            return f"{model} is the champion, so there is nothing to {action}"
        if action in ("pin", "unpin") and (model in self.pinned) == (action == "pin"):
            return f"model {model} is {'pinned already' if action == 'pin' else 'not pinned'}"
        if action == "rollback" and model != self.previous:
            return f"the champion before was {self.previous}, not {model}"
        return None


def _without_repeats(names: Sequence[str], champion: str | None) -> tuple[str, ...]:
    """Drop entries for which a rollback would change nothing."""
    following = [*names[1:], champion]
    return tuple(name for name, after in zip(names, following, strict=True) if name != after) if names else ()


def read_standing(store: Store, *, settled: bool = False) -> Standing:
    """Return the standing, which no power cut undoes if `settled`; `IntegrityError` for a damaged log."""
    log = _log(store)
    standing = Standing()
    for record in log.records():
        place = join(store.url, log.folder, f"{record['seq']:08d}.json")
        entry = DecisionRecord.from_json(record, place)
        try:
            standing = standing.after(entry)
        except FormatError as error:
            raise IntegrityError(f"{place} contradicts the decisions before it: {error}") from error
    if settled and standing.seq:
        store.settle(log.folder)
    return standing


def record_decision(store: Store, standing: Standing, entry: DecisionRecord) -> Standing:
    """Record a decision based on `standing`, and return the new standing.

    Fills in `champion_before`, `when` and `seq`.  Raises `FormatError` for a decision that is not allowed,
    and `ConflictError` naming a concurrent one that came first.
    """
    entry = replace(
        entry,
        evidence=plain(entry.evidence),
        champion_before=standing.champion,
        when=now(),
        seq=standing.seq + 1,
    )
    after = standing.after(entry)
    log = _log(store)
    if log.append_as(entry.seq, entry.to_json()):
        return after
    winner = DecisionRecord.from_json(log.record(entry.seq), log.folder)
    raise ConflictError(
        f"{entry.model} was not {_DONE[entry.action]}: meanwhile {winner}; look again, and decide again"
    )


def decision_findings(store: Store) -> Iterator[Finding]:
    """Yield defects of the log of decisions, and contradictions between it and the stored models."""
    log = _log(store)
    found = list(log.findings("registry"))
    yield from found
    try:
        standing = read_standing(store)
    except StorageError as error:
        if all(finding.harmless for finding in found):
            yield Finding("registry", log.folder, str(error), RESTORE)
        return
    published = published_models(store)
    for name in (standing.champion, standing.previous):
        if name is not None and name not in published:
            role = "champion" if name == standing.champion else "model to roll back to"
            what = f"it is the {role}, and is gone"
            yield Finding(
                "registry", join("models", name), what, "restore it from a copy, or promote another"
            )
    for name in sorted(standing.deleted.intersection(published)):
        what = "it was to be deleted, and is there"
        yield Finding("staging", join("models", name), what, f"topline models delete {name}", harmless=True)
    stones = deleted_models(store)
    for name in sorted(standing.deleted.difference(published, stones)):
        path = join("models", name, "deleted.json")
        yield Finding("registry", path, "it is missing, and the decision to delete is there", RESTORE)
    for name in stones:
        if name not in standing.deleted:
            yield Finding("registry", log.folder, f"the decision to delete {name} is missing", RESTORE)


def _log(store: Store) -> CommitLog:
    return CommitLog(store, "registry")
