"""Checks of a whole store, as printed by `topline fsck URL`."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace

from topline.storage.cache import StoredKernel, StoredPredictions
from topline.storage.datasets import Dataset, check_dataset
from topline.storage.datasets.contents import UnitRef
from topline.storage.datasets.info import (
    Removal,
    dataset_log,
    info_of_commit,
    read_catalog,
    removal_of_commit,
)
from topline.storage.datasets.writer import listed_units
from topline.storage.errors import StorageError
from topline.storage.models import (
    Model,
    ModelRecord,
    calibration_files,
    decision_findings,
    load_model,
    model_log,
    published_models,
    unfinished_models,
)
from topline.storage.records import RESTORE, Finding
from topline.storage.runs import check_history, read_run, run_names
from topline.storage.runs.checkpoints import (
    KEPT,
    checkpoint_folder,
    checkpoint_rounds,
    read_checkpoint_record,
    stray_folders,
)
from topline.storage.runs.history import history_path
from topline.storage.runs.records import RUNS, sweep_findings
from topline.storage.schema import FILES_LIST, MANIFESTS, MARKS, UNITS, UNITS_LIST
from topline.storage.stores import Store, check_files
from topline.storage.stores.local import PARTIAL
from topline.storage.stores.sealed import TOMBSTONE, unsealed
from topline.storage.stores.urls import join

#: Folders whose number `begun.json` reserves, and sealed records that no other check opens.
_NEXT = "the next checkpoint of the run removes it"
_NUMBERED = re.compile(r"^(models/m|runs/r|sweeps/s)\d{4,}$")
_RECORDS = {"runs": "run.json", "sweeps": "sweep.json"}
_SEALED = re.compile(
    r"^((models|runs|sweeps)/[^/]+/(begun|deleted|outcome|sweep)|sweeps/[^/]+/answers/\d{6}"
    r"|datasets/[^/]+/(staging|deleted|marks/\d{5,})|leases/[^/]+/\d{8}|schedule)\.json$"
)


def verify_store(store: Store, *, deep: bool = True) -> list[Finding]:
    """Return all findings in `store`, worst first; harmless leftovers are marked as such.

    Checks every dataset, model, checkpoint, history, commit log and cached result: presence and sizes of
    files and, with `deep`, digests, shapes, label ranges and agreement with the manifest.  Also reports
    `.partial` files, staging never committed, unfinished models, runs and models whose dataset is gone,
    decisions that contradict each other or the stored models, and misplaced records.
    """
    datasets: dict[str, str] = {}
    paths = store.walk()
    found = list(_datasets(store, datasets, deep=deep))
    found += _models(store, datasets, deep=deep)
    found += decision_findings(store)
    found += _runs(store, datasets, deep=deep)
    found += sweep_findings(store)
    found += StoredKernel.findings(store, deep=deep)
    found += StoredPredictions.findings(store, deep=deep)
    found += _sealed_records(store, paths, {finding.path for finding in found})
    found += _numbered_folders(paths)
    found += _partials(paths)
    return sorted(found, key=lambda finding: (finding.harmless, finding.path, finding.rows or (0, 0)))


def _datasets(store: Store, known: dict[str, str], *, deep: bool) -> Iterator[Finding]:
    """Yield the findings of the commit log, every dataset and staging; fill `known` (folders by id)."""
    log = dataset_log(store)
    found = list(log.findings("dataset"))
    yield from found
    told = {finding.path for finding in found if not finding.harmless}
    try:
        numbers = log.numbers()
    except StorageError:
        # Reported with the log.
        return
    gone = _removed(store)
    checked: set[str] = set()
    folders, read, sound = set(), 0, True
    for seq in numbers:
        path = join(log.folder, f"{seq:08d}.json")
        try:
            record = log.record(seq)
            removal = removal_of_commit(record, path)
            read += 1
            if removal is not None:
                folders.add(removal.folder)
                if store.list(removal.folder):
                    what = f"{removal.dataset} was removed, and its files are there"
                    yield Finding(
                        "staging", removal.folder, what, "topline prune deletes them", harmless=True
                    )
                continue
            info = info_of_commit(record)
            folders.add(info.folder)
            if info.id in gone:
                continue
            known[info.id], path = info.folder, join(info.folder, FILES_LIST)
            own = check_dataset(Dataset(store, info), deep=deep, checked=checked)
            sound = sound and all(finding.harmless for finding in own)
            yield from own
        except StorageError as error:
            if path not in told:
                yield Finding("dataset", path, str(error), RESTORE)
            sound = False
    if read == len(numbers):
        yield from _staging(store, folders)
    # What a damaged dataset refers to is unknown.
    if sound:
        yield from _unreferenced(store, checked, known.values())


def _removed(store: Store) -> Mapping[str, Removal]:
    """Return the removals by the ids of the datasets, none if the log is unreadable."""
    try:
        return read_catalog(store).removed
    except StorageError:
        # Reported with the log.
        return {}


def _staging(store: Store, folders: Collection[str]) -> Iterator[Finding]:
    """Yield the folders of datasets that were never committed."""
    for name in store.list("datasets"):
        folder = join("datasets", name)
        if folder not in folders and store.list(folder) != [TOMBSTONE]:
            what, fix = "it was begun and never committed", "run its command again; topline prune deletes it"
            yield Finding("staging", folder, what, fix, harmless=True)


def _unreferenced(store: Store, referred: Collection[str], committed: Collection[str]) -> Iterator[Finding]:
    """Yield contents that no dataset, committed or staged, refers to."""
    marked = set[str]()
    for path in store.walk("datasets"):
        if f"/{MARKS}/" in path and path.endswith(".json"):
            try:
                marked |= UnitRef.from_json(unsealed(store, path)).places
            except StorageError:
                # Reported with the records.
                return
    # Removed datasets, and listed uncommitted ones, keep their contents while they exist.
    for folder in {join("datasets", name) for name in store.list("datasets")}.difference(committed):
        try:
            marked = marked.union(*(unit.places for unit in listed_units(store, folder)))
        except StorageError as error:
            yield Finding("staging", join(folder, UNITS_LIST), str(error), "delete its folder", harmless=True)
            return
    for folder in (UNITS, MANIFESTS):
        for name in store.list(folder):
            path = join(folder, name)
            if path not in referred and path not in marked and not name.endswith(PARTIAL):
                what = "no dataset refers to it"
                yield Finding("unreferenced", path, what, "topline prune deletes it", harmless=True)


def _models(store: Store, datasets: Collection[str], *, deep: bool) -> Iterator[Finding]:
    for name in unfinished_models(store):
        what = "it was begun and never finished"
        yield Finding("staging", join("models", name), what, "delete it", harmless=True)
    for name in published_models(store):
        place = join("models", name)
        found = list(model_log(store, name).findings("model"))
        yield from found
        try:
            model = load_model(join(store.url, place))
        except StorageError as error:
            if all(finding.harmless for finding in found):
                yield Finding("model", place, str(error), RESTORE)
            continue
        yield from _model(model, place, datasets, deep=deep)


def _model(model: Model, place: str, datasets: Collection[str], *, deep: bool) -> Iterator[Finding]:
    record, store = model.record, model.store
    if record.dataset not in datasets:
        yield _dataset_gone(store, record.dataset, place)
    yield from check_files(model.files, deep=deep, fix="train the model again")
    calibration = calibration_files(model)
    if calibration is not None:
        yield from check_files(calibration, deep=deep, fix=RESTORE)
    yield from _run_of(store, record)


def _dataset_gone(store: Store, dataset: str, place: str) -> Finding:
    """Return the finding of a model or run without its dataset; harmless if the dataset was removed."""
    removal = _removed(store).get(dataset)
    if removal is None:
        what, fix = f"its dataset {dataset} is gone", "restore the dataset; until then it cannot be used"
        return Finding("dataset-gone", place, what, fix)
    what = f"its dataset {dataset} was removed on purpose at {removal.when}: {removal.reason}"
    fix = "a model without the rows that went works on with the version in its place; train others again"
    return Finding("dataset-removed", place, what, fix, harmless=True)


def _run_of(store: Store, record: ModelRecord) -> Iterator[Finding]:
    """Yield what is missing from a model's run."""
    if record.run is None:
        return
    folder = join("runs", record.run)
    if record.run in RUNS.removed(store):
        return
    if record.run not in run_names(store):
        yield Finding("run", folder, f"it is gone, and {record.id} was made from it", RESTORE)


