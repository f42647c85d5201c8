"""What the margin of a row would be without it, if no other dual row left its face: an estimate, no bound.

How dual rows answer a small change of the scores: directions in which each can move, and how stiffly.

The dual row of example j is the solution of its column problem at q_j = s_j - c' alpha_j with the curvature
c = c' + gamma, c' > 0, so that  d alpha_j = -J_j (d s_j - c' d alpha_j), J_j = -d alpha / d q >= 0.  With
J_j = B D B^T and d alpha_j = B z_j that is  (D^-1 - c') z_j + B^T d s_j = 0:  a hinge keeps the ties of
its face, D^-1 = c' + gamma, and a smooth loss adds the inverse of its curvature.  The scores change with all
rows, d s_j = s sum_l K_jl d alpha_l, which makes one linear system for the free rows.  Leaving row i out is
the change d alpha_i = -alpha_i; it is the span of Vapnik and Chapelle, "Bounds on error expectation for
support vector machines", 2000, for any of the losses.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from scipy import linalg

from topline.solvers.core.rows import as_rows, is_sparse, taken_rows
from topline.solvers.inspection.bounds import margins_of
from topline.solvers.inspection.dual_point import DualPoint
from topline.solvers.losses.batches import column_updates
from topline.solvers.typing import Float64Array, Int64Array

#: Directions of the system at most: its matrix is this number squared of float64.
MOST_DIRECTIONS = 2500
#: The system is solved for as many rows as this allows, some seconds of a core, and so many passes over all
#: rows would take: about a fit of a small problem, for products of matrices are quicker than dual steps.
MOST_MULTIPLICATIONS, _MOST_PASSES = 1e10, 500
#: Rows that are left out at once.
_AT_ONCE = 1024
#: A difference is taken over this share of the distance in which a dual row moves by its whole range.
_SHORT = 1e-6
#: Movements below this share of the largest are rounding.
_FLAT = 1e-4
#: Rows with more moving classes than this stay where they are.
_MOST_CLASSES = 64
#: Added to the diagonal of the system, as a share of it: ties of more rows than W has numbers are many ways.
_RIDGE = 1e-9


@dataclass(frozen=True, eq=False)
class Faces:
    """Directions of all free rows: `rows` (R,) whose, `along` (R, m) unit vectors, `soft` (R,) D^-1 - c'."""

    rows: Int64Array
    along: Float64Array
    soft: Float64Array


def margins_by_span(point: DualPoint, left_out: Int64Array, k: int) -> Float64Array:
    """Return the estimated margins of rows, each without itself: of as many as do not take long."""
    faces = _faces_of(point)
    size = 0 if faces is None else len(faces.rows)
    if faces is None or size == 0:
        return np.empty(0)
    problem = point.problem
    most = min(MOST_MULTIPLICATIONS, float(_MOST_PASSES) * problem.n * problem.d * problem.m)
    left_out = left_out[: max(int(most / float(size) ** 2) - size, 0)]
    if not len(left_out):
        return np.empty(0)
    scores = point.scores[left_out] + _System(point, faces).score_changes(left_out)
    return margins_of(scores, point.y[left_out], k)[0]


def _faces_of(point: DualPoint) -> Faces | None:
    """Return the directions in which the dual rows of a point can move; None where there are too many."""
    free = _free_rows(point)
    if free is None:
        return None
    rows, along, soft = [], [], []
    for row, own, classes, slopes in free:
        sizes, vectors = np.linalg.eigh(0.5 * (slopes + slopes.T))
        kept = sizes > _FLAT * max(sizes[-1], 0.0)
        directions = np.zeros((int(kept.sum()), point.problem.m))
        directions[:, classes] = vectors.T[kept]
        rows.append(np.full(len(directions), row))
        along.append(directions)
        soft.append(np.maximum(1.0 / sizes[kept] - own, 0.0))
    if not rows:
        return Faces(np.empty(0, np.int64), np.empty((0, point.problem.m)), np.empty(0))
    return Faces(np.concatenate(rows), np.concatenate(along), np.concatenate(soft))


