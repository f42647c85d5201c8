"""Where the blocks of a training run live."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from dask.system import CPU_COUNT
from distributed import Client

from pipeline.cluster import open_cluster
from pipeline.dask_executor import DaskExecutor
from pipeline.interrupts import StopFlag
from pipeline.kernel_training import with_factor
from pipeline.partition import CachedRows, TrainingRows
from pipeline.progress import Progress
from pipeline.train_config import ClusterConfig
from pipeline.training_plan import TrainingPlan
from solvers.executor import Executor, ThreadExecutor


@contextmanager
def open_executor(
    plan: TrainingPlan,
    cluster: ClusterConfig,
    client: Client | None,
    progress: Progress | None,
    flag: StopFlag,
) -> Iterator[tuple[TrainingPlan, Executor, TrainingRows]]:
    """Choose where the blocks live: a client's workers, an own cluster's, or threads of this process.

    A kernel matrix is computed there first; the plan that comes back then has its factor.
    """
    if client is None and cluster.scheduler is None and cluster.workers != 0 and plan.kernel is None:
        wanted = cluster.workers or max(1, CPU_COUNT // cluster.threads_per_worker)
        cluster = cluster.model_copy(update={"workers": min(wanted, len(plan.bounds) - 1)})
    data_bytes = plan.rows.nbytes if plan.kernel is None else 8 * len(plan.rows) ** 2
    with _client(cluster, client, data_bytes) as found:
        plan = with_factor(plan, found, progress, flag)
        rows, bounds = plan.trained, plan.bounds
        if found is None:
            executor: Executor = ThreadExecutor(min(CPU_COUNT, len(bounds) - 1), bounds=bounds)
            rows = CachedRows(plan.trained, cluster.cache_bytes)
        else:
            executor = DaskExecutor(
                found,
                bounds=bounds,
                cache_bytes=cluster.cache_bytes,
                worker_wait=cluster.worker_wait,
                silence=cluster.silence,
            )
        try:
            yield plan, executor, rows
        finally:
            executor.close()


@contextmanager
def _client(cluster: ClusterConfig, client: Client | None, data_bytes: int) -> Iterator[Client | None]:
    if client is not None:
        yield client
        return
    with open_cluster(cluster, data_bytes=data_bytes) as own:
        yield own
