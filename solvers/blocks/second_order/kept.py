"""What a block keeps between the second-order operations of a round, within a budget; it only saves work."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import ClassVar

import numpy as np

from topline.solvers.blocks.second_order.envelopes import CurvedRows
from topline.solvers.core.dual_points import PendingStep
from topline.solvers.core.rows import Rows, is_sparse
from topline.solvers.losses import ranking
from topline.solvers.typing import Float64Array, FloatArray

#: Bytes that a block keeps at most where nobody says what it may.
_KEPT_BYTES = 5 << 29
#: Bytes of gathered rows among them.
_GATHERED_BYTES = 1 << 28
#: Arrays of the scores' shape that wait for the next operation: scores and moves, and u of a smooth loss at
#: the point and along the line.
_ARRAYS, _ARRAYS_SMOOTH = 2, 4


def most_kept(rows: int, m: int, features: int, *, smooth: bool) -> int:
    """Return the bytes that blocks of so many rows together can make use of, of float32 `features` (bytes).

    Every row is curved then, and kept besides: its scores and u in float64, the classes in which it moves,
    and its number, label and weight.
    """
    a_number = 4 * (_ARRAYS_SMOOTH if smooth else _ARRAYS) + 17
    return (a_number * m + 20) * rows + min(features, _GATHERED_BYTES)


@dataclass(frozen=True, eq=False)
class EnvelopePoint:
    """Where envelopes of a proximal step on the dual are looked at: weights W (d, m), after `pending_step`.

    Attributes
    ----------
    sigma : weight >= 0 of the proximal term sigma/(2n) |A - A_t|^2.
    exact : products in float64, not in the precision of the features.
    last_step : the step from the point of the round before along the V of its slopes, which a block that
        still has their scores takes instead of products with W; NaN for products.
    """

    round: int
    W: Float64Array
    pending_step: PendingStep | None = None
    sigma: float = 0.0
    exact: bool = False
    last_step: float = math.nan


@dataclass(frozen=True, eq=False)
class Found:
    """u of a smooth loss in every tile, `step` along the line from the point of a round, and its sums."""

    step: float
    U: dict[int, FloatArray] = field(default_factory=dict)
    sums: Float64Array = field(default_factory=lambda: np.zeros(ranking.N_SUMS))


class KeptTiles:
    """Of the `tiles` of a block with `numbers` scores: what operations at one point have in common.

    Attributes
    ----------
    scores, moves : X W and X V by the number of the tile; all tiles, or none where they exceed the budget.
    curved : the rows whose J is not zero by the number of the tile, None where a tile has none; as many
        tiles as the budget holds.
    here, ahead : u of a smooth loss at the point, and at the last trial along the line.
    """

    lasting: ClassVar[str] = "round"

    def __init__(self, tiles: int, numbers: int, kept_bytes: int | None) -> None:
        self._tiles, self._numbers = tiles, numbers
        self._most = _KEPT_BYTES if kept_bytes is None else kept_bytes
        self._left = self._gatherable = 0
        self._place: tuple[int, bool] | None = None
        self.whole = False
        self.scores: dict[int, FloatArray] = {}
        self.moves: dict[int, FloatArray] = {}
        self.curved: dict[int, CurvedRows | None] = {}
        self.here: Found | None = None
        self.ahead: Found | None = None

    def stand_at(self, point: EnvelopePoint, itemsize: int) -> None:
        """Go to a point, where numbers have so many bytes; scores that follow stay."""
        place = point.round, point.exact
        if place == self._place:
            return
        follows = self._place == (point.round - 1, point.exact) and len(self.scores) == self._tiles
        if follows and point.last_step != 0.0:
            follows = math.isfinite(point.last_step) and len(self.moves) == self._tiles
        if not follows:
            self.scores.clear()
        elif point.last_step != 0.0:
            for number, moves in self.moves.items():
                self.scores[number] += np.asarray(point.last_step * moves, dtype=moves.dtype)
        if not follows or point.last_step != 0.0:
            reached = follows and self.ahead is not None and self.ahead.step == point.last_step
            self.here = self.ahead if reached else None
        self.ahead = None
        self.moves.clear()
        self.curved.clear()
        arrays = (_ARRAYS if point.sigma > 0 else _ARRAYS_SMOOTH) * self._numbers * itemsize
        self.whole = arrays <= self._most
        self._left = self._most - (arrays if self.whole else 0)
        self._gatherable = min(self._left, _GATHERED_BYTES)
        self._place = place

    @property
    def has_line(self) -> bool:
        """Whether scores and moves of every tile are there, so that no features are read for them."""
        return len(self.moves) == len(self.scores) == self._tiles

    @property
    def has_curved(self) -> bool:
        """Whether all curved rows are there, with their features."""
        return len(self.curved) == self._tiles and all(
            rows is None or rows.X is not None for rows in self.curved.values()
        )

    def keep_curved(self, number: int, rows: CurvedRows | None, X: Rows) -> CurvedRows | None:
        """Keep the curved rows of tile `number` where there is room; return them, with features if those fit.

        X are all features of the tile.
        """
        left = self._left - (0 if rows is None else rows.nbytes)
        if left < 0:
            return rows
        if rows is not None:
            size = len(rows.rows) * (X.shape[1] if not is_sparse(X) else 2 * X.nnz / X.shape[0])
            nbytes = int(size * X.dtype.itemsize)
            if nbytes <= min(self._gatherable, left):
                self._gatherable -= nbytes
                left -= nbytes
                rows = replace(rows, X=X[rows.rows])
        self._left = left
        self.curved[number] = rows
        return rows
