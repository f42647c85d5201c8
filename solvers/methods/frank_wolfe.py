"""Frank-Wolfe on the dual: a set of atoms times a step rule.

| class | atoms | a step |
|---|---|---|
| `FrankWolfe` | none | towards the vertex: exact, or by a schedule |
| `AtomFrankWolfe` | whole matrices U_t, for all examples together | new weights of the atoms, by their rule |
| `ColumnFrankWolfe` | vertices of each example | away or pairwise in the set of each, of one length |

The requests of a round of `AtomFrankWolfe` are methods to override, as `topline.solvers.methods.kernel` does.

Sources: Tajima et al., algorithm 1; S. Lacoste-Julien, M. Jaggi, "On the global linear convergence of
Frank-Wolfe optimization variants", NIPS 2015, algorithms 1 and 2; C. Lemarechal, A. Nemirovskii, Y. Nesterov,
"New variants of bundle methods", 1995, for the model of `FullyCorrective`; W. Ben-Ameur, J. Neto,
"Acceleration of cutting-plane and column generation algorithms", 2007, for `AtomFrankWolfe.share`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np

from topline.solvers.core.answers import VectorSums
from topline.solvers.core.codec import stored
from topline.solvers.core.dual_points import PendingStep, Summed, best_multiple, best_share
from topline.solvers.core.problem import Problem, squared_norm
from topline.solvers.core.state import FinalValues, Objective, Point, SolverState
from topline.solvers.errors import StateLostError
from topline.solvers.methods.atoms import AtomRule, Atoms, Parts, most_atoms, rise_between
from topline.solvers.methods.base import (
    Advance,
    Measurement,
    Method,
    change_of,
    measured_at,
    product_of,
    rises,
    stepped,
)
from topline.solvers.methods.certificate import DualSide, of_rows, with_best_primal
from topline.solvers.methods.step_rules import Direction, ExactStep, StepRule
from topline.solvers.operations import (
    FindDirections,
    FindVertices,
    OperationRunner,
    Runner,
)

#: Share of the gap by which float32 losses may disagree with the slope, which is the same number.
_DISAGREEMENT = 0.1
#: Relative gap, and rise over the gap, below which float32 scores are too coarse to choose rows' vertices.
_FINE, _STALLED = 1e-4, 1e-5
#: Directions of rows are slightly shorter than the last round's best: the step is then mostly 1, at which
#: vertices leave their sets, and directions zigzag less.
_SHORTER = 0.6


@dataclass(frozen=True)
class FrankWolfe(Method):
    """Frank-Wolfe with a step rule and no atoms.

    Without smoothing it needs no A: W, b and the two sums of U suffice.  With smoothing four sums do.
    """

    rule: StepRule = field(default_factory=ExactStep)

    def needs_float64(self, problem: Problem) -> bool:
        """Return whether vertices are dense: float32 would move them, W and b out of their domain."""
        return problem.smoothing == 0 and not problem.form.sparse_vertices

    def measure(self, problem: Problem, run: Runner, state: SolverState) -> Measurement:
        """Measure W, and find the vertex in the same pass."""
        point = state.point
        stats = run(FindVertices(point.round, point.W, point.pending_step, exact=point.exact))
        measured = _measured_by_duals(problem, state, stats, lifted=True)
        if self.rule.exact:
            return measured
        # Scheduled steps may lower D far: the best of all multiples of A is kept.
        linear = point.conjugate_mean - 0.5 * problem.smoothing * measured.before.point.mean_sq_dual
        share, multiple = best_multiple(problem, point.W, linear)
        objective = replace(measured.objective, dual=max(measured.dual, multiple))
        return replace(measured, objective=objective, dual_point=Summed(share * point.W, share * linear))

    def advance(self, problem: Problem, _run: Runner, measured: Measurement) -> Advance:
        """Step towards the vertex; blocks take the step when they are asked next."""
        before = measured.before
        direction = self.direction(problem, measured)
        step = self.rule.step(before.round, direction)
        advance = self.land(problem, measured, direction, step)
        return replace(advance, spent=self.spent(measured, direction, step))

    def direction(self, problem: Problem, measured: Measurement) -> Direction:
        """Return the direction to the vertices."""
        point, stats = measured.before.point, measured.stats
        alpha_u = stats.alpha_u / problem.n
        direction = Direction.of(
            problem,
            point.W,
            weights=problem.scale * product_of(stats) - point.W,
            linear=stats.conjugate_u / problem.n - point.conjugate_mean,
            cross=alpha_u - point.mean_sq_dual,
            square=stats.u_sq / problem.n - 2.0 * alpha_u + point.mean_sq_dual,
        )
        # The sums are themselves differences.
        terms = direction.terms + abs(point.conjugate_mean) + problem.smoothing * point.mean_sq_dual
        return replace(direction, terms=terms)

    def land(self, problem: Problem, measured: Measurement, direction: Direction, step: float) -> Advance:
        """Take `step` along the direction, then project on the ball if the rule asks for it."""
        before = measured.before
        after = stepped(before.point, direction, step)
        if self.rule.projects:
            shrink = _shrink_to_ball(problem, after, before.loss_at_zero)
            after = replace(
                after,
                W=shrink * after.W,
                conjugate_mean=shrink * after.conjugate_mean,
                mean_sq_dual=shrink * shrink * after.mean_sq_dual,
                pending_step=PendingStep(round=before.round, step=step, shrink=shrink),
            )
        return Advance(step, after, None, measured.stats.active, passes=0)

    def spent(self, measured: Measurement, direction: Direction, _step: float) -> bool:
        """Return whether products of this precision allow no further progress."""
        if self.rule.exact and not rises(direction):
            return True
        return not measured.before.point.exact and measured.below_float32()

    def final(
        self, problem: Problem, executor: OperationRunner, state: SolverState, tol: float = 0.0
    ) -> FinalValues:
        """Return the final values, of the best multiple of A if D may have fallen."""
        if self.rule.exact or not executor.keeps_duals:
            return super().final(problem, executor, state, tol)
        dual = of_rows(problem, executor, state)
        square = problem.lam * squared_norm(dual.W) + problem.smoothing * dual.mean_sq_dual
        share = best_share(dual.conjugate_mean, square)
        dual = of_rows(problem, executor, state, share) if share < 1.0 else dual
        return with_best_primal(problem, executor, state, dual, duals_kept=True)


def _measured_by_duals(
    problem: Problem, state: SolverState, stats: VectorSums, *, lifted: bool
) -> Measurement:
    """Return the measurement of a W(A) whose loss is that at scores lifted by gamma A, or the true one.

    The blocks know |A|^2 of their A; the recursion for it is only needed between rounds.
    """
    point, mean_sq_dual = state.point, stats.alpha_sq / problem.n
    primal = problem.primal_bound(point.W, mean_sq_dual if lifted else 0.0, stats.loss / problem.n)
    dual = problem.dual(point.W, point.conjugate_mean, mean_sq_dual)
    objective = Objective(primal, dual, "lifted" if lifted and problem.smoothing > 0 else "true")
    return measured_at(problem, state, stats, objective, mean_sq_dual=mean_sq_dual)


def _shrink_to_ball(problem: Problem, point: Point, loss_at_zero: float | None) -> float:
    """Return s <= 1 such that |s W~|^2 <= P(0)/lam, with |W~|^2 = |W|^2 + (gamma/lam) aa.

    The optimum lies inside: lam |W~*|^2 = b* - loss* <= P(0).  Scaling keeps A feasible, for 0 is.
    """
    if loss_at_zero is None:
        raise StateLostError("the state does not hold the loss at zero, which its first round found")
    norm_sq = squared_norm(point.W) + problem.smoothing / problem.lam * point.mean_sq_dual
    radius_sq = loss_at_zero / problem.lam
    return math.sqrt(radius_sq / norm_sq) if norm_sq > radius_sq else 1.0


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
class ColumnFrankWolfe(FrankWolfe):
    """Frank-Wolfe whose examples move inside their own active sets of vertices.

    The other reading of away and pairwise steps on a product of polytopes: an active set for every example
    instead of one of whole matrices.  This needs A, and with it the shifted scores if the loss is smoothed.
    With `pairwise` an example moves up to the share w_v of its worst vertex v to the new vertex u, w_v (u -
    v); otherwise it goes towards u, or away from v by up to (alpha - v) w_v / (1 - w_v), whichever is
    steeper.  Each goes as far as is best for it alone, times a common length that adapts to the steps so far;
    then one exact step g in [0, 1] is taken along the sum.  A set holds at most 16 vertices, beyond which the
    one of smallest share is merged into a dense point; a loaded checkpoint starts new sets that reproduce its
    rows.  A is in float64.
    """

    pairwise: bool = field(kw_only=True)

    def needs_float64(self, _problem: Problem) -> bool:
        """Return False: only A is in float64 from the start."""
        return False

    def measure(self, problem: Problem, run: Runner, state: SolverState) -> Measurement:
        """Measure W and find the directions in the same pass; the gap is the true one even with smoothing."""
        point, length = state.point, state.recalled(ColumnMemory).length
        stats = run(
            FindDirections(point.round, point.W, point.pending_step, self.pairwise, length, point.exact)
        )
        return _measured_by_duals(problem, state, stats, lifted=False)

    def direction(self, problem: Problem, measured: Measurement) -> Direction:
        """Return the sum of the directions of the examples."""
        return change_of(problem, measured.before.W, measured.stats)

    def land(self, problem: Problem, measured: Measurement, direction: Direction, step: float) -> Advance:
        """Step along the sum of the directions, and choose the length for the next round."""
        memory = measured.before.recalled(ColumnMemory).after(direction)
        return replace(super().land(problem, measured, direction, step), memory=memory)

    def spent(self, measured: Measurement, direction: Direction, step: float) -> bool:
        """Return whether scores of this precision are too coarse to choose vertices."""
        if measured.before.point.exact:
            return not rises(direction)
        rise, gap = direction.rise(step), measured.primal - measured.dual
        return measured.below_float32(_FINE) or rise < _STALLED * min(gap, measured.dual + rise)


def unfit_for_columns(problem: Problem) -> str | None:
    """Return why a loss has no active sets of ranked lists; None if it has."""
    if problem.form.sparse_vertices:
        return None
    return (
        f"keeps the vertices of an example as ranked lists of classes, which {problem.loss.name} does not "
        "have; use fw_away or fw_pairwise"
    )


@stored
@dataclass(frozen=True, eq=False)
class AtomMemory:
    """Atoms, None before the first round; whether the next vertex is sought on the way to their mixture."""

    atoms: Atoms | None = None
    between: bool = False


class Joined(NamedTuple):
    """Atoms, the same plus the new vertex at the index `newest`, and the number of examples with a loss."""

    atoms: Atoms
    more: Atoms
    newest: int
    active: int
    found: Any = None


class Mixture(NamedTuple):
    """New weights of atoms: which atoms to keep, with the vertex, the slope towards it, and the step.

    `raised` says whether D rises; otherwise the atoms are those without the vertex.
    """

    atoms: Atoms
    kept: Sequence[Parts]
    slope: float
    step: float
    raised: bool


@dataclass(frozen=True)
class AtomFrankWolfe(Method):
    """Frank-Wolfe with a memory of its atoms; W and b of the state are those of their mixture.

    A round requests the vertex U at W of the smoothed loss itself, so neither shifted scores nor A are
    needed.  The rest is arithmetic on the atoms' Gram matrix, for any number of examples.  If the loss is
    smoothed or its conjugate is nonlinear, D is a lower bound of the dual at the mixture of atoms: P - D is
    still a true gap.

    It keeps up to `atoms.most_atoms` of them, T d m numbers in all; beyond that the two lightest are merged.
    Dense vertices (of smoothed losses, the entropies and one-vs-all) come from float64 products, because
    atoms rounded to float32 would bound nothing; ranked ones are exact in any case, and float64 begins when
    float32 losses are too coarse for the gap.  For a risk other than the mean products are float64 from the
    start and every atom keeps the W at which it was found, from which it and the certificate can be
    recomputed.

    Fully corrective weights are those of a bundle method.  Atoms are cutting planes of P: at any W, P(W) >=
    lam/2 |W|^2 + b_t - lam <W, W_t>.  The point of their best mixture minimises this model, and its dual
    value bounds P from below; but vertices sought there lie far apart while the model is poor, as it is for a
    risk other than the mean.  They are then sought on the way from the best W so far to that point, which
    lowers P at once where the model is right about the way, and otherwise cuts the point off; a vertex that
    does neither sends the next search to the point itself.  A third of the way takes half of the rounds of
    the whole way if a tenth or more of the losses count, nine tenths of them if one in a hundred does.
    """

    rule: AtomRule
    #: Share of the way from the best W to that of the mixture at which the next vertex is sought.
    share: float = 1.0

    def needs_float64(self, problem: Problem) -> bool:
        """Return whether vertices are dense, or atoms must be recomputable."""
        return not (problem.form.sparse_vertices and problem.smoothing == 0 and problem.mean_risk)

    def measure(self, problem: Problem, run: Runner, state: SolverState) -> Measurement:
        """Measure P where the vertex is sought, and find it in the same pass; D is that of the mixture."""
        point, best = state.point, state.best.W
        W = point.W
        if self.share != 1.0 and best is not None and state.recalled(AtomMemory).between:
            W = np.asarray(best + self.share * (point.W - best))
        stats = run(FindVertices(round=point.round, W=W, envelope=True, exact=point.exact))
        primal = problem.primal(W, stats.loss / problem.n)
        dual = problem.dual(point.W, point.conjugate_mean, point.mean_sq_dual)
        measured = measured_at(problem, state, stats, Objective(primal, dual))
        return measured if W is point.W else replace(measured, W=W)

    @np.errstate(over="ignore", invalid="ignore")
    def advance(self, problem: Problem, run: Runner, measured: Measurement) -> Advance:
        """Add the vertex to the atoms and give them new weights."""
        joined = self.joined(problem, run, measured)
        atoms, more = joined.atoms, joined.more
        kept: Sequence[Parts] = [((place, 1.0),) for place in range(len(atoms))]
        slope, rising = more.slope_to(joined.newest)
        step, raised = 0.0 if math.isfinite(slope) else math.nan, False
        if rising:
            weights, step = self.rule.reweigh(more, joined.newest)
            raised = rise_between(more.gram, more.conjugate_means, more.weights, weights) > 0
            if raised:
                kept = more.to_keep(weights, self.rule.idle, self.most(problem))
                atoms = more.mixed(weights, kept)
        mixture = Mixture(atoms, kept, slope, step, raised)
        advance = self.land(problem, run, measured, joined, mixture)
        return replace(advance, spent=self.spent(measured, mixture))

    def most(self, problem: Problem) -> int:
        """Return the largest number of atoms."""
        return most_atoms(problem.d, problem.m)

    def joined(self, problem: Problem, run: Runner, measured: Measurement) -> Joined:  # noqa: ARG002
        """Return the atoms with the vertex that the measurement found."""
        state, stats = measured.before, measured.stats
        atoms = atoms_of(problem, state)
        W, b = problem.scale * product_of(stats), stats.conjugate_u / problem.n
        found_at = state.W if measured.W is None else measured.W
        more, newest = atoms.with_atom(problem.lam, W, b, found_at)
        return Joined(atoms, more, newest, stats.active)

    def land(
        self,
        problem: Problem,
        run: Runner,  # noqa: ARG002 - nothing is kept in blocks
        measured: Measurement,
        joined: Joined,
        mixture: Mixture,
    ) -> Advance:
        """Move to the new mixture; stay if no weights raise D, and go to NaN after an overflow."""
        before = measured.before.point
        # Other methods keep b and |A|^2 separate; atoms combine them.
        W, linear = before.W, _linear(problem, before)
        if mixture.raised:
            W, linear = mixture.atoms.point()
        elif math.isnan(mixture.step):
            W = math.nan * W
        point = replace(before, round=before.round + 1, W=W, conjugate_mean=linear, mean_sq_dual=0.0)
        memory = AtomMemory(mixture.atoms, between=mixture.raised)
        return Advance(mixture.step, point, memory, joined.active, passes=0)

    def spent(self, measured: Measurement, mixture: Mixture) -> bool:
        """Return whether products of this precision allow no further progress."""
        before, gap = measured.before.point, measured.primal - measured.dual
        coarse = abs(mixture.slope - gap) > _DISAGREEMENT * abs(mixture.slope)
        # If the vertex at the mixture itself gives no rise, the mixture is the optimum.
        ended = not mixture.raised and (measured.W is None or np.array_equal(measured.W, before.W))
        return ended or (coarse and not before.exact)

    def final(
        self, problem: Problem, executor: OperationRunner, state: SolverState, _tol: float = 0.0
    ) -> FinalValues:
        """Return the best W and the mixture of the atoms in float64."""
        dual = DualSide(state.point.W, _linear(problem, state.point))
        return with_best_primal(problem, executor, state, dual, duals_kept=False)


def atoms_of(problem: Problem, state: SolverState) -> Atoms:
    """Return the atoms of a state; a point of another method becomes a single atom."""
    atoms, W = state.recalled(AtomMemory).atoms, state.W
    if atoms is not None:
        return atoms
    found_at = None if problem.mean_risk else np.full_like(W[None], np.nan)
    return Atoms.of(_linear(problem, state.point), problem.lam * squared_norm(W), W, found_at)


def _linear(problem: Problem, point: Point) -> float:
    """Return the linear term of D at a point, less the smoothing term."""
    return point.conjugate_mean - 0.5 * problem.smoothing * point.mean_sq_dual
