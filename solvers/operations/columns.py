"""Away and pairwise steps inside the domain of every example.

A is kept as convex combinations of vertices (`topline.solvers.blocks.column_atoms`).  All examples take one
step together, along the sum of their directions.

A direction that always led to the border of its polytope would make that one step tiny: the best step of the
sum is that of the most of its members.  So an example goes as far as its own closed form says for a dual that
is curved 1/length times as much as its own row alone makes it; `length` stands for what the others add.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from topline.solvers.blocks import jit
from topline.solvers.blocks.ascent.dual_changes import change_sums
from topline.solvers.blocks.block import Block
from topline.solvers.blocks.column_atoms import ColumnSets
from topline.solvers.blocks.vertices import accumulate_rows, vertices_of
from topline.solvers.core.answers import Clock, VectorSums
from topline.solvers.core.dual_points import PendingStep
from topline.solvers.core.feature_maps import MapView
from topline.solvers.core.rows import is_sparse, squared_norms
from topline.solvers.core.tiles import FLOAT64, Scratch, Tile
from topline.solvers.crew import Crew
from topline.solvers.losses import ranking
from topline.solvers.operations.base import Operation, Runner
from topline.solvers.typing import Float64Array, FloatArray


@dataclass(frozen=True, eq=False, kw_only=True)
class DirectionSums(VectorSums):
    """Sums over the directions of alpha_i; `loss` is the true one, `alpha_sq` sum |alpha_i|^2."""

    alpha_sq: float = 0.0


@dataclass(frozen=True, eq=False)
class FindDirections(Operation[DirectionSums]):
    """Find a direction dA of A inside the active sets of the examples, at W (d, m), after the pending step.

    Attributes
    ----------
    pairwise : whether examples swap vertices, or go towards one or away from one.
    length : share of its own best step that an example takes.
    exact : products in float64, not in the precision of the features.
    """

    round: int
    W: Float64Array
    pending_step: PendingStep | None = None
    pairwise: bool = False
    length: float = 1.0
    exact: bool = False

    @property
    def widens(self) -> bool:
        """Whether dual variables are in float64 from then on."""
        return True

    def answer(self, block: Block, crew: Crew) -> DirectionSums:
        """Return the sums over the directions of the rows of a block, which wait for their step."""
        duals, problem, form = block.duals_after(self.pending_step), block.problem, block.problem.form
        duals.widen()
        A, change = duals.whole("Frank-Wolfe over the columns")
        kept = block.recall(
            ColumnSets, lambda: ColumnSets(problem, block.y, block.weights, A, self.pending_step)
        )
        kept.apply_step(self.pending_step)
        clock, dtype = Clock(), FLOAT64 if self.exact else block.dtype
        W = np.ascontiguousarray(self.W, dtype=dtype)
        scratch = Scratch(block.tiles.rows, problem.m, dtype)
        product = np.zeros((problem.m, problem.d))
        sums, smoothed_sums = np.zeros(ranking.N_SUMS), np.zeros(ranking.N_SUMS)
        smoothed = vertices_of(problem, block.tiles.rows, smoothed=True)
        for tile in block.tiles.read(dtype):
            scores = scratch.scores_of(tile.X, W)
            clock.product()
            if problem.smoothing > 0:
                smoothed.find(scratch.copy_of(scores), tile.y, tile.weights, smoothed_sums)
                jit.lift_scores(scores, A[tile.rows], tile.y, problem.smoothing, problem.smoothing_own)
            self._choose(block, kept, tile, scores, (A[tile.rows], change[tile.rows]), sums)
            clock.row_work()
            if is_sparse(tile.X):
                accumulate_rows(tile.X, change[tile.rows], tile.weights, product)
            else:
                # Directions have few classes a row, and all of these are looked at anyway.
                jit.accumulate_nonzeros(tile.X, change[tile.rows], tile.weights, product)
            clock.product()
        kept.found = self.round
        linear, cross, square, alpha_sq, changed = change_sums(
            form.conjugate, form.linear_conjugate, block.y, block.weights, A, change, form.table,
            problem.own_share,
        )  # fmt: skip
        clock.row_work()
        duals.changed(self.round)
        return DirectionSums(
            rows=len(A),
            product=np.ascontiguousarray(product.T),
            conjugate_u=linear,
            alpha_u=cross,
            u_sq=square,
            alpha_sq=alpha_sq,
            loss=float((smoothed_sums if problem.smoothing > 0 else sums)[ranking.LOSS]),
            active=changed,
            **clock.seconds(),
        )

    def _choose(
        self,
        block: Block,
        kept: ColumnSets,
        tile: Tile,
        scores: FloatArray,
        duals: tuple[FloatArray, FloatArray],
        sums: Float64Array,
    ) -> None:
        """Choose the directions of a tile's rows at their shifted scores; `duals` are A and room for them."""
        if np.isnan(kept.norms[tile.start]):
            kept.norms[tile.rows] = squared_norms(tile.X)
        scale = block.problem.scale / self.length
        # The curvature of the dual along the scores of each row alone.
        bends = np.asarray(scale * tile.weights * kept.norms[tile.rows])
        kept.sets.choose(tile.rows, scores, bends, duals, sums, length=self.length, pairwise=self.pairwise)

    def through(self, run: Runner, view: MapView) -> DirectionSums:
        """Return the sums at weights V of a feature map, whose curvature is larger by its norm."""
        return Operation.through(replace(self, length=self.length / view.norm), run, view)
