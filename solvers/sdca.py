"""Plain stochastic dual coordinate ascent (Lapin's thesis, algorithm 1), as a method beside the others.

What a round measures, and how the changes of several blocks become one step, it shares with dual_ascent; only
what a block does is plain: one visit of every row, each of them with the scores of that row alone.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from solvers.dual_ascent import DualAscent
from solvers.orders import Order, SdcaOrder
from solvers.state import SolverState


@dataclass(frozen=True)
class Sdca(DualAscent):
    """Dual ascent by one plain pass a round."""

    def _order(self, state: SolverState) -> Order:
        return SdcaOrder(
            round=state.round,
            W=state.W,
            commit=state.commit,
            spread=math.sqrt(self.blocks),
            seed=self.seed,
            exact=state.exact,
        )
