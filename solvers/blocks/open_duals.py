"""Which heads have their dual variables as arrays, where a budget does not hold those of all.

Sweeps go best over arrays: packed dual variables are opened slab by slab, and rows of a slab are swept before
those of the next, which takes several times the passes.  So those of the heads that are swept are opened, as
many at a time as there is room for, and stay so until others need the room.  Heads that wait are packed, to a
temporary file beyond their part of the budget.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

import numpy as np

from topline.solvers.blocks.ascent.extrapolation import extrapolation_bytes
from topline.solvers.blocks.duals import BlockDuals, array_bytes
from topline.solvers.core.dual_rows import ByteBudget

#: The part of a budget that packed dual variables have.
_PACKED = 0.125
#: Dual variables are of this type until a run asks for a gap that it does not resolve.
_FLOAT32 = np.dtype(np.float32).itemsize


def most_open(dual_bytes: int, rows: int, d: int, m: int, threads: int = 1) -> int:
    """Return of how many heads a budget holds the dual variables (rows, m) as arrays of float32.

    What as many sweeps as there are threads remember meanwhile is included.
    """
    room, each = _room(dual_bytes), array_bytes(rows, m, _FLOAT32)
    more = extrapolation_bytes((rows + d) * m)
    alone = room // (each + more)
    return alone if alone < threads else (room - threads * more) // each


class OpenDuals:
    """The heads of one block whose dual variables are arrays.  `packed` is the budget of the others."""

    def __init__(self, dual_bytes: int, rows: int, d: int, m: int) -> None:
        self._room, self._more = _room(dual_bytes), extrapolation_bytes((rows + d) * m)
        any_open = most_open(dual_bytes, rows, d, m) > 0
        self.packed = ByteBudget(dual_bytes - self._room if any_open else dual_bytes)
        #: Whoever was swept last is last.
        self._open: dict[int, BlockDuals] = {}

    def groups(
        self, swept: Mapping[int, BlockDuals], wide: Collection[int], threads: int
    ) -> Iterator[list[int]]:
        """Yield the heads that are swept, in groups whose dual variables are arrays by then.

        Those of the heads that are `wide` are or come to be float64.  Who does not fit even alone is a group
        of its own, packed.
        """
        left = sorted(swept, key=lambda head: head not in self._open)
        while left:
            group: list[int] = []
            need = 0
            for head in left:
                more = swept[head].array_bytes(wide=head in wide)
                if not group or need + more + min(len(group) + 1, threads) * self._more <= self._room:
                    group.append(head)
                    need += more
            fits = self._make_room(group, need + min(len(group), threads) * self._more)
            for head in group:
                opened = self._open.pop(head, None)
                if fits and opened is None:
                    swept[head].open()
                elif opened is not None and not fits:
                    swept[head].pack()
                if fits:
                    self._open[head] = swept[head]
            yield group
            left = [head for head in left if head not in group]

    def widen(self, head: int) -> None:
        """Make room for a head whose dual variables come to be float64; without it they are packed."""
        duals = self._open.get(head)
        if duals is not None and not self._make_room([head], duals.array_bytes(wide=True)):
            self._open.pop(head).pack()

    def forget(self, head: int, duals: BlockDuals) -> None:
        """Let go of a head and of the room that its dual variables take."""
        self._open.pop(head, None)
        duals.clear()

    def take(self, other: OpenDuals) -> None:
        """Go on with the dual variables of another one."""
        self.packed, self._open = other.packed, other._open

    def _make_room(self, kept: Collection[int], need: int) -> bool:
        """Pack heads that are not `kept`, the first first, until there is room; return whether there is."""
        if need > self._room:
            return False
        idle = [head for head in self._open if head not in kept]
        taken = sum(self._open[head].array_bytes() for head in idle)
        while taken + need > self._room:
            duals = self._open.pop(idle.pop(0))
            taken -= duals.array_bytes()
            duals.pack()
        return True


def _room(dual_bytes: int) -> int:
    return dual_bytes - int(_PACKED * dual_bytes)
