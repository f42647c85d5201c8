"""How a memory limit is shared out among the cells of a sweep in shared passes, and how many go together.

What each cell has is its dual variables and their change, as arrays while it is solved, packed while it
waits.  Rows that lie in memory and arrays are worth more than cells that go together: as many go together as
there is room for beside the rows, where it holds these and the arrays of one.
"""

from __future__ import annotations

import sys
from dataclasses import replace

from dask.system import CPU_COUNT

from topline.pipeline.cluster import (
    MemoryPlan,
    ProblemSize,
    memory_limit,
    plan_alone,
    plan_memory,
    takes_processes,
)
from topline.pipeline.cluster.memory_plan import WHOLE_DUALS
from topline.pipeline.errors import ConfigError
from topline.pipeline.options import ClusterConfig
from topline.pipeline.rows import TrainingRows
from topline.solvers.blocks import most_open, swept_bytes

#: What each cell that is solved keeps of a row beside dual variables: weight, label, norm, counts and order.
_CELL_ROW_BYTES = 40


def plan_cells(
    most: int, rows: TrainingRows, cluster: ClusterConfig, workers: int, blocks: int
) -> tuple[MemoryPlan, int]:
    """Return budgets, and how many of `most` cells may be solved at once: fewer where not all fit, as arrays.

    The weights of so many cells lie side by side, as those of a problem with so many times the classes.
    Raises ConfigError where not even one cell fits.
    """
    for at_once in range(most, 0, -1):
        found = _beside_rows(at_once, rows, cluster, workers, blocks)
        if found is not None:
            return found, at_once
    at_once = most
    while True:
        try:
            return _over_read_rows(at_once, rows, cluster, workers, blocks)
        except ConfigError:
            if at_once == 1:
                raise
            at_once = (at_once + 1) // 2


def _beside_rows(
    at_once: int, rows: TrainingRows, cluster: ClusterConfig, workers: int, blocks: int
) -> MemoryPlan | None:
    """Return budgets for so many cells as arrays with all rows in memory; None where that does not fit."""
    (n, d), m = rows.shape, rows.dataset.info.m
    if cluster.cache_bytes < rows.nbytes:
        return None
    try:
        room = _budgets(at_once, 0, rows, cluster, workers, blocks, duals=False).cache_bytes
    except ConfigError:
        return None
    duals = room - rows.nbytes
    threads = CPU_COUNT if cluster.workers == 0 else cluster.threads_per_worker
    if duals <= 0 or most_open(duals // blocks, -(-n // blocks), d, m, threads) < at_once:
        return None
    budgets = _budgets(at_once, 0, rows, cluster, workers, blocks)
    return replace(budgets, cache_bytes=rows.nbytes, dual_bytes=duals)


def _over_read_rows(
    at_once: int, rows: TrainingRows, cluster: ClusterConfig, workers: int, blocks: int
) -> tuple[MemoryPlan, int]:
    """Return budgets for so many cells at once over rows that are read, and how many of them go together.

    Raises ConfigError where that does not fit.
    """
    (n, d), m = rows.shape, rows.dataset.info.m
    whole = WHOLE_DUALS * n * m * at_once
    duals = _budgets(at_once, 0, rows, cluster, workers, blocks).dual_bytes or whole
    # Where arrays fit at all, the cells that are solved together have theirs; all of them sweep together.
    arrays = most_open(duals, n, d, m, at_once)
    together = min(at_once, arrays) if arrays else at_once
    swept = together * swept_bytes(n, d, m, packed=not arrays)
    try:
        budgets = _budgets(at_once, swept, rows, cluster, workers, blocks)
        duals = budgets.dual_bytes or whole
    except ConfigError:
        # One cell alone is what a training is.
        if at_once > 1:
            raise
        budgets = _budgets(at_once, 0, rows, cluster, workers, blocks)
    return replace(budgets, dual_bytes=duals), together


def _budgets(
    at_once: int, swept: int, rows: TrainingRows, cluster: ClusterConfig, workers: int, blocks: int,
    *, duals: bool = True,
) -> MemoryPlan:  # fmt: skip
    """Return budgets for so many cells and what their sweeps take; without `duals` all room is for rows."""
    (n, d), m = rows.shape, rows.dataset.info.m * at_once
    limit, held = memory_limit(cluster.memory_limit), _CELL_ROW_BYTES * n * at_once + swept
    size = ProblemSize(n, d, m, blocks, rows.nbytes, keeps_duals=duals, ranked=0, held=held)
    cache_bytes = cluster.cache_bytes if duals else sys.maxsize
    if cluster.workers == 0:
        return plan_alone(limit, size, 1, cache_bytes)[0]
    processes = takes_processes(rows.nbytes)
    return plan_memory(limit, size, workers, cache_bytes, processes=processes)
