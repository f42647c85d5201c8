"""The final numbers of an iterate: P, D and the gap, from float64 products and not from the rounds' sums."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from topline.solvers.core.problem import HasGap, Problem, refuse_reversed
from topline.solvers.core.requests import EvaluateRequest, RebuildRequest
from topline.solvers.core.state import SolverState
from topline.solvers.errors import StateLostError
from topline.solvers.executors import Executor
from topline.solvers.typing import Float64Array

#: A gap below minus this share of the terms that it is the difference of is a mistake, not rounding.
_ROUNDING = 1e-9
#: The same where A was rounded to float32 and so is feasible only to that precision.
_ROUNDING_FLOAT32 = 1e-6


@dataclass(frozen=True, eq=False)
class FinalValues(HasGap):
    """An iterate and its objective values; gap is the true one, smoothed_gap its bound with smoothing.

    `W_dual` is the W(A) that D belongs to, where it is not W.  Where the loss is not convex `stationarity` is
    |grad P(W)| / |grad P(0)|, and b, D and the gaps are NaN.
    """

    W: Float64Array
    conjugate_mean: float
    primal: float
    dual: float
    smoothed_gap: float
    W_dual: Float64Array | None = None
    stationarity: float | None = None

    @property
    def finite(self) -> bool:
        """Whether P and what is said about its distance from the optimum are numbers."""
        bound = self.dual if self.stationarity is None else self.stationarity
        return math.isfinite(self.primal) and math.isfinite(bound)


def rebuild(
    problem: Problem, executor: Executor, state: SolverState, *, inside: bool = False
) -> tuple[Float64Array, float, float]:
    """Return W(A), b and |A|^2 / n of the stored A (eq. 2 and 3 of `core.problem`); put `inside` if asked."""
    stats = executor.run(RebuildRequest(state.pending_step, exact=state.exact, inside=inside))
    if stats.product is None or stats.rows != problem.n:
        raise StateLostError(f"the rebuilt sum covers {stats.rows} of {problem.n} rows; run it again")
    return problem.scale * stats.product, stats.conjugate_u / problem.n, stats.alpha_sq / problem.n


def final_values(
    problem: Problem, executor: Executor, state: SolverState, *, duals_kept: bool
) -> FinalValues:
    """Measure a state: W and b as they are without A, rebuilt from A where it is kept.

    Raises CertificateError where D exceeds P by more than rounding.
    """
    W, conjugate_mean, mean_sq_dual = (
        rebuild(problem, executor, state) if duals_kept else (state.W, state.conjugate_mean, 0.0)
    )
    if not (np.isfinite(W).all() and math.isfinite(conjugate_mean)):
        return FinalValues(
            W=W, conjugate_mean=conjugate_mean, primal=math.nan, dual=math.nan, smoothed_gap=math.nan
        )
    stats = executor.run(EvaluateRequest(W, state.pending_step))
    primal = problem.primal(W, stats.loss / problem.n)
    dual = problem.dual(W, conjugate_mean, mean_sq_dual)
    smoothed_gap = problem.primal_bound(W, mean_sq_dual, stats.shifted_loss / problem.n) - dual
    values = FinalValues(
        W=W, conjugate_mean=conjugate_mean, primal=primal, dual=dual, smoothed_gap=smoothed_gap
    )
    return checked_order(values, _ROUNDING_FLOAT32 if duals_kept else _ROUNDING)


def checked_order(values: FinalValues, share: float = _ROUNDING) -> FinalValues:
    """Return the values; CertificateError where D exceeds P by more than this share of their terms."""
    refuse_reversed(values.primal, values.dual, abs(values.primal) + abs(values.conjugate_mean), share)
    return values
