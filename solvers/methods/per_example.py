"""Frank-Wolfe with away or pairwise steps inside the domain of every example.

The other reading of these names on a product of polytopes (`topline.solvers.methods.active_set` has the
first): not one active set of whole matrices, but one for every example.  This needs A, and with it the
shifted scores where the loss is smoothed.

Sources: S. Lacoste-Julien, M. Jaggi, "On the global linear convergence of Frank-Wolfe optimization variants",
NIPS 2015, algorithms 1 and 2, with one step for all examples.
"""

from __future__ import annotations

from dataclasses import dataclass

from topline.solvers.core.codec import stored
from topline.solvers.core.objective import Objective
from topline.solvers.core.problem import Problem
from topline.solvers.core.state import SolverState
from topline.solvers.methods.base import Advance, Measurement, Method, change_of, measured_at, rises, stepped
from topline.solvers.methods.step_rules import Direction, ExactStep
from topline.solvers.operations import FindDirections, Runner

#: Where the relative gap, or the rise of the dual as a share of the gap, is below these, float32 scores are
#: too coarse to say which vertices are best.
_FINE, _STALLED = 1e-4, 1e-5
#: Directions are made a little shorter than what was best in the round before: the step is then mostly 1, at
#: which vertices leave their sets; and like gradients, they zigzag less.
_SHORTER = 0.6


@stored
@dataclass(frozen=True)
class ColumnMemory:
    """The share of its own best step that an example takes in the next round."""

    length: float = 1.0

    def after(self, direction: Direction) -> ColumnMemory:
        """Return the memory after a round whose best step was slope / curvature."""
        if not (direction.slope > 0 and direction.curvature > 0):
            return self
        return ColumnMemory(
            self.length * min(max(_SHORTER * direction.slope / direction.curvature, 0.1), 2.0)
        )


@dataclass(frozen=True)
class ColumnFrankWolfe(Method):
    """Frank-Wolfe whose examples move inside their own active sets of vertices.

    With `pairwise` an example moves up to the share w_v of its worst vertex v to the new vertex u,
    w_v (u - v); else it goes towards u, or away from v by up to (alpha - v) w_v / (1 - w_v), whichever is
    steeper.  Each goes as far as is best for it alone, times a length that all share and that follows from
    the steps so far; then one exact step g in [0, 1] is taken along the sum.  A set holds 16 vertices at
    most, beyond which the one of smallest share becomes part of a dense point; after a checkpoint is loaded
    the sets are new ones that make the loaded rows.  A is in float64.
    """

    pairwise: bool

    def measure(self, problem: Problem, run: Runner, state: SolverState) -> Measurement:
        """Measure W, and find the directions on the way; with smoothing too the gap is the true one."""
        point = state.point
        stats = run(
            FindDirections(
                round=point.round,
                W=point.W,
                pending_step=point.pending_step,
                pairwise=self.pairwise,
                length=state.recalled(ColumnMemory).length,
                exact=point.exact,
            )
        )
        # The blocks know |A|^2 of the A they hold; the recursion for it is only needed between rounds.
        mean_sq_dual = stats.alpha_sq / problem.n
        primal = problem.primal(point.W, stats.loss / problem.n)
        dual = problem.dual(point.W, point.conjugate_mean, mean_sq_dual)
        return measured_at(problem, state, stats, Objective(primal, dual), mean_sq_dual=mean_sq_dual)

    def advance(self, problem: Problem, _run: Runner, measured: Measurement) -> Advance:
        """Step along the sum of the directions."""
        before, stats = measured.before, measured.stats
        direction = change_of(problem, before.W, stats)
        step = ExactStep().step(before.round, direction)
        rise = direction.rise(step)
        gap = measured.primal - measured.dual
        coarse = measured.below_float32(_FINE) or rise < _STALLED * min(gap, measured.dual + rise)
        return Advance(
            step=step,
            point=stepped(before.point, direction, step),
            memory=before.recalled(ColumnMemory).after(direction),
            active=stats.active,
            passes=0,
            spent=not rises(direction) if before.point.exact else coarse,
        )


def unfit_for_columns(problem: Problem) -> str | None:
    """Return why a loss has no active sets of ranked lists; None where it has."""
    if problem.form.sparse_vertices:
        return None
    return (
        f"keeps the vertices of an example as ranked lists of classes, which {problem.loss.name} does not "
        "have; use fw_away or fw_pairwise"
    )
