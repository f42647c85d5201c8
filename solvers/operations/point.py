"""The value of a point: the losses at weights, and the terms of D at the A that blocks keep.

For the average top-k risk, whose mean is over the largest losses, blocks return these.  A is summed as kept,
put inside its domains, set from weights, or changed by the sweeps of dual ascent.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from topline.solvers.blocks.ascent.passes import AscentPlan, AscentSums
from topline.solvers.blocks.ascent.rounds import BlockAscent
from topline.solvers.blocks.block import Block, sum_of_squares
from topline.solvers.blocks.vertices import (
    accumulate_rows,
    least_stretch,
    sizes_of_entries,
    slack_of,
    vertices_of,
)
from topline.solvers.core.answers import FLOAT64, Answer, Clock, LossAnswer, Scratch, TileSums, merged_by
from topline.solvers.core.dual_points import PendingStep
from topline.solvers.core.feature_maps import MapView
from topline.solvers.core.problem import AverageTopK, LargestLosses
from topline.solvers.core.rows import Rows, is_sparse, most_terms, squared_norms
from topline.solvers.crew import Crew
from topline.solvers.errors import StateLostError
from topline.solvers.losses import ranking
from topline.solvers.losses.rows import conjugate_sum
from topline.solvers.operations.base import Operation, Runner, TileOperation
from topline.solvers.typing import Float64Array, FloatArray

#: Features whose products are summed in float32 before they are added in float64.
_CHUNK = 128


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
        problem, losses = block.problem, np.empty(block.stop - block.start)
        scratch = Scratch(block.tiles.rows, problem.m, dtype)
        for tile in block.tiles.read(dtype):
            scores = scratch.scores_of(tile.X, W)
            clock.product()
            losses[tile.rows] = problem.losses(scores, tile.y)
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
                total: Float64Array = (tile.weights @ tile.X)[:, None]
                row_sum = total if row_sum is None else row_sum + total
                row_sq += float(tile.weights @ squared_norms(tile.X))
                clock.product()
            if duals is not None:
                A = duals.rows_after(tile.number, tile.rows, self.pending_step)
                alpha_sq += duals.squares(A, tile.rows)
                if not form.linear_conjugate:
                    conjugate_alpha += duals.conjugates(A, tile.rows)
                if smoothed:
                    raised = scratch.copy_of(scores)
                    duals.lift(raised, A, tile.rows)
                    shifted.find(raised, tile.y, tile.weights, shifted_sums)
            plain.find(scores, tile.y, tile.weights, sums)
            rows += len(tile.y)
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
            A = duals.rows_after(tile.number, tile.rows, self.pending_step)
            A = duals.feasible(A, tile.rows) if self.feasible else A.astype(np.float64)
            A = A if self.share == 1.0 else self.share * A
            b += duals.conjugates(A, tile.rows)
            alpha_sq += duals.squares(A, tile.rows)
            clock.row_work()
            accumulate_rows(tile.X, A, tile.weights, product, crew)
            rows += len(tile.y)
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
    row_sq, slack : sum |x_i|^2, and for a smooth loss sum |x_i| |alpha_i - u_i|_1 with u_i = -grad Phi at W.
    sizes : (m,) sum |x_i| |alpha_ij|, None for products in float64.
    weight : sum of the rows' weights, where gradients by vectors round scores further; else 0.
    terms, summed : most terms of a float32 sum in a score and in `product`, 0 for float64.
    """

    cross: float = 0.0
    row_sq: float = 0.0
    slack: float = 0.0
    sizes: Float64Array | None = None
    weight: float = 0.0
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
        narrow, sizes = dtype != FLOAT64, np.zeros(problem.m)
        most, closed = 0, self.share == 1.0 and problem.smoothing == 0.0
        taken = yield clock, dtype, None
        while taken is not None:
            tile, _ = taken
            scores, terms = _scores(tile.X, W, crew)
            most, rows = max(most, terms), rows + len(tile.y)
            clock.product()
            U = scores.copy()
            vertices.find(U, tile.y, tile.weights, sums)
            if self.share is None:
                A = block.duals.rows_after(tile.number, tile.rows, self.pending_step)
                A = block.duals.feasible(A, tile.rows)
            else:
                A = U if self.share == 1.0 else self.share * U
                if duals is not None:
                    duals.load(tile.rows.start, A.astype(dtype, copy=False))
            squares = squared_norms(tile.X)
            row_sq += float(tile.weights @ squares)
            if narrow:
                sizes += sizes_of_entries(A, tile.weights * np.sqrt(squares))
            if not closed:
                b += float(conjugate_sum(form.conjugate, A, tile.y, tile.weights, form.table))
                cross += float(tile.weights @ np.einsum("ij,ij->i", A, scores))
                alpha_sq += float(sum_of_squares(A, tile.y, tile.weights, problem.own_share))
                slack += float(tile.weights @ (np.sqrt(squares) * np.abs(A - U).sum(axis=1)))
            clock.row_work()
            accumulate_rows(tile.X, A.astype(dtype, copy=False), tile.weights, product, crew)
            clock.product()
            taken = yield None
        if self.share is not None and duals is not None:
            duals.finish_step(self.pending_step)
        loss = float(sums[ranking.LOSS])
        if closed:
            # Fenchel and Young's inequality is an equality for gradients.
            b, alpha_sq, cross = sums[ranking.B_U], sums[ranking.U_SQ], sums[ranking.B_U] - loss
        return Certified(
            rows=rows, loss=loss, active=int(sums[ranking.ACTIVE]), conjugate=float(b),
            product=np.ascontiguousarray(product.T), alpha_sq=float(alpha_sq), cross=float(cross),
            row_sq=row_sq, slack=slack, sizes=sizes if narrow else None,
            terms=narrow * most, summed=narrow * block.tiles.rows, **clock.seconds(),
        )  # fmt: skip


def _scores(X: Rows, W: FloatArray, crew: Crew) -> tuple[FloatArray, int]:
    """Return X W (b, m) and the most terms of a sum in W's precision; float64 adds chunks of float32 sums."""
    if is_sparse(X):
        return np.asarray(X @ W, dtype=np.float64), most_terms(X)
    d = X.shape[1]
    if W.dtype == FLOAT64:
        return crew.product(X, W), d
    scores = np.zeros((X.shape[0], W.shape[1]))
    for low in range(0, d, _CHUNK):
        scores += crew.product(X[:, low : low + _CHUNK], W[low : low + _CHUNK])
    return scores, min(d, _CHUNK)


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
        ascent = block.recall(BlockAscent, lambda: BlockAscent(block))
        if self.turn is None:
            sums = ascent.run(self, duals.A, duals.no_change(), crew)
            duals.changed(self.round)
        else:
            sums = ascent.run_turn(self, self.turn, duals, crew)
            duals.changed(self.round, self.turn.part)
        return sums

    def through(self, run: Runner, view: MapView) -> AscentSums:
        """Return the sums at weights V of a feature map, with an upper bound of the curvature."""
        bounded = replace(self, safety_factor=self.safety_factor * view.norm)
        return Operation.through(bounded, run, view)
