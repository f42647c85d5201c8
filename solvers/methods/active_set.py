"""Frank-Wolfe variants over whole-matrix atoms, without A: away steps, pairwise steps, fully corrective.

A round asks the blocks for the vertex U at W, that of the smoothed loss itself, so that no shifted scores and
no A are needed.  All that follows is arithmetic on the atoms' Gram matrix (`topline.solvers.methods.atoms`),
for any number of examples.  Wherever the loss is smoothed or its conjugate is not linear, D is a lower bound
of the dual at the mixture of atoms: P - D is a true gap all the same.

Fully corrective weights are those of a bundle method.  Atoms are cutting planes of P: at any W,
P(W) >= lam/2 |W|^2 + b_t - lam <W, W_t>.  The point of their best mixture minimises this model, and its dual
value bounds P from below; but vertices that are sought there lie far apart while the model is poor, as it is
for another risk than the mean.  They are then sought on the way from the best W so far to that point, which
takes down P at once where the model is right about the way, and else cuts the point off; a vertex that does
neither sends the next search to the point itself.  A third of the way takes half of the rounds of the whole
way where a tenth or more of the losses count, nine tenths where one in a hundred does.

Sources: S. Lacoste-Julien, M. Jaggi, "On the global linear convergence of Frank-Wolfe optimization variants",
NIPS 2015, with the atoms of the code that Tajima et al. released: one for all examples together;
C. Lemarechal, A. Nemirovskii, Y. Nesterov, "New variants of bundle methods", 1995, for the model;
W. Ben-Ameur, J. Neto, "Acceleration of cutting-plane and column generation algorithms", 2007, for the way.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import ClassVar, Protocol, TypeAlias

import numpy as np

from topline.solvers.core.codec import stored
from topline.solvers.core.objective import Objective
from topline.solvers.core.problem import Problem
from topline.solvers.core.state import SolverState
from topline.solvers.methods.atoms import Atoms
from topline.solvers.methods.base import Advance, Measurement, Method, measured_at, product_of, rises, towards
from topline.solvers.methods.certificate import DualSide, FinalValues, with_best_primal
from topline.solvers.methods.simplex_qp import maximise_on_simplex, rise_between
from topline.solvers.operations import FindVertices, OperationRunner, Runner
from topline.solvers.typing import Float64Array

#: Share of the gap by which float32 losses may disagree with the slope, which is the same number.
_DISAGREEMENT = 0.1
#: Share of the terms of <grad D, U_t> within which two atoms are equally good.
_TIE = 1e-12

#: New weights of the atoms, and the step that they are reported as.
Reweighted: TypeAlias = tuple[Float64Array, float]


class WeightedAtoms(Protocol):
    """What a rule looks at: D(w) = <b, w> - 1/2 <w, G w> of atoms with weights w (T,)."""

    @property
    def weights(self) -> Float64Array:
        """The weights w."""
        ...

    @property
    def conjugate_means(self) -> Float64Array:
        """The linear terms b."""
        ...

    @property
    def gram(self) -> Float64Array:
        """G (T, T)."""
        ...


def _gradient(atoms: WeightedAtoms) -> Float64Array:
    """Return <grad D, U_t> for each atom, (T,)."""
    return np.asarray(atoms.conjugate_means - atoms.gram @ atoms.weights)


class AtomRule(Protocol):
    """How the weights of the atoms change when the one at `newest` is the Frank-Wolfe vertex."""

    #: Atoms of weight 0 that are kept, for they may come back.
    idle: ClassVar[int]

    def reweigh(self, atoms: WeightedAtoms, newest: int, /) -> Reweighted:
        """Return new weights (T,) on the simplex, and the step."""
        ...


@dataclass(frozen=True)
class AwaySteps:
    """Go towards the vertex, or away from the worst atom, whichever rises more steeply."""

    idle: ClassVar[int] = 0

    def reweigh(self, atoms: WeightedAtoms, newest: int) -> Reweighted:
        """Return new weights (T,) on the simplex, and the step."""
        gradient, w = _gradient(atoms), atoms.weights
        worst = _worst(atoms, gradient)
        mean = float(gradient @ w)
        if gradient[newest] - mean >= mean - gradient[worst] or w[worst] >= 1.0:
            direction = -w
            direction[newest] += 1.0
            return _step_along(atoms, gradient, direction, newest, 1.0)
        direction = w.copy()
        direction[worst] -= 1.0
        return _step_along(atoms, gradient, direction, worst, w[worst] / (1.0 - w[worst]))


@dataclass(frozen=True)
class PairwiseSteps:
    """Move weight from the worst atom to the vertex."""

    idle: ClassVar[int] = 0

    def reweigh(self, atoms: WeightedAtoms, newest: int) -> Reweighted:
        """Return new weights (T,) on the simplex, and the step."""
        gradient = _gradient(atoms)
        worst = _worst(atoms, gradient)
        direction = np.zeros(len(atoms.weights))
        direction[newest] += 1.0
        direction[worst] -= 1.0
        return _step_along(atoms, gradient, direction, worst, float(atoms.weights[worst]))


@dataclass(frozen=True)
class FullyCorrective:
    """Maximise D over the weights of all atoms; the step is the weight that the vertex gets.

    Thirty idle atoms save a sixth of the passes on digits; more save no more.
    """

    idle: ClassVar[int] = 30

    def reweigh(self, atoms: WeightedAtoms, newest: int) -> Reweighted:
        """Return new weights (T,) on the simplex, and the step."""
        weights = maximise_on_simplex(atoms.gram, atoms.conjugate_means, atoms.weights)
        return weights, float(weights[newest])


@stored
@dataclass(frozen=True, eq=False)
class AtomMemory:
    """Atoms, None before the first round; whether the next vertex is sought on the way to their mixture."""

    atoms: Atoms | None = None
    between: bool = False


@dataclass(frozen=True)
class AtomFrankWolfe(Method):
    """Frank-Wolfe with a memory of its atoms; W and b of the state are those of their mixture.

    It keeps up to `atoms.most_atoms` of them, T d m numbers in all; beyond that the two lightest become one,
    their convex combination, which is a valid atom too.  Dense vertices (of smoothed losses, the entropies
    and one-vs-all) come from float64 products, for atoms that float32 has rounded would bound nothing; ranked
    ones are exact in any case, and float64 begins where float32 losses are too coarse for the gap.  For
    another risk than the mean products are float64 from the start and every atom keeps the W at which it was
    found, from which it can be made again and the certificate with it.
    """

    rule: AtomRule
    #: Share of the way from the best W to that of the mixture at which the next vertex is sought.
    share: float = 1.0

    def needs_float64(self, problem: Problem) -> bool:
        """Return whether vertices are dense, or atoms must be made again."""
        return not (problem.form.sparse_vertices and problem.smoothing == 0 and problem.mean_risk)

    def measure(self, problem: Problem, run: Runner, state: SolverState) -> Measurement:
        """Measure P where the vertex is sought and find it on the way; D is that of the mixture."""
        point, W = state.point, self._sought_at(state)
        stats = run(FindVertices(round=point.round, W=W, envelope=True, exact=point.exact))
        primal = problem.primal(W, stats.loss / problem.n)
        dual = problem.dual(point.W, point.conjugate_mean, point.mean_sq_dual)
        measured = measured_at(problem, state, stats, Objective(primal, dual))
        return measured if W is point.W else replace(measured, W=W)

    def advance(self, problem: Problem, _run: Runner, measured: Measurement) -> Advance:
        """Take the vertex among the atoms and give them new weights."""
        before, stats = measured.before.point, measured.stats
        sought_at = before.W if measured.W is None else measured.W
        # A point of another method may say b and |A|^2 apart; those of atoms are one.
        linear = before.conjugate_mean - 0.5 * problem.smoothing * before.mean_sq_dual
        point = replace(before, round=before.round + 1, conjugate_mean=linear, mean_sq_dual=0.0)
        W, conjugate_mean = problem.scale * product_of(stats), stats.conjugate_u / problem.n
        direction = towards(problem, before.W, linear, W, conjugate_mean)
        atoms, step, raised = atoms_of(problem, measured.before), 0.0, False
        if not (math.isfinite(direction.slope) and math.isfinite(direction.curvature)):
            point, step = replace(point, W=math.nan * before.W), math.nan
        elif rises(direction):
            more, newest = atoms.with_atom(problem.lam, W, conjugate_mean, found_at=sought_at)
            weights, step = self.rule.reweigh(more, newest)
            raised = rise_between(more.gram, more.conjugate_means, more.weights, weights) > 0
            if raised:
                atoms = more.weighted(weights, self.rule.idle)
                mixture, linear = atoms.point()
                point = replace(point, W=mixture, conjugate_mean=linear)
        coarse = abs(direction.slope - (measured.primal - measured.dual)) > _DISAGREEMENT * abs(
            direction.slope
        )
        # A vertex at the mixture itself that does not rise says that the mixture is the optimum.
        ended = not raised and np.array_equal(sought_at, before.W)
        return Advance(
            step=step,
            point=point,
            memory=AtomMemory(atoms, between=raised),
            active=stats.active,
            passes=0,
            spent=ended or (coarse and not before.exact),
        )

    def final(
        self,
        problem: Problem,
        executor: OperationRunner,
        state: SolverState,
        *,
        duals_kept: bool,  # noqa: ARG002 - never, see MethodSpec.dual_free
    ) -> FinalValues:
        """Return the best W and the mixture of the atoms in float64."""
        point = state.point
        linear = point.conjugate_mean - 0.5 * problem.smoothing * point.mean_sq_dual
        return with_best_primal(problem, executor, state, DualSide(point.W, linear), duals_kept=False)

    def _sought_at(self, state: SolverState) -> Float64Array:
        """Return the W (d, m) at which the next vertex is sought."""
        best, mixture = state.best.W, state.point.W
        if self.share == 1.0 or best is None or not state.recalled(AtomMemory).between:
            return mixture
        return np.asarray(best + self.share * (mixture - best))


def atoms_of(problem: Problem, state: SolverState) -> Atoms:
    """Return the atoms that a state remembers; a point of another method is one atom itself."""
    return state.recalled(AtomMemory).atoms or Atoms.of(problem, state)


def _worst(atoms: WeightedAtoms, gradient: Float64Array) -> int:
    """Return the place of the atom in use with the smallest <grad D, U_t>, the oldest of equal ones.

    A step that was the best of its segment leaves its two ends equal, and rounding must not choose.
    """
    used = np.where(atoms.weights > 0, gradient, np.inf)
    rounding = _TIE * (np.abs(atoms.conjugate_means).max() + np.abs(atoms.conjugate_means - gradient).max())
    return int(np.argmax(used <= used.min() + rounding))


def _step_along(
    atoms: WeightedAtoms, gradient: Float64Array, direction: Float64Array, leaving: int, longest: float
) -> Reweighted:
    """Maximise D along a direction of the weights; at the longest step the atom `leaving` is out.

    For a step towards the vertex, at whose end every other atom is out, `leaving` is the vertex.
    """
    slope = float(gradient @ direction)
    curvature = float(direction @ (atoms.gram @ direction))
    step = longest if slope >= curvature * longest else max(slope, 0.0) / curvature
    weights = np.maximum(atoms.weights + step * direction, 0.0)
    if step == longest and direction[leaving] < 0:
        weights[leaving] = 0.0
    return weights / weights.sum(), step
