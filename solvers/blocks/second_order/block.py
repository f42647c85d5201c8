"""Second-order sums of one block: envelopes of a proximal step, and their curvature, row by row.

The envelope of example i is Phi_c at q_i = W^T x_i - sigma alpha_i with c = gamma + sigma, its gradient in W
is -x_i u(q_i)^T, and its generalised Hessian x_i x_i^T (x) J_i (`envelopes`, beside this).  Rows whose J_i
is zero are left out of every product: near the optimum they are most.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from topline.solvers.blocks.duals import BlockDuals
from topline.solvers.blocks.jit import lift_scores
from topline.solvers.blocks.second_order.envelopes import CurvedRows, Envelopes
from topline.solvers.blocks.second_order.hessians import diagonal_blocks, hessian
from topline.solvers.blocks.vertices import accumulate_rows, vertices_of
from topline.solvers.core.block_stats import BlockStats
from topline.solvers.core.clock import Clock
from topline.solvers.core.problem import Problem
from topline.solvers.core.requests import CurvatureRequest, GramRequest, ProximalRequest, SlopeRequest
from topline.solvers.core.rows import Rows, is_sparse
from topline.solvers.core.tiles import Scratch, Tile, TileReader
from topline.solvers.errors import StateLostError
from topline.solvers.losses import ranking
from topline.solvers.typing import Float64Array, FloatArray, IntArray

_FLOAT64 = np.dtype(np.float64)
#: Bytes of scores, and of gathered rows, that a block keeps between the requests of one round.
_KEPT_BYTES = 1 << 29
_GATHERED_BYTES = 1 << 28


@dataclass(frozen=True, eq=False)
class Found:
    """u of a smooth loss in every tile, `step` along the line from the point of a round, and its sums."""

    step: float
    U: dict[int, FloatArray] = field(default_factory=dict)
    sums: Float64Array = field(default_factory=lambda: np.zeros(ranking.N_SUMS))


class BlockNewton:
    """Answers the second-order requests of one block; what it keeps in a round only saves work.

    `duals` may be None where the loss is smooth.
    """

    def __init__(
        self, problem: Problem, tiles: TileReader, rows: int, duals: BlockDuals | None, dtype: np.dtype[Any]
    ) -> None:
        self._problem, self._tiles, self._rows = problem, tiles, rows
        self._duals, self._dtype = duals, dtype
        self._keeps = rows * problem.m * dtype.itemsize <= _KEPT_BYTES
        self._point: tuple[int, bool] | None = None
        self._scores: dict[int, FloatArray] = {}
        self._moves: dict[int, FloatArray] = {}
        self._here: Found | None = None
        self._ahead: Found | None = None
        self._curved: dict[int, CurvedRows] | None = None
        self._gathered = 0

    def run(self, request: ProximalRequest) -> BlockStats:
        """Carry out a request at its point."""
        self._stand_at(request)
        match request:
            case CurvatureRequest():
                return self._curvature(request)
            case GramRequest():
                summed = hessian if request.whole else diagonal_blocks
                return summed(self._curved_rows(request), self._envelopes(request), self._problem, self._rows)
            case SlopeRequest():
                return self._slope(request)
            case _ if request.sigma > 0:
                return self._evaluate(request)
            case _:
                return self._evaluate_smooth(request)

    def _stand_at(self, request: ProximalRequest) -> None:
        """Go to the point of the request, keeping scores that those there follow from."""
        point = request.round, request.exact
        if point == self._point:
            return
        follows = self._point == (request.round - 1, request.exact) and len(self._scores) == len(self._tiles)
        if follows and request.last_step != 0.0:
            follows = math.isfinite(request.last_step) and len(self._moves) == len(self._tiles)
        if not follows:
            self._scores.clear()
        elif request.last_step != 0.0:
            for number, moves in self._moves.items():
                self._scores[number] += np.asarray(request.last_step * moves, dtype=moves.dtype)
        if not follows or request.last_step != 0.0:
            reached = follows and self._ahead is not None and self._ahead.step == request.last_step
            self._here = self._ahead if reached else None
        self._ahead = None
        self._point, self._curved, self._gathered = point, None, 0
        self._moves.clear()

    def _evaluate(self, request: ProximalRequest) -> BlockStats:
        clock, problem, dtype = Clock(), self._problem, self._precision(request)
        W = np.ascontiguousarray(request.W, dtype=dtype)
        scratch = Scratch(self._tiles.rows, problem.m, dtype)
        plain, envelope = vertices_of(problem, self._tiles.rows, smoothed=True), self._envelopes(request)
        sums, shifted = np.zeros(ranking.N_SUMS), np.zeros(ranking.N_SUMS)
        product = np.zeros((problem.m, problem.d))
        conjugate = u_sq = alpha_u = 0.0
        visited = 0
        for tile in self._tiles.read(dtype):
            visited += 0 if tile.number in self._scores else tile.stop - tile.start
            scores = self._plain_scores(tile.number, tile.X, W, scratch)
            clock.product()
            A = self._dual_rows(tile.number, tile.rows, request)
            at = self._shifted(scores, A, tile.y, request)
            plain.find(scratch.copy_of(scores), tile.y, tile.weights, sums)
            envelope.find(at, tile.y, tile.weights, shifted)
            conjugate += self._kept_duals().conjugates(at, tile.rows)
            alpha_u, u_sq = self._squares_added(A, at, tile.rows, alpha_u, u_sq)
            envelope.mix_later(self._kept_duals(), A, tile.number, tile.rows, request.round)
            clock.row_work()
            envelope.accumulate(tile.X, product)
            clock.product()
        return BlockStats(
            rows=self._rows,
            product=np.ascontiguousarray(product.T),
            conjugate_u=conjugate,
            alpha_u=alpha_u,
            u_sq=u_sq,
            loss=float(sums[ranking.LOSS]),
            active=int(shifted[ranking.ACTIVE]),
            visited=visited,
            **clock.seconds(),
        )

    def _evaluate_smooth(self, request: ProximalRequest) -> BlockStats:
        """Find u of every row, or take what the line search found here."""
        clock, problem, dtype = Clock(), self._problem, self._precision(request)
        W = np.ascontiguousarray(request.W, dtype=dtype)
        scratch, envelope = Scratch(self._tiles.rows, problem.m, dtype), self._envelopes(request)
        product = np.zeros((problem.m, problem.d))
        found = self._here or Found(0.0)
        visited = 0
        for tile in self._tiles.read(dtype):
            visited += 0 if tile.number in self._scores else tile.stop - tile.start
            scores = self._plain_scores(tile.number, tile.X, W, scratch)
            clock.product()
            if tile.number not in found.U:
                U = scores.copy()
                envelope.find(U, tile.y, tile.weights, found.sums)
            else:
                U = found.U[tile.number]
            if self._keeps and self._here is None:
                found.U[tile.number] = U
            clock.row_work()
            accumulate_rows(tile.X, U, tile.weights, product)
            clock.product()
        self._here = found if self._keeps else None
        return BlockStats(
            rows=self._rows,
            product=np.ascontiguousarray(product.T),
            conjugate_u=float(found.sums[ranking.B_U]),
            loss=float(found.sums[ranking.LOSS]),
            active=int(found.sums[ranking.ACTIVE]),
            visited=visited,
            **clock.seconds(),
        )

    def _curvature(self, request: CurvatureRequest) -> BlockStats:
        """Sum x_i (J_i V^T x_i)^T."""
        clock, dtype = Clock(), self._precision(request)
        V = np.ascontiguousarray(request.V, dtype=dtype)
        envelopes = self._envelopes(request)
        product = np.zeros((self._problem.m, self._problem.d))
        visited = 0
        for curved, X in self._curved_rows(request):
            T = np.asarray(X @ V)
            clock.product()
            small = envelopes.weighed(curved, T)
            clock.row_work()
            product += (X.T @ small).T if is_sparse(X) else small.T @ X
            visited += len(curved.rows)
            clock.product()
        return BlockStats(
            rows=self._rows, product=np.ascontiguousarray(product.T), visited=visited, **clock.seconds()
        )

    def _slope(self, request: SlopeRequest) -> BlockStats:
        """Sum <u(q_i + step V^T x_i), V^T x_i>, minus the slope of the envelopes."""
        clock, dtype = Clock(), self._precision(request)
        envelope, found = self._envelopes(request), Found(request.step)
        total, visited = 0.0, 0
        for number, rows, scores, moves, taken in self._line(request, dtype):
            visited += taken
            clock.product()
            y, weights = self._tiles.labels_and_weights(rows)
            A = self._dual_rows(number, rows, request) if request.sigma > 0 else None
            at = self._shifted(scores, A, y, request)
            at += np.asarray(request.step * moves, dtype=dtype)
            envelope.find(at, y, weights, found.sums)
            if A is None and self._keeps:
                found.U[number] = at
            total += float(weights @ np.einsum("ij,ij->i", at, moves, dtype=np.float64))
            clock.row_work()
        self._ahead = found if len(found.U) == len(self._tiles) else None
        return BlockStats(rows=self._rows, product=np.array([[total]]), visited=visited, **clock.seconds())

    def _line(
        self, request: SlopeRequest, dtype: np.dtype[Any]
    ) -> Iterator[tuple[int, slice, FloatArray, FloatArray, int]]:
        """Yield of every tile its number, rows, X W and X V, and how many rows' scores that took."""
        if len(self._moves) == len(self._scores) == len(self._tiles):
            for number, start, stop in self._tiles.bounds():
                yield number, slice(start, stop), self._scores[number], self._moves[number], 0
            return
        W, V = (np.ascontiguousarray(matrix, dtype=dtype) for matrix in (request.W, request.V))
        scratch = Scratch(self._tiles.rows, self._problem.m, dtype)
        for tile in self._tiles.read(dtype):
            fresh = tile.number not in self._scores
            scores = self._plain_scores(tile.number, tile.X, W, scratch)
            moves = np.array(scratch.scores_of(tile.X, V))
            if self._keeps:
                self._moves[tile.number] = moves
            yield tile.number, tile.rows, scores, moves, (tile.stop - tile.start) * (2 if fresh else 1)

    def _curved_rows(self, request: ProximalRequest) -> Iterator[tuple[CurvedRows, Rows]]:
        """Yield the rows whose J is not zero, tile by tile, with their features."""
        dtype = self._precision(request)
        if self._curved is not None and all(curved.X is not None for curved in self._curved.values()):
            for kept in self._curved.values():
                if kept.X is not None:
                    yield kept, kept.X
            return
        known = self._curved
        found: dict[int, CurvedRows] = {}
        W = np.ascontiguousarray(request.W, dtype=dtype)
        scratch = Scratch(self._tiles.rows, self._problem.m, dtype)
        for tile in self._tiles.read(dtype):
            curved = self._look(tile, request, W, scratch) if known is None else known.get(tile.number)
            if curved is None:
                continue
            found[tile.number] = curved
            yield curved, tile.X[curved.rows] if curved.X is None else curved.X
        self._curved = found

    def _look(
        self, tile: Tile, request: ProximalRequest, W: FloatArray, scratch: Scratch
    ) -> CurvedRows | None:
        """Find the rows of a tile whose u moves with its scores, by one random short step."""
        A = self._dual_rows(tile.number, tile.rows, request) if request.sigma > 0 else None
        plain = self._plain_scores(tile.number, tile.X, W, scratch)
        envelopes = self._envelopes(request)
        if envelopes.closed and self._here is not None:
            scores, U = plain, self._here.U[tile.number]
        else:
            scores = self._shifted(plain, A, tile.y, request).astype(np.float64)
            U = envelopes.gradients(scores, tile.y, tile.weights)
        everything = CurvedRows(np.arange(len(scores)), None, tile.y, tile.weights, scores, U)
        classes = envelopes.moving(everything, (request.round, tile.number))
        rows = np.flatnonzero(classes.any(axis=1))
        if not rows.size:
            return None
        size = rows.size * (tile.X.shape[1] if not is_sparse(tile.X) else 2 * tile.X.nnz / tile.X.shape[0])
        gathered = None
        if self._gathered + size * tile.X.dtype.itemsize <= _GATHERED_BYTES:
            self._gathered += int(size * tile.X.dtype.itemsize)
            gathered = tile.X[rows]
        return CurvedRows(
            rows, gathered, tile.y[rows], tile.weights[rows], scores[rows], U[rows], classes[rows]
        )

    def _plain_scores(self, number: int, X: Rows, W: FloatArray, scratch: Scratch) -> FloatArray:
        """Return X W of a tile, as kept or made."""
        if number in self._scores:
            return self._scores[number]
        scores = np.array(scratch.scores_of(X, W))
        if self._keeps:
            self._scores[number] = scores
        return scores

    def _dual_rows(self, number: int, rows: slice, request: ProximalRequest) -> FloatArray:
        """Return A of a tile after the pending step."""
        return self._kept_duals().rows_after(number, rows.start, rows.stop, request.pending_step)

    def _shifted(
        self, scores: FloatArray, A: FloatArray | None, y: IntArray, request: ProximalRequest
    ) -> FloatArray:
        """Return q = s - sigma alpha of some rows, in an array of its own."""
        shifted = scores.copy()
        if A is not None:
            lift_scores(shifted, A, y, -request.sigma, -request.sigma * self._problem.own_share)
        return shifted

    def _squares_added(
        self, A: FloatArray, U: FloatArray, rows: slice, alpha_u: float, u_sq: float
    ) -> tuple[float, float]:
        """Add <alpha_i, u_i> and |u_i|^2 as far as smoothed, where the problem is."""
        if self._problem.smoothing == 0:
            return alpha_u, u_sq
        duals = self._kept_duals()
        A64, U64 = A.astype(np.float64), U.astype(np.float64)
        square = duals.squares(U64, rows)
        cross = 0.5 * (duals.squares(A64 + U64, rows) - duals.squares(A64, rows) - square)
        return alpha_u + cross, u_sq + square

    def _envelopes(self, request: ProximalRequest) -> Envelopes:
        return Envelopes(self._problem, request.sigma)

    def _precision(self, request: ProximalRequest) -> np.dtype[Any]:
        return _FLOAT64 if request.exact else self._dtype

    def _kept_duals(self) -> BlockDuals:
        if self._duals is None:
            raise StateLostError("this block keeps no dual variables; bind it with keep_duals=True")
        return self._duals