def _runs(store: Store, datasets: Collection[str], *, deep: bool) -> Iterator[Finding]:
    for name in run_names(store):
        try:
            run = read_run(store, name)
        except StorageError as error:
            yield Finding("run", join("runs", name), str(error), RESTORE)
            continue
        if run.dataset and run.dataset not in datasets:
            yield _dataset_gone(store, run.dataset, join("runs", name))
        try:
            last = check_history(store, name) or {}
            if run.outcome is None and last.get("event") == "end" and not last.get("reason"):
                path = join("runs", name, "outcome.json")
                what = "it is missing, though training ended: killed before the outcome was written, or lost"
                fix = f"{RESTORE}, or resume the run: it ends at once"
                yield Finding("run", path, what, fix, harmless=True)
        except StorageError as error:
            yield Finding("history", history_path(name), str(error), RESTORE)
        rounds = checkpoint_rounds(store, name)
        for round_number in rounds:
            found = _checkpoint(store, name, round_number, deep=deep)
            # A request that arrives late may put the record of a dropped one again.
            old = round_number not in rounds[-KEPT:]
            yield from (replace(one, fix=_NEXT, harmless=True) if old else one for one in found)
        for folder in stray_folders(store, name):
            yield Finding("staging", folder, "it was begun and never finished", _NEXT, harmless=True)


