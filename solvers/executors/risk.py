"""An executor that answers for the average top-k risk what others answer for the mean.

At W it asks the blocks for the k largest losses of all, and then for the vertices of those rows, each with
the weight w_i = n p_i (`topline.solvers.core.risks`).  The answer has the sums of an OracleRequest, and its
loss is n times the risk: the methods' arithmetic stays as it is.  The rows are named to the blocks, which
choose nothing, so that p is feasible whatever rounding does to a loss that is computed again, on another
machine perhaps.
"""

from __future__ import annotations

from dataclasses import replace

from topline.solvers.core.block_stats import BlockStats
from topline.solvers.core.heads import HeadsProblem
from topline.solvers.core.problem import Problem
from topline.solvers.core.requests import (
    EvaluateRequest,
    LossesRequest,
    OracleRequest,
    Request,
    SelectedRowsRequest,
)
from topline.solvers.core.risks import AverageTopK, LargestLosses
from topline.solvers.core.rows import RowSource
from topline.solvers.errors import StateLostError
from topline.solvers.executors.base import Executor
from topline.solvers.executors.wrapped import WrappedExecutor
from topline.solvers.typing import Float64Array, IntArray


class TopLossExecutor(WrappedExecutor):
    """The blocks of another executor, which is bound to a problem with this risk."""

    def __init__(self, executor: Executor, problem: Problem, risk: AverageTopK) -> None:
        super().__init__(executor)
        self._n, self._risk = problem.n, risk

    def bind(
        self,
        problem: Problem | HeadsProblem,
        X: RowSource,
        y: IntArray,
        *,
        keep_duals: bool,
        weights: Float64Array | None = None,
    ) -> None:
        """Bind the executor."""
        super().bind(problem, X, y, keep_duals=keep_duals, weights=weights)
        self._n = problem.n

    def run(self, request: Request) -> BlockStats:
        """Answer a request at W on the rows of the largest losses, any other as it is."""
        match request:
            case OracleRequest():
                return self._find_vertex(request)
            case EvaluateRequest():
                stats = self._executor.run(LossesRequest(request.W, self._risk.rows, request.exact))
                return self._with_risk(stats, stats)
            case _:
                return self._executor.run(request)

    def _find_vertex(self, request: OracleRequest) -> BlockStats:
        found = self._executor.run(LossesRequest(request.W, self._risk.rows, request.exact))
        rows = self._risk.selected(self._largest(found), self._n)
        stats = self._executor.run(SelectedRowsRequest(request.W, rows, request.exact))
        if stats.rows != len(rows):
            raise StateLostError(
                f"the vertex covers {stats.rows} of the {len(rows)} rows that were selected; run it again"
            )
        stats = replace(
            stats,
            seconds_products=stats.seconds_products + found.seconds_products,
            seconds_kernels=stats.seconds_kernels + found.seconds_kernels,
        )
        return self._with_risk(stats, found)

    def _with_risk(self, stats: BlockStats, found: BlockStats) -> BlockStats:
        """Put n times the risk in the place of the sum of the losses."""
        largest = self._largest(found)
        weights = self._risk.selected(largest, self._n).weights
        loss = float(weights @ largest.losses)
        return replace(stats, loss=loss, shifted_loss=loss, largest=None)

    def _largest(self, found: BlockStats) -> LargestLosses:
        if found.largest is None or len(found.largest.rows) != self._risk.rows or found.rows != self._n:
            raise StateLostError(
                f"the largest losses cover {found.rows} of {self._n} rows; run the round again"
            )
        return found.largest
