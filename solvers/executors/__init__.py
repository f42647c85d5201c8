"""Where blocks of examples are computed: an executor holds them and answers the requests of a method.

`SerialExecutor` and `ThreadExecutor` are those of this process, `TopLossBlocks` turns the mean of the
losses into that of the largest ones.  `topline.pipeline.cluster` has the one whose blocks are on other
machines.
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