def _free_rows(point: DualPoint) -> list[tuple[int, float, Int64Array, Float64Array]] | None:
    """Return row, c', the classes that move and J among them for the rows whose J is not zero."""
    problem, form = point.problem, point.problem.form
    seen = np.flatnonzero((point.weights > 0.0) & (point.norms > 0.0))
    if form.smooth and len(seen) > MOST_DIRECTIONS:
        return None  # every row moves
    y, own = point.y[seen], problem.scale * point.weights[seen] * point.norms[seen]
    q = point.scores[seen] - own[:, None] * (point.A[seen] / point.weights[seen, None])
    c, c_own = own + problem.smoothing, own + problem.smoothing_own
    reach = np.ones(len(seen)) if form.smooth else c
    at = column_updates(form, q, y, c, c_own=c_own)
    probe = np.random.default_rng(0).standard_normal(problem.m) * (_SHORT * reach[:, None])
    moves = np.abs(column_updates(form, q + probe, y, c, c_own=c_own) - at) > _FLAT * _SHORT
    moves[moves.sum(axis=1) > _MOST_CLASSES] = False
    owner, classes = np.nonzero(moves)
    if len(owner) > 2 * MOST_DIRECTIONS:
        return None
    stepped = q[owner]
    stepped[np.arange(len(owner)), classes] += _SHORT * reach[owner]
    change = at[owner] - column_updates(form, stepped, y[owner], c[owner], c_own=c_own[owner])
    slopes = change / (_SHORT * reach[owner, None])
    cuts = np.flatnonzero(np.diff(owner)) + 1
    return [
        (int(seen[owner[part[0]]]), float(own[owner[part[0]]]), classes[part], slopes[part][:, classes[part]])
        for part in np.split(np.arange(len(owner)), cuts)
        if len(part)
    ]


class _System:
    """The linear system of the free rows, factored once for all rows that are left out."""

    def __init__(self, point: DualPoint, faces: Faces) -> None:
        self._point, self._faces = point, faces
        weights = point.weights[faces.rows]
        self._features = _gathered(point, faces.rows)
        M = point.problem.scale * (faces.along @ faces.along.T)
        M *= _products(self._features, self._features)
        M *= weights[:, None] * weights
        M[np.diag_indices_from(M)] += weights * faces.soft + _RIDGE * (1.0 + np.diag(M))
        self._factor = linalg.cho_factor(M, lower=True, overwrite_a=True, check_finite=False)

    def score_changes(self, left_out: Int64Array) -> Float64Array:
        """Return what the scores (b, m) of each of b rows change by when it is left out."""
        point, faces = self._point, self._faces
        changes = np.empty((len(left_out), point.problem.m))
        for low in range(0, len(left_out), _AT_ONCE):
            rows = left_out[low : low + _AT_ONCE]
            near = point.problem.scale * _products(self._features, _gathered(point, rows))
            near *= point.weights[faces.rows, None]
            z = self._moves(rows, near * (faces.along @ point.A[rows].T))
            own = point.problem.scale * point.norms[rows]
            changes[low : low + _AT_ONCE] = (near * z).T @ faces.along - own[:, None] * point.A[rows]
        return changes

    def _moves(self, left_out: Int64Array, forces: Float64Array) -> Float64Array:
        """Return how far each free row moves along each direction (R, b), a left-out one not at all.

        The system without the directions I of a row follows from its inverse B: z - B_:I (B_II)^-1 z_I.
        """
        rows = self._faces.rows
        own = rows[:, None] == left_out
        forces[own] = 0.0
        z = linalg.cho_solve(self._factor, forces, overwrite_b=True, check_finite=False)
        held = np.flatnonzero(own.any(axis=1))
        inverse = self._inverse
        for column in np.flatnonzero(own.any(axis=0)).tolist():
            mine = held[own[held, column]]
            z[:, column] -= inverse[:, mine] @ np.linalg.solve(inverse[np.ix_(mine, mine)], z[mine, column])
            z[mine, column] = 0.0
        return np.asarray(z)

    @cached_property
    def _inverse(self) -> Float64Array:
        unit = np.eye(len(self._faces.rows))
        return np.asarray(linalg.cho_solve(self._factor, unit, overwrite_b=True, check_finite=False))


def _gathered(point: DualPoint, rows: Int64Array) -> Any:
    return as_rows(taken_rows(point.X, rows), np.dtype(np.float64))


def _products(U: Any, V: Any) -> Float64Array:
    found = U @ V.T
    return np.asarray(found.toarray() if is_sparse(found) else found, dtype=np.float64)
