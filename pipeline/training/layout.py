"""How a training uses the workers that were asked for, and a sentence where that is not as asked.

Blocks are cut by the data and the options alone, so that the answer does not depend on the workers.  Workers
beyond the blocks would have nothing to do: fewer are started, with more threads each.
"""

from __future__ import annotations

from dataclasses import dataclass

from distributed import Client

from topline.pipeline.cluster import worker_count
from topline.pipeline.options import ClusterConfig
from topline.pipeline.training.plan import ASCENT_BLOCK_BYTES, TrainingPlan

#: Bytes of features below which one worker is enough, and no word of it.
_SMALL_BYTES = 64 << 20


@dataclass(frozen=True)
class Layout:
    """Where a training runs, and what is to be said about it."""

    cluster: ClusterConfig
    notes: tuple[str, ...] = ()


def lay_out(plan: TrainingPlan, cluster: ClusterConfig, client: Client | None) -> Layout:
    """Return how a training runs on a cluster of its own; a running one, or none, stays as it is.

    With a kernel the rows are those of a factor that is not there yet, and nothing is changed.
    """
    if cluster.workers == 0 or plan.kernel is not None:
        return Layout(cluster)
    blocks = len(plan.bounds) - 1
    if client is not None or cluster.scheduler is not None:
        return Layout(cluster, (_ONE_WORKS.format(plan.choice.begins_with),) if _kept_together(plan) else ())
    asked = worker_count(cluster)
    if blocks >= asked:
        return Layout(cluster)
    threads = max(cluster.threads_per_worker, asked * cluster.threads_per_worker // blocks)
    fitted = cluster.model_copy(update={"workers": blocks, "threads_per_worker": threads})
    # Nobody chose the number of cores: no word of it.
    return Layout(fitted, () if cluster.workers is None else (_why(plan, blocks, asked, threads),))


_ONE_WORKS = (
    "one worker of the cluster works: {} keeps these rows in one block, as several blocks take many times the"
    " passes; --blocks N cuts them all the same"
)


def _kept_together(plan: TrainingPlan) -> bool:
    """Whether the rows are one block that could be several."""
    return len(plan.bounds) == 2 and plan.config.blocks is None and plan.rows.nbytes > _SMALL_BYTES


def _why(plan: TrainingPlan, blocks: int, asked: int, threads: int) -> str:
    most = plan.rows.batches
    if plan.config.blocks is not None and plan.config.blocks == blocks:
        reason = f"--blocks is {blocks}"
    elif blocks == most:
        reason = f"the data is stored in {_counted(most, 'piece')}"
    else:
        reason = (
            f"{plan.choice.begins_with} keeps {ASCENT_BLOCK_BYTES >> 30} GiB of features in a block,"
            " as several blocks take many times the passes;"
            f" --blocks {min(asked, most)} cuts the data all the same"
        )
    return f"of {asked} workers {blocks} can work, with {_counted(threads, 'thread')} each: {reason}"


def _counted(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"
