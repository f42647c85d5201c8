"""Where the blocks of a training run live, and how many there are: workers, threads, and a note about both.

Data and options decide the blocks, except of a hinge on a running cluster: its workers share the rows once a
model of costs says that this takes less time (`topline.solvers.methods.shared_work`), from measured seconds
of products and of a round trip of W.  Of our own workers no more start than there are blocks, with more
threads each, or than the memory limit has room for; if it has none, the job runs in this process.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

import numpy as np
from dask.system import CPU_COUNT
from distributed import Client
from numpy.typing import NDArray

from topline.pipeline.cluster import (
    Call,
    DaskExecutor,
    MemoryPlan,
    ProblemSize,
    WorkerCalls,
    WorkersLost,
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
from topline.pipeline.cluster.calls import by_tree
from topline.pipeline.cluster.memory_plan import KERNEL_ROW_BYTES
from topline.pipeline.errors import ConfigError
from topline.pipeline.interrupts import StopFlag
from topline.pipeline.options import ClusterConfig
from topline.pipeline.progress import Progress
from topline.pipeline.rows import CachedRows, TrainingRows
from topline.pipeline.training.kernel_training import FactorDataset, factored_kernel
from topline.pipeline.training.plan import ASCENT_BLOCK_BYTES, TrainingPlan
from topline.pipeline.training.run import Run
from topline.solvers.counts import how_many
from topline.solvers.crew import one_blas_thread
from topline.solvers.executors import Executor, ThreadExecutor
from topline.solvers.kernels import is_precomputed
from topline.solvers.methods import MethodMemory, method_memory
from topline.solvers.methods.kernel import PICKED_ROWS, atom_bytes, picked_bytes
from topline.solvers.methods.shared_work import SWEEP_WORK, SharedWork, fastest, threads_speed
from topline.storage.cache import StoredKernel

logger = logging.getLogger(__name__)

#: Bytes of features up to which one worker of a running cluster is enough, without a note.
_SMALL_BYTES = 64 << 20
#: Rows that are multiplied and numbers that are sent to learn their seconds, and how often.
_PROBED_ROWS, _PROBED_NUMBERS, _PROBES = 2048, 1 << 20, 3
#: Bytes for columns of a kernel matrix in all workers together.
COLUMN_BYTES = 1 << 29
#: Fewest rows that a round of a kernel's dual ascent picks when memory is limited.
_FEWEST_PICKED = PICKED_ROWS // 8


@contextmanager
def open_executor(
    run: Run, cluster: ClusterConfig, client: Client | None, progress: Progress | None, flag: StopFlag
) -> Iterator[tuple[Executor, TrainingRows, StoredKernel | None, Run]]:
    """Choose where the blocks live: a client's workers, a local cluster's, or threads of this process.

    Yields the executor, the rows to train on, the plan's kernel matrix, if any, which is computed there
    first, and the run, whose plan now says how workers share it.  The memory limit decides the budgets of
    features and dual variables.
    """
    plan = run.plan
    data_bytes = _data_bytes(plan)
    ours, threads = None, CPU_COUNT
    if client is None and not cluster.scheduler:
        ours, threads = _own_memory(plan, cluster, picked_rows(plan, cluster, client))
    with given_or_own_client(cluster, client, data_bytes, ours.worker_bytes if ours else None) as found:
        if found is not None:
            announce(found, plan.store.url, run.id)
            if ours is None and plan.may_share:
                run = _on_workers(run, found, cluster)
                plan = run.plan
        workers = {} if found is None else known_workers(found, cluster.worker_wait)
        limits = [int(worker["memory_limit"] or 0) for worker in workers.values()]
        memory = ours or plan_on_workers(limits, _size(plan, PICKED_ROWS), cluster.cache_bytes)
        kernel = factored_kernel(run, found, progress, flag)
        rows = plan.rows if kernel is None else TrainingRows(FactorDataset(plan.rows.dataset, kernel))
        bounds = plan.bounds_of(rows)
        if found is None:
            most = min(threads, len(bounds) - 1)
            executor: Executor = ThreadExecutor(
                most, bounds=bounds, dual_bytes=memory.dual_bytes, kept_bytes=memory.kept_bytes
            )
            rows = CachedRows(rows, memory.cache_bytes)
        else:
            executor = DaskExecutor(
                found,
                bounds=bounds,
                memory=memory,
                worker_wait=cluster.worker_wait,
                heartbeat_timeout=cluster.heartbeat_timeout,
            )
        try:
            yield executor, rows, kernel, run
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


def _size(plan: TrainingPlan, picked: int) -> ProblemSize:
    """Return the sizes of a training: on features, on columns of a kernel, or on the factor of its matrix."""
    n, d, m, kernel = len(plan.rows), plan.rows.shape[1], plan.problem.m, plan.spec.kernel
    size = ProblemSize(
        n=n, d=d, m=m, blocks=len(plan.bounds) - 1, features=plan.rows.nbytes, keeps_duals=plan.keep_duals,
        ranked=len(plan.problem.form.rho),
    )  # fmt: skip
    if kernel is not None and plan.on_blocks:
        # Rows of kernel values are not sent, only their numbers.
        travels = 0 if is_precomputed(kernel) else d
        atoms = atom_bytes(plan.problem) if plan.method.dual_free else 0
        return replace(
            size,
            method=MethodMemory(kept=min(4 * n * n, COLUMN_BYTES)),
            besides=picked_bytes(travels, m, picked),
            # Scores, in float64 near the end.
            held=8 * n * m + atoms,
            row_bytes=KERNEL_ROW_BYTES,
        )
    size = replace(size, method=method_memory(plan.method, plan.problem, plan.rows.nbytes))
    # Training then reads the rows of the kernel matrix's factor, which is also held here.
    return size if kernel is None else replace(size, d=n, features=4 * n * n, besides=16 * n * n)


@dataclass(frozen=True)
class Layout:
    """Where a training run works, and the notes about it."""

    cluster: ClusterConfig
    notes: tuple[str, ...] = ()


def lay_out(plan: TrainingPlan, cluster: ClusterConfig, client: Client | None) -> Layout:
    """Return how to train on a local cluster: with workers that have blocks and fit the memory limit.

    A running cluster, or none, is left as it is.
    """
    if cluster.workers == 0 or client is not None or cluster.scheduler is not None:
        return Layout(cluster)
    notes: tuple[str, ...] = ()
    asked, blocks = worker_count(cluster), len(plan.bounds) - 1
    # A kernel's rows are those of its future factor.
    if plan.spec.kernel is None and blocks < asked:
        fitted = _with_workers(cluster, blocks)
        if cluster.workers is not None:
            # The default is the number of cores, which nobody chose: no note.
            notes = (_why(plan, blocks, asked, fitted.threads_per_worker),)
        cluster, asked = fitted, blocks
    if holds(plan, cluster):
        return Layout(cluster, notes)
    for workers in range(asked - 1, 0, -1):
        fewer = _with_workers(cluster, workers)
        if holds(plan, fewer):
            return Layout(fewer, (*notes, _FEWER_FIT.format(cluster.memory_limit, workers, asked)))
    alone = cluster.model_copy(update={"workers": 0})
    return Layout(alone, (*notes, _NONE_FITS.format(cluster.memory_limit)))


def _with_workers(cluster: ClusterConfig, workers: int) -> ClusterConfig:
    """Return a cluster with fewer workers and the same number of threads in total."""
    threads = max(cluster.threads_per_worker, worker_count(cluster) * cluster.threads_per_worker // workers)
    return cluster.model_copy(update={"workers": workers, "threads_per_worker": threads})


_FEWER_FIT = "a memory limit of {} has room for {} of {} workers: these start, with the threads of the others"
_NONE_FITS = (
    "a memory limit of {} has no room for a worker beside the coordinator: the job runs in one process"
)
_ONE_WORKS = "one worker of the cluster works: {}; --blocks N cuts the rows all the same"


def _why(plan: TrainingPlan, blocks: int, asked: int, threads: int) -> str:
    most = plan.rows.batches
    if plan.config.blocks is not None and plan.config.blocks == blocks:
        reason = f"--blocks is {blocks}"
    elif blocks == most:
        reason = f"the data is stored in {how_many(most, 'pieces')}"
    else:
        reason = (
            f"{plan.choice.method} keeps {ASCENT_BLOCK_BYTES >> 30} GiB of features in a block, on which all"
            f" threads work; --blocks {min(asked, most)} cuts the data all the same"
        )
    return f"of {asked} workers {blocks} can work, with {how_many(threads, 'threads')} each: {reason}"


def _on_workers(run: Run, client: Client, cluster: ClusterConfig) -> Run:
    """Return the run with the blocks that a running cluster's workers share, and a note if one has all."""
    plan = replace(run.plan, shared=_shared_there(run.plan, client, cluster))
    if plan.shared is None or plan.shared.blocks > 1 or plan.rows.nbytes <= _SMALL_BYTES:
        return replace(run, plan=plan)
    note = _ONE_WORKS.format(plan.blocks_why)
    logger.warning("%s", note)
    return replace(run, plan=plan, notes=(*run.notes, note))


