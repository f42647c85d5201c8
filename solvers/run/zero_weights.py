"""The risk at W = 0, where every score is 0: labels and weights alone say it, and no pass is needed."""

from __future__ import annotations

import numpy as np

from topline.solvers.blocks.vertices import vertices_of
from topline.solvers.core.problem import Problem
from topline.solvers.core.risks import AverageTopK, LargestLosses
from topline.solvers.typing import Float64Array, IntArray

#: Scores that are made at once.
_SCORES = 1 << 20


def risk_at_zero(
    problem: Problem, labels: IntArray, weights: Float64Array | None, *, smoothed: bool = True
) -> float:
    """Return the risk of Phi_gamma, or of Phi itself, at W = 0; labels (n,), weights (n,) or None."""
    codes, places = np.unique(labels, return_inverse=True)
    alike = problem.form.margins is None and problem.form.label_sets is None
    losses = _losses_at_zero(problem, codes[:1] if alike else codes, smoothed=smoothed)
    if alike:
        losses, places = np.repeat(losses, len(codes)), places.ravel()
    of_rows: Float64Array = losses[places]
    if isinstance(problem.risk, AverageTopK):
        largest = LargestLosses.of(problem.risk.rows, np.arange(problem.n), of_rows)
        return float(problem.risk.selected(largest, problem.n).weights @ largest.losses) / problem.n
    return float(of_rows.sum() if weights is None else weights @ of_rows) / problem.n


def _losses_at_zero(problem: Problem, codes: IntArray, *, smoothed: bool) -> Float64Array:
    """Return the loss of each label at scores of 0."""
    losses = np.empty(len(codes))
    rows = max(_SCORES // problem.m, 1)
    vertices = vertices_of(problem, rows, smoothed=smoothed)
    for start in range(0, len(codes), rows):
        part = np.ascontiguousarray(codes[start : start + rows], dtype=np.int32)
        vertices.losses(np.zeros((len(part), problem.m)), part, losses[start : start + len(part)])
    return losses
