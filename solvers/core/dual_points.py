"""Dual points whose rows no block keeps, and the best multiple of any.

A = 0 is feasible for every loss, and so is all that lies on the way to it from a feasible A.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from topline.solvers.core.codec import stored
from topline.solvers.core.problem import Problem, squared_norm
from topline.solvers.typing import Float64Array

#: Parts of a round are fewer than two to this power.
_PART_BITS = 24


@stored
@dataclass(frozen=True, eq=False)
class FoundAt:
    """The dual point `share` times minus the gradients of Phi_gamma at the scores of W (d, m).

    `share` lies in [0, 1]: A = 0 is feasible and so is every point on the way to it.
    """

    W: Float64Array
    share: float = 1.0


@stored
@dataclass(frozen=True, eq=False)
class Summed:
    """A dual point of which W(A) (d, m) is known and the linear term, less gamma/2 aa where there is one."""

    W: Float64Array
    linear: float


def step_number(round_: int, part: int = 0) -> int:
    """Return the number of the step of a round, or of a part of it: no other step has it."""
    return (round_ << _PART_BITS) + part


@stored
@dataclass(frozen=True)
class PendingStep:
    """The step that the coordinator took in `round`: A <- shrink * ((1 - step) A + step U).

    U is what the block found in that round, or in that `part` of it: a vertex, or A + dA for a change.  A
    block applies it at the start of a later operation, once: the number tells it whether it has done so.
    """

    round: int
    step: float
    shrink: float = 1.0
    part: int = 0

    @property
    def number(self) -> int:
        """What tells this step from any other."""
        return step_number(self.round, self.part)


#: A dual point whose rows no block keeps.
DualPoint: TypeAlias = FoundAt | Summed


def best_share(linear: float, square: float) -> float:
    """Return the s in [0, 1] with the highest s linear - s^2 square / 2, a lower bound of D(s A).

    `square` is lam |W(A)|^2; where |A|^2 is known apart, gamma aa may be part of it.
    """
    if not linear > 0.0:
        return 0.0
    return min(linear / square, 1.0) if square > 0.0 else 1.0


def best_multiple(problem: Problem, W: Float64Array, linear: float) -> tuple[float, float]:
    """Return the best share of a dual point with this W(A) and linear term, and what D is there at least."""
    square = problem.lam * squared_norm(W)
    share = best_share(linear, square)
    return share, share * linear - 0.5 * share * share * square
