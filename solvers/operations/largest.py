"""The largest losses of all rows, of which the average top-k risk is the mean."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from topline.solvers.blocks.block import Block
from topline.solvers.blocks.vertices import vertices_of
from topline.solvers.core.answers import Clock, LossAnswer, merged_by
from topline.solvers.core.risks import AverageTopK, LargestLosses
from topline.solvers.core.tiles import FLOAT64, Scratch
from topline.solvers.crew import Crew
from topline.solvers.errors import StateLostError
from topline.solvers.operations.base import Operation, Runner
from topline.solvers.typing import Float64Array


@dataclass(frozen=True, eq=False, kw_only=True)
class Largest(LossAnswer):
    """The largest losses; `loss` is the sum of all."""

    largest: LargestLosses = merged_by(LargestLosses.merge)


@dataclass(frozen=True, eq=False)
class FindLargestLosses(Operation[Largest]):
    """Find the `most` largest losses Phi_gamma at W (d, m), and their rows; in float64 where `exact`."""

    W: Float64Array
    most: int
    exact: bool = True

    def answer(self, block: Block, crew: Crew) -> Largest:
        """Return the largest losses of a block."""
        clock, dtype = Clock(), FLOAT64 if self.exact else block.dtype
        W = np.ascontiguousarray(self.W, dtype=dtype)
        scratch = Scratch(block.tiles.rows, block.problem.m, dtype)
        vertices = vertices_of(block.problem, block.tiles.rows, smoothed=True)
        losses = np.empty(block.stop - block.start)
        for tile in block.tiles.read(dtype):
            scores = scratch.scores_of(tile.X, W)
            clock.product()
            vertices.losses(scores, tile.y, losses[tile.rows])
            clock.row_work()
        rows = block.start + np.arange(len(losses))
        return Largest(
            rows=len(losses),
            loss=float(losses.sum()),
            largest=LargestLosses.of(self.most, rows, losses),
            active=int(np.count_nonzero(losses)),
            **clock.seconds(),
        )


def find_largest(run: Runner, W: Float64Array, risk: AverageTopK, n: int, *, exact: bool) -> Largest:
    """Return the losses at W (d, m) that a risk is the mean of; StateLostError where some are missing."""
    found = run(FindLargestLosses(W, risk.rows, exact))
    if len(found.largest.rows) != risk.rows or found.rows != n:
        raise StateLostError(f"the largest losses cover {found.rows} of {n} rows; run the round again")
    return found


def risk_of(largest: LargestLosses, risk: AverageTopK, n: int) -> float:
    """Return n times the risk: the methods' arithmetic for a sum of losses stays as it is."""
    return float(risk.selected(largest, n).weights @ largest.losses)
