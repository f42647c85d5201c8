"""Frank-Wolfe on the dual: what a round asks of the blocks, and what it makes of their answer."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from topline.solvers.core.dual_points import PendingStep, Summed, best_multiple
from topline.solvers.core.objective import Objective
from topline.solvers.core.problem import Problem, squared_norm
from topline.solvers.core.state import Point, SolverState
from topline.solvers.errors import StateLostError
from topline.solvers.methods.base import Advance, Measurement, Method, measured_at, product_of, rises, stepped
from topline.solvers.methods.certificate import FinalValues, of_best_share, with_best_primal
from topline.solvers.methods.step_rules import Direction, StepRule
from topline.solvers.operations import FindVertices, OperationRunner, Runner, VertexSums


@dataclass(frozen=True)
class FrankWolfe(Method):
    """Frank-Wolfe with a step rule (Tajima et al., algorithm 1).

    Without smoothing it needs no A: W, b and the two sums of U say everything.  With smoothing four sums do.
    """

    rule: StepRule

    def needs_float64(self, problem: Problem) -> bool:
        """Return whether vertices are dense: float32 would take them, W and b out of their domain."""
        return problem.smoothing == 0 and not problem.form.sparse_vertices

    def measure(self, problem: Problem, run: Runner, state: SolverState) -> Measurement:
        """Measure W, and find the vertex on the way."""
        point = state.point
        stats = run(FindVertices(point.round, point.W, point.pending_step, exact=point.exact))
        # The blocks know |A|^2 of the A they hold; the recursion for it is only needed between rounds.
        mean_sq_dual = stats.alpha_sq / problem.n
        primal = problem.primal_bound(point.W, mean_sq_dual, stats.loss / problem.n)
        dual = problem.dual(point.W, point.conjugate_mean, mean_sq_dual)
        objective = Objective(primal, dual, "lifted" if problem.smoothing > 0 else "true")
        if self.rule.exact:
            return measured_at(problem, state, stats, objective, mean_sq_dual=mean_sq_dual)
        # Steps that no value decides may take D far down: the best of all multiples of A is kept.
        linear = point.conjugate_mean - 0.5 * problem.smoothing * mean_sq_dual
        share, multiple = best_multiple(problem, point.W, linear)
        return measured_at(
            problem, state, stats, replace(objective, dual=max(dual, multiple)),
            dual_point=Summed(share * point.W, share * linear), mean_sq_dual=mean_sq_dual,
        )  # fmt: skip

    def advance(self, problem: Problem, _run: Runner, measured: Measurement) -> Advance:
        """Step towards the vertex."""
        before = measured.before
        direction = self._direction(problem, before.point, measured.stats)
        step = self.rule.step(before.round, direction)
        stuck = self.rule.exact and not rises(direction)
        return Advance(
            step=step,
            point=self._stepped(problem, before, direction, step),
            memory=None,
            active=measured.stats.active,
            passes=0,
            spent=stuck or (not before.point.exact and measured.below_float32()),
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

    def _direction(self, problem: Problem, point: Point, stats: VertexSums) -> Direction:
        alpha_u = stats.alpha_u / problem.n
        weights = problem.scale * product_of(stats) - point.W
        direction = Direction.of(
            problem,
            point.W,
            weights=weights,
            linear=stats.conjugate_u / problem.n - point.conjugate_mean,
            cross=alpha_u - point.mean_sq_dual,
            square=stats.u_sq / problem.n - 2.0 * alpha_u + point.mean_sq_dual,
        )
        # Its sums are themselves differences.
        return replace(
            direction,
            terms=direction.terms + abs(point.conjugate_mean) + problem.smoothing * point.mean_sq_dual,
        )

    def _stepped(self, problem: Problem, before: SolverState, direction: Direction, step: float) -> Point:
        """Go `step` along the direction, then back into the ball where the rule asks for it."""
        after = stepped(before.point, direction, step)
        shrink = _shrink_to_ball(problem, after, before.loss_at_zero) if self.rule.projects else 1.0
        return replace(
            after,
            W=shrink * after.W,
            conjugate_mean=shrink * after.conjugate_mean,
            mean_sq_dual=shrink * shrink * after.mean_sq_dual,
            pending_step=PendingStep(round=before.round, step=step, shrink=shrink),
        )


def _shrink_to_ball(problem: Problem, point: Point, loss_at_zero: float | None) -> float:
    """Return s <= 1 such that |s W~|^2 <= P(0)/lam, with |W~|^2 = |W|^2 + (gamma/lam) aa.

    The optimum lies inside: lam |W~*|^2 = b* - loss* <= P(0).  Scaling keeps A feasible, for 0 is.
    """
    if loss_at_zero is None:
        raise StateLostError("the state does not hold the loss at zero, which its first round found")
    norm_sq = squared_norm(point.W) + problem.smoothing / problem.lam * point.mean_sq_dual
    radius_sq = loss_at_zero / problem.lam
    return math.sqrt(radius_sq / norm_sq) if norm_sq > radius_sq else 1.0
