"""The dual variables as a whole: summed as kept, put inside their domains, or set from weights."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from topline.solvers.blocks.ascent.plan import AscentPlan, AscentSums
from topline.solvers.blocks.ascent.rounds import BlockAscent
from topline.solvers.blocks.block import Block, sum_of_squares
from topline.solvers.blocks.vertices import accumulate_rows, vertices_of
from topline.solvers.core.answers import FLOAT64, Answer, Clock, LossAnswer, TileSums, merged_by
from topline.solvers.core.dual_points import PendingStep
from topline.solvers.core.feature_maps import MapView
from topline.solvers.core.rows import Rows, is_sparse, squared_norms
from topline.solvers.crew import Crew
from topline.solvers.losses import ranking
from topline.solvers.losses.rows import conjugate_sum
from topline.solvers.operations.base import Operation, Runner, TileOperation
from topline.solvers.typing import Float64Array, FloatArray

#: Features whose products are summed in float32 before they are added in float64.
_CHUNK = 128


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


@dataclass(frozen=True, eq=False, kw_only=True)
class Certified(DualSums):
    """The terms of P and D at W, with what bounds their rounding; `loss` belongs to W.

    Attributes
    ----------
    cross : sum <alpha_i, W^T x_i>.
    row_sq, slack : sum |x_i|^2, and sum |x_i| |alpha_i - u_i|_1 with u_i = -grad Phi at W; for a loss with
        kinks twice the most |u|_1 instead.
    terms, summed : most terms of a float32 sum in a score and in `product`, 0 for float64.
    """

    cross: float = 0.0
    row_sq: float = 0.0
    slack: float = 0.0
    terms: int = merged_by(max, 0)
    summed: int = merged_by(max, 0)


@dataclass(frozen=True, eq=False)
class Certify(TileOperation[Certified]):
    """Sum the terms of P at W (d, m) and of D at A, or set A to `share` times -grad Phi_gamma there first.

    A without a share is that of the blocks, each row inside its domain.  One that is set needs a smooth
    problem, is kept where blocks keep A, and counts as having `pending_step`, which belonged to the A that it
    replaces.  Products, and an A that is set, are in float64 if `exact`, else in the precision of the
    features; then float64 sums over chunks of features are the scores of W rounded to that precision.
    """

    W: Float64Array
    share: float | None = None
    pending_step: PendingStep | None = None
    exact: bool = False

    def sums(self, block: Block, crew: Crew) -> TileSums[Certified]:
        """Sum tile by tile."""
        problem, duals, dtype = block.problem, block.kept_duals, FLOAT64 if self.exact else block.dtype
        clock, W, form = Clock(), np.ascontiguousarray(self.W, dtype=dtype), problem.form
        vertices = vertices_of(problem, block.tiles.rows, smoothed=True, crew=crew)
        sums, product, rows = np.zeros(ranking.N_SUMS), np.zeros((problem.m, problem.d)), 0
        b = alpha_sq = cross = row_sq = slack = 0.0
        most, closed = 0, self.share == 1.0 and problem.smoothing == 0.0
        taken = yield clock, dtype, None
        while taken is not None:
            tile, _ = taken
            scores, terms = _scores(tile.X, W, crew)
            most, rows = max(most, terms), rows + tile.stop - tile.start
            clock.product()
            U = scores.copy()
            vertices.find(U, tile.y, tile.weights, sums)
            if self.share is None:
                A = block.duals.rows_after(tile.number, tile.start, tile.stop, self.pending_step)
                A = block.duals.feasible(A, tile.rows)
            else:
                A = U if self.share == 1.0 else self.share * U
                if duals is not None:
                    duals.load(tile.start, A.astype(dtype, copy=False))
            squares = squared_norms(tile.X)
            row_sq += float(tile.weights @ squares)
            if not closed:
                b += float(conjugate_sum(form.conjugate, A, tile.y, tile.weights, form.table))
                cross += float(tile.weights @ np.einsum("ij,ij->i", A, scores))
                alpha_sq += float(sum_of_squares(A, tile.y, tile.weights, problem.own_share))
                off = np.abs(A - U).sum(axis=1) if form.smooth else 2.0 * (form.steepest or np.inf)
                slack += float(tile.weights @ (np.sqrt(squares) * off))
            clock.row_work()
            accumulate_rows(tile.X, A.astype(dtype, copy=False), tile.weights, product, crew)
            clock.product()
            taken = yield None
        if self.share is not None and duals is not None:
            duals.finish_step(self.pending_step)
        narrow, loss = dtype != FLOAT64, float(sums[ranking.LOSS])
        if closed:
            # Fenchel and Young's inequality is an equality for gradients.
            b, alpha_sq, cross = sums[ranking.B_U], sums[ranking.U_SQ], sums[ranking.B_U] - loss
        return Certified(
            rows=rows, loss=loss, active=int(sums[ranking.ACTIVE]), conjugate=float(b),
            product=np.ascontiguousarray(product.T), alpha_sq=float(alpha_sq), cross=float(cross),
            row_sq=row_sq, slack=slack, terms=narrow * most, summed=narrow * block.tiles.rows,
            **clock.seconds(),
        )  # fmt: skip


def _scores(X: Rows, W: FloatArray, crew: Crew) -> tuple[Float64Array, int]:
    """Return X W (b, m), chunks of whose terms are added in float64, and the most terms of a chunk."""
    if is_sparse(X):
        return np.asarray(X @ W, dtype=np.float64), int(np.diff(X.indptr).max(initial=0))
    scores = np.zeros((X.shape[0], W.shape[1]))
    for low in range(0, X.shape[1], _CHUNK):
        scores += crew.product(X[:, low : low + _CHUNK], W[low : low + _CHUNK])
    return scores, min(X.shape[1], _CHUNK)


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
