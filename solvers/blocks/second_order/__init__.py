"""Second-order sums of one block.

`envelopes` knows how u moves with the scores of a row, `hessians` sums that over rows, and `block` answers
requests.
"""

from __future__ import annotations

from topline.solvers.blocks.second_order.block import BlockNewton

__all__ = ["BlockNewton"]
