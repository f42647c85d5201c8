"""Small dense quadratic programs by a primal-dual interior point method.

    min  1/2 x^T H x + q^T x   over  E x = e,  0 <= x <= u,  some u_i infinite

Every round factors H + D once, with D the barrier's diagonal, and takes Mehrotra's predictor and corrector
steps.  Ten to thirty rounds reach the limit of float64 whatever the conditioning of H, which slows down
first-order and two-variable methods (SVM+ divides its correcting kernel by gamma).  The caller judges
iterates by the gap of the original problem.

Sources: S. Mehrotra, "On the implementation of a primal-dual interior point method", SIAM J. Optim. 2, 1992;
J. Nocedal and S. Wright, "Numerical Optimization", section 16.6.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from scipy import linalg

from topline.solvers.core.state import HasObjective
from topline.solvers.errors import CertificateError
from topline.solvers.typing import Float64Array

#: Fraction of the way to the nearest bound that a step may go.
_TO_THE_BOUND = 0.995
#: A step that leaves more than this fraction of the complementarity is retried without its corrector,
_PROGRESS = 0.5
#: and with at least this centring.
_CENTRED = 0.3
#: Fractions of the largest entry added to the diagonal until the factorisation succeeds.
_RIDGES = (0.0, 1e-15, 1e-13)
#: A variable is free if its distance from the bound exceeds this times the bound's multiplier.
_SETTLED = 1.0
#: Rounds without a smaller gap before stopping.
_PATIENCE = 8
#: A relative gap below which more digits are rounding.
_DIGITS = 1e-12
#: Fraction of the first complementarity below which rounding dominates steps and violates E x = e.
_RESOLVED = 1e-22


@dataclass(frozen=True, eq=False)
class QuadraticProgram:
    """H (n, n) symmetric positive semi-definite, q (n,), E (p, n) of full rank, e (p,), u (n,), u > 0."""

    H: Float64Array
    q: Float64Array
    E: Float64Array
    e: Float64Array
    upper: Float64Array


@dataclass(frozen=True, eq=False)
class Iterate:
    """A point inside the bounds: x, room = u - x, and multipliers of Ex = e (y), x >= 0 (z), x <= u (v)."""

    x: Float64Array
    room: Float64Array
    y: Float64Array
    z: Float64Array
    v: Float64Array

    @property
    def complementarity(self) -> float:
        """Mean of x_i z_i and (u_i - x_i) v_i, the barrier parameter."""
        bounded = np.isfinite(self.room)
        products = self.x @ self.z + self.room[bounded] @ self.v[bounded]
        return float(products) / (len(self.x) + int(bounded.sum()))


ResultT = TypeVar("ResultT", bound=HasObjective)


def solve_certified(
    program: QuadraticProgram,
    certify: Callable[[Float64Array, int], ResultT],
    tol: float,
    rounds: int,
) -> ResultT:
    """Return the result with the smallest gap among those that `certify` makes of the iterates.

    `certify(x, rounds)` makes x feasible and measures P and D there.  Once the gap is within `tol`, the
    optimum of the face that the iterates approach is tried too: it meets its bounds exactly and is accurate
    to the last digits.  While the face is unclear or tol not reached, rounds continue as long as they help.
    """
    best: ResultT | None = None
    stalled = 0
    for done, point in enumerate(interior_points(program, rounds)):
        result = certify(point.x, done)
        if best is None or result.gap < best.gap:
            best, stalled = result, 0
        else:
            stalled += 1
        if best.relative_gap <= tol:
            face = vertex_of_face(program, point)
            polished = best if face is None else certify(face, done)
            # Exact bounds are worth more than digits of the gap at rounding level.
            if polished is not best and polished.relative_gap <= max(best.relative_gap, _DIGITS):
                return polished
        if stalled >= _PATIENCE:
            break
    if best is None:
        raise CertificateError("the interior point method gave no point; scale the features")
    return best


def interior_points(program: QuadraticProgram, rounds: int) -> Iterator[Iterate]:
    """Yield the iterates, at most `rounds` after the first, until float64 allows no progress.

    The first lies well inside the bounds; E x = e holds up to rounding after the first full step.
    """
    point = _start(program)
    resolved = _RESOLVED * point.complementarity
    yield point
    for _ in range(rounds):
        if point.complementarity < resolved:
            return
        try:
            with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
                after = _step(program, point)
        except linalg.LinAlgError:
            return
        if not (np.isfinite(after.x).all() and np.isfinite(after.z).all() and np.isfinite(after.v).all()):
            return
        point = after
        yield point


def vertex_of_face(program: QuadraticProgram, point: Iterate) -> Float64Array | None:
    """Return the optimum of the face that an iterate approaches, bounds met exactly; None if infeasible.

    A variable counts as at a bound if its distance from it is smaller than the bound's multiplier.
    """
    low = point.x < _SETTLED * point.z
    high = point.room < _SETTLED * point.v
    free = np.flatnonzero(~low & ~high)
    x = np.where(high, program.upper, 0.0)
    pull = -(program.q + program.H @ x)[free]
    missing = program.e - program.E @ x
    p = len(missing)
    matrix = np.zeros((len(free) + p, len(free) + p))
    matrix[: len(free), : len(free)] = program.H[np.ix_(free, free)]
    matrix[: len(free), len(free) :] = -program.E[:, free].T
    matrix[len(free) :, : len(free)] = program.E[:, free]
    # Start at the iterate: among several optimal points of the face this selects the nearest.
    near = np.concatenate([point.x[free], point.y])
    right = np.concatenate([pull, missing])
    try:
        change = linalg.lstsq(matrix, right - matrix @ near, lapack_driver="gelsy")[0]
    except (linalg.LinAlgError, ValueError):
        return None
    x[free] = (near + change)[: len(free)]
    slack = 1e-12 * max(float(np.abs(x).max(initial=0.0)), 1.0)
    outside = (x < -slack).any() or (x > program.upper + slack).any()
    # The face may not intersect E x = e.
    missed = np.abs(program.E @ x - program.e).max() > 1e-9 * max(float(np.abs(x).sum()), 1.0)
    if outside or missed:
        return None
    return np.clip(x, 0.0, program.upper)


def _start(program: QuadraticProgram) -> Iterate:
    bounded = np.isfinite(program.upper)
    x = np.where(bounded, 0.5 * np.where(bounded, program.upper, 1.0), 0.5)
    gradient = program.H @ x + program.q
    size = max(1.0, float(np.abs(gradient).mean()))
    z = np.maximum(gradient, 0.0) + size
    v = np.where(bounded, np.maximum(-gradient, 0.0) + size, 0.0)
    return Iterate(x, program.upper - x, np.zeros(len(program.e)), z, v)


def _step(program: QuadraticProgram, point: Iterate) -> Iterate:
    x, room, z, v = point.x, point.room, point.z, point.v
    inverse = np.where(np.isfinite(room), 1.0 / room, 0.0)
    room_v = np.where(np.isfinite(room), room, 0.0) * v
    factor = _factored(program.H, z / x + v * inverse)
    across = linalg.cho_solve(factor, program.E.T, check_finite=False)
    schur = linalg.cho_factor(program.E @ across, lower=True, check_finite=False)
    dual = program.H @ x + program.q - program.E.T @ point.y - z + v
    primal = program.E @ x - program.e

    def direction(to_z: Float64Array, to_v: Float64Array) -> tuple[Float64Array, ...]:
        right = -dual + to_z / x - to_v * inverse
        inside = linalg.cho_solve(factor, right, check_finite=False)
        dy = linalg.cho_solve(schur, -primal - program.E @ inside, check_finite=False)
        dx = inside + across @ dy
        return dx, dy, (to_z - z * dx) / x, (to_v + v * dx) * inverse

    dx, dy, dz, dv = direction(-x * z, -room_v)
    length = _length(point, dx, dz, dv, 1.0)
    before = point.complementarity
    ahead = _moved(point, length, dx, dy, dz, dv).complementarity
    share = (ahead / before) ** 3
    bounded = np.isfinite(room)
    best = point
    # The corrector can lead astray, even cycle; a more centred step without it makes progress.
    for bend, centring in ((1.0, share), (0.0, max(share, _CENTRED))):
        target = centring * before
        to_v = np.where(bounded, target - room_v + bend * dx * dv, 0.0)
        way = direction(target - x * z - bend * dx * dz, to_v)
        moved = _moved(point, _length(point, way[0], way[2], way[3], _TO_THE_BOUND), *way)
        if best is point or moved.complementarity < best.complementarity:
            best = moved
        if best.complementarity <= _PROGRESS * before:
            break
    return best


def _factored(H: Float64Array, barrier: Float64Array) -> tuple[Float64Array, bool]:
    """Factor H + diag(barrier), increasing the diagonal if rounding leaves a negative pivot."""
    largest = float(np.max(np.diag(H)))
    for ridge in _RIDGES:
        M = H.copy()
        M[np.diag_indices_from(M)] += barrier + ridge * largest
        packed, info = linalg.lapack.dpotrf(M, lower=1, overwrite_a=1)
        if info == 0:
            return packed, True
    raise linalg.LinAlgError


def _length(point: Iterate, dx: Float64Array, dz: Float64Array, dv: Float64Array, share: float) -> float:
    """Return the longest step, at most 1, that stays inside all bounds."""
    length = 1.0
    for value, change in ((point.x, dx), (point.room, -dx), (point.z, dz), (point.v, dv)):
        falling = change < 0.0
        if falling.any():
            length = min(length, share * float(np.min(value[falling] / -change[falling])))
    return length


def _moved(
    point: Iterate, length: float, dx: Float64Array, dy: Float64Array, dz: Float64Array, dv: Float64Array
) -> Iterate:
    return Iterate(
        point.x + length * dx,
        point.room - length * dx,
        point.y + length * dy,
        point.z + length * dz,
        point.v + length * dv,
    )
