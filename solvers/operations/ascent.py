"""Dual ascent: a change of A that raises the dual, found block by block."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from topline.solvers.blocks.ascent.plan import AscentPlan, AscentSums
from topline.solvers.blocks.ascent.rounds import BlockAscent
from topline.solvers.blocks.block import Block
from topline.solvers.core.feature_maps import MapView
from topline.solvers.crew import Crew
from topline.solvers.operations.base import Operation, Runner


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
