"""Apply a model to a stored dataset on Dask workers, which write their predictions.

A unit is a shard of the dataset, whose predictions one worker writes as a shard of their own: units lost with
a worker are simply repeated.
"""

from __future__ import annotations

import logging
import threading
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from topline.pipeline.errors import ClusterError, InputError, NotStoredError
from topline.pipeline.images import Pixels, SourceImages
from topline.pipeline.options import ClusterConfig, PredictConfig
from topline.pipeline.prediction.answers import AnswerRule, Answers, Predicted
from topline.pipeline.prediction.files import table_of, table_schema, write_files
from topline.pipeline.progress import Progress, advance, begin
from topline.pipeline.rows import StoredModel
from topline.storage.arrays import ArrayReader, Span
from topline.storage.cache import PredictionsDraft, StoredPredictions, cache_key
from topline.storage.datasets import Dataset
from topline.storage.errors import DiskFullError
from topline.storage.schema import SPLITS
from topline.storage.stores import FileEntry, Store, open_store

if TYPE_CHECKING:
    from distributed import Client

logger = logging.getLogger(__name__)

# Bytes of scores computed at once.
SCORE_BYTES = 1 << 26
# Bytes of rows per call of a worker: seconds of work, and little to repeat.
CALL_BYTES = 1 << 28
# Most successive rounds that lose a worker.
LOSSES = 5
# Smaller features are scored here unless workers are chosen, which would take longer to start.
HERE_BYTES = 64 << 20


@dataclass(frozen=True, eq=False)
class BatchTask:
    """Everything a worker needs: model, dataset, draft and rule."""

    model_url: str
    dataset: Dataset
    draft: PredictionsDraft
    rule: AnswerRule
    kernel: bool = False


