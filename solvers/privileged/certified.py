"""Rounds of the interior point method under the eyes of a certificate."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeVar

from topline.solvers.errors import CertificateError
from topline.solvers.privileged.interior_point import QuadraticProgram, interior_points, vertex_of_face
from topline.solvers.typing import Float64Array

#: Rounds without a smaller gap after which rounding has the last word.
_PATIENCE = 8
#: A relative gap below which more digits are rounding.
_DIGITS = 1e-12


class Certified(Protocol):
    """Any result whose duality gap was measured."""

    @property
    def gap(self) -> float:
        """P - D."""
        ...

    @property
    def relative_gap(self) -> float:
        """P - D as a share of P."""
        ...


ResultT = TypeVar("ResultT", bound=Certified)


def solve_certified(
    program: QuadraticProgram,
    certify: Callable[[Float64Array, int], ResultT],
    tol: float,
    rounds: int,
) -> ResultT:
    """Give the result with the smallest gap among those that `certify` makes of the iterates.

    `certify(x, rounds)` makes x feasible and measures P and D there.  Once the gap is within `tol` the
    optimum of the face that the iterates approach is tried too: it meets its bounds exactly and has the last
    digits right.  Where the face is not clear yet, or tol out of reach, rounds go on while they help.
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
            # Exact bounds are worth more than digits of the gap that are rounding.
            if polished is not best and polished.relative_gap <= max(best.relative_gap, _DIGITS):
                return polished
        if stalled >= _PATIENCE:
            break
    if best is None:
        raise CertificateError("the interior point method gave no point; scale the features")
    return best
