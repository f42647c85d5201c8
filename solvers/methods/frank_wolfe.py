"""Frank-Wolfe on the dual: what a round asks of the blocks, and what it makes of their answer."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from topline.solvers.core.dual_points import PendingStep, Summed, best_multiple
from topline.solvers.core.problem import Problem, squared_norm
from topline.solvers.core.state import GapKind, SolverState
from topline.solvers.errors import StateLostError
from topline.solvers.methods.base import Advance, Measurement, Method, measured_at, product_of, rises, stepped
from topline.solvers.methods.certificate import FinalValues, of_best_share, with_best_primal
from topline.solvers.methods.step_rules import Direction, StepRule
from topline.solvers.operations import FindVertices, OperationRunner, Runner, VertexSums

#: A relative gap from which on products and A are in float64.
_SINGLE = 1e-5


@dataclass(frozen=True)
class FrankWolfe(Method):
    """Frank-Wolfe with a step rule (Tajima et al., algorithm 1).

    Without smoothing it needs no A: W, b and the two sums of U say everything.  With smoothing four sums do.
    """

    rule: StepRule

    def measure(self, problem: Problem, run: Runner, state: SolverState) -> Measurement:
        """Measure W, and find the vertex on the way."""
        if problem.smoothing == 0 and not problem.form.sparse_vertices:
            # Rounded to float32 a dense vertex lies outside its domain, and so would W and b, for ever.
            state = replace(state, exact=True)
        stats = run(
            FindVertices(round=state.round, W=state.W, pending_step=state.pending_step, exact=state.exact)
        )
        # The blocks know |A|^2 of the A they hold; the recursion for it is only needed between rounds.
        mean_sq_dual = stats.alpha_sq / problem.n
        primal = problem.primal_bound(state.W, mean_sq_dual, stats.loss / problem.n)
        dual = problem.dual(state.W, state.conjugate_mean, mean_sq_dual)
        kind: GapKind = "lifted" if problem.smoothing > 0 else "true"
        if self.rule.exact:
            return measured_at(problem, state, stats, primal, dual, kind, mean_sq_dual=mean_sq_dual)
        # Steps that no value decides may take D far down: the best of all multiples of A is kept.
        linear = state.conjugate_mean - 0.5 * problem.smoothing * mean_sq_dual
        share, multiple = best_multiple(problem, state.W, linear)
        return measured_at(
            problem, state, stats, primal, max(dual, multiple), kind,
            point=Summed(share * state.W, share * linear), mean_sq_dual=mean_sq_dual,
        )  # fmt: skip

    def advance(self, problem: Problem, _run: Runner, measured: Measurement) -> Advance:
        """Step towards the vertex."""
        before = measured.before
        direction = self._direction(problem, before, measured.stats)
        step = self.rule.step(before.round, direction)
        gap, stuck = measured.primal - measured.dual, self.rule.exact and not rises(direction)
        after = self._advance(problem, before, direction, step)
        return Advance(
            step=step,
            # A round that brings nothing in float32 is the occasion to go over to float64, not the end.
            moved=not (stuck and before.exact),
            after=replace(after, exact=before.exact or stuck or gap < _SINGLE * abs(measured.primal)),
            active=measured.stats.active,
            passes=0,
        )

    def final(
        self,
        problem: Problem,
        executor: OperationRunner,
        state: SolverState,
        *,
        duals_kept: bool,
    ) -> FinalValues:
        """Return the final values; where D may have fallen, of the best of the multiples of A."""
        if self.rule.exact or not duals_kept:
            return super().final(problem, executor, state, duals_kept=duals_kept)
        dual = of_best_share(problem, executor, state)
        return with_best_primal(problem, executor, state, dual, duals_kept=True)

    def _direction(self, problem: Problem, state: SolverState, stats: VertexSums) -> Direction:
        alpha_u = stats.alpha_u / problem.n
        weights = problem.scale * product_of(stats) - state.W
        direction = Direction.of(
            problem,
            state.W,
            weights=weights,
            linear=stats.conjugate_u / problem.n - state.conjugate_mean,
            cross=alpha_u - state.mean_sq_dual,
            square=stats.u_sq / problem.n - 2.0 * alpha_u + state.mean_sq_dual,
        )
        # Its sums are themselves differences.
        return replace(
            direction,
            terms=direction.terms + abs(state.conjugate_mean) + problem.smoothing * state.mean_sq_dual,
        )

    def _advance(
        self, problem: Problem, state: SolverState, direction: Direction, step: float
    ) -> SolverState:
        """Go `step` along the direction, then back into the ball where the rule asks for it."""
        after = stepped(state, direction, step)
        shrink = _shrink_to_ball(problem, after) if self.rule.projects else 1.0
        return replace(
            after,
            W=shrink * after.W,
            conjugate_mean=shrink * after.conjugate_mean,
            mean_sq_dual=shrink * shrink * after.mean_sq_dual,
            pending_step=PendingStep(round=state.round, step=step, shrink=shrink),
        )


def _shrink_to_ball(problem: Problem, state: SolverState) -> float:
    """Return s <= 1 such that |s W~|^2 <= P(0)/lam, with |W~|^2 = |W|^2 + (gamma/lam) aa.

    The optimum lies inside: lam |W~*|^2 = b* - loss* <= P(0).  Scaling keeps A feasible, for 0 is.
    """
    if state.loss_at_zero is None:
        raise StateLostError("the state does not hold the loss at zero, which its first round found")
    norm_sq = squared_norm(state.W) + problem.smoothing / problem.lam * state.mean_sq_dual
    radius_sq = state.loss_at_zero / problem.lam
    return math.sqrt(radius_sq / norm_sq) if norm_sq > radius_sq else 1.0
