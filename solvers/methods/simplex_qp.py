"""A small quadratic program over the simplex, solved by a primal active set method.

    max  <linear, w> - 1/2 <w, gram w>   over  w >= 0, sum w = 1

The Gram matrix may be singular: there may be more atoms than dimensions, or nearly equal ones.  On a face
whose atoms are affinely dependent the objective is linear along some direction; the method follows it until
an atom drops out, which never lowers the objective.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.linalg import lapack

from topline.solvers.typing import Float64Array, Int64Array

_EPS = float(np.finfo(np.float64).eps)
#: Newton steps on one face; those after the first only remove rounding.
_REFINEMENTS = 3


def maximise_on_simplex(gram: Float64Array, linear: Float64Array, start: Float64Array) -> Float64Array:
    """Return the maximiser, found from the point `start` of the simplex; its objective is never below that.

    Parameters
    ----------
    gram : (T, T) symmetric, positive semidefinite up to rounding.
    linear : (T,).
    start : (T,) weights >= 0 with sum 1.  The closer to the answer, the fewer steps.
    """
    best: Float64Array = start / start.sum()
    weights = best
    # Each face is visited at most once except for rounding, and hardly more faces than atoms are visited.
    for _ in range(20 + 4 * len(linear)):
        weights = _to_top_of_face(gram, linear, weights, np.flatnonzero(weights > 0))
        pull = gram @ weights
        gradient = linear - pull
        if rise_between(gram, linear, best, weights) > 0:
            best = weights
        enters = int(np.argmax(gradient))
        rise = gradient[enters] - float(weights @ gradient)
        if not rise > 4.0 * _EPS * (np.abs(linear).max() + np.abs(pull).max()) or weights[enters] > 0:
            break
        face = np.append(np.flatnonzero(weights > 0), enters)
        moved = _to_top_of_face(gram, linear, weights, face)
        if not rise_between(gram, linear, weights, moved) > 0:
            break
        weights = moved
    return best


def rise_between(
    gram: Float64Array, linear: Float64Array, before: Float64Array, after: Float64Array
) -> float:
    """Return the increase of the objective, with far more digits than the difference of objectives."""
    change = after - before
    return float((linear - gram @ before) @ change - 0.5 * (change @ (gram @ change)))


def _to_top_of_face(
    gram: Float64Array, linear: Float64Array, weights: Float64Array, face: Int64Array
) -> Float64Array:
    """Climb on the atoms of a face, dropping those that reach zero, until its maximum lies inside."""
    weights = weights.copy()
    refined = 0
    while len(face) > 1 and refined < _REFINEMENTS:
        step = _step_on_face(gram[np.ix_(face, face)], (linear - gram @ weights)[face], weights[face])
        falling = step.direction < 0
        room = np.full(len(face), np.inf)
        np.divide(weights[face], -step.direction, out=room, where=falling)
        blocking = int(np.argmin(room))
        length = min(float(room[blocking]), 1.0 if step.newton else np.inf)
        if not np.isfinite(length):
            break
        weights[face] = np.maximum(weights[face] + length * step.direction, 0.0)
        if length == room[blocking]:
            weights[face[blocking]] = 0.0
            face = np.delete(face, blocking)
            refined = 0
        else:
            refined += 1
    return np.asarray(weights / weights.sum())


@dataclass(frozen=True, eq=False)
class _Step:
    """A direction on a face, of sum 0: to its maximum (newton), or one without curvature."""

    direction: Float64Array
    newton: bool


def _step_on_face(gram: Float64Array, gradient: Float64Array, weights: Float64Array) -> _Step:
    """Return the ascent direction on a face with at least two atoms, relative to the heaviest one."""
    origin = int(np.argmax(weights))
    others = np.delete(np.arange(len(weights)), origin)
    to_origin = gram[others, origin]
    bend = gram[np.ix_(others, others)] - to_origin[:, None] - to_origin[None, :] + gram[origin, origin]
    slope = gradient[others] - gradient[origin]
    noise = 8.0 * _EPS * len(weights) * float(np.max(np.diag(gram)))
    factor, order, rank, _ = lapack.dpstrf(bend, tol=noise, lower=1)
    order = order - 1
    lower = factor[:rank, :rank]
    free = order[:rank]
    change = np.zeros(len(others))
    if rank == len(others):
        change[free] = _solve(lower, slope[free])
        newton = True
    else:
        dependent = order[rank]
        change[dependent] = 1.0
        if rank > 0:
            change[free] = -_solve(lower, bend[free, dependent])
        if slope @ change < 0:
            change = -change
        newton = False
    direction = np.empty(len(weights))
    direction[others] = change
    direction[origin] = -change.sum()
    return _Step(direction, newton)


def _solve(lower: Float64Array, right: Float64Array) -> Float64Array:
    """Solve L L^T x = right."""
    x, _ = lapack.dpotrs(lower, right, lower=1)
    return np.asarray(x)
