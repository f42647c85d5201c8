"""What a block knows at given weights alone: largest losses, vertices of some rows, a dual point."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from topline.solvers.blocks.duals import BlockDuals
from topline.solvers.blocks.vertices import DenseVertices, vertices_of
from topline.solvers.core.block_stats import BlockStats
from topline.solvers.core.clock import Clock
from topline.solvers.core.problem import Problem
from topline.solvers.core.read_ahead import stored_slabs
from topline.solvers.core.requests import DualsFromPrimalRequest, LossesRequest, SelectedRowsRequest
from topline.solvers.core.risks import LargestLosses, SelectedRows
from topline.solvers.core.rows import Rows, RowSource, as_rows, slab_bounds
from topline.solvers.core.tiles import Scratch, TileReader
from topline.solvers.crew import Crew
from topline.solvers.losses import ranking
from topline.solvers.typing import IntArray

_FLOAT64 = np.dtype(np.float64)


class LargestLossesOracle:
    """The rows of one block, as `Block` holds them; `dtype` is that of the products."""

    def __init__(
        self,
        problem: Problem,
        X: RowSource,
        y: IntArray,
        tiles: TileReader,
        start: int,
        dtype: np.dtype[Any],
    ) -> None:
        self._problem, self._X, self._y, self._tiles = problem, X, y, tiles
        self._start, self._dtype = start, dtype

    def largest(self, request: LossesRequest) -> BlockStats:
        """Return the largest losses Phi_gamma at W, and the sum of all."""
        clock, dtype = Clock(), self._precision(request.exact)
        W = np.ascontiguousarray(request.W, dtype=dtype)
        scratch = Scratch(self._tiles.rows, self._problem.m, dtype)
        vertices = vertices_of(self._problem, self._tiles.rows, smoothed=True)
        losses = np.empty(len(self._y))
        for tile in self._tiles.read(dtype):
            scores = scratch.scores_of(tile.X, W)
            clock.product()
            vertices.losses(scores, tile.y, losses[tile.rows])
            clock.row_work()
        rows = self._start + np.arange(len(losses))
        return BlockStats(
            rows=len(losses),
            loss=float(losses.sum()),
            largest=LargestLosses.of(request.most, rows, losses),
            active=int(np.count_nonzero(losses)),
            **clock.seconds(),
        )

    def vertices(self, request: SelectedRowsRequest) -> BlockStats:
        """Sum the vertices at W of the rows that are selected, each times its weight; read no others."""
        clock, dtype, problem = Clock(), self._precision(request.exact), self._problem
        W = np.ascontiguousarray(request.W, dtype=dtype)
        chosen = request.rows.between(self._start, self._start + len(self._y))
        scratch = Scratch(self._tiles.rows, problem.m, dtype)
        vertices = vertices_of(problem, self._tiles.rows, smoothed=True)
        product, sums = np.zeros((problem.m, problem.d)), np.zeros(ranking.N_SUMS)
        for part, values in self._read(chosen):
            X = as_rows(values, dtype)
            scores = scratch.scores_of(X, W)
            clock.product()
            vertices.find(scores, self._y[part.rows], part.weights, sums)
            clock.row_work()
            vertices.accumulate(X, product)
            clock.product()
        return BlockStats(
            rows=len(chosen),
            product=np.ascontiguousarray(product.T),
            conjugate_u=float(sums[ranking.B_U]),
            u_sq=float(sums[ranking.U_SQ]),
            loss=float(sums[ranking.LOSS]),
            shifted_loss=float(sums[ranking.LOSS]),
            active=int(sums[ranking.ACTIVE]),
            **clock.seconds(),
        )

    def _read(self, chosen: SelectedRows) -> Iterator[tuple[SelectedRows, Rows]]:
        """Yield some selected rows after others, at most a tile of them, with their features."""
        slabs = [
            (start, stop)
            for start, stop in slab_bounds(self._X, self._tiles.rows)
            if len(chosen.between(start, stop))
        ]
        for start, stop, slab in stored_slabs(self._X, slabs):
            here = chosen.between(start, stop)
            for first in range(0, len(here), self._tiles.rows):
                places = slice(first, first + self._tiles.rows)
                part = SelectedRows(here.rows[places] + start, here.weights[places])
                yield part, slab[here.rows[places]]

    def _precision(self, exact: bool) -> np.dtype[Any]:
        return _FLOAT64 if exact else self._dtype


def duals_from_primal(
    problem: Problem, tiles: TileReader, duals: BlockDuals, request: DualsFromPrimalRequest, crew: Crew
) -> BlockStats:
    """Make minus the gradients at W the dual rows of a block, and sum what W and D are made of."""
    clock = Clock()
    scratch = Scratch(tiles.rows, problem.m, _FLOAT64, crew)
    gradients = DenseVertices(problem, smoothed=True, crew=crew)
    product = np.zeros((problem.m, problem.d))
    sums = np.zeros(ranking.N_SUMS)
    b = alpha_sq = 0.0
    rows = 0
    for tile in tiles.read(_FLOAT64):
        U = scratch.scores_of(tile.X, request.W)
        clock.product()
        gradients.find(U, tile.y, tile.weights, sums)
        if request.share != 1.0:
            U *= request.share
        duals.load(tile.start, U)
        b += duals.conjugates(U, tile.rows)
        alpha_sq += duals.squares(U, tile.rows)
        clock.row_work()
        gradients.accumulate(tile.X, product)
        clock.product()
        rows = tile.stop
    return BlockStats(
        rows=rows,
        product=np.ascontiguousarray(product.T),
        conjugate_u=b,
        alpha_sq=alpha_sq,
        loss=float(sums[ranking.LOSS]),
        active=int(sums[ranking.ACTIVE]),
        **clock.seconds(),
    )
