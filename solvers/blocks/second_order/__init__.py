"""Second-order sums of one block, from which Newton's method steps.

`envelopes` knows how u moves with the scores of a row, and `hessians` sums that over rows.  `kept` holds what
the operations of a round have in common (`topline.solvers.operations.second_order`).
"""

from __future__ import annotations

from topline.solvers.blocks.second_order.kept import most_kept

__all__ = ["most_kept"]
