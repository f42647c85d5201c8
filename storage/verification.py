"""Checking a whole store: what `topline fsck URL` prints."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Collection, Iterator

from topline.storage.cache import StoredKernel, StoredPredictions
from topline.storage.datasets import Dataset, check_dataset
from topline.storage.datasets.info import dataset_log, info_of_commit
from topline.storage.errors import StorageError
from topline.storage.findings import Finding
from topline.storage.models import Model, ModelRecord, calibration_files, load_model, published_models
from topline.storage.models.decisions import decision_findings
from topline.storage.models.records import model_log, unfinished_models
from topline.storage.runs import HistoryReader, check_history, read_run, run_names
from topline.storage.runs.checkpoints import (
    checkpoint_folder,
    checkpoint_rounds,
    read_checkpoint_record,
    stray_folders,
)
from topline.storage.runs.history import history_path
from topline.storage.runs.sweeps import sweep_findings
from topline.storage.schema import FILES_LIST
from topline.storage.stores import Store, check_files
from topline.storage.stores.local import PARTIAL
from topline.storage.stores.sealed import unsealed
from topline.storage.stores.urls import join

_RESTORE = "restore the file from a copy"
#: Folders whose number `begun.json` takes, and the sealed records that no other check opens.
_NUMBERED = re.compile(r"^(models/m|runs/r|sweeps/s)\d{4,}$")
_RECORDS = {"runs": "run.json", "sweeps": "sweep.json"}
_SEALED = re.compile(
    r"^((models|runs|sweeps)/[^/]+/(begun|deleted|outcome|sweep)|sweeps/[^/]+/answers/\d{6}"
    r"|datasets/[^/]+/staging|leases/[^/]+/\d{8}|schedule)\.json$"
)


def verify_store(store: Store, *, deep: bool = True) -> list[Finding]:
    """Return everything that is wrong in `store`, worst first; harmless leftovers are marked as such.

    Looks at every dataset, model, checkpoint, history and commit log: presence and sizes of files, and with
    `deep` their digests, shapes, label ranges and agreement with the manifest; `.partial` files, staging
    that was never committed, models never finished, runs and models whose dataset is gone, kernels, and
    decisions on models that contradict each other or what is there.  Every record is looked at in its place.
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
    """Yield the findings of the commit log, every dataset and staging.

    Fills `known` with folders by dataset id.
    """
    log = dataset_log(store)
    found = list(log.findings("dataset"))
    yield from found
    told = {finding.path for finding in found if not finding.harmless}
    try:
        numbers = log.numbers()
    except StorageError:
        # Named among the findings of the log.
        return
    for seq in numbers:
        path = join(log.folder, f"{seq:08d}.json")
        try:
            info = info_of_commit(log.record(seq))
            known[info.id], path = info.folder, join(info.folder, FILES_LIST)
            yield from check_dataset(Dataset(store, info), deep=deep)
        except StorageError as error:
            if path not in told:
                yield Finding("dataset", path, str(error), _RESTORE)
    if len(known) == len(numbers):
        for name in store.list("datasets"):
            folder = join("datasets", name)
            if folder not in known.values():
                what, fix = (
                    "it was begun and never committed",
                    "run its command again to finish it, or delete it",
                )
                yield Finding("staging", folder, what, fix, harmless=True)


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
                yield Finding("model", place, str(error), _RESTORE)
            continue
        yield from _model(model, place, datasets, deep=deep)


def _model(model: Model, place: str, datasets: Collection[str], *, deep: bool) -> Iterator[Finding]:
    record, store = model.record, model.store
    if record.dataset not in datasets:
        what = f"its dataset {record.dataset} is gone"
        yield Finding("dataset-gone", place, what, "restore the dataset; until then it cannot be certified")
    yield from check_files(model.files, deep=deep, fix="train the model again")
    calibration = calibration_files(model)
    if calibration is not None:
        yield from check_files(calibration, deep=deep, fix=_RESTORE)
    yield from _run_of(store, record)


def _run_of(store: Store, record: ModelRecord) -> Iterator[Finding]:
    """Yield what a model's run lacks."""
    if record.run is None:
        return
    folder = join("runs", record.run)
    if record.run not in run_names(store):
        yield Finding("run", folder, f"it is gone, and {record.id} came of it", _RESTORE)
    elif not store.exists(join(folder, "outcome.json")):
        what = (
            f"it is missing, and {record.id} came of the run: that was killed at its end, or the file is lost"
        )
        fix = f"{_RESTORE}, or resume the run: it ends at once"
        yield Finding("run", join(folder, "outcome.json"), what, fix, harmless=True)


def _runs(store: Store, datasets: Collection[str], *, deep: bool) -> Iterator[Finding]:
    for name in run_names(store):
        try:
            run = read_run(store, name)
        except StorageError as error:
            yield Finding("run", join("runs", name), str(error), _RESTORE)
            continue
        if run.dataset and run.dataset not in datasets:
            what, fix = f"its dataset {run.dataset} is gone", "it cannot be resumed; start a new run"
            yield Finding("dataset-gone", join("runs", name), what, fix)
        try:
            last = deque(HistoryReader(store, name).read_new(), maxlen=1)
            check_history(store, name)
            if run.outcome is None and last and last[0].get("event") == "end" and not last[0].get("reason"):
                path = join("runs", name, "outcome.json")
                yield Finding("run", path, "it is missing, and training ended", _RESTORE)
        except StorageError as error:
            yield Finding("history", history_path(name), str(error), "delete the damaged line")
        for round_number in checkpoint_rounds(store, name):
            yield from _checkpoint(store, name, round_number, deep=deep)
        for folder in stray_folders(store, name):
            what, fix = "it was begun and never finished", "the next checkpoint of the run removes it"
            yield Finding("staging", folder, what, fix, harmless=True)


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
    """Yield the records that are damaged or not in their place."""
    for path in paths:
        if _SEALED.match(path) and path not in told:
            try:
                unsealed(store, path)
            except StorageError as error:
                yield Finding("record", path, str(error), _RESTORE)


def _numbered_folders(paths: Collection[str]) -> Iterator[Finding]:
    """Yield the runs, models and sweeps without the records that make them what they are."""
    files: dict[str, set[str]] = {}
    for path in paths:
        kind, _, rest = path.partition("/")
        name, _, inside = rest.partition("/")
        files.setdefault(join(kind, name), set()).add(inside)
    for folder, held in sorted(files.items()):
        if not _NUMBERED.match(folder):
            continue
        if "begun.json" not in held:
            what = "the record that takes the number is missing"
            yield Finding("record", join(folder, "begun.json"), what, _RESTORE)
        record = _RECORDS.get(folder.partition("/")[0])
        if record is None or record in held:
            continue
        path = join(folder, record)
        if held == {"begun.json"}:
            what = "it was begun and never written"
            yield Finding("record", path, what, "delete the folder", harmless=True)
        else:
            yield Finding("record", path, "the record is missing", _RESTORE)


def _partials(paths: Collection[str]) -> Iterator[Finding]:
    for path in paths:
        if path.endswith(PARTIAL):
            what, fix = "a killed writer left it", "delete it when nothing is writing"
            yield Finding("partial", path, what, fix, harmless=True)
