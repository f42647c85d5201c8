"""What the coordinator asks of every block, once a round.

Orders are values: they can be sent to another machine, sent again, and compared.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from solvers.typing import Float64Array


@dataclass(frozen=True)
class Commit:
    """The step that the coordinator took in `round`: A <- shrink * ((1 - step) A + step U).

    U is what the block found in that round.  A block applies it at the start of a later order, once: the
    round number tells it whether it has already done so.
    """

    round: int
    step: float
    shrink: float = 1.0


@dataclass(frozen=True, eq=False)
class OracleOrder:
    """Find the Frank-Wolfe vertex U at W (d, m), after applying `commit`."""

    round: int
    W: Float64Array
    commit: Commit | None = None


@dataclass(frozen=True, eq=False)
class EvaluateOrder:
    """Sum the losses at W (d, m) with float64 products, after applying `commit`; U and A stay as they are."""

    W: Float64Array
    commit: Commit | None = None


@dataclass(frozen=True)
class RebuildOrder:
    """Sum x_i alpha_i^T, b(alpha_i) and |alpha_i|^2 from the stored A with float64 products."""

    commit: Commit | None = None


#: Everything that `Block.run` understands.  Another method adds its order here and its branch there.
Order: TypeAlias = OracleOrder | EvaluateOrder | RebuildOrder
