"""Step lengths along a direction of the dual."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Protocol

from topline.solvers.core.problem import Problem, inner, squared_norm
from topline.solvers.typing import Float64Array


@dataclass(frozen=True, eq=False)
class Direction:
    """A direction dA of the dual: D(A + g dA) = D(A) + g slope - g^2 curvature / 2.

    Attributes
    ----------
    weights : (d, m), the change W(dA).
    linear : the change of the linear term.
    cross, square : <A, dA>_F / n and |dA|_F^2 / n; only smoothing uses them.
    slope : <grad D(A), dA> = linear - lam <W, weights> - gamma cross.
    curvature : lam |weights|^2 + gamma square (gamma, not gamma/(lam n): Tajima et al., C.25 and C.26).
    terms : sum of the sizes of the terms of the slope.
    """

    weights: Float64Array
    linear: float
    cross: float
    square: float
    slope: float
    curvature: float
    terms: float

    @classmethod
    def of(
        cls,
        problem: Problem,
        W: Float64Array,
        weights: Float64Array,
        linear: float,
        cross: float,
        square: float,
    ) -> Direction:
        """Return the direction with these sums from the iterate with weights W."""
        square = max(square, 0.0)
        parts = linear, problem.lam * inner(W, weights), problem.smoothing * cross
        return cls(
            weights=weights,
            linear=linear,
            cross=cross,
            square=square,
            slope=parts[0] - parts[1] - parts[2],
            curvature=problem.lam * squared_norm(weights) + problem.smoothing * square,
            terms=sum(abs(part) for part in parts),
        )

    def rise(self, step: float) -> float:
        """Return the increase of the dual for a step, known before it is taken."""
        return step * self.slope - 0.5 * step * step * self.curvature


class StepRule(Protocol):
    """A step size in [0, 1] for a round and a direction."""

    name: ClassVar[str]
    #: Whether the step maximises the dual on the segment, so that no rise means no progress.
    exact: ClassVar[bool]
    #: Whether W~ is then projected on the ball that holds the optimum.
    projects: ClassVar[bool]

    def step(self, round_: int, direction: Direction, /) -> float:
        """Return the step of a round counted from 0."""
        ...


@dataclass(frozen=True)
class ExactStep:
    """The maximiser of the dual on the segment: slope / curvature, clipped to [0, 1].

    Tajima et al., eq. 2.20, and 2.26 with gamma in place of gamma/(lam n).
    """

    name: ClassVar[str] = "exact"
    exact: ClassVar[bool] = True
    projects: ClassVar[bool] = False

    def step(self, _round: int, direction: Direction, /) -> float:
        """Return the maximiser; 1 where the dual is linear along the segment, NaN after an overflow."""
        if not (math.isfinite(direction.slope) and math.isfinite(direction.curvature)):
            return math.nan
        if direction.slope <= 0:
            return 0.0
        if direction.slope >= direction.curvature:
            return 1.0
        return direction.slope / direction.curvature


@dataclass(frozen=True)
class OpenLoopStep:
    """The schedule 2/(t + 1), t = 1, 2, ... (Tajima et al., section 3)."""

    name: ClassVar[str] = "open_loop"
    exact: ClassVar[bool] = False
    projects: ClassVar[bool] = False

    def step(self, round_: int, _direction: Direction, /) -> float:
        """Return 2/(t + 1) with t = round_ + 1, whatever the direction."""
        return 2.0 / (round_ + 2.0)


@dataclass(frozen=True)
class HarmonicStep:
    """The schedule 1/t, t = 1, 2, ..., then the projection on the ball |W~|^2 <= P(0)/lam.

    W - (1/(lam t)) grad P(W) = (1 - 1/t) W + (1/t) W(U): a projected subgradient step on the primal with the
    step size of Pegasos is a Frank-Wolfe step 1/t.
    """

    name: ClassVar[str] = "harmonic"
    exact: ClassVar[bool] = False
    projects: ClassVar[bool] = True

    def step(self, round_: int, _direction: Direction, /) -> float:
        """Return 1/t with t = round_ + 1, whatever the direction."""
        return 1.0 / (round_ + 1.0)
