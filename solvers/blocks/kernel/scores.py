"""What a block of the kernelised dual keeps: the scores of its rows, those of their vertices, and atoms.

The scores are S = K A / (lam n) of the block's rows, so that each row's share of the gap, P and D of the
problem are sums over rows at any time.  They move by K(own rows, rows that changed) times a change, which is
what a pass of this problem costs: n columns of K.

With U the vertices at the scores S and T = K U / (lam n), a step makes S + g (T - S) of S.  From one round to
the next few rows change their vertices, and T moves by their columns of K alone.
"""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from topline.solvers.blocks.block import Block
from topline.solvers.blocks.kernel.atoms import BlockAtoms
from topline.solvers.blocks.kernel.columns import KeptColumns, Places, TileColumns
from topline.solvers.blocks.kernel.products import add_products, holds_values
from topline.solvers.core.clock import Clock
from topline.solvers.core.kernel_rows import Change, Mark, PairValues
from topline.solvers.core.tiles import Tile
from topline.solvers.typing import FloatArray, Int64Array


class KernelScores:
    """The scores S (rows, m) of a block, and which A they belong to.

    Attributes
    ----------
    mark : what the scores belong to; None for no A.
    found : the mark of the scores that the vertices U belong to; None for no scores.
    parts : parts of the change of U that T has.
    vertices, before : U (rows, m), each row once, whatever it weighs, and those of the round before.
    of_vertices : T, of the vertices of the round before and of these parts.
    atoms : vertices that mixtures are made of.
    """

    lasting: ClassVar[str] = "duals"

    def __init__(self, block: Block) -> None:
        self._shape = block.stop - block.start, block.problem.m
        self.dtype: np.dtype[Any] = block.dtype
        # Scores begin at 0 with A.
        self.mark: Mark | None = None if block.loaded else Mark()
        self._scores: FloatArray | None = None
        self.found: Mark | None = None
        self.parts = 0
        self.vertices: FloatArray = np.zeros((0, 0), dtype=self.dtype)
        self.before = self.of_vertices = self.vertices
        #: The sums over the vertices that were found.
        self.sums: Any = None
        self.atoms = BlockAtoms()
        self._columns = KeptColumns(self._shape[0], block.problem.n, block.kept_bytes)

    @property
    def scores(self) -> FloatArray:
        """S."""
        if self._scores is None:
            self._scores = np.zeros(self._shape, dtype=self.dtype)
        return self._scores

    def open_vertices(self) -> None:
        """Make room for vertices."""
        if not self.vertices.size:
            self.vertices, self.before, self.of_vertices = (
                np.zeros(self._shape, dtype=self.dtype) for _ in range(3)
            )

    def widen(self) -> None:
        """Go over to float64."""
        if self.dtype == np.float64:
            return
        self.atoms.forget()
        self.dtype = np.dtype(np.float64)
        if self._scores is not None:
            self._scores = self._scores.astype(np.float64)
        self.of_vertices, self.before, self.vertices = (
            array.astype(np.float64) for array in (self.of_vertices, self.before, self.vertices)
        )

    def add(
        self,
        block: Block,
        kernel: PairValues,
        change: Change,
        scores: FloatArray,
        clock: Clock,
        *,
        moves: bool = False,
    ) -> None:
        """Add K(own rows, rows of the change) times the change to scores, and it to A where it `moves`."""
        places = self._places(kernel, change)
        for tile in block.tiles.read(self.dtype):
            kept = None if places is None else TileColumns(self._columns, places, tile.start)
            add_products(kernel, tile.X, change, block.problem.scale, scores[tile.rows], kept)
            clock.product()
            if moves:
                _move(block, tile, change)
                clock.row_work()
        if places is not None:
            self._columns.keep(change.numbers, places)

    def _places(self, kernel: PairValues, change: Change) -> Places | None:
        """Return where columns of K are kept; None in float64, and where the rows hold K themselves."""
        if self.dtype != np.float32 or holds_values(kernel):
            return None
        return self._columns.places(change.numbers)


def own_places(block: Block, numbers: Int64Array, tile: Tile) -> tuple[Int64Array, slice]:
    """Return the places in a tile of those of some rows that lie there, and which of them these are."""
    first = block.start + tile.start
    low, high = np.searchsorted(numbers, [first, block.start + tile.stop])
    return numbers[low:high] - first, slice(int(low), int(high))


def _move(block: Block, tile: Tile, change: Change) -> None:
    """Change the rows of A that lie in a tile."""
    places, own = own_places(block, change.numbers, tile)
    if len(places):
        duals = block.duals.A
        A = duals.read(tile.start, tile.stop)
        weights = tile.weights[places, None]
        A[places] += (change.values[own] / np.where(weights > 0.0, weights, np.inf)).astype(A.dtype)
        duals.write(tile.start, tile.stop, A)
