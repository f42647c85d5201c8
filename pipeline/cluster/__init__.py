"""Dask: starting or reaching a cluster, calls to chosen workers that always end, blocks on workers, memory.

Blocks are pinned to workers in a registry of our own and move to other workers when theirs is lost, hangs or
is slow; the answer stays the same.  `topline.pipeline.cluster.tls` makes the files for a cluster over TLS.
"""

from __future__ import annotations

from topline.pipeline.cluster.calls import Call, WorkerCalls, WorkersLost
from topline.pipeline.cluster.connection import (
    TOPIC,
    announce,
    given_or_own_client,
    open_cluster,
    takes_processes,
    worker_count,
)
from topline.pipeline.cluster.executor import DaskExecutor
from topline.pipeline.cluster.memory_plan import (
    MemoryPlan,
    ProblemSize,
    memory_limit,
    plan_alone,
    plan_memory,
    plan_on_workers,
    room_for_rows,
)
from topline.pipeline.cluster.scheduling import LOSSES_IN_A_ROW, too_many_losses
from topline.pipeline.cluster.watchdog import known_workers
