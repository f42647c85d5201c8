"""What an operation does with one tile of rows after another, for one problem or for many in one reading.

A piece of work takes the scores of a tile under its weights and adds to its sums.  `work_through` reads the
tiles once for any number of such pieces, whichever problems they belong to, and multiplies a tile with the
weights of all of them side by side: a wide product is several times as fast as many narrow ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import Any, Protocol, TypeVar

import numpy as np

from topline.solvers.core.answers import Answer
from topline.solvers.core.clock import Clock
from topline.solvers.core.rows import Rows, as_rows
from topline.solvers.core.tiles import Scratch, Tile, TileReader
from topline.solvers.crew import ALONE, Crew
from topline.solvers.typing import FloatArray

A_co = TypeVar("A_co", bound=Answer, covariant=True)

FLOAT64 = np.dtype(np.float64)
#: Columns of weights side by side beyond which a wider product is hardly faster.
_WIDE = 1024


class TileWork(Protocol[A_co]):
    """Work on the tiles of a block; products are in the precision `dtype`."""

    clock: Clock
    dtype: np.dtype[Any]

    @property
    def W(self) -> FloatArray | None:  # noqa: N802 - the letter of the formulas
        """Weights (d, m), None where it takes no scores."""
        ...

    def take(self, tile: Tile, scores: FloatArray) -> None:
        """Add what a tile is worth; its scores (b, m) may be overwritten, and are empty where W is None."""
        ...

    def answer(self) -> A_co:
        """Return the sums over all tiles that were taken."""
        ...


def work_through(tiles: TileReader, works: Sequence[TileWork[Answer]], crew: Crew = ALONE) -> None:
    """Take all tiles through every piece of work, in one reading; a crew makes the scores."""
    precisions = {work.dtype for work in works}
    widest = FLOAT64 if FLOAT64 in precisions else np.dtype(np.float32)
    products = list(_side_by_side(works, tiles.rows, crew))
    for tile in tiles.read(widest):
        narrow = {dtype: as_rows(tile.X, dtype) for dtype in precisions}
        for product in products:
            product.take(tile, narrow[product.dtype])


class _Product:
    """Pieces of work of one precision, whose weights lie side by side; the first starts the clock."""

    def __init__(self, works: Sequence[TileWork[Answer]], rows: int, crew: Crew) -> None:
        self._works = works
        self.dtype = works[0].dtype
        weights = [work.W for work in works if work.W is not None]
        self._scratch: Scratch | None = None
        self._own: Scratch | None = None
        if weights:
            self._W = weights[0] if len(weights) == 1 else np.concatenate(weights, axis=1)
            self._scratch = Scratch(rows, self._W.shape[1], self.dtype, crew)
            # A run begins at W = 0, where no product is needed to know the scores.
            self._at_zero = not self._W.any()
        if len(weights) > 1:
            self._own = Scratch(rows, max(W.shape[1] for W in weights), self.dtype)

    def take(self, tile: Tile, X: Rows) -> None:
        """Take one tile, with features of the precision of these."""
        here = Tile(tile.number, tile.start, tile.stop, X, tile.y, tile.weights)
        scores = np.empty((0, 0), dtype=self.dtype)
        if self._scratch is not None:
            scores = (
                self._scratch.zeros(tile.stop - tile.start)
                if self._at_zero
                else self._scratch.scores_of(X, self._W)
            )
        self._works[0].clock.product()
        at = 0
        for number, work in enumerate(self._works):
            if number:
                work.clock.begin()
            if work.W is None:
                work.take(here, scores[:, :0])
                continue
            part = scores[:, at : at + work.W.shape[1]]
            at += work.W.shape[1]
            work.take(here, part if self._own is None else self._own.laid_out(part))
        self._works[0].clock.begin()


def _side_by_side(works: Sequence[TileWork[Answer]], rows: int, crew: Crew) -> list[_Product]:
    """Return the products that the weights make, each of one precision and not much wider than pays."""
    found = []
    for _, alike in groupby(sorted(works, key=lambda work: work.dtype.itemsize), key=lambda w: w.dtype):
        group: list[TileWork[Answer]] = []
        width = 0
        for work in alike:
            columns = 0 if work.W is None else work.W.shape[1]
            if group and width + columns > _WIDE:
                found.append(_Product(group, rows, crew))
                group, width = [], 0
            group.append(work)
            width += columns
        found.append(_Product(group, rows, crew))
    return found
