"""The best point near the span of the last changes of picked rows: what many more sweeps would come to.

Where C is large and the kernel wide, rows move together in a few directions, by ever less each sweep.  The
scores that sweeps keep up to date tell K times each change, so that the best mixture of the last ones is a
system of a few equations; only the way to the point of the domain that is nearest to it takes a product with
K of the picked rows, which is in memory.
"""

from __future__ import annotations

import numpy as np

from topline.solvers.blocks.ascent.dual_changes import change_sums
from topline.solvers.blocks.ascent.extrapolation import REMEMBERED, WORTH, best_mixture, best_step
from topline.solvers.core.kernel_rows import PickedRows
from topline.solvers.core.problem import Problem
from topline.solvers.losses.batches import nearest_rows
from topline.solvers.typing import Float64Array, FloatArray

#: Copies in float64 of the rows' dual variables that all of it takes, and the bytes beyond which sweeps
#: continue without it.
_COPIES = 2 * REMEMBERED + 8
_MOST_BYTES = 1 << 27


def extrapolation_bytes(rows: int, m: int) -> int:
    """Return the bytes that the extrapolation of so many picked rows takes; 0 where there is none."""
    most = 8 * _COPIES * rows * m
    return most if most <= _MOST_BYTES else 0


class TileExtrapolation:
    """Remembers the changes of picked rows, and of the gradient.

    With B their dual rows, n D(B + sum c_t D_t) is a parabola in c: its linear term is the slope of D along
    each D_t at B, its curvature <D_s, T_t>, where T_t is what D_t changes scores + gamma B by, each row times
    its weight.

    Parameters
    ----------
    problem : what is solved.
    rows, K : the picked rows, and the kernel's values among them (r, r).
    delta, scores : (r, m) and (m, r), the change of A and the scores of the rows, which sweeps keep up to
        date.
    """

    def __init__(
        self, problem: Problem, rows: PickedRows, K: FloatArray, delta: FloatArray, scores: FloatArray
    ) -> None:
        self._problem, self._rows, self._K = problem, rows, K
        self._delta, self._scores = delta, scores
        self._A = rows.A.astype(np.float64)
        self._changes, self._images = (np.empty((REMEMBERED, rows.A.size)) for _ in range(2))
        self._linear, self._system = np.zeros(REMEMBERED), np.zeros((REMEMBERED, REMEMBERED))
        self._noted = self._failures = self._waits = 0
        self._note()

    @staticmethod
    def fits(problem: Problem, rows: PickedRows) -> bool:
        """Return whether the dual is a parabola, and what is remembered fits in memory."""
        return problem.form.linear_conjugate and extrapolation_bytes(*rows.A.shape) > 0

    def step(self, swept: float) -> float:
        """Move to the best point found; return n times the rise of D, `swept` being that of sweeps."""
        B, gradient = self._B, self._gradient
        self._note()
        self._remember(self._B - B, self._gradient - gradient)
        if self._waits:
            self._waits -= 1
            return 0.0
        rise = self._towards(self._best_of_span())
        self._failures = 0 if rise > WORTH * swept else self._failures + 1
        # After t in a row that were not worth their time 2^t - 1 occasions go by.
        self._waits = 2**self._failures - 1
        return rise

    def _note(self) -> None:
        self._B = self._A + self._delta
        self._gradient = self._image(self._B, self._scores.T)

    def _image(self, B: Float64Array, scored: FloatArray) -> Float64Array:
        """Return scores + gamma B, each row times its weight."""
        image = np.ascontiguousarray(scored, dtype=np.float64)
        problem, own = self._problem, (np.arange(len(B)), self._rows.y)
        if problem.smoothing > 0.0:
            smoothed = problem.smoothing * B
            if problem.own_share != 1.0:
                smoothed[own] *= problem.own_share
            image = image + smoothed
        return np.asarray(self._rows.weights[:, None] * image)

    def _remember(self, change: Float64Array, image: Float64Array) -> None:
        place = self._noted % REMEMBERED
        self._noted += 1
        known = min(self._noted, REMEMBERED)
        self._changes[place], self._images[place] = change.ravel(), image.ravel()
        self._linear[place] = self._conjugates(change)
        self._system[place, :known] = self._images[:known] @ change.ravel()
        self._system[:known, place] = self._system[place, :known]

    def _conjugates(self, change: Float64Array) -> float:
        """Return n times the change of b, which is linear."""
        form, rows = self._problem.form, self._rows
        return change_sums(
            form.conjugate, form.linear_conjugate, rows.y, rows.weights, self._B, change, form.table, 1.0
        )[0]

    def _best_of_span(self) -> Float64Array:
        known = min(self._noted, REMEMBERED)
        slopes = self._linear[:known] - self._changes[:known] @ self._gradient.ravel()
        factors = best_mixture(self._system[:known, :known].copy(), slopes)
        return (factors @ self._changes[:known]).reshape(self._B.shape)

    def _towards(self, change: Float64Array) -> float:
        """Take the best step to where a change leads, or to the feasible point that is nearest."""
        moved = np.flatnonzero(change.any(axis=1))
        if not len(moved):
            return 0.0
        rows, problem = self._rows, self._problem
        nearest = nearest_rows(problem.form, self._B[moved] + change[moved], rows.y[moved])
        change[moved] = nearest - self._B[moved]
        weighted = (problem.scale * rows.weights[moved, None] * change[moved]).astype(self._K.dtype)
        # K is symmetric, and rows are copied in one piece each.
        scored = weighted.T @ self._K[moved]
        slope = self._conjugates(change) - float(np.vdot(change, self._gradient))
        curvature = float(np.vdot(change, self._image(change, scored.T)))
        step, rise = best_step(slope, curvature)
        if not step:
            return 0.0
        self._delta[moved] = self._B[moved] + step * change[moved] - self._A[moved]
        self._scores += self._scores.dtype.type(step) * scored
        self._note()
        return rise
