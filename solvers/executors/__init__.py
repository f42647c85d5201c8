"""Where blocks of examples are computed: an executor holds them and answers the requests of a method.

`SerialExecutor` and `ThreadExecutor` are those of this process, `TopLossExecutor` turns the mean of the
losses into that of the largest ones.  `topline.pipeline.cluster` has the one whose blocks are on other
machines.
"""

from __future__ import annotations

from topline.solvers.executors.base import DualRows, Executor, RequestRunner, StoredDuals, T
from topline.solvers.executors.local import (
    SerialExecutor,
    ThreadExecutor,
    block_bounds,
    budget_share,
    map_duals_on_threads,
)
from topline.solvers.executors.mapped import MappedExecutor
from topline.solvers.executors.risk import TopLossExecutor

__all__ = [
    "DualRows",
    "Executor",
    "MappedExecutor",
    "RequestRunner",
    "SerialExecutor",
    "StoredDuals",
    "T",
    "ThreadExecutor",
    "TopLossExecutor",
    "block_bounds",
    "budget_share",
    "map_duals_on_threads",
]
