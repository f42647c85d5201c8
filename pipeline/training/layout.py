"""How a training uses the workers that were asked for, and a sentence where that is not as asked.

Blocks are cut by the data and the options alone, so that the answer does not depend on the workers.  Workers
beyond the blocks would have nothing to do: fewer are started, with more threads each.  So it is with workers
that a limit of memory does not hold; where it holds none, the job runs in the process of the command.
"""

from __future__ import annotations

from dataclasses import dataclass

from distributed import Client

from topline.pipeline.cluster import worker_count
from topline.pipeline.options import ClusterConfig
from topline.pipeline.training.executor import holds
from topline.pipeline.training.plan import ASCENT_BLOCK_BYTES, TrainingPlan
from topline.solvers.counts import how_many

#: Bytes of features below which one worker is enough, and no word of it.
_SMALL_BYTES = 64 << 20


@dataclass(frozen=True)
class Layout:
    """Where a training runs, and what is to be said about it."""

    cluster: ClusterConfig
    notes: tuple[str, ...] = ()


def lay_out(plan: TrainingPlan, cluster: ClusterConfig, client: Client | None) -> Layout:
    """Return how a training runs on a cluster of its own; a running one, or none, stays as it is."""
    layout = _by_blocks(plan, cluster, client)
    if cluster.workers == 0 or client is not None or cluster.scheduler is not None:
        return layout
    return _by_memory(plan, layout)


def _by_blocks(plan: TrainingPlan, cluster: ClusterConfig, client: Client | None) -> Layout:
    """Take no more workers than blocks; with a kernel, rows are those of a factor that is not there yet."""
    if cluster.workers == 0 or plan.spec.kernel is not None:
        return Layout(cluster)
    blocks = len(plan.bounds) - 1
    if client is not None or cluster.scheduler is not None:
        # The rows are one block that could be several.
        together = blocks == 1 and plan.config.blocks is None and plan.rows.nbytes > _SMALL_BYTES
        return Layout(cluster, (_ONE_WORKS.format(plan.choice.method),) if together else ())
    asked = worker_count(cluster)
    if blocks >= asked:
        return Layout(cluster)
    fitted = _with_workers(cluster, blocks)
    # Nobody chose the number of cores: no word of it.
    said = _why(plan, blocks, asked, fitted.threads_per_worker)
    return Layout(fitted, () if cluster.workers is None else (said,))


def _by_memory(plan: TrainingPlan, layout: Layout) -> Layout:
    """Take as many workers as the limit of memory holds, or none."""
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
    """Return a cluster of fewer workers, which have the threads of the others."""
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
