"""Training with an exact kernel when a method needs features: it reads the rows of a factor of the matrix.

The coordinator must hold the matrix of the training rows and its factor, so it computes both, the matrix by
tiles on all cores, and keeps them in the store, where workers find the factor
(`topline.solvers.kernels.problem`).  Values are those of the matrix itself.  Methods that only use scores
need neither (`topline.solvers.run.task`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from typing import Any

import numpy as np
from dask.system import CPU_COUNT
from numpy.typing import NDArray

from topline.pipeline.errors import InterruptedRunError
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
from topline.storage.arrays import ArrayReader
from topline.storage.cache import StoredKernel, cache_key
from topline.storage.datasets import Dataset, LabelSetTable
from topline.storage.records import digest_array
from topline.storage.schema import SPLITS

logger = logging.getLogger(__name__)

ROW_TILE = 512
COLUMN_TILE = 4096


def kernel_of_rows(
    rows: TrainingRows,
    transforms: Transforms,
    kernel: Kernel,
    progress: Progress | None = None,
    check: Callable[[], None] = lambda: None,
) -> StoredKernel:
    """Return the matrix of these rows from their store, or compute, factor and store it.

    `check` is called between two tiles, and may raise.  Raises `InvalidProblemError` or
    `UnsupportedCombinationError` for features that the kernel cannot take.
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
    K = _matrix(rows, kernel, progress, check)
    begin(progress, "factor the kernel")
    F, _, _ = factor(K, kernel.name)
    F = F if F.shape[1] else np.zeros((len(K), 1))
    return StoredKernel.write(store, key, K, F.astype(np.float32), facts)


def _matrix(
    rows: TrainingRows, kernel: Kernel, progress: Progress | None, check: Callable[[], None]
) -> NDArray[np.float64]:
    """Return K (n, n), computed by a few rows a thread."""
    X, n = rows.whole(), len(rows)
    if is_precomputed(kernel):
        return np.asarray(kernel.matrix(X, None), dtype=np.float64)
    K = np.empty((n, n))

    def fill(start: int) -> int:
        here = X[start : start + ROW_TILE]
        for column in range(0, n, COLUMN_TILE):
            there = slice(column, column + COLUMN_TILE)
            K[start : start + ROW_TILE, there] = kernel.matrix(here, X[there])
        return int(here.shape[0])

    # Closing what the pool yields drops the tiles that wait.
    with (
        one_blas_thread(),
        ThreadPoolExecutor(CPU_COUNT) as pool,
        closing(pool.map(fill, range(0, n, ROW_TILE))) as tiles,  # type: ignore[type-var]
    ):
        for done in tiles:
            advance(progress, done)
            check()
    return K


def factored_kernel(run: Run, progress: Progress | None, flag: StopFlag) -> StoredKernel:
    """Return the factored kernel matrix of a run's rows; raise as `kernel_of_rows`.

    Raises `InterruptedRunError` once `flag` is set.
    """

    def check() -> None:
        if flag:
            raise InterruptedRunError(
                f"stopped by {flag.reason} while the kernel was computed; {run.how_to_resume}"
            )

    plan = run.plan
    return kernel_of_rows(plan.rows, plan.transforms, plan.spec.kernel, progress, check)


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
