"""Where the blocks of a training run live."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from dask.system import CPU_COUNT
from distributed import Client

from topline.pipeline.cluster import (
    DaskExecutor,
    MemoryPlan,
    ProblemSize,
    announce,
    given_or_own_client,
    known_workers,
    memory_limit,
    plan_alone,
    plan_memory,
    plan_on_workers,
    takes_processes,
    worker_count,
)
from topline.pipeline.cluster.memory_plan import KERNEL_ROW_BYTES, ROW_BYTES
from topline.pipeline.errors import ConfigError
from topline.pipeline.interrupts import StopFlag
from topline.pipeline.options import ClusterConfig
from topline.pipeline.progress import Progress
from topline.pipeline.rows import CachedRows, TrainingRows
from topline.pipeline.training.kernel_training import factored_kernel, trained_rows
from topline.pipeline.training.plan import TrainingPlan
from topline.pipeline.training.run import Run
from topline.solvers.executors import Executor, ThreadExecutor
from topline.solvers.kernels import is_precomputed
from topline.solvers.methods import MethodMemory, method_memory
from topline.solvers.methods.kernel import PICKED_ROWS, atom_bytes, picked_bytes
from topline.storage.cache import StoredKernel

#: Bytes for columns of a kernel matrix in all workers together.
COLUMN_BYTES = 1 << 29
#: Fewest rows that a round of a kernel's dual ascent picks when memory is limited.
_FEWEST_PICKED = PICKED_ROWS // 8


@contextmanager
def open_executor(
    run: Run,
    cluster: ClusterConfig,
    client: Client | None,
    progress: Progress | None,
    flag: StopFlag,
) -> Iterator[tuple[Executor, TrainingRows, StoredKernel | None]]:
    """Choose where the blocks live: a client's workers, a local cluster's, or threads of this process.

    Yields the executor, the rows to train on and the plan's kernel matrix, if any, which is computed there
    first.  The memory limit decides the budgets of features and dual variables.
    """
    plan = run.plan
    data_bytes = _data_bytes(plan)
    ours, threads = None, CPU_COUNT
    if client is None and not cluster.scheduler:
        ours, threads = _own_memory(plan, cluster, picked_rows(plan, cluster, client))
    with given_or_own_client(cluster, client, data_bytes, ours.worker_bytes if ours else None) as found:
        if found is not None:
            announce(found, plan.store.url, run.id)
        memory = ours or _memory_of_workers(plan, cluster, found)
        kernel = factored_kernel(run, found, progress, flag)
        rows: TrainingRows = trained_rows(plan, kernel)
        bounds = plan.bounds_of(rows)
        if found is None:
            executor: Executor = ThreadExecutor(
                min(threads, len(bounds) - 1),
                bounds=bounds,
                dual_bytes=memory.dual_bytes,
                kept_bytes=memory.kept_bytes,
            )
            rows = CachedRows(rows, memory.cache_bytes)
        else:
            executor = DaskExecutor(
                found,
                bounds=bounds,
                cache_bytes=memory.cache_bytes,
                dual_bytes=memory.dual_bytes,
                kept_bytes=memory.kept_bytes,
                worker_wait=cluster.worker_wait,
                heartbeat_timeout=cluster.heartbeat_timeout,
            )
        try:
            yield executor, rows, kernel
        finally:
            executor.close()


def refuse_memory(plan: TrainingPlan, cluster: ClusterConfig, client: Client | None) -> None:
    """Raise `ConfigError` for a memory limit that is too small, before anything begins."""
    if client is None and not cluster.scheduler:
        _own_memory(plan, cluster, _FEWEST_PICKED)


def picked_rows(plan: TrainingPlan, cluster: ClusterConfig, client: Client | None) -> int:
    """Return the rows picked in a round of a kernel's dual ascent, halved until they fit the limit."""
    picked = PICKED_ROWS
    if client is None and not cluster.scheduler and plan.on_blocks:
        while picked > _FEWEST_PICKED and not holds(plan, cluster, picked):
            picked //= 2
    return picked


def holds(plan: TrainingPlan, cluster: ClusterConfig, picked: int = _FEWEST_PICKED) -> bool:
    """Return whether the memory limit of a local cluster is enough for the training."""
    try:
        _own_memory(plan, cluster, picked)
    except ConfigError:
        return False
    return True


def _data_bytes(plan: TrainingPlan) -> int:
    return plan.rows.nbytes if plan.spec.kernel is None else 8 * len(plan.rows) ** 2


def _own_memory(plan: TrainingPlan, cluster: ClusterConfig, picked: int) -> tuple[MemoryPlan, int]:
    """Share the memory of this process and of those that it starts; also return the threads."""
    limit, size = memory_limit(cluster.memory_limit), _size(plan, picked)
    if cluster.workers == 0:
        return plan_alone(limit, size, min(CPU_COUNT, len(plan.bounds) - 1), cluster.cache_bytes)
    processes = takes_processes(_data_bytes(plan))
    memory = plan_memory(limit, size, worker_count(cluster), cluster.cache_bytes, processes=processes)
    return memory, CPU_COUNT


def _memory_of_workers(plan: TrainingPlan, cluster: ClusterConfig, client: Client | None) -> MemoryPlan:
    """Share the memory of a running cluster's workers."""
    found = {} if client is None else known_workers(client, cluster.worker_wait)
    limits = [int(worker["memory_limit"] or 0) for worker in found.values()]
    return plan_on_workers(limits, _size(plan, PICKED_ROWS), cluster.cache_bytes)


def _size(plan: TrainingPlan, picked: int) -> ProblemSize:
    n, d = len(plan.rows), plan.rows.shape[1]
    factored = plan.spec.kernel is not None and not plan.on_blocks
    # Rows of kernel values are not sent, only their numbers.
    travels = 0 if plan.spec.kernel is not None and is_precomputed(plan.spec.kernel) else d
    return ProblemSize(
        n=n,
        # Training then reads the rows of the kernel matrix's factor, which is also held here.
        d=n if factored else d,
        m=plan.m,
        blocks=len(plan.bounds) - 1,
        features=4 * n * n if factored else plan.rows.nbytes,
        keeps_duals=plan.keep_duals,
        ranked=len(plan.spec.loss.form(plan.m).rho),
        method=_method_memory(plan),
        besides=16 * n * n if factored else picked_bytes(travels, plan.m, picked) if plan.on_blocks else 0,
        held=_scores(plan),
        row_bytes=KERNEL_ROW_BYTES if plan.on_blocks else ROW_BYTES,
    )


def _scores(plan: TrainingPlan) -> int:
    """Return the bytes of a kernel's blocks for scores, in float64 near the end, and for atoms."""
    if not plan.on_blocks:
        return 0
    atoms = atom_bytes(plan.problem) if plan.method.dual_free else 0
    return 8 * len(plan.rows) * plan.m + atoms


def _method_memory(plan: TrainingPlan) -> MethodMemory:
    """Return what the method needs; on a kernel's blocks, room for columns of K."""
    if not plan.on_blocks:
        return method_memory(plan.method, plan.problem, plan.rows.nbytes)
    n = len(plan.rows)
    return MethodMemory(kept=min(4 * n * n, COLUMN_BYTES))
