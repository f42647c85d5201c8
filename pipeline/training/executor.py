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
    memory_limit,
    open_cluster,
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
from topline.storage.cache import StoredKernel


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
    data_bytes = plan.rows.nbytes if plan.kernel is None else 8 * len(plan.rows) ** 2
    ours = None if client is not None or cluster.scheduler else _own_memory(plan, cluster, data_bytes)
    with _client(cluster, client, data_bytes, ours.worker_bytes if ours else None) as found:
        if found is not None:
            announce(found, plan.store.url, run.id)
        memory = ours or _memory_of_workers(plan, cluster, found)
        kernel = factored_kernel(run, found, progress, flag)
        rows: TrainingRows = trained_rows(plan, kernel)
        bounds = plan.bounds_of(rows)
        if found is None:
            executor: Executor = ThreadExecutor(
                min(CPU_COUNT, len(bounds) - 1), bounds=bounds, dual_bytes=memory.dual_bytes
            )
            rows = CachedRows(rows, memory.cache_bytes)
        else:
            executor = DaskExecutor(
                found,
                bounds=bounds,
                cache_bytes=memory.cache_bytes,
                dual_bytes=memory.dual_bytes,
                worker_wait=cluster.worker_wait,
                heartbeat_timeout=cluster.heartbeat_timeout,
            )
        try:
            yield executor, rows, kernel
        finally:
            executor.close()


def _own_memory(plan: TrainingPlan, cluster: ClusterConfig, data_bytes: int) -> MemoryPlan:
    """Share out the memory of this process and those that it will start."""
    processes = cluster.workers != 0 and takes_processes(data_bytes)
    workers = worker_count(cluster) if cluster.workers != 0 else min(CPU_COUNT, len(plan.bounds) - 1)
    limit = memory_limit(cluster.memory_limit)
    return plan_memory(limit, _size(plan), workers, cluster.cache_bytes, processes=processes)


def _memory_of_workers(plan: TrainingPlan, cluster: ClusterConfig, client: Client | None) -> MemoryPlan:
    """Share out what the workers of a running cluster have."""
    if client is None or client.scheduler is None:
        limits = []
    else:
        # Not `scheduler_info`, which waits for ever where nobody answers.
        found = client.sync(client.scheduler.identity, n_workers=-1, callback_timeout=cluster.worker_wait)
        limits = [int(worker["memory_limit"] or 0) for worker in found["workers"].values()]
    return plan_on_workers(limits, _size(plan), cluster.cache_bytes)


def _size(plan: TrainingPlan) -> ProblemSize:
    n = len(plan.rows)
    return ProblemSize(
        n=n,
        # With a kernel the rows of a factor of its matrix, which lies here with it, are what is trained on.
        d=plan.rows.shape[1] if plan.kernel is None else n,
        m=plan.m,
        blocks=len(plan.bounds) - 1,
        features=plan.rows.nbytes if plan.kernel is None else 4 * n * n,
        keeps_duals=plan.keep_duals,
        ranked=len(plan.loss.form(plan.m).rho),
        besides=0 if plan.kernel is None else 16 * n * n,
    )


@contextmanager
def _client(
    cluster: ClusterConfig, client: Client | None, data_bytes: int, worker_bytes: int | None
) -> Iterator[Client | None]:
    if client is not None:
        yield client
        return
    with open_cluster(cluster, data_bytes=data_bytes, worker_bytes=worker_bytes) as own:
        yield own