def _shared_there(plan: TrainingPlan, client: Client, cluster: ClusterConfig) -> SharedWork | None:
    """Return how the workers of a running cluster share the rows in the least time; None for a single one."""
    calls = WorkerCalls(client, heartbeat_timeout=cluster.heartbeat_timeout)
    found = calls.wait_for_workers(1, cluster.worker_wait)
    first, *others = found
    if not others:
        return None
    numbers, most = plan.rows.shape[1] * plan.problem.m, plan.rows.batches
    few, many = np.zeros(1, dtype=np.float32), np.zeros(min(numbers, _PROBED_NUMBERS), dtype=np.float32)

    def exchange(workers: int, W: NDArray[np.float32]) -> float:
        """Return the least seconds in which so many workers get W and send as much."""
        took = []
        for _ in range(_PROBES):
            began = time.perf_counter()
            calls.run(by_tree([*found][:workers], echo, (W,), echo))
            took.append(time.perf_counter() - began)
        return min(took)

    try:
        (seconds,) = calls.run([Call(first, row_seconds, (plan.rows, plan.problem.m))]).values()
        exchanges = {}
        for workers in _numbers(min(len(found), most)):
            delay = exchange(workers, few)
            exchanges[workers] = delay + max(exchange(workers, many) - delay, 0.0) * numbers / len(many)
    except WorkersLost as lost:
        logger.warning("%s while its speed was measured: one worker gets all rows", lost)
        return None
    finally:
        calls.let_go()
    work = SWEEP_WORK * len(plan.rows) * seconds / threads_speed(min(found.values()))
    return fastest(SharedWork(1, work), *(SharedWork(k, work, each) for k, each in exchanges.items()))


def _numbers(workers: int) -> list[int]:
    """Return the numbers of workers to compare: the powers of two from 2 on, and all."""
    return sorted({*(2**i for i in range(1, workers.bit_length())), workers})


def row_seconds(rows: TrainingRows, m: int) -> float:
    """Return the seconds in which one thread multiplies a row with W (d, m), measured on the first rows."""
    X = rows.read_batch(0)[:_PROBED_ROWS]
    W = np.ones((rows.shape[1], m), dtype=np.float32)
    took = []
    with one_blas_thread():
        for _ in range(_PROBES):
            began = time.perf_counter()
            X @ W
            took.append(time.perf_counter() - began)
    return min(took) / max(int(X.shape[0]), 1)


def echo(W: NDArray[np.float32], *_others: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return W, whatever other workers returned."""
    return W
