"""Exact column updates within rows that were picked anywhere."""

from __future__ import annotations

import numpy as np

from topline.solvers.blocks.kernel import jit
from topline.solvers.blocks.kernel.tile_extrapolation import TileExtrapolation
from topline.solvers.core.kernel_rows import Change, PickedRows
from topline.solvers.core.problem import Problem
from topline.solvers.typing import FloatArray

#: Sweeps over a tile end when one brings less than this share of the first, or after so many,
_PAYS, _MOST_SWEEPS = 0.02, 200
#: and one in so many visits the rows at rest too, after an extrapolation where D is a parabola.
_VISIT_ALL = 5


def updated(
    problem: Problem, rows: PickedRows, K: FloatArray, random: np.random.Generator
) -> tuple[Change, float, int]:
    """Update the picked rows until a sweep over them brings little.

    `K` (r, r) are the kernel's values.  Returns what changed, what n D rises by, and the column updates.
    """
    form = problem.form
    A, scores = np.ascontiguousarray(rows.A), np.ascontiguousarray(rows.scores.T)
    delta, rises = np.zeros_like(A), np.zeros(len(A))
    alike = problem.smoothing_own == problem.smoothing
    everyone = order = np.arange(len(A))
    extrapolation = None
    if TileExtrapolation.fits(problem, rows):
        extrapolation = TileExtrapolation(problem, rows, K, delta, scores)
    first, total, swept, visited = 0.0, 0.0, 0.0, 0
    for sweep in range(_MOST_SWEEPS):
        rise = jit.sweep_tile(
            K, random.permutation(order), rows.y, rows.weights, problem.scale, problem.smoothing,
            problem.smoothing_own, form.column_where(alike=alike), form.rho, form.table, scores, A, delta,
            rises,
        )  # fmt: skip
        visited += len(order)
        total, swept = total + rise, swept + rise
        first = first or rise
        if rise <= _PAYS * first and len(order) == len(everyone):
            break
        order = np.flatnonzero(rises >= 0.0)
        if rise <= _PAYS * first or not len(order) or (sweep + 1) % _VISIT_ALL == 0:
            order = everyone
        if extrapolation is not None and (sweep + 1) % _VISIT_ALL == 0:
            total, swept = total + extrapolation.step(swept), 0.0
    changed = np.flatnonzero(delta.any(axis=1))
    values = delta[changed] * rows.weights[changed, None].astype(rows.scores.dtype)
    return Change(rows.numbers[changed], rows.X[changed], values), total, visited
