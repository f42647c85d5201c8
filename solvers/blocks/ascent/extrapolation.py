"""The best point near the span of the last changes of the dual rows: what many more sweeps would come to."""

from __future__ import annotations

import numpy as np

from topline.solvers.blocks.ascent.dual_changes import change_sums
from topline.solvers.blocks.ascent.passes import Work
from topline.solvers.blocks.ascent.row_feed import HeldRows, RowFeed
from topline.solvers.typing import Float64Array, Int64Array

#: Changes that are remembered.
REMEMBERED = 6
#: Ridge on the system of a few equations, as a share of its trace.
_RIDGE = 1e-10
#: Bytes that all of this takes for each number of the dual rows and of W, and may take: beyond them sweeps
#: continue without it.
_NUMBER_BYTES = 8 * (REMEMBERED + 3)
_MOST_BYTES = 1 << 28
#: An extrapolation that brings less than this share of the sweeps before it is not worth its time;
WORTH = 0.25
#: after so many of them in a row no more are made in this round.
_FAILURES = 1


def extrapolation_bytes(numbers: int) -> int:
    """Return the bytes that extrapolation takes at most, for so many numbers of dual rows and W together."""
    return min(_MOST_BYTES, _NUMBER_BYTES * numbers)


def best_mixture(system: Float64Array, slopes: Float64Array) -> Float64Array:
    """Return the shares c of the last changes at which the parabola of D is highest; overwrites `system`."""
    known = len(slopes)
    system[np.diag_indices(known)] += _RIDGE * np.trace(system) / known
    return np.asarray(np.linalg.lstsq(system, slopes, rcond=None)[0])


def best_step(slope: float, curvature: float) -> tuple[float, float]:
    """Return the best step in [0, 1] along a parabola of this slope at 0, and its rise."""
    if not slope > 0.0:
        return 0.0, 0.0
    step = min(slope / curvature, 1.0) if curvature > 0.0 else 1.0
    return step, step * (slope - 0.5 * step * curvature)


class Extrapolation:
    """Remembers the changes of some rows of a block, with their images in W.

    With D restricted to these rows and B their dual rows, D(B + sum c_t D_t) is a parabola in c: its linear
    term is the slope of D along each D_t at B, its curvature <V_s, V_t> / s + gamma <D_s, D_t>, where
    V_t = s X^T D_t is what D_t changes W by.
    """

    def __init__(self, work: Work, held: RowFeed | HeldRows, rows: Int64Array) -> None:
        self._work, self._held = work, held
        self._rows = rows
        self._y = work.block.y[self._rows]
        self._weights = work.block.weights[self._rows]
        self._changes: list[Float64Array] = []
        self._images: list[Float64Array] = []
        self._failures = 0
        self._note()

    @staticmethod
    def fits(work: Work, rows: Int64Array) -> bool:
        """Return whether these rows, in the order of the block, can be extrapolated.

        Their changes and images have to fit in memory, their dual rows have to lie there in one array, and
        the dual has to be a parabola.
        """
        problem = work.block.problem
        numbers = len(rows) * problem.m + work.W.size
        return work.linear and work.duals.open_whole() and _NUMBER_BYTES * numbers <= _MOST_BYTES

    def _note(self) -> None:
        work, rows = self._work, self._rows
        work.duals.open_whole()
        self._B = work.duals.A[rows].astype(np.float64) + work.duals.delta[rows].astype(np.float64)
        self._W = work.W.astype(np.float64)

    def step(self, swept: float) -> float:
        """Move to the best point that is found; return the rise of the dual.  `swept` is that of sweeps."""
        if self._failures >= _FAILURES:
            return 0.0
        before, W = self._B, self._W
        self._note()
        self._changes = [*self._changes[1 - REMEMBERED :], self._B - before]
        self._images = [*self._images[1 - REMEMBERED :], self._W - W]
        trial = self._best_of_span()
        self._work.project(trial, self._rows)
        self._work.visited += len(self._rows)
        trial -= self._B
        rise = self._along(trial)
        self._failures = 0 if rise > WORTH * swept else self._failures + 1
        return rise

    def _best_of_span(self) -> Float64Array:
        q = len(self._changes)
        system = np.empty((q, q))
        slopes = np.empty(q)
        for s in range(q):
            slopes[s] = self._slope(self._changes[s], self._images[s])
            for t in range(s + 1):
                system[s, t] = system[t, s] = self._curvature(s, t)
        factors = best_mixture(system, slopes)
        trial = self._B.copy()
        for factor, change in zip(factors, self._changes, strict=True):
            trial += factor * change
        return trial

    def _slope(self, change: Float64Array, image: Float64Array) -> float:
        problem = self._work.block.problem
        form = problem.form
        linear, cross, _, _, _ = change_sums(
            form.conjugate, form.linear_conjugate, self._y, self._weights, self._B, change, form.table,
            problem.own_share,
        )  # fmt: skip
        scored = float(np.vdot(self._W, image))
        if self._work.kept_apart:
            scored += float(self._work.apart @ self._work.part_apart(image))
        return linear - scored / self._work.scale - problem.smoothing * cross

    def _curvature(self, s: int, t: int) -> float:
        value = self._inner(self._images[s], self._images[t])
        return value + self._smoothed(self._changes[s], self._changes[t])

    def _inner(self, left: Float64Array, right: Float64Array) -> float:
        """Return the curvature that two images make, without what is kept apart."""
        work = self._work
        value = float(np.vdot(left, right))
        if work.kept_apart:
            value -= work.kept_apart * float(work.part_apart(left) @ work.part_apart(right))
        return value / work.scale

    def _smoothed(self, left: Float64Array, right: Float64Array) -> float:
        problem = self._work.block.problem
        if problem.smoothing == 0.0:
            return 0.0
        inner = left * right
        if problem.own_share != 1.0:
            inner[np.arange(len(inner)), self._y] *= problem.own_share
        return problem.smoothing * float(inner.sum(axis=1) @ self._weights)

    def _along(self, change: Float64Array) -> float:
        """Take the best step along a change that leads to a feasible point."""
        work, rows = self._work, self._rows
        image = self._image(change)
        slope = self._slope(change, image)
        curvature = self._inner(image, image) + self._smoothed(change, change)
        step, rise = best_step(slope, curvature)
        if not step:
            return 0.0
        # What is stored is what counts: W takes the change after rounding to A's precision.
        stored = (self._B + step * change - work.duals.A[rows]).astype(work.duals.delta.dtype)
        taken = stored.astype(np.float64) - work.duals.delta[rows]
        work.duals.delta[rows] = stored
        self._B += taken
        image = self._image(taken) if work.duals.delta.dtype != np.float64 else step * image
        self._W += image
        work.W[:] = self._W
        if work.kept_apart:
            work.apart -= work.kept_apart * work.part_apart(image)
        return rise

    def _image(self, change: Float64Array) -> Float64Array:
        image = np.zeros(self._work.W.shape)
        for portion in self._held.in_order(self._rows):
            self._work.image(portion, change[np.searchsorted(self._rows, portion.rows)], image)
        image *= self._work.scale
        return image
