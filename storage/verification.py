"""Checking a whole store: what `topline fsck URL` prints."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from topline.storage.cache import StoredKernel, StoredPredictions
from topline.storage.datasets import Dataset, check_dataset
from topline.storage.datasets.info import dataset_log, info_of_commit
from topline.storage.errors import StorageError
from topline.storage.findings import Finding
from topline.storage.models import calibration_files, load_model, published_models
from topline.storage.models.decisions import decision_findings
from topline.storage.models.records import unfinished_models
from topline.storage.runs import HistoryReader, read_run, run_names
from topline.storage.runs.checkpoints import (
    checkpoint_folder,
    checkpoint_rounds,
    read_checkpoint_record,
    stray_folders,
)
from topline.storage.runs.history import history_path
from topline.storage.stores import Store, check_files
from topline.storage.stores.local import PARTIAL
from topline.storage.stores.urls import join

_RESTORE = "restore the file from a copy"


def verify_store(store: Store, *, deep: bool = True) -> list[Finding]:
    """Return everything that is wrong in `store`, worst first; harmless leftovers are marked as such.

    Looks at every dataset, model, checkpoint, history and commit log: presence and sizes of files, and with
    `deep` their digests, shapes, label ranges and agreement with the manifest; `.partial` files, staging
    that was never committed, models never finished, runs and models whose dataset is gone, kernels, and
    decisions on models that contradict each other or what is there.
    """
    datasets: dict[str, str] = {}
    found = list(_datasets(store, datasets, deep=deep))
    found += _models(store, datasets, deep=deep)
    found += decision_findings(store)
    found += _runs(store, datasets, deep=deep)
    found += StoredKernel.findings(store, deep=deep)
    found += StoredPredictions.findings(store, deep=deep)
    found += _partials(store)
    return sorted(found, key=lambda finding: (finding.harmless, finding.path, finding.rows or (0, 0)))


def _datasets(store: Store, known: dict[str, str], *, deep: bool) -> Iterator[Finding]:
    """Yield the findings of the commit log, every dataset and staging.

    Fills `known` with folders by dataset id.
    """
    log = dataset_log(store)
    try:
        numbers = log.numbers()
    except StorageError as error:
        yield Finding("commit-log", log.folder, str(error), _RESTORE)
        return
    for seq in numbers:
        path = join(log.folder, f"{seq:08d}.json")
        try:
            info = info_of_commit(log.record(seq))
            known[info.id] = info.folder
            yield from check_dataset(Dataset(store, info), deep=deep)
        except StorageError as error:
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
        try:
            model = load_model(join(store.url, place))
        except StorageError as error:
            yield Finding("model", place, str(error), _RESTORE)
            continue
        if model.record.dataset not in datasets:
            what = f"its dataset {model.record.dataset} is gone"
            yield Finding(
                "dataset-gone", place, what, "restore the dataset; until then it cannot be certified"
            )
        yield from check_files(model.files, deep=deep, fix="train the model again")
        calibration = calibration_files(model)
        if calibration is not None:
            yield from check_files(calibration, deep=deep, fix=_RESTORE)


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
            sum(1 for _ in HistoryReader(store, name).read_new())
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


def _partials(store: Store) -> Iterator[Finding]:
    for path in store.walk():
        if path.endswith(PARTIAL):
            what, fix = "a killed writer left it", "delete it when nothing is writing"
            yield Finding("partial", path, what, fix, harmless=True)
