"""What a worker does with its rows: vertices, sweeps, active sets, and the dual rows that it keeps.

A `Block` answers the requests of the coordinator with sums over its examples, the same ones whoever asks and
however often.  Loops over rows are compiled, as in `jit` and the room of dual `ascent`.
"""

from __future__ import annotations

from topline.solvers.blocks.ascent.extrapolation import extrapolation_bytes
from topline.solvers.blocks.ascent.row_feed import swept_bytes
from topline.solvers.blocks.block import Block
from topline.solvers.blocks.second_order import most_kept
