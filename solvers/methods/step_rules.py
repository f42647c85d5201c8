"""Step lengths: rules along a direction of the dual, and a line search for values whose slope is known too.

The search evaluates one step at a time.  It accepts one under the weak Wolfe conditions, or their approximate
form (W. W. Hager, H. Zhang, SIAM J. Optim. 16, 2005), which uses slopes alone once the values agree to all
digits of their sums.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import ClassVar, Protocol

from topline.solvers.core.codec import stored
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

    @property
    def projects(self) -> bool:
        """Whether W~ is then projected on the ball that holds the optimum."""
        ...

    @property
    def exact(self) -> bool:
        """Whether the step maximises the dual on the segment, so that no rise means no progress."""
        ...

    def step(self, round_: int, direction: Direction, /) -> float:
        """Return the step of a round counted from 0."""
        ...


@dataclass(frozen=True)
class ExactStep:
    """The maximiser of the dual on the segment: slope / curvature, clipped to [0, 1].

    Tajima et al., eq. 2.20, and 2.26 with gamma in place of gamma/(lam n).
    """

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
class Schedule:
    """The steps first / (first + t) of rounds t = 0, 1, ..., whatever the direction.

    With first = 2 it is the open loop 2/(t + 1), t = 1, 2, ... (Tajima et al., section 3).  With 1 and the
    projection on the ball |W~|^2 <= P(0)/lam it is Pegasos: W - (1/(lam t)) grad P(W) = (1 - 1/t) W +
    (1/t) W(U), so a projected subgradient step on the primal is a Frank-Wolfe step 1/t.
    """

    first: float
    projects: bool = False
    exact: ClassVar[bool] = False

    def step(self, round_: int, _direction: Direction, /) -> float:
        """Return the step of a round counted from 0."""
        return self.first / (self.first + round_)


#: Least share of the decrease promised by the slope that a step must achieve.
_DECREASE = 1e-4
#: The same in the approximate form.
_FLAT_DECREASE = 0.1
#: Largest share of the slope at 0 that may remain.
_LEFT = 0.9
#: Relative difference below which values count as equal.
_SAME = 1e-7
#: A new step keeps this share of the bracket away from its ends.
_MARGIN = 0.1
#: Steps after which the bracket is halved: secants may converge from one end alone.
_SECANTS = 5
#: Bounds of the growth of a step that was too short.
_GROWTH = 2.0, 100.0
#: Share of the slope at which a line search ends, and its most trials.
_LEAST_SLOPE = 0.1
_MOST_SLOPES = 12


@stored
@dataclass(frozen=True)
class Bracket:
    """State of a line search: f at 0, the interval that holds a good step, and the step to try next.

    Attributes
    ----------
    value, slope : f(0) and f'(0) < 0.
    step : to try next.
    low, low_slope : longest step that was too short, and f' there.
    high, high_slope : shortest step that was too long (infinity before there is one), and f' there.
    trials : steps tried so far.
    """

    value: float
    slope: float
    step: float
    low: float
    low_slope: float
    high: float = math.inf
    high_slope: float = math.nan
    trials: int = 0

    @classmethod
    def start(cls, value: float, slope: float, step: float) -> Bracket:
        """Return the search with a first step."""
        return cls(value=value, slope=slope, step=step, low=0.0, low_slope=slope)

    def accepts(self, value: float, slope: float) -> bool:
        """Return whether f and f' at `step` are good enough; NaN is not."""
        if not slope >= _LEFT * self.slope:
            return False
        if value <= self.value + _DECREASE * self.step * self.slope:
            return True
        return self._as_low(value) and slope <= (2.0 * _FLAT_DECREASE - 1.0) * self.slope

    def after(self, value: float, slope: float) -> Bracket:
        """Return the bracket after a rejected step."""
        trials = self.trials + 1
        if self._as_low(value) and slope < _LEFT * self.slope:
            shorter = replace(self, low=self.step, low_slope=slope, trials=trials)
            if math.isinf(self.high):
                return replace(shorter, step=_longer(self.step, self.slope, slope))
            return replace(shorter, step=shorter.between())
        longer = replace(self, high=self.step, high_slope=slope, trials=trials)
        return replace(longer, step=longer.between())

    def between(self) -> float:
        """Return the zero of the linearly interpolated slope between `low` and `high`, away from `low`.

        Return the midpoint if that is near `high` or undefined: the slope is then uninformative.
        """
        if self.trials > _SECANTS:
            return 0.5 * (self.low + self.high)
        rise = self.high_slope - self.low_slope
        share = -self.low_slope / rise if rise > 0.0 else 0.5
        share = max(share, _MARGIN) if share <= 1.0 - _MARGIN else 0.5
        return self.low + share * (self.high - self.low)

    def _as_low(self, value: float) -> bool:
        return value <= self.value + _SAME * abs(self.value)


def _longer(step: float, slope_at_zero: float, slope: float) -> float:
    """Return the step at which a linear slope vanishes, within the bounds of growth."""
    rise = slope - slope_at_zero
    share = -slope_at_zero / rise if rise > 0.0 else math.inf
    return step * min(max(share, _GROWTH[0]), _GROWTH[1])


def least_slope(slope_at: Callable[[float], float], slope: float) -> float:
    """Return a step with little slope left, by secants between steps too short and too long."""
    low, low_slope, high, high_slope = 0.0, slope, math.inf, math.nan
    step = 1.0
    for _ in range(_MOST_SLOPES):
        found = slope_at(step)
        if abs(found) <= _LEAST_SLOPE * abs(slope) or math.isnan(found):
            break
        if found < 0.0:
            low, low_slope = step, found
        else:
            high, high_slope = step, found
        if math.isinf(high):
            step *= 2.0
            continue
        share = -low_slope / (high_slope - low_slope)
        step = low + min(max(share, 0.1), 0.9) * (high - low)
    return step
