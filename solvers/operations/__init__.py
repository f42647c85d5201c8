"""The requests of the coordinator to blocks of rows: each operation has an answer of its own.

`Operation` is the protocol.  One file holds everything about an operation: its parameters, what a block
computes, and how the answers of blocks add up.  Executors run operations, and methods are built from them.
"""

from __future__ import annotations

from topline.solvers.blocks.ascent.passes import AscentSums, Turn
from topline.solvers.blocks.block import RunSpec
from topline.solvers.blocks.second_order import EnvelopePoint
from topline.solvers.core.feature_maps import MapView
from topline.solvers.operations.base import (
    AskHeads,
    BlockSet,
    CopyDuals,
    CountHits,
    DualRows,
    Head,
    HeadAnswers,
    Hits,
    Operation,
    OperationRunner,
    RowBlock,
    Runner,
    TileOperation,
    most_open,
    parts_of,
)
from topline.solvers.operations.columns import FindDirections
from topline.solvers.operations.moments import Moments, SumMoments
from topline.solvers.operations.point import (
    Ascend,
    Certified,
    Certify,
    DualSums,
    Evaluate,
    Evaluation,
    FindLargestLosses,
    Largest,
    PutInside,
    Rebuild,
)
from topline.solvers.operations.second_order import (
    CurvatureProduct,
    EnvelopeSums,
    FindEnvelopes,
    FindSlope,
    Grams,
    MultiplyCurvature,
    SlopeSum,
    SumGrams,
)
from topline.solvers.operations.vertices import FindSelectedVertices, FindVertices, VertexSums
