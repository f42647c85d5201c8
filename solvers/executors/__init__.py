"""Where blocks of examples are computed: an executor holds them and answers the requests of a method.

`SerialExecutor` and `ThreadExecutor` run in this process, and `TopLossBlocks` turns the mean of the losses
into that of the largest ones.  `topline.pipeline.cluster` has the executor for other machines.
"""

from __future__ import annotations

from topline.solvers.executors.local import (
    Executor,
    MappedBlocks,
    SerialExecutor,
    StoredDuals,
    T,
    ThreadExecutor,
    TopLossBlocks,
    block_bounds,
)
from topline.solvers.operations import DualRows
