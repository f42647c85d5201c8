"""Training with an exact kernel when a method needs features: it reads the rows of a factor of the matrix.

The matrix of the training rows is computed by tiles, factored, and kept in the store.  A task computes and
writes a run of whole shards, on the workers if there are any; the factor is computed here
(`topline.solvers.kernels.problem`).  Values are those of the matrix itself.  Methods that only use scores
need neither (`topline.solvers.run.task`).
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from distributed import Client, fire_and_forget, wait
from numpy.typing import NDArray

from topline.pipeline.cluster import known_workers
from topline.pipeline.errors import ClusterError, InterruptedRunError
from topline.pipeline.interrupts import StopFlag
from topline.pipeline.progress import Progress, advance, begin
from topline.pipeline.rows import TrainingRows, Transforms
from topline.pipeline.training.plan import TrainingPlan
from topline.pipeline.training.run import Run
from topline.solvers.blocks.block import inside
from topline.solvers.core.state import SolveResult, Status
from topline.solvers.crew import one_blas_thread
from topline.solvers.executors import Executor
from topline.solvers.kernels import Kernel, factor, is_precomputed, judged_by_gap, values_on_matrix
from topline.storage.arrays import ArrayReader, Span
from topline.storage.cache import KernelDraft, StoredKernel, cache_key
from topline.storage.datasets import Dataset, LabelSetTable
from topline.storage.records import digest_array
from topline.storage.schema import SPLITS
from topline.storage.stores import FileEntry

logger = logging.getLogger(__name__)

ROW_TILE = 512
COLUMN_TILE = 4096
POLL_SECONDS = 0.25
# Tasks submitted per thread: enough to keep it busy, few enough to stop soon.
TASKS_AHEAD = 2
# How long there may be no worker at all.
ALONE_SECONDS = 60.0


@dataclass(frozen=True, eq=False)
class KernelTask:
    """What every tile of one matrix needs."""

    rows: TrainingRows
    kernel: Kernel
    draft: KernelDraft


class StopAskedError(Exception):
    """A stop was requested between two tiles."""


def kernel_of_rows(
    rows: TrainingRows,
    transforms: Transforms,
    kernel: Kernel,
    client: Client | None = None,
    progress: Progress | None = None,
    stop: Callable[[], bool] = lambda: False,
) -> StoredKernel:
    """Return the matrix of these rows from their store, or compute, factor and store it.

    Raises `StopAskedError` soon after `stop` returns True, `InvalidProblemError` or
    `UnsupportedCombinationError` for features that the kernel cannot take, and `ClusterError` if all workers
    stay away.
    """
    info, store = rows.dataset.info, rows.dataset.store
    facts = {
        "dataset": info.id,
        "digest": info.digest,
        "transforms": list(transforms.names),
        "arrays": {name: digest_array(array) for name, array in transforms.arrays().items()},
        "kernel": kernel.to_dict(),
        "rows": len(rows),
    }
    key = cache_key(facts)
    found = StoredKernel.find(store, key)
    if found is not None:
        logger.info("kernel %s of %s is there already", key, store.url)
        return found
    task = KernelTask(rows, kernel, KernelDraft.begin(store, key, len(rows)))
    begin(progress, "kernel", len(rows), "rows")
    try:
        entries = _computed(task, client, progress, stop)
        begin(progress, "factor the kernel")
        F = _factored(task, entries).astype(np.float32)
        starts = range(0, len(F), COLUMN_TILE)
        blocks = (
            (start, min(start + COLUMN_TILE, len(F)), F[start : start + COLUMN_TILE]) for start in starts
        )
        return task.draft.publish(key, entries, blocks, facts)
    except BaseException:
        task.draft.discard()
        raise


def _computed(
    task: KernelTask, client: Client | None, progress: Progress | None, stop: Callable[[], bool]
) -> list[FileEntry]:
    """Compute and write every shard."""
    # Runs of about one tile of rows.
    units, step = task.draft.plan.units, max(1, ROW_TILE // task.draft.plan.shard_rows)
    runs = [(first, min(units, first + step)) for first in range(0, units, step)]
    entries: list[FileEntry] = []
    done: Iterator[list[FileEntry]] = (compute_units(task, *run) for run in runs)
    if client is not None and not task.draft.store.url.startswith("memory://"):
        done = _on_workers(task, runs, client)
    for written in done:
        entries += written
        advance(progress, sum(entry.rows[1] - entry.rows[0] for entry in written if entry.rows))
        if stop():
            raise StopAskedError
    return sorted(entries)


def _on_workers(task: KernelTask, runs: list[tuple[int, int]], client: Client) -> Iterator[list[FileEntry]]:
    """Submit the runs, a few at a time; another worker repeats a run whose worker died."""
    waiting = list(reversed(runs))
    pending: list[Any] = []
    heard = time.monotonic()
    try:
        while waiting or pending:
            workers = known_workers(client).values()
            threads = sum(int(info["nthreads"]) for info in workers)
            while waiting and len(pending) < TASKS_AHEAD * max(1, threads):
                first, last = waiting.pop()
                pending.append(client.submit(_compute_alone, task, first, last, pure=False, retries=3))
            with contextlib.suppress(TimeoutError), client.as_current():
                wait(pending, timeout=POLL_SECONDS, return_when="FIRST_COMPLETED")
            heard = time.monotonic() if threads else heard
            if time.monotonic() - heard > ALONE_SECONDS:
                raise ClusterError(f"no worker for {ALONE_SECONDS:g} s while the kernel was computed")
            ready = [future for future in pending if future.done()]
            pending = [future for future in pending if not future.done()]
            # Yield even if nothing is ready: the caller checks its stop flag.
            yield [entry for future in ready for entry in future.result()]
    finally:
        client.cancel(pending)
        for worker in known_workers(client):
            fire_and_forget(client.submit(forget_features, workers=[worker], pure=False))


def _compute_alone(task: KernelTask, first: int, last: int) -> list[FileEntry]:
    """Compute units on a worker thread, with one BLAS thread each."""
    with one_blas_thread():
        return compute_units(task, first, last)


def compute_units(task: KernelTask, first: int, last: int) -> list[FileEntry]:
    """Compute and write the units first..last-1 of the matrix."""
    draft, X = task.draft, _features(task)
    n = len(task.rows)
    spans = [draft.plan.bounds(unit) for unit in range(first, last)]
    whole = Span(spans[0].start, spans[-1].stop)
    K = np.empty((whole.rows, n))
    if is_precomputed(task.kernel):
        K[:] = task.kernel.matrix(X[whole.start : whole.stop], None)
    for start in range(0, 0 if is_precomputed(task.kernel) else n, COLUMN_TILE):
        stop = min(n, start + COLUMN_TILE)
        K[:, start:stop] = task.kernel.matrix(X[whole.start : whole.stop], X[start:stop])
    return [
        draft.write_unit(unit, K[span.start - whole.start : span.stop - whole.start])
        for unit, span in zip(range(first, last), spans, strict=True)
    ]


_features_lock = threading.Lock()
_features_held: tuple[str, Any] | None = None


def _features(task: KernelTask) -> Any:
    """Return all training rows, read once per process; they replace those of the last matrix."""
    global _features_held
    with _features_lock:
        if _features_held is None or _features_held[0] != task.draft.folder:
            _features_held = None
            X = task.rows.whole()
            _features_held = (task.draft.folder, X)
        return _features_held[1]


def forget_features() -> None:
    """Release the training rows of the last matrix."""
    global _features_held
    with _features_lock:
        _features_held = None


def _factored(task: KernelTask, entries: list[FileEntry]) -> NDArray[np.float64]:
    """Factor the matrix, read back from the store."""
    forget_features()
    n = len(task.rows)
    F, _, _ = factor(task.draft.reader(entries).rows(0, n), task.kernel.name)
    return F if F.shape[1] else np.zeros((n, 1))


def factored_kernel(
    run: Run, client: Client | None, progress: Progress | None, flag: StopFlag
) -> StoredKernel:
    """Return the factored kernel matrix of a run's rows; raise as `kernel_of_rows`.

    Raises `InterruptedRunError` once `flag` is set.
    """
    plan, kernel = run.plan, run.plan.spec.kernel
    try:
        return kernel_of_rows(plan.rows, plan.transforms, kernel, client, progress, lambda: bool(flag))
    except StopAskedError:
        raise InterruptedRunError(
            f"stopped by {flag.reason} while the kernel was computed; {run.how_to_resume}"
        ) from None


def on_kernel(
    plan: TrainingPlan, kernel: StoredKernel | None, executor: Executor, result: SolveResult
) -> SolveResult:
    """Return the result with P, D and the gap recomputed on the kernel matrix itself, in float64."""
    if kernel is None or result.status in {Status.INTERRUPTED, Status.NONFINITE}:
        return result
    A = np.concatenate([rows for _, _, rows in executor.duals(result.state.pending_step)])
    problem, labels, weights = plan.problem, plan.examples.labels, plan.examples.weights
    A = result.dual_share * inside(problem, A, labels, weights)
    values: dict[str, Any] = dict(values_on_matrix(MatrixRows(kernel.matrix), problem, labels, weights, A))
    return judged_by_gap(replace(result, **values), plan.config.tol)


class FactorDataset(Dataset):
    """The training rows of a dataset with a factor's rows as features; pickled by address."""

    def __init__(self, dataset: Dataset, kernel: StoredKernel) -> None:
        self.store = dataset.store
        self.files = kernel.files
        self._origin = dataset
        self._kernel = kernel
        self._labels = TrainingRows(dataset, "train").labels()
        n, r = kernel.factor.spec.shape
        plan = kernel.factor.spec.plan
        self.info = replace(
            dataset.info, n_rows=n, d=r, dtype=kernel.factor.spec.dtype.name, layout="dense",
            chunk_rows=plan.chunk_rows, shard_rows=plan.shard_rows, nonzeros=None,
        )  # fmt: skip

    def __reduce__(self) -> tuple[object, ...]:
        return FactorDataset, (self._origin, self._kernel)

    def labels(self) -> NDArray[np.int32]:
        """Labels of the training rows."""
        return self._labels

    def label_sets(self) -> LabelSetTable | None:
        """The label sets of the source dataset."""
        return self._origin.label_sets()

    def split(self) -> NDArray[np.int8]:
        """Return the split of every row: training."""
        return np.full(self.info.n_rows, SPLITS["train"], dtype=np.int8)

    def rows(self, start: int, stop: int) -> NDArray[Any]:
        """Rows of the factor."""
        return self._kernel.factor.rows(start, stop)


class MatrixRows:
    """A stored matrix as a `RowSource` of the solvers."""

    def __init__(self, reader: ArrayReader) -> None:
        self._reader = reader
        self.shape = reader.spec.shape
        self.dtype = reader.spec.dtype
        self.cuts = reader.spec.plan.unit_bounds()

    def __getitem__(self, rows: slice) -> NDArray[Any]:
        start, stop, _ = rows.indices(self.shape[0])
        return self._reader.rows(start, stop)
