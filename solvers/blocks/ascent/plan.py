"""What sweeps of dual ascent are asked for, and what they come to."""

from __future__ import annotations

import math
from dataclasses import dataclass

from topline.solvers.core.answers import VectorSums, merged_by
from topline.solvers.core.deflation import DeflatedDirection
from topline.solvers.core.dual_points import PendingStep
from topline.solvers.typing import Float64Array


@dataclass(frozen=True, eq=False, kw_only=True)
class AscentSums(VectorSums):
    """Sums over the changes of alpha_i; `product` is in float32 where large weights move in that.

    Attributes
    ----------
    visited : column updates.
    left : the sum of the duality gaps of the rows that the stages visited, where it was small enough to end
        them; inf where something else did.
    moving : the rows that a further sweep would visit, at the end of one.
    filled : the shares of a sweep that have rows in some block; they come first.
    late : the blocks whose time was over.
    """

    visited: int = 0
    left: float = 0.0
    moving: int = 0
    filled: int = merged_by(max, 0)
    late: int = 0


@dataclass(frozen=True)
class Turn:
    """Whose turn it is in a part of a round: one share of the rows of every block.

    Attributes
    ----------
    part : its number in the round.
    sweep : the first, 0, goes over all rows, each later one over those that move, in an order of its own.
    share, shares : which share of that order is visited, of how many that are alike; they may turn out fewer
        in a sweep that has begun, as blocks say.
    """

    part: int
    sweep: int
    share: int
    shares: int

    @property
    def ends_sweep(self) -> bool:
        """Whether it is the last of its sweep."""
        return self.share + 1 == self.shares


@dataclass(frozen=True, eq=False)
class AscentPlan:
    """How a change dA of A is looked for that raises the dual: sweeps of exact column updates from W (d, m).

    Attributes
    ----------
    round, W : with the number of the block and the seed the round fixes the random orders.
    pending_step : what is applied to A first.
    sweeps : the first visits every row, a second one the rows that are not at rest; more than two ask for
        stages of so many sweeps over those, as many stages as pay.
    safety_factor : factor >= 1 on the curvature, for a block that moves while others do.
    seed : of the random orders.
    exact : products and A in float64, not in the precision of the features.
    shared, apart : the direction u (d,) along which examples are shrunk, and for every class (m,) what the
        weights have along it at the start besides W: a row scores W^T x + <x, u> apart.
    most_passes : visits, as a multiple of the rows, that are not exceeded.
    seconds : time after which no more rows are visited; None for no limit.
    warm : whether A is near the optimum already, so that most rows are at rest and stages over the others pay
        for longer.
    support : visit only rows whose alpha is not 0.
    enough : end the stages where the duality gaps of the rows that they visit sum to so little.
    alike : move rows together that look alike and have different labels.
    turn : the share of the rows that is visited, once; None for the sweeps.
    """

    round: int
    W: Float64Array
    pending_step: PendingStep | None = None
    sweeps: int = 1
    safety_factor: float = 1.0
    seed: int = 0
    exact: bool = False
    shared: DeflatedDirection | None = None
    apart: Float64Array | None = None
    most_passes: float = math.inf
    seconds: float | None = None
    warm: bool = False
    support: bool = False
    enough: float = 0.0
    alike: bool = False
    turn: Turn | None = None
