"""Training with an exact kernel when a method needs features: it reads the rows of a factor of the matrix.

Values are those of the matrix itself.  Methods that only use scores need neither
(`topline.solvers.run.task`).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from distributed import Client
from numpy.typing import NDArray

from topline.pipeline.errors import InterruptedRunError
from topline.pipeline.interrupts import StopFlag
from topline.pipeline.progress import Progress
from topline.pipeline.rows import TrainingRows
from topline.pipeline.training.kernel_matrix import StopAskedError, kernel_of_rows
from topline.pipeline.training.plan import TrainingPlan
from topline.pipeline.training.run import Run
from topline.solvers.blocks.block import inside
from topline.solvers.core.state import SolveResult, Status
from topline.solvers.executors import Executor
from topline.solvers.kernels import judged_by_gap, values_on_matrix
from topline.storage.arrays import ArrayReader
from topline.storage.cache import StoredKernel
from topline.storage.datasets import Dataset, LabelSetTable
from topline.storage.schema import SPLITS


def factored_kernel(
    run: Run, client: Client | None, progress: Progress | None, flag: StopFlag
) -> StoredKernel | None:
    """Return the factored kernel matrix of a run's rows, computed if need be; None if the run needs none.

    Raises `InterruptedRunError` once `flag` is set, and what `kernel_of_rows` raises.
    """
    plan = run.plan
    kernel = plan.spec.kernel
    if kernel is None or plan.on_blocks:
        return None
    try:
        return kernel_of_rows(plan.rows, plan.transforms, kernel, client, progress, lambda: bool(flag))
    except StopAskedError:
        raise InterruptedRunError(
            f"stopped by {flag.reason} while the kernel was computed; {run.how_to_resume}"
        ) from None


def trained_rows(plan: TrainingPlan, kernel: StoredKernel | None) -> TrainingRows:
    """Return the rows that training reads: the plan's, or those of its kernel's factor."""
    return plan.rows if kernel is None else TrainingRows(FactorDataset(plan.rows.dataset, kernel))


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
            dataset.info,
            n_rows=n,
            d=r,
            dtype=kernel.factor.spec.dtype.name,
            layout="dense",
            chunk_rows=plan.chunk_rows,
            shard_rows=plan.shard_rows,
            nonzeros=None,
        )

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