def _checkpoint(store: Store, run_id: str, round_number: int, *, deep: bool) -> Iterator[Finding]:
    fix = "resume from the checkpoint before it, or start a new run"
    try:
        _, files = read_checkpoint_record(store, run_id, round_number)
    except StorageError as error:
        path = join(checkpoint_folder(run_id), f"{round_number:08d}.json")
        yield Finding("checkpoint", path, str(error), fix)
        return
    yield from check_files(files, deep=deep, fix=fix)


def _sealed_records(store: Store, paths: Collection[str], told: Collection[str]) -> Iterator[Finding]:
    """Yield the records that are damaged or misplaced."""
    for path in paths:
        if _SEALED.match(path) and path not in told:
            try:
                unsealed(store, path)
            except StorageError as error:
                yield Finding("record", path, str(error), RESTORE)


def _numbered_folders(paths: Collection[str]) -> Iterator[Finding]:
    """Yield the runs, models and sweeps without their essential records."""
    files: dict[str, set[str]] = {}
    for path in paths:
        # Left by a writer killed before it took a number or wrote its record.
        if path.endswith(PARTIAL):
            continue
        kind, _, rest = path.partition("/")
        name, _, inside = rest.partition("/")
        files.setdefault(join(kind, name), set()).add(inside)
    for folder, held in sorted(files.items()):
        if not _NUMBERED.match(folder):
            continue
        if "begun.json" not in held:
            what = "the record that takes the number is missing"
            yield Finding("record", join(folder, "begun.json"), what, RESTORE)
        record = _RECORDS.get(folder.partition("/")[0])
        if record is None or record in held or "deleted.json" in held:
            continue
        path = join(folder, record)
        if held == {"begun.json"}:
            what = "it was begun and never written"
            yield Finding("record", path, what, "delete the folder", harmless=True)
        else:
            yield Finding("record", path, "the record is missing", RESTORE)


def _partials(paths: Collection[str]) -> Iterator[Finding]:
    for path in paths:
        if path.endswith(PARTIAL):
            what, fix = "a killed writer left it", "delete it when nothing is writing"
            yield Finding("partial", path, what, fix, harmless=True)
