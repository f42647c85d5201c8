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
from topline.solvers.methods.kernel_ascent import picked_bytes
from topline.solvers.methods.kernel_atoms import atom_bytes
from topline.solvers.run import ATOM_METHODS
from topline.storage.cache import StoredKernel

#: Bytes that columns of a kernel matrix may take in all workers together.
COLUMN_BYTES = 1 << 29


@contextmanager
def open_executor(
    run: Run,
    cluster: ClusterConfig,
    client: Client | None,
    progress: Progress | None,
    flag: StopFlag,
) -> Iterator[tuple[Executor, TrainingRows, StoredKernel | None]]:
    """Choose where the blocks live: a client's workers, a local cluster's, or threads of this process.

    Yields the executor, the rows to train on and the kernel matrix, which is computed there first where the
    plan has a kernel.  What features and dual variables may take follows from the memory limit.
    """
    plan = run.plan
    data_bytes = _data_bytes(plan)
    ours, threads = None, CPU_COUNT
    if client is None and not cluster.scheduler:
        ours, threads = _own_memory(plan, cluster)
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
    """Raise the `ConfigError` of a limit that is too small before anything is begun."""
    if client is None and not cluster.scheduler:
        _own_memory(plan, cluster)


def _data_bytes(plan: TrainingPlan) -> int:
    return plan.rows.nbytes if plan.kernel is None else 8 * len(plan.rows) ** 2


def _own_memory(plan: TrainingPlan, cluster: ClusterConfig) -> tuple[MemoryPlan, int]:
    """Share out the memory of this process and those that it will start; also return its threads."""
    limit, size = memory_limit(cluster.memory_limit), _size(plan)
    if cluster.workers == 0:
        return plan_alone(limit, size, min(CPU_COUNT, len(plan.bounds) - 1), cluster.cache_bytes)
    processes = takes_processes(_data_bytes(plan))
    memory = plan_memory(limit, size, worker_count(cluster), cluster.cache_bytes, processes=processes)
    return memory, CPU_COUNT


def _memory_of_workers(plan: TrainingPlan, cluster: ClusterConfig, client: Client | None) -> MemoryPlan:
    """Share out what the workers of a running cluster have."""
    found = {} if client is None else known_workers(client, cluster.worker_wait)
    limits = [int(worker["memory_limit"] or 0) for worker in found.values()]
    return plan_on_workers(limits, _size(plan), cluster.cache_bytes)


def _size(plan: TrainingPlan) -> ProblemSize:
    n, d = len(plan.rows), plan.rows.shape[1]
    factored = plan.kernel is not None and not plan.on_blocks
    # Rows of kernel values stay where they are: their numbers say what is meant.
    travels = 0 if plan.kernel is not None and is_precomputed(plan.kernel) else d
    return ProblemSize(
        n=n,
        # The rows of a factor of a kernel's matrix, which lies here with it, are what is then trained on.
        d=n if factored else d,
        m=plan.m,
        blocks=len(plan.bounds) - 1,
        features=4 * n * n if factored else plan.rows.nbytes,
        keeps_duals=plan.keep_duals,
        ranked=len(plan.loss.form(plan.m).rho),
        method=_method_memory(plan),
        besides=16 * n * n if factored else picked_bytes(travels, plan.m) if plan.on_blocks else 0,
        held=atom_bytes(plan.problem) if plan.on_blocks and plan.choice.method in ATOM_METHODS else 0,
    )


def _method_memory(plan: TrainingPlan) -> MethodMemory:
    """Return what the method takes; on blocks of a kernel, room for columns of K."""
    if not plan.on_blocks:
        return method_memory(plan.method, plan.problem, plan.rows.nbytes)
    n = len(plan.rows)
    return MethodMemory(kept=min(4 * n * n, COLUMN_BYTES))
