"""Second-order sums of one block: envelopes of a proximal step, and their curvature, row by row.

The envelope of example i is Phi_c at q_i = W^T x_i - sigma alpha_i with c = gamma + sigma, its gradient in W
is -x_i u(q_i)^T, and its generalised Hessian x_i x_i^T (x) J_i (`envelopes`, beside this).  Rows whose J_i
is zero are left out of every product: near the optimum they are most.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from topline.solvers.blocks.duals import BlockDuals
from topline.solvers.blocks.jit import lift_scores
from topline.solvers.blocks.second_order.envelopes import CurvedRows, Envelopes
from topline.solvers.blocks.second_order.hessians import diagonal_blocks, hessian
from topline.solvers.blocks.second_order.kept import Found, KeptTiles
from topline.solvers.blocks.stretch import least_stretch, slack_of
from topline.solvers.blocks.vertices import accumulate_rows, vertices_of
from topline.solvers.core.answers import BlockStats
from topline.solvers.core.clock import Clock
from topline.solvers.core.problem import Problem
from topline.solvers.core.requests import CurvatureRequest, GramRequest, ProximalRequest, SlopeRequest
from topline.solvers.core.rows import Rows
from topline.solvers.core.tiles import Scratch, Tile, TileReader
from topline.solvers.crew import ALONE, Crew
from topline.solvers.errors import StateLostError
from topline.solvers.losses import ranking
from topline.solvers.typing import FloatArray, IntArray

_FLOAT64 = np.dtype(np.float64)


class BlockNewton:
    """Answers the second-order requests of one block; what it keeps in a round only saves work.

    `duals` may be None where the loss is smooth.  No more than `kept_bytes` are kept between requests, by
    default as much as saves anything in memory.
    """

    def __init__(
        self,
        problem: Problem,
        tiles: TileReader,
        rows: int,
        duals: BlockDuals | None,
        dtype: np.dtype[Any],
        kept_bytes: int | None = None,
    ) -> None:
        self._problem, self._tiles, self._rows = problem, tiles, rows
        self._duals, self._dtype = duals, dtype
        self._kept = KeptTiles(len(tiles), rows * problem.m, kept_bytes)
        self._crew = ALONE
        #: Rows whose scores were products since the request began.
        self._scored = 0

    def run(self, request: ProximalRequest, crew: Crew = ALONE) -> BlockStats:
        """Carry out a request at its point."""
        self._crew = crew
        self._kept.stand_at(request, self._precision(request).itemsize)
        self._scored = 0
        match request:
            case CurvatureRequest():
                return self._curvature(request)
            case GramRequest():
                sums = self._curved_rows(request), self._envelopes(request), self._problem, self._rows
                stats = hessian(*sums) if request.whole else diagonal_blocks(*sums, request.stride)
                return replace(stats, visited=stats.visited + self._scored)
            case SlopeRequest():
                return self._slope(request)
            case _ if request.sigma > 0:
                return self._evaluate(request)
            case _:
                return self._evaluate_smooth(request)

    def _evaluate(self, request: ProximalRequest) -> BlockStats:
        clock, problem, dtype = Clock(), self._problem, self._precision(request)
        W = np.ascontiguousarray(request.W, dtype=dtype)
        scratch, envelope = Scratch(self._tiles.rows, problem.m, dtype, self._crew), self._envelopes(request)
        plain = vertices_of(problem, self._tiles.rows, smoothed=True, crew=self._crew)
        sums, shifted = np.zeros(ranking.N_SUMS), np.zeros(ranking.N_SUMS)
        product = np.zeros((problem.m, problem.d))
        conjugate = u_sq = alpha_u = stretch = 0.0
        for tile in self._tiles.read(dtype):
            scores = self._plain_scores(tile.number, tile.X, W, scratch)
            clock.product()
            if request.stretched and stretch < np.inf:
                slack = slack_of(tile.X, W)
                stretch = least_stretch(problem.form, scores, tile.y, tile.weights, slack, stretch)
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
            stretch=stretch,
            active=int(shifted[ranking.ACTIVE]),
            visited=self._scored,
            **clock.seconds(),
        )

    def _evaluate_smooth(self, request: ProximalRequest) -> BlockStats:
        """Find u of every row, or take what the line search found here."""
        clock, problem, dtype = Clock(), self._problem, self._precision(request)
        W = np.ascontiguousarray(request.W, dtype=dtype)
        scratch, envelope = Scratch(self._tiles.rows, problem.m, dtype, self._crew), self._envelopes(request)
        product = np.zeros((problem.m, problem.d))
        found = self._kept.here or Found(0.0)
        for tile in self._tiles.read(dtype):
            scores = self._plain_scores(tile.number, tile.X, W, scratch)
            clock.product()
            if tile.number not in found.U:
                U = scores.copy()
                envelope.find(U, tile.y, tile.weights, found.sums)
            else:
                U = found.U[tile.number]
            if self._kept.whole and self._kept.here is None:
                found.U[tile.number] = U
            clock.row_work()
            accumulate_rows(tile.X, U, tile.weights, product, self._crew)
            clock.product()
        self._kept.here = found if self._kept.whole else None
        return BlockStats(
            rows=self._rows,
            product=np.ascontiguousarray(product.T),
            conjugate_u=float(found.sums[ranking.B_U]),
            loss=float(found.sums[ranking.LOSS]),
            active=int(found.sums[ranking.ACTIVE]),
            visited=self._scored,
            **clock.seconds(),
        )

    def _curvature(self, request: CurvatureRequest) -> BlockStats:
        """Sum x_i (J_i V^T x_i)^T."""
        clock, dtype = Clock(), self._precision(request)
        V = np.ascontiguousarray(request.V, dtype=dtype)
        envelopes = self._envelopes(request)
        product = np.zeros((self._problem.m, self._problem.d))
        multiplied = 0
        for curved, X in self._curved_rows(request):
            T = self._crew.product(X, V)
            clock.product()
            small = envelopes.weighed(curved, T)
            clock.row_work()
            self._crew.add_product(small, X, product)
            multiplied += len(curved.rows)
            clock.product()
        return BlockStats(
            rows=self._rows,
            product=np.ascontiguousarray(product.T),
            visited=multiplied + self._scored,
            **clock.seconds(),
        )

    def _slope(self, request: SlopeRequest) -> BlockStats:
        """Sum <u(q_i + step V^T x_i), V^T x_i>, minus the slope of the envelopes."""
        clock, dtype = Clock(), self._precision(request)
        envelope, found = self._envelopes(request), Found(request.step)
        # The last trial's u goes before this one's comes.
        self._kept.ahead = None
        total, multiplied = 0.0, 0
        for number, rows, scores, moves, made in self._line(request, dtype):
            multiplied += made
            clock.product()
            y, weights = self._tiles.labels_and_weights(rows)
            A = self._dual_rows(number, rows, request) if request.sigma > 0 else None
            at = self._shifted(scores, A, y, request)
            at += np.asarray(request.step * moves, dtype=dtype)
            envelope.find(at, y, weights, found.sums)
            if A is None and self._kept.whole:
                found.U[number] = at
            total += float(weights @ np.einsum("ij,ij->i", at, moves, dtype=np.float64))
            clock.row_work()
        self._kept.ahead = found if len(found.U) == len(self._tiles) else None
        visited = multiplied + self._scored
        return BlockStats(rows=self._rows, product=np.array([[total]]), visited=visited, **clock.seconds())

    def _line(
        self, request: SlopeRequest, dtype: np.dtype[Any]
    ) -> Iterator[tuple[int, slice, FloatArray, FloatArray, int]]:
        """Yield of every tile its number, rows, X W and X V, and of how many rows X V was made."""
        kept = self._kept
        if kept.has_line:
            for number, start, stop in self._tiles.bounds():
                yield number, slice(start, stop), kept.scores[number], kept.moves[number], 0
            return
        W, V = (np.ascontiguousarray(matrix, dtype=dtype) for matrix in (request.W, request.V))
        scratch = Scratch(self._tiles.rows, self._problem.m, dtype, self._crew)
        for tile in self._tiles.read(dtype):
            scores = self._plain_scores(tile.number, tile.X, W, scratch)
            moves = np.array(scratch.scores_of(tile.X, V))
            if kept.whole:
                kept.moves[tile.number] = moves
            yield tile.number, tile.rows, scores, moves, tile.stop - tile.start

    def _curved_rows(self, request: ProximalRequest) -> Iterator[tuple[CurvedRows, Rows]]:
        """Yield the rows whose J is not zero, tile by tile, with their features."""
        dtype, kept = self._precision(request), self._kept
        if kept.has_curved:
            for rows in kept.curved.values():
                if rows is not None and rows.X is not None:
                    yield rows, rows.X
            return
        W = np.ascontiguousarray(request.W, dtype=dtype)
        scratch = Scratch(self._tiles.rows, self._problem.m, dtype, self._crew)
        for tile in self._tiles.read(dtype):
            if tile.number not in kept.curved:
                found = kept.keep_curved(tile.number, self._look(tile, request, W, scratch), tile.X)
            else:
                found = kept.curved[tile.number]
            if found is not None:
                yield found, tile.X[found.rows] if found.X is None else found.X

    def _look(
        self, tile: Tile, request: ProximalRequest, W: FloatArray, scratch: Scratch
    ) -> CurvedRows | None:
        """Find the rows of a tile whose u moves with its scores, by one random short step."""
        A = self._dual_rows(tile.number, tile.rows, request) if request.sigma > 0 else None
        plain = self._plain_scores(tile.number, tile.X, W, scratch)
        envelopes, here = self._envelopes(request), self._kept.here
        if envelopes.closed and here is not None:
            scores, U = plain, here.U[tile.number]
        else:
            scores = self._shifted(plain, A, tile.y, request).astype(np.float64)
            U = envelopes.gradients(scores, tile.y, tile.weights)
        everything = CurvedRows(np.arange(len(scores)), None, tile.y, tile.weights, scores, U)
        classes = envelopes.moving(everything, (request.round, tile.number))
        rows = np.flatnonzero(classes.any(axis=1))
        if not rows.size:
            return None
        return CurvedRows(rows, None, tile.y[rows], tile.weights[rows], scores[rows], U[rows], classes[rows])

    def _plain_scores(self, number: int, X: Rows, W: FloatArray, scratch: Scratch) -> FloatArray:
        """Return X W of a tile, as kept or made."""
        kept = self._kept
        if number in kept.scores:
            return kept.scores[number]
        scores = np.array(scratch.scores_of(X, W))
        self._scored += len(scores)
        if kept.whole:
            kept.scores[number] = scores
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
        return Envelopes(self._problem, request.sigma, self._crew)

    def _precision(self, request: ProximalRequest) -> np.dtype[Any]:
        return _FLOAT64 if request.exact else self._dtype

    def _kept_duals(self) -> BlockDuals:
        if self._duals is None:
            raise StateLostError("this block keeps no dual variables; bind it with keep_duals=True")
        return self._duals
