"""Second moments of a sample of the rows."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from topline.solvers.blocks.block import Block
from topline.solvers.blocks.second_order import weighted_gram
from topline.solvers.core.answers import Answer, Clock
from topline.solvers.core.feature_maps import MapView
from topline.solvers.core.rows import Rows, is_sparse, stacked
from topline.solvers.crew import Crew
from topline.solvers.operations.base import Operation, Runner
from topline.solvers.typing import Float64Array, FloatArray


@dataclass(frozen=True, eq=False, kw_only=True)
class Moments(Answer):
    """The sum (d, d) and the number of its rows; None without rows."""

    total: Float64Array | None = None
    rows: int = 0


@dataclass(frozen=True)
class SumMoments(Operation[Moments]):
    """Sum w_i x_i x_i^T (d, d) over rows whose number is a multiple of `stride`, and count them."""

    stride: int = 1

    def answer(self, block: Block, crew: Crew) -> Moments:
        """Return the sum over rows of a block."""
        clock, rows, tiles = Clock(), 0, block.tiles
        total: Float64Array | None = None
        waiting: list[tuple[Rows, Float64Array]] = []
        for tile in tiles.read(block.dtype):
            taken = slice(-(block.start + tile.rows.start) % self.stride, None, self.stride)
            waiting.append((tile.X[taken], tile.weights[taken]))
            rows += len(waiting[-1][1])
            if sum(len(weights) for _, weights in waiting) >= tiles.rows or tile.rows.stop == len(tiles.y):
                X, weights = stacked([part for part, _ in waiting]), np.concatenate([w for _, w in waiting])
                gram = _gram(X, weights)
                total = gram.astype(np.float64) if total is None else total + gram
                waiting.clear()
            clock.product()
        return Moments(rows=rows, total=total, **clock.seconds())

    def through(self, run: Runner, view: MapView) -> Moments:
        """Return the sum if V is W; for another V it says nothing."""
        return run(self) if view.is_ordinary else Moments()


def _gram(X: Rows, weights: Float64Array) -> FloatArray:
    """Return sum w_i x_i x_i^T; BLAS computes half of a product of a matrix with itself."""
    if is_sparse(X):
        return weighted_gram(X, weights)
    part = X if (weights == 1.0).all() else X * np.sqrt(weights)[:, None].astype(X.dtype)
    return np.asarray(part.T @ part)
