"""Second-order sums: envelopes of a proximal step, and their curvature, row by row.

The envelope of example i is Phi_c at q_i = W^T x_i - sigma alpha_i with c = gamma + sigma, its gradient in W
is -x_i u(q_i)^T, and its generalised Hessian x_i x_i^T (x) J_i (`topline.solvers.blocks.second_order`).  Rows
with J_i = 0, most rows near the optimum, are left out of every product.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, fields, replace
from typing import Any, ClassVar, Self

import numpy as np

from topline.solvers.blocks.block import Block, lift_scores
from topline.solvers.blocks.second_order import (
    CurvedRows,
    EnvelopePoint,
    Envelopes,
    Found,
    KeptTiles,
    diagonal_blocks,
    hessian,
)
from topline.solvers.blocks.vertices import accumulate_rows, least_stretch, slack_of, vertices_of
from topline.solvers.core.answers import FLOAT64, A, Answer, Clock, Scratch, Tile, VectorSums, merged_by
from topline.solvers.core.feature_maps import MapView
from topline.solvers.core.rows import Rows
from topline.solvers.crew import Crew
from topline.solvers.losses import ranking
from topline.solvers.operations.base import Operation, Runner
from topline.solvers.typing import Float64Array, FloatArray, IntArray


class _AtPoint:
    """The rows of a block at a point: their scores, shifted by A, and those with J not zero.

    Values kept between operations only save work.
    """

    def __init__(self, point: EnvelopePoint, block: Block, crew: Crew) -> None:
        self.point, self.problem, self.tiles, self.crew = point, block.problem, block.tiles, crew
        self.dtype: np.dtype[Any] = FLOAT64 if point.exact else block.dtype
        self.duals = None
        if point.sigma > 0:
            self.duals = block.duals_after(point.pending_step)
            if point.exact:
                self.duals.widen()
        self.envelopes = Envelopes(block.problem, point.sigma, crew)
        numbers = (block.stop - block.start) * block.problem.m
        self.kept = block.recall(KeptTiles, lambda: KeptTiles(len(block.tiles), numbers, block.kept_bytes))
        self.kept.stand_at(point, self.dtype.itemsize)
        #: Rows whose scores needed a product.
        self.scored = 0

    def line(self, along: Float64Array) -> Iterator[tuple[int, slice, FloatArray, FloatArray, int]]:
        """Yield for every tile its number, rows, X W and X V, and for how many rows X V was computed."""
        dtype, kept = self.dtype, self.kept
        if kept.has_line:
            for number, start, stop in self.tiles.bounds():
                yield number, slice(start, stop), kept.scores[number], kept.moves[number], 0
            return
        W, V = (np.ascontiguousarray(matrix, dtype=dtype) for matrix in (self.point.W, along))
        scratch = Scratch(self.tiles.rows, self.problem.m, dtype, self.crew)
        for tile in self.tiles.read(dtype):
            scores = self.plain_scores(tile.number, tile.X, W, scratch)
            moves = np.array(scratch.scores_of(tile.X, V))
            if kept.whole:
                kept.moves[tile.number] = moves
            yield tile.number, tile.rows, scores, moves, len(tile.y)

    def curved_rows(self) -> Iterator[tuple[CurvedRows, Rows]]:
        """Yield the rows with J not zero, tile by tile, with their features."""
        dtype, kept = self.dtype, self.kept
        if kept.has_curved:
            for rows in kept.curved.values():
                if rows is not None and rows.X is not None:
                    yield rows, rows.X
            return
        W = np.ascontiguousarray(self.point.W, dtype=dtype)
        scratch = Scratch(self.tiles.rows, self.problem.m, dtype, self.crew)
        for tile in self.tiles.read(dtype):
            if tile.number not in kept.curved:
                found = kept.keep_curved(tile.number, self._look(tile, W, scratch), tile.X)
            else:
                found = kept.curved[tile.number]
            if found is not None:
                yield found, tile.X[found.rows] if found.X is None else found.X

    def _look(self, tile: Tile, W: FloatArray, scratch: Scratch) -> CurvedRows | None:
        """Find the rows of a tile whose u moves with its scores, by one short random step."""
        A = self.dual_rows(tile.number, tile.rows)
        plain = self.plain_scores(tile.number, tile.X, W, scratch)
        envelopes, here = self.envelopes, self.kept.here
        if envelopes.closed and here is not None:
            scores, U = plain, here.U[tile.number]
        else:
            scores = self.shifted(plain, A, tile.y).astype(np.float64)
            U = envelopes.gradients(scores, tile.y, tile.weights)
        everything = CurvedRows(np.arange(len(scores)), tile.y, tile.weights, scores, U)
        classes = envelopes.moving(everything, (self.point.round, tile.number))
        rows = np.flatnonzero(classes.any(axis=1))
        return replace(everything, classes=classes).of(rows) if rows.size else None

    def plain_scores(self, number: int, X: Rows, W: FloatArray, scratch: Scratch) -> FloatArray:
        """Return X W of a tile, kept or computed."""
        kept = self.kept
        if number in kept.scores:
            return kept.scores[number]
        scores = np.array(scratch.scores_of(X, W))
        self.scored += len(scores)
        if kept.whole:
            kept.scores[number] = scores
        return scores

    def dual_rows(self, number: int, rows: slice) -> FloatArray | None:
        """Return A of a tile after the pending step; None if it is not needed."""
        if self.duals is None:
            return None
        return self.duals.rows_after(number, rows, self.point.pending_step)

    def shifted(self, scores: FloatArray, A: FloatArray | None, y: IntArray) -> FloatArray:
        """Return q = s - sigma alpha of some rows, in a new array."""
        shifted, sigma = scores.copy(), self.point.sigma
        if A is not None:
            lift_scores(shifted, A, y, -sigma, -sigma * self.problem.own_share)
        return shifted


class _PointOperation(EnvelopePoint, Operation[A]):
    """An operation at a point."""

    widening: ClassVar[bool] = True

    @classmethod
    def at(cls, point: EnvelopePoint, **more: Any) -> Self:
        """Return the operation at a point."""
        return cls(**{part.name: getattr(point, part.name) for part in fields(EnvelopePoint)}, **more)


@dataclass(frozen=True, eq=False, kw_only=True)
class EnvelopeSums(VectorSums):
    """Sums over the u_i of the envelopes; `loss` is the true one if sigma > 0, else Phi_gamma.

    Attributes
    ----------
    stretch : the least c at which no row has a loss at c W; inf if there is none, 0 if not requested.
    visited : rows whose scores needed a product.
    """

    stretch: float = merged_by(max, 0.0)
    visited: int = 0


@dataclass(frozen=True, eq=False)
class FindEnvelopes(_PointOperation[EnvelopeSums]):
    """Evaluate P, and the envelope of a proximal step on the dual, at W (d, m), after the pending step.

    U = -grad Phi_(gamma + sigma) at the scores W^T x_i - sigma alpha_i is kept for mixing into A.  A smooth
    loss takes sigma = 0: U is then minus its gradient, and no A is needed.  `stretched` requests the stretch
    of W at which a hinge vanishes.
    """

    stretched: bool = False

    def answer(self, block: Block, crew: Crew) -> EnvelopeSums:
        """Return the sums over the rows of a block."""
        rows = _AtPoint(self, block, crew)
        return self._proximal(rows, block) if self.sigma > 0 else _smooth(rows)

    def _proximal(self, here: _AtPoint, block: Block) -> EnvelopeSums:
        clock, problem, tiles, dtype = Clock(), here.problem, here.tiles, here.dtype
        W, duals = np.ascontiguousarray(self.W, dtype=dtype), block.duals
        scratch, envelope = Scratch(tiles.rows, problem.m, dtype, here.crew), here.envelopes
        plain = vertices_of(problem, tiles.rows, smoothed=True, crew=here.crew)
        sums, shifted = np.zeros(ranking.N_SUMS), np.zeros(ranking.N_SUMS)
        product = np.zeros((problem.m, problem.d))
        conjugate = u_sq = alpha_u = stretch = 0.0
        for tile in tiles.read(dtype):
            scores = here.plain_scores(tile.number, tile.X, W, scratch)
            clock.product()
            if self.stretched and stretch < np.inf:
                slack = slack_of(tile.X, W)
                stretch = least_stretch(problem.form, scores, tile.y, tile.weights, slack, stretch)
            A = duals.rows_after(tile.number, tile.rows, self.pending_step)
            at = here.shifted(scores, A, tile.y)
            plain.find(scratch.copy_of(scores), tile.y, tile.weights, sums)
            envelope.find(at, tile.y, tile.weights, shifted)
            conjugate += duals.conjugates(at, tile.rows)
            if problem.smoothing > 0:
                A64, U64 = A.astype(np.float64), at.astype(np.float64)
                square = duals.squares(U64, tile.rows)
                twice = duals.squares(A64 + U64, tile.rows) - duals.squares(A64, tile.rows) - square
                alpha_u, u_sq = alpha_u + 0.5 * twice, u_sq + square
            envelope.mix_later(duals, A, tile.number, tile.rows, self.round)
            clock.row_work()
            envelope.accumulate(tile.X, product)
            clock.product()
        return EnvelopeSums(
            rows=block.stop - block.start,
            product=np.ascontiguousarray(product.T),
            conjugate_u=conjugate,
            alpha_u=alpha_u,
            u_sq=u_sq,
            loss=float(sums[ranking.LOSS]),
            stretch=stretch,
            active=int(shifted[ranking.ACTIVE]),
            visited=here.scored,
            **clock.seconds(),
        )


def _smooth(here: _AtPoint) -> EnvelopeSums:
    """Find u of every row, or reuse the one that the line search found here."""
    clock, problem, dtype, tiles = Clock(), here.problem, here.dtype, here.tiles
    W = np.ascontiguousarray(here.point.W, dtype=dtype)
    scratch, kept = Scratch(tiles.rows, problem.m, dtype, here.crew), here.kept
    product = np.zeros((problem.m, problem.d))
    found, rows = kept.here or Found(0.0), 0
    for tile in tiles.read(dtype):
        scores = here.plain_scores(tile.number, tile.X, W, scratch)
        clock.product()
        if tile.number not in found.U:
            U = scores.copy()
            here.envelopes.find(U, tile.y, tile.weights, found.sums)
        else:
            U = found.U[tile.number]
        if kept.whole and kept.here is None:
            found.U[tile.number] = U
        clock.row_work()
        accumulate_rows(tile.X, U, tile.weights, product, here.crew)
        rows = tile.rows.stop
        clock.product()
    kept.here = found if kept.whole else None
    return EnvelopeSums(
        rows=rows,
        product=np.ascontiguousarray(product.T),
        conjugate_u=float(found.sums[ranking.B_U]),
        loss=float(found.sums[ranking.LOSS]),
        active=int(found.sums[ranking.ACTIVE]),
        visited=here.scored,
        **clock.seconds(),
    )


@dataclass(frozen=True, eq=False, kw_only=True)
class CurvatureProduct(Answer):
    """The product (d, m), and the number of rows whose scores or products it computed."""

    product: Float64Array
    visited: int = 0


@dataclass(frozen=True, eq=False, kw_only=True)
class Grams(Answer):
    """The Gram matrices (m d, d) of all classes or the Hessian (m d, m d), and the number of rows scored.

    None where classes share weights and the matrix would be too large.
    """

    matrix: Float64Array | None = None
    visited: int = 0


@dataclass(frozen=True, eq=False)
class MultiplyCurvature(_PointOperation[CurvatureProduct]):
    """Multiply the generalised Hessian of the envelopes at a point with V (d, m): sum x_i (J_i V^T x_i)^T."""

    V: Float64Array = field(kw_only=True)

    def answer(self, block: Block, crew: Crew) -> CurvatureProduct:
        """Return the product of a block."""
        clock, here = Clock(), _AtPoint(self, block, crew)
        V = np.ascontiguousarray(self.V, dtype=here.dtype)
        product = np.zeros((here.problem.m, here.problem.d))
        multiplied = 0
        for curved, X in here.curved_rows():
            T = crew.product(X, V)
            clock.product()
            small = here.envelopes.weighed(curved, T)
            clock.row_work()
            crew.add_product(small, X, product)
            multiplied += len(curved.rows)
            clock.product()
        visited = multiplied + here.scored
        return CurvatureProduct(product=np.ascontiguousarray(product.T), visited=visited, **clock.seconds())


@dataclass(frozen=True, eq=False)
class SumGrams(_PointOperation[Grams]):
    """Sum x_i x_i^T, weighted by the curvature of every class, at a point.

    `whole` requests all pairs of classes, class by class and feature by feature: the Hessian of the sum of
    envelopes.  Otherwise one curved row in `stride` stands for all.
    """

    whole: bool = field(default=False, kw_only=True)
    stride: int = field(default=1, kw_only=True)

    def answer(self, block: Block, crew: Crew) -> Grams:
        """Return the sums of a block."""
        clock, here = Clock(), _AtPoint(self, block, crew)
        sums = here.curved_rows(), here.envelopes, here.problem, clock
        matrix, visited = hessian(*sums) if self.whole else diagonal_blocks(*sums, self.stride)
        return Grams(matrix=matrix, visited=visited + here.scored, **clock.seconds())

    def through(self, run: Runner, view: MapView) -> Grams:
        """Return the sums at weights V of a feature map; none if they would be too large."""
        if not view.forms_hessians:
            return Grams()
        answer = Operation.through(self, run, view)
        return replace(answer, matrix=None if answer.matrix is None else view.hessian(answer.matrix))


@dataclass(frozen=True, eq=False, kw_only=True)
class SlopeSum(Answer):
    """Minus the slope of the envelopes, and the number of rows whose scores or moves needed a product."""

    total: float = 0.0
    visited: int = 0


@dataclass(frozen=True, eq=False)
class FindSlope(_PointOperation[SlopeSum]):
    """Find the slope of the envelopes `step` along V (d, m) away from a point."""

    V: Float64Array = field(kw_only=True)
    step: float = field(kw_only=True)

    def answer(self, block: Block, crew: Crew) -> SlopeSum:
        """Sum <u(q_i + step V^T x_i), V^T x_i> over the rows of a block."""
        clock, here = Clock(), _AtPoint(self, block, crew)
        kept, found = here.kept, Found(self.step)
        # Frees the u of the last trial before the next one is allocated.
        kept.ahead = None
        total, multiplied = 0.0, 0
        for number, rows, scores, moves, made in here.line(self.V):
            multiplied += made
            clock.product()
            y, weights = here.tiles.y[rows], here.tiles.weights[rows]
            A = here.dual_rows(number, rows)
            at = here.shifted(scores, A, y)
            at += np.asarray(self.step * moves, dtype=here.dtype)
            here.envelopes.find(at, y, weights, found.sums)
            if A is None and kept.whole:
                found.U[number] = at
            total += float(weights @ np.einsum("ij,ij->i", at, moves, dtype=np.float64))
            clock.row_work()
        kept.ahead = found if len(found.U) == len(here.tiles) else None
        return SlopeSum(total=total, visited=multiplied + here.scored, **clock.seconds())
