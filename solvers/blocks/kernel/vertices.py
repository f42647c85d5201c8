"""Vertices of the rows of a block, and their scores: what Frank-Wolfe on a kernel matrix mixes into A.

With U the vertices at the scores S = K A / (lam n) and T = K U / (lam n), a step makes S + g (T - S) of S.
From one round to the next few rows change their vertices, and T moves by their columns of K alone.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from topline.solvers.blocks.duals import BlockDuals
from topline.solvers.blocks.vertices import vertices_of
from topline.solvers.core.answers import BlockStats
from topline.solvers.core.clock import Clock
from topline.solvers.core.kernel_rows import Mark, MixRequest, VertexRequest
from topline.solvers.core.problem import Problem
from topline.solvers.core.tiles import TileReader
from topline.solvers.losses import ranking
from topline.solvers.typing import FloatArray


class BlockVertices:
    """U and T of one block (rows, m), each row of U once, whatever it weighs.

    Attributes
    ----------
    found : the mark of the scores that U belongs to; None for no scores.
    parts : parts of the change of U that T has.
    vertices : U.
    scores : T, of the vertices of the round before and of these parts.
    """

    def __init__(self, problem: Problem, tiles: TileReader, rows: int, dtype: np.dtype[Any]) -> None:
        self._problem, self._tiles = problem, tiles
        self.found: Mark | None = None
        self.parts = 0
        self.scores: FloatArray = np.zeros((rows, problem.m), dtype=dtype)
        self._before: FloatArray = np.zeros_like(self.scores)
        self.vertices: FloatArray = np.zeros_like(self.scores)
        self._stats = BlockStats()

    def widen(self) -> None:
        """Go over to float64."""
        self.scores, self._before, self.vertices = (
            array.astype(np.float64, copy=False) for array in (self.scores, self._before, self.vertices)
        )

    def find(self, request: VertexRequest, S: FloatArray, duals: BlockDuals) -> BlockStats:
        """Find the vertex of each row at its scores S; rows whose T is of another U are stale."""
        if self.found == request.mark:
            return self._stats
        if request.of is None:
            self.scores[:] = self.vertices[:] = 0.0
        elif self.found != request.of:
            return BlockStats(stale=len(S))
        clock, problem = Clock(), self._problem
        self.found, self.parts = None, 0
        self._before, self.vertices = self.vertices, self._before
        vertices = vertices_of(problem, self._tiles.rows, smoothed=False)
        sums, cross, changed = np.zeros(ranking.N_SUMS), 0.0, 0
        for _, start, stop in self._tiles.bounds():
            rows = slice(start, stop)
            y, weights = self._tiles.labels_and_weights(rows)
            A, lifted, U = duals.A.read(start, stop), S[rows].copy(), self.vertices[rows]
            duals.lift(lifted, A, rows)
            vertices.find(lifted, y, weights, sums)
            vertices.write(U)
            products = np.einsum("ij,ij->i", A, U, dtype=np.float64)
            if problem.own_share != 1.0:
                own = np.arange(len(y)), y
                products -= (1.0 - problem.own_share) * A[own].astype(np.float64) * U[own]
            cross += float(products @ weights)
            changed += int(np.count_nonzero((self._before[rows] != U).any(axis=1)))
        clock.row_work()
        self.found = request.mark
        self._stats = BlockStats(
            rows=len(S),
            conjugate_u=float(sums[ranking.B_U]),
            u_sq=float(sums[ranking.U_SQ]),
            alpha_u=cross,
            active=int(sums[ranking.ACTIVE]),
            visited=changed,
            **clock.seconds(),
        )
        return self._stats

    def change(self, start: int, stop: int) -> FloatArray:
        """Return the change of the rows [start, stop) of U since the round before."""
        return np.asarray(self.vertices[start:stop] - self._before[start:stop])

    def mix(self, request: MixRequest, S: FloatArray, duals: BlockDuals) -> BlockStats:
        """Sum <u_i, s_i> and <u_i, t_i>, and take the step, if any, in the scores S and in A."""
        clock, step = Clock(), request.step
        with_scores = with_own = 0.0
        for _, start, stop in self._tiles.bounds():
            rows = slice(start, stop)
            U, T = self.vertices[rows], self.scores[rows]
            if step is None:
                _, weights = self._tiles.labels_and_weights(rows)
                with_scores += float(np.einsum("ij,ij->i", U, S[rows], dtype=np.float64) @ weights)
                with_own += float(np.einsum("ij,ij->i", U, T, dtype=np.float64) @ weights)
                continue
            S[rows] += step * (T - S[rows])
            A = duals.A.read(start, stop)
            duals.A.write(start, stop, A + np.asarray(step * (U - A), dtype=A.dtype))
        clock.row_work()
        return BlockStats(rows=len(S), alpha_u=with_scores, u_sq=with_own, **clock.seconds())
