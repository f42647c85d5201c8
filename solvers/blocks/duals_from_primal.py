"""Dual rows of a smooth problem from its weights."""

from __future__ import annotations

import numpy as np

from topline.solvers.blocks.duals import BlockDuals
from topline.solvers.blocks.vertices import DenseVertices
from topline.solvers.core.block_stats import BlockStats
from topline.solvers.core.clock import Clock
from topline.solvers.core.problem import Problem
from topline.solvers.core.requests import DualsFromPrimalRequest
from topline.solvers.core.tiles import Scratch, TileReader
from topline.solvers.losses import ranking

_FLOAT64 = np.dtype(np.float64)


def duals_from_primal(
    problem: Problem, tiles: TileReader, duals: BlockDuals, request: DualsFromPrimalRequest
) -> BlockStats:
    """Make minus the gradients at W the dual rows of a block, and sum what W and D are made of."""
    clock = Clock()
    scratch = Scratch(tiles.rows, problem.m, _FLOAT64)
    gradients = DenseVertices(problem, smoothed=True)
    product = np.zeros((problem.m, problem.d))
    sums = np.zeros(ranking.N_SUMS)
    b = alpha_sq = 0.0
    rows = 0
    for tile in tiles.read(_FLOAT64):
        U = scratch.scores_of(tile.X, request.W)
        clock.product()
        gradients.find(U, tile.y, tile.weights, sums)
        duals.load(tile.start, U)
        b += duals.conjugates(U, tile.rows)
        alpha_sq += duals.squares(U, tile.rows)
        clock.kernel()
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
        seconds_products=clock.products,
        seconds_kernels=clock.kernels,
    )
