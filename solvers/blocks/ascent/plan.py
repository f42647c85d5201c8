"""Requests for sweeps of dual ascent, and their results."""

from __future__ import annotations

import math
from dataclasses import dataclass

from topline.solvers.core.answers import VectorSums, merged_by
from topline.solvers.core.deflation import DeflatedDirection
from topline.solvers.core.dual_points import PendingStep
from topline.solvers.typing import Float64Array


@dataclass(frozen=True, eq=False, kw_only=True)
class AscentSums(VectorSums):
    """Sums over the changes of alpha_i; `product` is in float32 if large weights move in float32.

    Attributes
    ----------
    visited : column updates.
    left : the sum of the duality gaps of the rows visited by the stages, if small enough to end them; inf if
        something else did.
    moving : the rows that a further sweep would visit, at the end of one.
    filled : the shares of a sweep that have rows in some block; they come first.
    late : the number of blocks that ran out of time.
    """

    visited: int = 0
    left: float = 0.0
    moving: int = 0
    filled: int = merged_by(max, 0)
    late: int = 0


@dataclass(frozen=True)
class Turn:
    """One turn of a round: one share of the rows of every block.

    Attributes
    ----------
    part : its number in the round.
    sweep : the first, 0, goes over all rows, each later one over those that move, in an order of its own.
    share, shares : index of the share of that order, out of this many equal shares; a sweep that has begun
        may turn out to have fewer, as blocks report.
    """

    part: int
    sweep: int
    share: int
    shares: int

    @property
    def ends_sweep(self) -> bool:
        """Whether it is the last turn of its sweep."""
        return self.share + 1 == self.shares


@dataclass(frozen=True, eq=False)
class AscentPlan:
    """How to look for a change dA of A that raises the dual: sweeps of exact column updates from W (d, m).

    Attributes
    ----------
    round, W : with the number of the block and the seed the round fixes the random orders.
    pending_step : the step to apply to A first.
    sweeps : the first visits every row, a second one the rows not at rest; more than two request stages of so
        many sweeps over those, as many stages as pay.
    safety_factor : factor >= 1 on the curvature, for a block that moves while others do.
    seed : of the random orders.
    exact : products and A in float64, not in the precision of the features.
    shared, apart : the direction u (d,) along which examples are shrunk, and the initial component along it
        (m,) of the weights besides W: a row scores W^T x + <x, u> apart.
    most_passes : limit on visits, as a multiple of the rows.
    seconds : time after which no more rows are visited; None for no limit.
    warm : whether A is already near the optimum, so that most rows are at rest and stages over the others pay
        for longer.
    support : visit only rows with non-zero alpha.
    enough : end the stages once the duality gaps of their rows sum to at most this.
    alike : move rows together that look alike and have different labels.
    turn : the share of the rows to visit, once; None for the sweeps.
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
