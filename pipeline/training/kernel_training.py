"""Training with an exact kernel when a method needs features: it reads the rows of a factor of the matrix.

The coordinator must hold the matrix of the training rows and its factor.  It has the matrix computed by
tiles, on the workers if there are any, factors it (`topline.solvers.kernels.problem`), and keeps both in the
store, where workers find the factor.  Values are those of the matrix itself.  Methods that only use scores
need neither (`topline.solvers.run.task`).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from dataclasses import replace
from itertools import islice
from typing import Any, TypeAlias

import numpy as np
from dask.system import CPU_COUNT
from distributed import Client, Future, wait
from numpy.typing import NDArray

from topline.pipeline.cluster import known_workers
from topline.pipeline.errors import ClusterError, InterruptedRunError
from topline.pipeline.interrupts import StopFlag
from topline.pipeline.progress import Progress, advance, begin
from topline.pipeline.rows import TrainingRows, Transforms
from topline.pipeline.training.plan import TrainingPlan
from topline.pipeline.training.run import Run
from topline.solvers.blocks.block import inside
from topline.solvers.core.rows import cut_rows
from topline.solvers.core.state import SolveResult, Status
from topline.solvers.crew import one_blas_thread
from topline.solvers.executors import Executor
from topline.solvers.kernels import Kernel, factor, is_precomputed, judged_by_gap, values_on_matrix
from topline.storage.arrays import ArrayReader
from topline.storage.cache import StoredKernel, cache_key
from topline.storage.datasets import Dataset, LabelSetTable
from topline.storage.records import digest_array
from topline.storage.schema import SPLITS

logger = logging.getLogger(__name__)

ROW_TILE = 512
COLUMN_TILE = 4096
POLL_SECONDS = 0.25
# Tiles per thread of the workers: enough to keep it busy, few enough to stop soon.
TILES_AHEAD = 2
# How long there may be no worker at all.
ALONE_SECONDS = 60.0

#: The first of some rows of the matrix, and these (t, n).
MatrixTile: TypeAlias = tuple[int, NDArray[np.float64]]


def kernel_of_rows(
    rows: TrainingRows,
    transforms: Transforms,
    kernel: Kernel,
    client: Client | None = None,
    progress: Progress | None = None,
    check: Callable[[], None] = lambda: None,
) -> StoredKernel:
    """Return the matrix of these rows from their store, or compute, factor and store it.

    `check` is called between two tiles, and may raise.  Raises `InvalidProblemError` or
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
    begin(progress, "kernel", len(rows), "rows")
    K = _matrix(rows, kernel, client, progress, check)
    begin(progress, "factor the kernel")
    F, _, _ = factor(K, kernel.name)
    F = F if F.shape[1] else np.zeros((len(K), 1))
    return StoredKernel.write(store, key, K, F.astype(np.float32), facts)


def _matrix(
    rows: TrainingRows,
    kernel: Kernel,
    client: Client | None,
    progress: Progress | None,
    check: Callable[[], None],
) -> NDArray[np.float64]:
    """Return K (n, n), computed by a few rows a thread."""
    n = len(rows)
    if is_precomputed(kernel):
        values = np.asarray(kernel.matrix(rows.whole(), None), dtype=np.float64)
        advance(progress, n)
        return values
    K, spans = np.empty((n, n)), cut_rows(n, 0, ROW_TILE)
    # No other process reads a store in memory.
    if client is None or rows.dataset.store.url.startswith("memory://"):
        tiles = _here(kernel, rows, spans, K)
    else:
        tiles = _on_workers(kernel, rows, spans, client)
    with closing(tiles):
        for ready in tiles:
            for start, values in ready:
                K[start : start + len(values)] = values
                advance(progress, len(values))
            check()
    return K


def matrix_tile(kernel: Kernel, X: Any, start: int, stop: int, out: Any = None) -> MatrixTile:
    """Return the rows start..stop-1 of the matrix of X (n, d), written to `out` (t, n) if given."""
    n, here = int(X.shape[0]), X[start:stop]
    values = np.empty((stop - start, n)) if out is None else out
    with one_blas_thread():
        for column in range(0, n, COLUMN_TILE):
            there = slice(column, column + COLUMN_TILE)
            values[:, there] = kernel.matrix(here, X[there])
    return start, values


def _here(
    kernel: Kernel, rows: TrainingRows, spans: Iterable[tuple[int, int]], K: NDArray[np.float64]
) -> Generator[list[MatrixTile]]:
    """Yield tiles of K that the threads of this process have filled, a few at a time."""
    X, ahead = rows.whole(), iter(spans)

    def fill(span: tuple[int, int]) -> MatrixTile:
        start, stop = span
        return matrix_tile(kernel, X, start, stop, K[start:stop])

    with ThreadPoolExecutor(CPU_COUNT) as pool:
        while some := list(islice(ahead, CPU_COUNT)):
            yield list(pool.map(fill, some))


def _on_workers(
    kernel: Kernel, rows: TrainingRows, spans: Iterable[tuple[int, int]], client: Client
) -> Generator[list[MatrixTile]]:
    """Yield the tiles that workers have computed, none if none is ready for a while.

    Another worker repeats the tile of one that died, and reads the rows if no other has them.
    """
    ahead, heard = iter(spans), time.monotonic()
    pending: list[Future[Any]] = []
    X = client.submit(rows.whole, pure=False, retries=3)
    try:
        while True:
            threads = sum(int(worker["nthreads"]) for worker in known_workers(client).values())
            heard = time.monotonic() if threads else heard
            if time.monotonic() - heard > ALONE_SECONDS:
                raise ClusterError(f"no worker for {ALONE_SECONDS:g} s while the kernel was computed")
            room = max(0, TILES_AHEAD * max(1, threads) - len(pending))
            pending += [
                client.submit(matrix_tile, kernel, X, *span, pure=False, retries=3)
                for span in islice(ahead, room)
            ]
            if not pending:
                return
            with suppress(TimeoutError), client.as_current():
                wait(pending, timeout=POLL_SECONDS, return_when="FIRST_COMPLETED")
            ready = [future for future in pending if future.done()]
            pending = [future for future in pending if not future.done()]
            # Also where nothing is ready: the caller checks whether to stop.
            yield [future.result() for future in ready]
    finally:
        client.cancel([X, *pending])


def factored_kernel(
    run: Run, client: Client | None, progress: Progress | None, flag: StopFlag
) -> StoredKernel:
    """Return the factored kernel matrix of a run's rows; raise as `kernel_of_rows`.

    Raises `InterruptedRunError` once `flag` is set.
    """

    def check() -> None:
        if flag:
            raise InterruptedRunError(
                f"stopped by {flag.reason} while the kernel was computed; {run.how_to_resume}"
            )

    plan = run.plan
    return kernel_of_rows(plan.rows, plan.transforms, plan.spec.kernel, client, progress, check)


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
