"""Which heads have their dual variables as arrays, where a budget does not hold those of all.

Sweeps go best over arrays: packed dual variables are opened slab by slab, and rows of a slab are swept before
those of the next, which takes several times the passes.  So those of the heads that are swept are opened, as
many as there is room for, and stay so until others need the room.  Heads that wait are packed, to a
temporary file beyond their part of the budget.
"""

from __future__ import annotations

from collections.abc import Mapping

from topline.solvers.blocks.block import Block
from topline.solvers.blocks.duals import whole_bytes
from topline.solvers.blocks.extrapolation import extrapolation_bytes
from topline.solvers.core.dual_rows import ByteBudget

#: The part of a budget that packed dual variables have.
_PACKED = 0.25


def most_open(dual_bytes: int, rows: int, d: int, m: int) -> int:
    """Return of how many heads a budget holds the dual variables (rows, m) as arrays.

    What sweeps over them remember is included.
    """
    each = whole_bytes(rows, m) + extrapolation_bytes((rows + d) * m)
    return int((1.0 - _PACKED) * dual_bytes) // each


class OpenDuals:
    """The heads of one block whose dual variables are arrays; `most` of them at a time.

    `packed` is the budget of the others.
    """

    def __init__(self, dual_bytes: int, rows: int, d: int, m: int) -> None:
        self.most = most_open(dual_bytes, rows, d, m)
        self.packed = ByteBudget(int(_PACKED * dual_bytes) if self.most else dual_bytes)
        #: Whoever was swept last is last.
        self._open: dict[int, Block] = {}

    def open(self, swept: Mapping[int, Block]) -> None:
        """Open the dual variables of heads that are swept, and pack those of others where room is needed."""
        idle = [head for head in self._open if head not in swept]
        for head, block in swept.items():
            if head not in self._open:
                if len(self._open) == self.most:
                    if not idle:
                        continue
                    self._open.pop(idle.pop(0)).pack_duals()
                block.open_duals()
            self._open.pop(head, None)
            self._open[head] = block

    def forget(self, head: int, block: Block) -> None:
        """Let go of a head and of the room that its dual variables take."""
        self._open.pop(head, None)
        block.clear_duals()

    def take(self, other: OpenDuals, heads: Mapping[int, Block]) -> None:
        """Go on with the dual variables of another one, which `heads` have taken."""
        self.packed = other.packed
        self._open = {head: heads[head] for head in other._open}