def predict_units(task: BatchTask, units: Sequence[int]) -> list[FileEntry]:
    """Predict and write some units, on a worker; return the files."""
    stored = _opened(task.model_url)
    labels, m = task.dataset.labels(), stored.model.record.m
    ids = task.dataset.sample_ids() if task.rule.sets is not None else []
    entries: list[FileEntry] = []
    for unit in units:
        span = task.draft.plan.bounds(unit)
        rows: Any = task.dataset.rows(span.start, span.stop)
        arrays = {
            name: np.empty((span.rows, *spec.row_shape), spec.dtype)
            for name, spec in task.draft.specs.items()
        }
        step = max(1, SCORE_BYTES // (8 * m))
        for low in range(0, span.rows, step):
            scores = stored.scores(stored.transforms.apply(rows[low : low + step]))
            part = slice(span.start + low, span.start + low + len(scores))
            answers = task.rule.answer(scores, ids[part])
            for name, out in arrays.items():
                values = getattr(answers, name)
                out[low : low + step] = np.packbits(values, axis=1) if name == "sets" else values
        # A rejected row's features are zeros without meaning.
        rejected = labels[span.start : span.stop] < 0
        for name, values in arrays.items():
            values[rejected] = {"classes": -1, "sets": 0}.get(name, np.nan)
        entries += task.draft.write_arrays(unit, arrays)
    return entries


_model_lock = threading.Lock()
_held_model: StoredModel | None = None


def _opened(model_url: str) -> StoredModel:
    """Return the model, cached per process until another one is opened."""
    global _held_model
    with _model_lock:
        if _held_model is None or _held_model.model.url != model_url:
            _held_model = None
            _held_model = StoredModel.open(model_url)
        return _held_model


def forget_model() -> None:
    """Drop the model cached in this process."""
    global _held_model
    with _model_lock:
        _held_model = None


def dataset_tables(found: StoredPredictions, dataset: Dataset) -> Iterator[pa.Table]:
    """Yield the predictions of all rows in order; a rejected row has no label and no lists."""
    ids, labels = dataset.sample_ids(), dataset.labels()
    sets, names = dataset.label_sets(), dataset.info.class_names
    if sets is not None:
        names = tuple(";".join(names[code] for code in classes.tolist()) for classes in sets)
    words = np.array([*names, None], dtype=object)
    splits = np.array(sorted(SPLITS, key=lambda name: SPLITS[name]), dtype=object)[dataset.split()]
    errors = dataset.manifest()["error"]
    schema = table_schema("sample_id", sets=found.sets is not None)
    for span in map(dataset.plan.bounds, range(dataset.plan.units)):
        rows = slice(span.start, span.stop)
        columns = {
            "sample_id": ids[rows],
            "label": words[labels[rows]].tolist(),
            "split": splits[rows].tolist(),
            "error": errors.slice(span.start, span.rows).to_pylist(),
            **_stored_answers(found, span).columns(found.facts["class_names"], read=labels[rows] >= 0),
        }
        yield table_of(schema, columns, several="threshold" in found.facts)


def _stored_answers(found: StoredPredictions, span: Span) -> Answers:
    """Return the answers for some rows, from the arrays that `predict_units` wrote."""

    def part(array: ArrayReader | None) -> Any:
        return None if array is None else array.rows(span.start, span.stop)

    sets = part(found.sets)
    if sets is not None:
        sets = np.unpackbits(sets, axis=1, count=len(found.facts["class_names"])).astype(bool)
    return Answers(part(found.classes), part(found.scores), part(found.probabilities), sets)


def set_sizes(found: StoredPredictions, dataset: Dataset) -> NDArray[np.int64]:
    """Return the sizes of the sets of all rows that are not rejected; none without sets."""
    if found.sets is None:
        return np.empty(0, dtype=np.int64)
    parts = [
        np.bitwise_count(found.sets.rows(span.start, span.stop)).sum(axis=1)
        for span in map(dataset.plan.bounds, range(dataset.plan.units))
    ]
    return np.concatenate(parts)[dataset.labels() >= 0]


@dataclass(frozen=True, kw_only=True)
class BatchResult(Predicted):
    """Location and cost of the predictions; `unclassified` rows have no features.

    `threshold` is for several labels, None if the best `top_k` are predicted.  `reused` predictions were
    already stored; `predictions` is None in a read-only store.
    """

    predictions: str | None
    dataset: str
    rows: int
    unclassified: int
    top_k: int
    threshold: float | None
    seconds: float
    reused: bool

    def classes_text(self) -> str:
        """Return as text which classes are predicted."""
        if self.threshold is None:
            return f"the best {self.top_k} of each row"
        return f"those of each row above {self.threshold:.4g}, {self.top_k} at most"


def predict_dataset(
    model_url: str,
    config: PredictConfig,
    cluster: ClusterConfig | None = None,
    progress: Progress | None = None,
    client: Client | None = None,
) -> BatchResult:
    """Predict the best classes of every row of a dataset, and store them beside it.

    `cluster` says where it runs (default: one worker per core, small datasets here); an open `client` takes
    precedence.  Earlier predictions are reused.  Raises `InputError` for features that the model cannot take,
    `ClusterError` if the workers stay away, and `NotStoredError` with the result if the table or page cannot
    be written, or there is no room for the predictions.
    """
    started = time.perf_counter()
    stored = StoredModel.open(model_url)
    record = stored.model.record
    store = stored.model.store if config.store is None else open_store(config.store)
    dataset = Dataset.open(store, config.dataset or "latest")
    _check_features(stored, dataset)
    rule = AnswerRule.of(stored, config, progress)
    facts = _facts(stored, dataset, rule)
    key = cache_key(facts)
    found = StoredPredictions.find(store, key)

    def published(keeper: Store) -> StoredPredictions:
        probable, set_classes = rule.probabilities is not None, 0 if rule.sets is None else record.m
        draft = PredictionsDraft.begin(
            keeper, key, dataset.plan, rule.top_k, probabilities=probable, set_classes=set_classes
        )
        task = BatchTask(stored.model.url, dataset, draft, rule, stored.kernel is not None)
        named = {**facts, "class_names": list(record.class_names)}
        try:
            return draft.publish(key, _entries(task, cluster or ClusterConfig(), progress, client), named)
        except BaseException:
            draft.discard()
            raise

    def predicted_in(keeper: Store) -> BatchResult:
        kept = published(keeper) if found is None else found
        result = BatchResult(
            predictions=kept.url if found is not None or keeper == store else None,
            model=stored.model.url,
            dataset=dataset.info.id,
            rows=dataset.info.n_rows,
            unclassified=int((dataset.labels() < 0).sum()),
            top_k=rule.top_k,
            threshold=rule.threshold,
            probabilities=rule.calibration,
            coverage=config.coverage,
            sets=rule.set_facts(set_sizes(kept, dataset)),
            seconds=time.perf_counter() - started,
            reused=found is not None,
        )
        return _with_files(result, config, kept, dataset)

    # Predictions that cannot be kept are only worth making for a file.
    shown = found is None and bool(config.output or config.page)
    if shown and not store.is_writable():
        logger.warning("%s is read-only: predictions go to the output alone, and are made here", store.url)
        with _temporary_store() as memory:
            return predicted_in(memory)
    try:
        return predicted_in(store)
    except DiskFullError as error:
        if not shown:
            raise
        logger.warning("predictions go to the output alone, and are made here: %s", error)
        with _temporary_store() as memory:
            raise NotStoredError(f"the predictions are not kept: {error}", predicted_in(memory)) from error


def _facts(stored: StoredModel, dataset: Dataset, rule: AnswerRule) -> dict[str, Any]:
    """Return everything that determines the predictions."""
    return {
        "model": stored.model.url,
        "model_created": stored.model.record.created,
        "dataset": dataset.info.id,
        "dataset_digest": dataset.info.digest,
        **rule.facts(),
    }


def _with_files(
    result: BatchResult, config: PredictConfig, found: StoredPredictions, dataset: Dataset
) -> BatchResult:
    """Write the requested table and page, and return the result with their locations."""
    schema = table_schema("sample_id", sets=found.sets is not None)
    manifest, source = cache(dataset.manifest), SourceImages(dataset.info.features)

    def picture(place: int, _: Mapping[str, Any]) -> Pixels:
        return source(manifest().slice(place, 1).to_pylist()[0])

    subject = f"rows of dataset {dataset.info.id}"
    return write_files(result, config, subject, schema, lambda: dataset_tables(found, dataset), picture)


def _check_features(stored: StoredModel, dataset: Dataset) -> None:
    record, info = stored.model.record, dataset.info
    theirs, ours = record.features.get("backbone"), info.features.get("backbone")
    if theirs != ours:
        raise InputError(
            f"dataset {info.id} was made by another backbone than the data of model {record.id}:"
            " extract the images again with the model's"
        )
    if stored.input_width != info.d:
        raise InputError(
            f"dataset {info.id} has {info.d} features per row, and model {record.id} takes"
            f" {stored.input_width}"
        )


def _entries(
    task: BatchTask, cluster: ClusterConfig, progress: Progress | None, client: Client | None
) -> list[FileEntry]:
    """Return the files of all units, predicted here or on workers."""
    begin(progress, "predict", task.dataset.info.n_rows, "rows")
    info = task.dataset.info
    size = info.n_rows * info.d * np.dtype(info.dtype).itemsize
    nowhere_else = client is None and cluster.workers is None and not cluster.scheduler
    # Kernel values take time, however few the features are.
    cheap = size < HERE_BYTES and not task.kernel and cluster.memory_limit is None
    small = nowhere_else and cheap
    if small or task.draft.store.url.startswith("memory://"):
        return _collected(_here(task), progress)
    from topline.pipeline.cluster import given_or_own_client

    with given_or_own_client(cluster, client, size) as workers:
        found = _here(task) if workers is None else _on_workers(task, workers, cluster)
        return _collected(found, progress)


def _collected(batches: Iterator[list[FileEntry]], progress: Progress | None) -> list[FileEntry]:
    entries: list[FileEntry] = []
    for batch in batches:
        entries += batch
        runs = {entry.rows for entry in batch if entry.rows}
        advance(progress, sum(stop - start for start, stop in runs))
    return entries


def _here(task: BatchTask) -> Iterator[list[FileEntry]]:
    try:
        for unit in range(task.draft.plan.units):
            yield predict_units(task, [unit])
    finally:
        forget_model()


def _on_workers(task: BatchTask, client: Client, cluster: ClusterConfig) -> Iterator[list[FileEntry]]:
    """Assign units in rounds of one call per worker; those of a lost worker are reassigned."""
    from topline.pipeline.cluster import Call, WorkerCalls, WorkersLost

    calls = WorkerCalls(client, heartbeat_timeout=cluster.heartbeat_timeout)
    waiting = list(range(task.draft.plan.units))
    info = task.dataset.info
    unit_bytes = task.draft.plan.shard_rows * info.d * np.dtype(info.dtype).itemsize
    hoped, losses = 1, 0
    while waiting:
        workers = calls.wait_for_workers(hoped, cluster.worker_wait)
        hoped = max(hoped, len(workers))
        # The first waiting units, equally many to each worker.
        each = max(1, min(CALL_BYTES // max(1, unit_bytes), len(waiting) // len(workers)))
        runs = (waiting[first : first + each] for first in range(0, len(waiting), each))
        assigned = dict(zip(workers, runs, strict=False))
        try:
            answers = calls.run(
                [Call(worker, predict_units, (task, units)) for worker, units in assigned.items()]
            )
        except WorkersLost as error:
            losses += 1
            if losses > LOSSES:
                raise ClusterError(f"{error}, {losses} times in a row: give workers more memory") from error
            logger.warning("%s: its rows are reassigned", error)
            continue
        losses = 0
        waiting = waiting[sum(map(len, assigned.values())) :]
        yield [entry for worker in assigned for entry in answers[worker]]
    try:
        calls.run([Call(worker, forget_model, ()) for worker in calls.trusted_workers()])
    except (WorkersLost, ClusterError) as error:
        logger.debug("a worker still holds the model: %s", error)


@contextmanager
def _temporary_store() -> Iterator[Store]:
    """Yield a store in memory, for predictions that are not kept."""
    memory = open_store(f"memory://topline-{uuid.uuid4().hex}", create=True)
    try:
        yield memory
    finally:
        for name in memory.list():
            memory.delete_tree(name)
