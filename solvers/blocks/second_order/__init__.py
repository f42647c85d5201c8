"""Second-order sums of one block, from which Newton's method steps.

`envelopes` knows how u moves with the scores of a row, `hessians` sums that over rows, and `kept` holds what
the requests of a round have in common.  `block` answers these requests.
"""

from __future__ import annotations

from topline.solvers.blocks.second_order.block import BlockNewton
from topline.solvers.blocks.second_order.kept import most_kept

__all__ = ["BlockNewton", "most_kept"]
