"""A worker's computations on its rows: vertices, sweeps, active sets, and the dual rows that it keeps.

A `Block` answers the requests of the coordinator with sums over its examples, always the same ones for the
same request.  Loops over rows are compiled, as in `jit` and in dual `ascent`.
"""

from __future__ import annotations

from topline.solvers.blocks.ascent.extrapolation import extrapolation_bytes
from topline.solvers.blocks.ascent.rows import swept_bytes
from topline.solvers.blocks.block import Block
from topline.solvers.blocks.second_order import most_kept
