"""Exact column updates within rows that were picked anywhere, and extrapolation between them.

Where C is large and the kernel wide, rows move together in a few directions, by ever less each sweep.  The
scores that sweeps keep up to date tell K times each change; only the way to the point of the domain that is
nearest to the best mixture takes a product with K of the picked rows, which is in memory.
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from topline.solvers.blocks.ascent.extrapolation import REMEMBERED, Extrapolation
from topline.solvers.blocks.ascent.row_tiles import KernelTile, RowTile
from topline.solvers.blocks.ascent.sweeps import ALL_CLASSES, SweptPart, repeated_sweeps
from topline.solvers.core.kernel_rows import Change, PickedRows
from topline.solvers.core.problem import Problem
from topline.solvers.losses.batches import nearest_rows
from topline.solvers.typing import Float64Array, FloatArray

#: Sweeps over a tile end when one brings less than this share of the first, or after so many,
_PAYS, _MOST_SWEEPS = 0.02, 200
#: and one in so many visits the rows at rest too, after an extrapolation where D is a parabola.
_VISIT_ALL = 5
#: Copies in float64 of the rows' dual variables that extrapolation takes, and the bytes beyond which sweeps
#: continue without it.
_COPIES = 2 * REMEMBERED + 8
_MOST_BYTES = 1 << 27


def extrapolation_bytes(rows: int, m: int) -> int:
    """Return the bytes that the extrapolation of so many picked rows takes; 0 where there is none."""
    most = 8 * _COPIES * rows * m
    return most if most <= _MOST_BYTES else 0


def updated(
    problem: Problem, rows: PickedRows, K: FloatArray, random: np.random.Generator
) -> tuple[Change, float, int]:
    """Update the picked rows until a sweep over them brings little.

    `K` (r, r) are the kernel's values.  Returns what changed, what n D rises by, and the column updates.
    """
    column = problem.form.column_where(alike=problem.smoothing_own == problem.smoothing)
    scores = np.ascontiguousarray(rows.scores.T)
    part = part_of(problem, KernelTile(K, scores), rows)
    everyone = order = part.rows
    extrapolation = Extrapolation(TileRows(problem, K, part)) if TileRows.fits(problem, part) else None
    first, total, swept, visited = 0.0, 0.0, 0.0, 0
    for sweep in range(_MOST_SWEEPS):
        order = random.permutation(order)
        rise = repeated_sweeps(part._replace(places=order, rows=order), column, 1, np.inf, order[:0]).risen
        visited += len(order)
        total, swept = total + rise, swept + rise
        first = first or rise
        if rise <= _PAYS * first and len(order) == len(everyone):
            break
        order = np.flatnonzero(part.rises >= 0.0)
        if rise <= _PAYS * first or not len(order) or (sweep + 1) % _VISIT_ALL == 0:
            order = everyone
        if extrapolation is not None and (sweep + 1) % _VISIT_ALL == 0:
            total, swept = total + extrapolation.step(swept), 0.0
    changed = np.flatnonzero(part.delta.any(axis=1))
    values = part.delta[changed] * rows.weights[changed, None].astype(rows.scores.dtype)
    return Change(rows.numbers[changed], rows.X[changed], values), total, visited


def part_of(problem: Problem, tile: RowTile, rows: PickedRows) -> SweptPart:
    """Return what sweeps over picked rows, all of those of a tile, read and write."""
    form, A, everyone = problem.form, np.ascontiguousarray(rows.A), np.arange(len(rows.A))
    return SweptPart(
        tile=tile,
        places=everyone,
        rows=everyone,
        lists=ALL_CLASSES,
        y=rows.y,
        weights=rows.weights,
        norms=np.full(len(A), -1.0),
        along=np.zeros(len(A)),
        u=np.zeros(0),
        kept_apart=0.0,
        apart=np.zeros(problem.m),
        A=A,
        delta=np.zeros_like(A),
        rises=np.zeros(len(A)),
        scale=problem.scale,
        gamma=problem.smoothing,
        gamma_own=problem.smoothing_own,
        rho=form.rho,
        margins=form.table,
    )


class TileRows:
    """Picked rows, with the scores that sweeps over them keep up to date."""

    tries_again: ClassVar[bool] = True

    def __init__(self, problem: Problem, K: FloatArray, part: SweptPart) -> None:
        self.problem, self.y, self.weights = problem, part.y, part.weights
        self._K, self._scores = K, part.tile.W
        self._A, self._delta = part.A, part.delta

    @staticmethod
    def fits(problem: Problem, part: SweptPart) -> bool:
        """Return whether the dual is a parabola, and what is remembered fits in memory."""
        return problem.form.linear_conjugate and extrapolation_bytes(*part.A.shape) > 0

    def now(self) -> tuple[Float64Array, Float64Array]:
        """Return the dual rows and their scores, both (r, m)."""
        B = self._A.astype(np.float64) + self._delta
        return B, np.ascontiguousarray(self._scores.T, dtype=np.float64)

    def inner(self, V: Float64Array, change: Float64Array, image: Float64Array) -> float:  # noqa: ARG002
        """Return <V, D>."""
        return float(np.einsum("ij,ij->i", V, change) @ self.weights)

    def curvature(self, left: Float64Array, right: Float64Array, change: Float64Array) -> float:
        """Return <V(C), D>."""
        return self.inner(left, change, right)

    def image(self, change: Float64Array) -> Float64Array:
        """Return what a change of the dual rows changes their scores by."""
        # K is symmetric, and rows are copied in one piece each.
        moved = np.flatnonzero(change.any(axis=1))
        weighted = self.problem.scale * self.weights[moved, None] * change[moved]
        scored = weighted.T.astype(self._K.dtype) @ self._K[moved]
        return np.ascontiguousarray(scored.T, dtype=np.float64)

    def feasible(self, B: Float64Array, trial: Float64Array) -> Float64Array:
        """Return the change to the nearest point of the domain, of the rows that move."""
        moved = np.flatnonzero((trial != B).any(axis=1))
        trial[moved] = nearest_rows(self.problem.form, trial[moved], self.y[moved])
        trial -= B
        return trial

    def move(self, B: Float64Array, V: Float64Array, change: Float64Array, image: Float64Array) -> None:
        """Take a change in A and the scores."""
        moved = np.flatnonzero(change.any(axis=1))
        self._delta[moved] = B[moved] + change[moved] - self._A[moved]
        self._scores += image.T.astype(self._scores.dtype)
        B[:], V[:] = self.now()
