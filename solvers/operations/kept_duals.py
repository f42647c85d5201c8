"""The dual variables as a whole: summed as kept, put inside their domains, or set from weights."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from topline.solvers.blocks.ascent.plan import AscentPlan, AscentSums
from topline.solvers.blocks.ascent.rounds import BlockAscent
from topline.solvers.blocks.block import Block
from topline.solvers.blocks.vertices import DenseVertices, accumulate_rows
from topline.solvers.core.answers import FLOAT64, Answer, Clock, LossAnswer, Scratch, TileSums
from topline.solvers.core.dual_points import PendingStep
from topline.solvers.core.feature_maps import MapView
from topline.solvers.crew import Crew
from topline.solvers.losses import ranking
from topline.solvers.operations.base import Operation, Runner, TileOperation
from topline.solvers.typing import Float64Array


@dataclass(frozen=True, eq=False, kw_only=True)
class DualSums(LossAnswer):
    """The terms of W(A) and D: `product` (d, m) sum x_i alpha_i^T, sum b(alpha_i), sum |alpha_i|^2.

    `loss` and `active` belong to the weights that A was set from, else 0.
    """

    product: Float64Array
    conjugate: float
    alpha_sq: float


@dataclass(frozen=True)
class Rebuild(TileOperation[DualSums]):
    """Sum x_i alpha_i^T, b(alpha_i) and |alpha_i|^2 from the stored A with float64 products.

    Attributes
    ----------
    exact : keep A in float64 from now on, with every row inside its domain to that precision.
    inside : first put every row at the nearest point of its domain: A may come from anywhere.
    feasible : put rows rounded to float32 inside their domains for the sums alone, which are those of `share`
        times these rows; A stays as it is.
    """

    pending_step: PendingStep | None = None
    exact: bool = False
    inside: bool = False
    feasible: bool = False
    share: float = 1.0

    widening: ClassVar[bool] = True

    def sums(self, block: Block, crew: Crew) -> TileSums[DualSums]:
        """Sum the dual rows tile by tile."""
        duals = block.duals
        if self.exact:
            block.duals_after(self.pending_step).widen()
        if self.inside:
            block.duals_after(self.pending_step).put_inside()
        clock, product = Clock(), np.zeros((block.problem.m, block.problem.d))
        rows, b, alpha_sq = 0, 0.0, 0.0
        taken = yield clock, FLOAT64, None
        while taken is not None:
            tile, _ = taken
            A = duals.rows_after(tile.number, tile.start, tile.stop, self.pending_step)
            A = duals.feasible(A, tile.rows) if self.feasible else A.astype(np.float64)
            A = A if self.share == 1.0 else self.share * A
            b += duals.conjugates(A, tile.rows)
            alpha_sq += duals.squares(A, tile.rows)
            clock.row_work()
            accumulate_rows(tile.X, A, tile.weights, product, crew)
            rows += tile.stop - tile.start
            clock.product()
            taken = yield None
        return DualSums(
            rows=rows, product=np.ascontiguousarray(product.T), conjugate=b, alpha_sq=alpha_sq,
            **clock.seconds(),
        )  # fmt: skip


@dataclass(frozen=True)
class PutInside(Operation[Answer]):
    """Keep A in float64 from now on, with rows rounded to float32 put inside their domains; sum nothing.

    `anyway` puts rows in float64 inside as well, after changes in float32.
    """

    pending_step: PendingStep | None = None
    anyway: bool = False

    widening: ClassVar[bool] = True

    def answer(self, block: Block, crew: Crew) -> Answer:
        """Put the rows of a block inside."""
        duals = block.duals_after(self.pending_step)
        duals.widen()
        if self.anyway:
            duals.put_inside()
        return Answer()


@dataclass(frozen=True, eq=False)
class TakeGradients(Operation[DualSums]):
    """Set A to `share` times -grad Phi_gamma at the scores of W (d, m), and sum it.

    Requires a smooth problem.  The losses of the answer are Phi_gamma at W.  Products and A are in float64 if
    `exact`, else in the precision of the features.  A then counts as having `pending_step`, which belonged to
    the A it replaces.
    """

    W: Float64Array
    share: float = 1.0
    exact: bool = True
    pending_step: PendingStep | None = None

    def answer(self, block: Block, crew: Crew) -> DualSums:
        """Set the dual rows of a block, and sum the terms of W and D."""
        clock, problem, tiles, duals = Clock(), block.problem, block.tiles, block.duals
        dtype = FLOAT64 if self.exact else block.dtype
        W = np.ascontiguousarray(self.W, dtype=dtype)
        scratch = Scratch(tiles.rows, problem.m, dtype, crew)
        gradients = DenseVertices(problem, smoothed=True, crew=crew)
        product = np.zeros((problem.m, problem.d))
        sums = np.zeros(ranking.N_SUMS)
        b = alpha_sq = 0.0
        for tile in tiles.read(dtype):
            U = scratch.scores_of(tile.X, W)
            clock.product()
            gradients.find(U, tile.y, tile.weights, sums)
            if self.share != 1.0:
                U *= self.share
            duals.load(tile.start, U)
            b += duals.conjugates(U, tile.rows)
            alpha_sq += duals.squares(U, tile.rows)
            clock.row_work()
            gradients.accumulate(tile.X, product)
            clock.product()
        duals.finish_step(self.pending_step)
        return DualSums(
            rows=block.stop - block.start,
            product=np.ascontiguousarray(product.T),
            conjugate=b,
            alpha_sq=alpha_sq,
            loss=float(sums[ranking.LOSS]),
            active=int(sums[ranking.ACTIVE]),
            **clock.seconds(),
        )


@dataclass(frozen=True, eq=False)
class Ascend(AscentPlan, Operation[AscentSums]):
    """Find a change dA of A that raises the dual, as the plan says; the change waits for its step."""

    widening: ClassVar[bool] = True

    def within(self, passes: int, seconds: float | None) -> Ascend:
        """Return the operation limited to the run's remaining passes and seconds."""
        return replace(self, most_passes=min(self.most_passes, passes), seconds=seconds)

    def answer(self, block: Block, crew: Crew) -> AscentSums:
        """Return the sums over the changes found by sweeps over the rows of a block."""
        duals = block.duals_after(self.pending_step)
        if self.exact:
            duals.widen()
        ascent = block.recall(
            BlockAscent,
            lambda: BlockAscent(
                block.problem, block.X, block.y, block.weights, block.index, block.dtype, block.helpers,
                block.norms,
            ),
        )  # fmt: skip
        if self.turn is None:
            sums = ascent.run(self, duals.A, duals.change(), crew.threads)
            duals.changed(self.round)
        else:
            sums = ascent.run_turn(self, self.turn, duals, crew.threads)
            duals.changed(self.round, self.turn.part)
        return sums

    def through(self, run: Runner, view: MapView) -> AscentSums:
        """Return the sums at weights V of a feature map, with an upper bound of the curvature."""
        bounded = replace(self, safety_factor=self.safety_factor * view.norm)
        return Operation.through(bounded, run, view)
