"""How a training run uses the requested workers, and a note where it deviates.

Blocks depend on the data and the options alone, so that the answer does not depend on the workers.  Workers
beyond the blocks would be idle: fewer are started, with more threads each.  The same goes for workers beyond
the memory limit; if it allows none, the job runs in the command's own process.
"""

from __future__ import annotations

from dataclasses import dataclass

from distributed import Client

from topline.pipeline.cluster import worker_count
from topline.pipeline.options import ClusterConfig
from topline.pipeline.training.executor import holds
from topline.pipeline.training.plan import ASCENT_BLOCK_BYTES, TrainingPlan
from topline.solvers.counts import how_many

#: Bytes of features up to which one worker is enough, without a note.
_SMALL_BYTES = 64 << 20


@dataclass(frozen=True)
class Layout:
    """Where a training run works, and the note about it."""

    cluster: ClusterConfig
    notes: tuple[str, ...] = ()


def lay_out(plan: TrainingPlan, cluster: ClusterConfig, client: Client | None) -> Layout:
    """Return how to train on a local cluster; a running one, or none, is left as it is."""
    layout = _by_blocks(plan, cluster, client)
    if cluster.workers == 0 or client is not None or cluster.scheduler is not None:
        return layout
    return _by_memory(plan, layout)


def _by_blocks(plan: TrainingPlan, cluster: ClusterConfig, client: Client | None) -> Layout:
    """Use at most as many workers as blocks; a kernel's rows are those of its future factor."""
    if cluster.workers == 0 or plan.spec.kernel is not None:
        return Layout(cluster)
    blocks = len(plan.bounds) - 1
    if client is not None or cluster.scheduler is not None:
        # The rows form one block but could form several.
        together = blocks == 1 and plan.config.blocks is None and plan.rows.nbytes > _SMALL_BYTES
        return Layout(cluster, (_ONE_WORKS.format(plan.choice.method),) if together else ())
    asked = worker_count(cluster)
    if blocks >= asked:
        return Layout(cluster)
    fitted = _with_workers(cluster, blocks)
    # The default is the number of cores, which nobody chose: no note.
    said = _why(plan, blocks, asked, fitted.threads_per_worker)
    return Layout(fitted, () if cluster.workers is None else (said,))


def _by_memory(plan: TrainingPlan, layout: Layout) -> Layout:
    """Use as many workers as the memory limit allows, or none."""
    cluster = layout.cluster
    if holds(plan, cluster):
        return layout
    asked, alone = worker_count(cluster), cluster.model_copy(update={"workers": 0})
    for workers in range(asked - 1, 0, -1):
        fewer = _with_workers(cluster, workers)
        if holds(plan, fewer):
            return Layout(fewer, (*layout.notes, _FEWER_FIT.format(cluster.memory_limit, workers, asked)))
    return Layout(alone, (*layout.notes, _NONE_FITS.format(cluster.memory_limit)))


def _with_workers(cluster: ClusterConfig, workers: int) -> ClusterConfig:
    """Return a cluster with fewer workers and the same number of threads in total."""
    threads = max(cluster.threads_per_worker, worker_count(cluster) * cluster.threads_per_worker // workers)
    return cluster.model_copy(update={"workers": workers, "threads_per_worker": threads})


_FEWER_FIT = "a memory limit of {} has room for {} of {} workers: these start, with the threads of the others"
_NONE_FITS = (
    "a memory limit of {} has no room for a worker beside the coordinator: the job runs in one process"
)


_ONE_WORKS = (
    "one worker of the cluster works: {} keeps these rows in one block, as several blocks take many times the"
    " passes; --blocks N cuts them all the same"
)


def _why(plan: TrainingPlan, blocks: int, asked: int, threads: int) -> str:
    most = plan.rows.batches
    if plan.config.blocks is not None and plan.config.blocks == blocks:
        reason = f"--blocks is {blocks}"
    elif blocks == most:
        reason = f"the data is stored in {how_many(most, 'pieces')}"
    else:
        reason = (
            f"{plan.choice.method} keeps {ASCENT_BLOCK_BYTES >> 30} GiB of features in a block,"
            " as several blocks take many times the passes;"
            f" --blocks {min(asked, most)} cuts the data all the same"
        )
    return f"of {asked} workers {blocks} can work, with {how_many(threads, 'threads')} each: {reason}"
