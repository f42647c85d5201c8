"""Dual points whose rows no block keeps, and the best multiple of any.

A = 0 is feasible for every loss, and so is every point between it and a feasible A.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from topline.solvers.core.codec import stored
from topline.solvers.core.problem import Problem, squared_norm
from topline.solvers.typing import Float64Array

#: A round has fewer than 2 to this power parts.
_PART_BITS = 24


@stored
@dataclass(frozen=True, eq=False)
class FoundAt:
    """The dual point `share` times minus the gradients of Phi_gamma at the scores of W (d, m).

    `share` lies in [0, 1]: A = 0 is feasible, and so is every point on the way to it.
    """

    W: Float64Array
    share: float = 1.0


@stored
@dataclass(frozen=True, eq=False)
class Summed:
    """A dual point known by its W(A) (d, m) and its linear term, less gamma/2 aa if gamma > 0."""

    W: Float64Array
    linear: float


def step_number(round_: int, part: int = 0) -> int:
    """Return the unique number of the step of a round, or of a part of it."""
    return (round_ << _PART_BITS) + part


@stored
@dataclass(frozen=True)
class PendingStep:
    """The step that the coordinator took in `round`: A <- shrink * ((1 - step) A + step U).

    U is what the block found in that round, or in that `part` of it: a vertex, or A + dA for a change.  A
    block applies it once, at the start of a later operation, and recognises it by its number.
    """

    round: int
    step: float
    shrink: float = 1.0
    part: int = 0

    @property
    def number(self) -> int:
        """The unique number of this step."""
        return step_number(self.round, self.part)


#: A dual point whose rows no block keeps.
DualPoint: TypeAlias = FoundAt | Summed


def best_share(linear: float, square: float) -> float:
    """Return the s in [0, 1] that maximises s linear - s^2 square / 2, a lower bound of D(s A).

    `square` is lam |W(A)|^2; where |A|^2 is known, it may include gamma aa.
    """
    if not linear > 0.0:
        return 0.0
    return min(linear / square, 1.0) if square > 0.0 else 1.0


def best_multiple(problem: Problem, W: Float64Array, linear: float) -> tuple[float, float]:
    """Return the best share of a dual point with this W(A) and linear term, and its lower bound of D."""
    square = problem.lam * squared_norm(W)
    share = best_share(linear, square)
    return share, share * linear - 0.5 * share * share * square
