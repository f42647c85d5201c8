"""Dual variables of one block, and the vertex that waits to be mixed into them."""

from __future__ import annotations

import numpy as np

from solvers.errors import StateLostError
from solvers.kernels import commit_rows, lift_scores, sum_of_squares
from solvers.orders import Commit
from solvers.problem import Problem
from solvers.projections import column_kind, margins_or_empty, nearest_rows
from solvers.projections.gradients import conjugate_sum
from solvers.typing import Float64Array, FloatArray, IntArray

_NEVER = -1
#: Rows that are projected at once.
_ROWS_AT_ONCE = 4096


class BlockDuals:
    """A of one block (rows, m) and, tile by tile, the vertex found last and the last commit applied.

    Keeping the round numbers per tile makes every order repeatable: one that was cut off half-way, or comes
    twice, finds what it has already done.
    """

    def __init__(
        self,
        problem: Problem,
        y: IntArray,
        weights: Float64Array,
        dtype: np.dtype[np.floating],
        tiles: int,
    ) -> None:
        self._problem = problem
        self._form = problem.form
        self._rho: Float64Array = problem.form.rho
        self._y, self._weights = y, weights
        self.A: FloatArray = np.zeros((len(y), problem.m), dtype=dtype)
        self.ranked = np.zeros((len(y), len(self._rho)), dtype=np.int32)
        self.counts = np.zeros(len(y), dtype=np.int32)
        self._change: FloatArray | None = None
        self._dense = np.zeros(tiles, dtype=np.bool_)
        self._committed = np.full(tiles, _NEVER, dtype=np.int64)
        self._pending = np.full(tiles, _NEVER, dtype=np.int64)

    def conjugates(self, A: FloatArray, rows: slice) -> float:
        """Give sum w_i (-Phi*(-alpha_i)) of dual rows A (r, m) in the place of `rows`."""
        kind, margins = column_kind(self._form), margins_or_empty(self._form)
        return float(conjugate_sum(kind, A, self._y[rows], self._weights[rows], margins))

    def squares(self, rows: slice) -> float:
        """Give sum w_i |alpha_i|^2 of some rows, as far as it is smoothed."""
        share = self._problem.own_share
        return float(sum_of_squares(self.A[rows], self._y[rows], self._weights[rows], share))

    def lift(self, scores: FloatArray, rows: slice) -> None:
        """Add gamma alpha_i to the scores (r, m) of some rows."""
        gamma, gamma_own = self._problem.smoothing, self._problem.smoothing_own
        if gamma > 0:
            lift_scores(scores, self.A[rows], self._y[rows], gamma, gamma_own)

    def commit(self, tile: int, start: int, stop: int, commit: Commit | None) -> None:
        """Apply a commit to the rows [start, stop) of one tile, once."""
        if commit is None or self._committed[tile] == commit.round:
            return
        if self._pending[tile] != commit.round:
            raise StateLostError(
                f"rows {start}:{stop} of a block do not hold the vertex of round {commit.round}; "
                "load the duals of a checkpoint and go on from its state"
            )
        rows = slice(start, stop)
        if self._change is not None and self._dense[tile]:
            moved = self.A[rows] + np.asarray(commit.step * self._change[rows], dtype=self.A.dtype)
            self.A[rows] = moved if commit.shrink == 1.0 else commit.shrink * moved
            self._committed[tile] = commit.round
            return
        commit_rows(
            self.A[rows],
            self._y[rows],
            self._rho,
            self.ranked[rows],
            self.counts[rows],
            commit.step,
            commit.shrink,
        )
        self._committed[tile] = commit.round

    def found_ranked(self, tile: int, rows: slice, ranked: IntArray, counts: IntArray, round_: int) -> None:
        """Keep the vertex of this round for the rows of a tile, as ranked classes."""
        self.ranked[rows], self.counts[rows] = ranked, counts
        self._pending[tile], self._dense[tile] = round_, False

    def found_dense(self, tile: int, rows: slice, U: FloatArray, round_: int) -> None:
        """Keep the vertex U (r, m) of this round for the rows of a tile, as the change that leads to it."""
        if self._change is None:
            self._change = np.zeros_like(self.A)
        np.subtract(U, self.A[rows], out=self._change[rows])
        self._pending[tile], self._dense[tile] = round_, True

    def change(self) -> FloatArray:
        """Give room (rows, m) for a change of A; what was in it is not waiting for a commit any more."""
        if self._change is None:
            self._change = np.zeros_like(self.A)
        self._pending[:] = _NEVER
        return self._change

    def changed(self, round_: int) -> None:
        """Note that the room now holds the change of this round, for every tile."""
        self._dense[:] = True
        self._pending[:] = round_

    def widen(self) -> None:
        """Keep A in float64 from now on, each row at the nearest point of its domain.

        Rounding to float32 left rows a little outside, where the dual is higher than any feasible row makes
        it: exact updates would seem to fall.
        """
        if self.A.dtype == np.float64:
            return
        self._to_float64()
        self.put_inside()

    def put_inside(self) -> None:
        """Put each row at the nearest point of its domain, in the precision of A."""
        for start in range(0, len(self.A), _ROWS_AT_ONCE):
            rows = slice(start, start + _ROWS_AT_ONCE)
            self.A[rows] = nearest_rows(self._form, self.A[rows].astype(np.float64), self._y[rows])

    def _to_float64(self) -> None:
        self.A = self.A.astype(np.float64)
        self._change = None if self._change is None else self._change.astype(np.float64)

    def load(self, start: int, rows: FloatArray) -> None:
        """Replace A from row `start` of the block on; vertices found before are forgotten."""
        if rows.ndim != 2 or rows.shape[1] != self.A.shape[1] or start + len(rows) > len(self.A):
            raise StateLostError(
                f"stored duals of shape {rows.shape} do not fit a block of shape {self.A.shape}"
            )
        if rows.dtype == np.float64 and self.A.dtype != np.float64:
            self._to_float64()
        self.A[start : start + len(rows)] = rows
        self._committed[:] = _NEVER
        self._pending[:] = _NEVER
