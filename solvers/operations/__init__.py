"""What the coordinator asks of blocks of rows: an operation each, with an answer of its own.

`Operation` says what one is.  A file holds everything about it: what it asks, what a block does with it, and
how the answers of blocks add up.  Executors run operations, and methods are made of them.
"""

from __future__ import annotations

from topline.solvers.operations.base import Operation, OperationRunner, Runner, TileOperation, answer_of
from topline.solvers.operations.evaluate import Evaluate, Evaluation
from topline.solvers.operations.heads import (
    CopyDuals,
    CountHits,
    HeadBlocks,
    HeadCall,
    HeadRequests,
    HeadsProblem,
    HeadStats,
    Hits,
    PendingHeadSteps,
    make_block,
)
from topline.solvers.operations.kept_duals import DualSums, PutInside, Rebuild, TakeGradients
from topline.solvers.operations.largest import FindLargestLosses, Largest
from topline.solvers.operations.map_view import MapView
from topline.solvers.operations.moments import Moments, SumMoments
from topline.solvers.operations.vertices import FindSelectedVertices, FindVertices, VertexSums

__all__ = [
    "CopyDuals",
    "CountHits",
    "DualSums",
    "Evaluate",
    "Evaluation",
    "FindLargestLosses",
    "FindSelectedVertices",
    "FindVertices",
    "HeadBlocks",
    "HeadCall",
    "HeadRequests",
    "HeadStats",
    "HeadsProblem",
    "Hits",
    "Largest",
    "MapView",
    "Moments",
    "Operation",
    "OperationRunner",
    "PendingHeadSteps",
    "PutInside",
    "Rebuild",
    "Runner",
    "SumMoments",
    "TakeGradients",
    "TileOperation",
    "VertexSums",
    "answer_of",
    "make_block",
]
