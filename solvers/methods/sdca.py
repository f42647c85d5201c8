"""Plain stochastic dual coordinate ascent (Lapin's thesis, algorithm 1), as a method beside the others.

What a round measures, and how the changes of several blocks become one step, it shares with dual_ascent; only
what a block does is plain: one visit of every row, each of them with the scores of that row alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from topline.solvers.core.deflation import DeflatedDirection
from topline.solvers.core.requests import Request, SdcaRequest
from topline.solvers.core.state import SolverState
from topline.solvers.methods.dual_ascent import DualAscent
from topline.solvers.typing import Float64Array


@dataclass(frozen=True)
class Sdca(DualAscent):
    """Dual ascent by one plain pass a round."""

    deflates: ClassVar[bool] = False

    def _request(self, state: SolverState, start: Float64Array, _shared: DeflatedDirection | None) -> Request:
        return SdcaRequest(
            round=state.round,
            W=start,
            pending_step=state.pending_step,
            safety_factor=self._safety_factor(state),
            seed=self.seed,
            exact=state.exact,
        )
