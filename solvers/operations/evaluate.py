"""The losses at weights, and the terms of D at the kept A apart from W.

For the average top-k risk, whose mean is over the largest losses, blocks return these.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from topline.solvers.blocks.block import Block
from topline.solvers.blocks.vertices import least_stretch, slack_of, vertices_of
from topline.solvers.core.answers import FLOAT64, Clock, LossAnswer, Scratch, TileSums, merged_by
from topline.solvers.core.dual_points import PendingStep
from topline.solvers.core.feature_maps import MapView
from topline.solvers.core.problem import AverageTopK, LargestLosses
from topline.solvers.core.rows import is_sparse
from topline.solvers.crew import Crew
from topline.solvers.errors import StateLostError
from topline.solvers.losses import ranking
from topline.solvers.operations.base import Operation, Runner, TileOperation
from topline.solvers.typing import Float64Array


@dataclass(frozen=True, eq=False, kw_only=True)
class Largest(LossAnswer):
    """The largest losses; `loss` is the sum of all."""

    largest: LargestLosses = merged_by(LargestLosses.merge)


@dataclass(frozen=True, eq=False)
class FindLargestLosses(Operation[Largest]):
    """Find the `most` largest losses Phi_gamma at W (d, m), and their rows; in float64 if `exact`."""

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
    """Return the losses at W (d, m) whose mean is the risk; raises StateLostError if some are missing."""
    found = run(FindLargestLosses(W, risk.rows, exact))
    if len(found.largest.rows) != risk.rows or found.rows != n:
        raise StateLostError(f"the largest losses cover {found.rows} of {n} rows; run the round again")
    return found


def risk_of(largest: LargestLosses, risk: AverageTopK, n: int) -> float:
    """Return n times the risk, which replaces the sum of losses in the methods' arithmetic."""
    return float(risk.selected(largest, n).weights @ largest.losses)


@dataclass(frozen=True, eq=False, kw_only=True)
class Evaluation(LossAnswer):
    """Sums of losses; `loss` is the true one, Phi_gamma where smoothing > 0.

    Attributes
    ----------
    shifted_loss : sum Phi(W^T x_i + gamma alpha_i); equal to `loss` without smoothing.
    alpha_sq : sum |alpha_i|^2; 0 where no A is kept.
    conjugate_alpha : sum -Phi*(-alpha_i) of the kept A, if not linear.
    stretch : the least c at which no row has a loss at c W; inf if there is none, 0 if not requested.
    row_sum : (d, 1) sum x_i, if `total` was requested.
    row_sq : sum |x_i|^2, likewise.
    """

    shifted_loss: float
    alpha_sq: float = 0.0
    conjugate_alpha: float = 0.0
    stretch: float = merged_by(max, 0.0)
    row_sum: Float64Array | None = None
    row_sq: float = 0.0


@dataclass(frozen=True, eq=False)
class Evaluate(TileOperation[Evaluation]):
    """Sum the losses at W (d, m), after applying `pending_step`; U and A stay as they are.

    Attributes
    ----------
    exact : products in float64, not in the precision of the features.
    total : whether to sum the rows, for dense features.
    stretched : whether to compute the stretch of W at which a hinge vanishes.
    """

    W: Float64Array
    pending_step: PendingStep | None = None
    exact: bool = True
    total: bool = False
    stretched: bool = False

    def sums(self, block: Block, crew: Crew) -> TileSums[Evaluation]:
        """Sum the losses tile by tile."""
        problem, duals, form = block.problem, block.kept_duals, block.problem.form
        clock, dtype = Clock(), FLOAT64 if self.exact else block.dtype
        W, smoothed, rows = np.ascontiguousarray(self.W, dtype=dtype), problem.smoothing > 0, 0
        plain = vertices_of(problem, block.tiles.rows, smoothed=True, crew=crew)
        sums = shifted_sums = np.zeros(ranking.N_SUMS)
        if smoothed:
            shifted = vertices_of(problem, block.tiles.rows, smoothed=False, crew=crew)
            scratch, shifted_sums = Scratch(block.tiles.rows, problem.m, dtype), np.zeros(ranking.N_SUMS)
        row_sum: Float64Array | None = None
        row_sq = alpha_sq = conjugate_alpha = stretch = 0.0
        taken = yield clock, dtype, W
        while taken is not None:
            tile, scores = taken
            if self.stretched and stretch < np.inf:
                slack = slack_of(tile.X, W)
                stretch = least_stretch(form, scores, tile.y, tile.weights, slack, stretch)
            if self.total and not is_sparse(tile.X):
                row_sum, row_sq = tile.added_to(row_sum, row_sq)
                clock.product()
            if duals is not None:
                A = duals.rows_after(tile.number, tile.start, tile.stop, self.pending_step)
                alpha_sq += duals.squares(A, tile.rows)
                if not form.linear_conjugate:
                    conjugate_alpha += duals.conjugates(A, tile.rows)
                if smoothed:
                    raised = scratch.copy_of(scores)
                    duals.lift(raised, A, tile.rows)
                    shifted.find(raised, tile.y, tile.weights, shifted_sums)
            plain.find(scores, tile.y, tile.weights, sums)
            rows += tile.stop - tile.start
            clock.row_work()
            taken = yield None
        return Evaluation(
            rows=rows, loss=float(sums[ranking.LOSS]), shifted_loss=float(shifted_sums[ranking.LOSS]),
            alpha_sq=alpha_sq, conjugate_alpha=conjugate_alpha, stretch=stretch, row_sum=row_sum,
            row_sq=row_sq, active=int(sums[ranking.ACTIVE]), **clock.seconds(),
        )  # fmt: skip

    def through(self, run: Runner, view: MapView) -> Evaluation:
        """Return the losses at weights V of a feature map, without `total`, which describes W only."""
        return TileOperation.through(replace(self, total=False), run, view)

    def on_largest(self, run: Runner, risk: AverageTopK, n: int) -> Evaluation:
        """Return n times the risk as the sum of the losses."""
        found = find_largest(run, self.W, risk, n, exact=self.exact)
        loss = risk_of(found.largest, risk, n)
        return Evaluation(
            rows=found.rows,
            loss=loss,
            shifted_loss=loss,
            active=found.active,
            seconds_products=found.seconds_products,
            seconds_kernels=found.seconds_kernels,
        )
