"""A bundle method: fully corrective weights of the atoms, each found between the best W and theirs.

The atoms of `topline.solvers.methods.atoms` are cutting planes of P: at any W, P(W) >= lam/2 |W|^2 + b_t -
lam <W, W_t>.  The point of their best mixture minimises this model, and its dual value bounds P from below;
but vertices that are sought there lie far apart while the model is poor.  They are sought on the way from the
best W so far to that point, which takes down P at once where the model is right about the way, and else cuts
the point off; a vertex that does neither sends the next search to the point itself.  A third of the way takes
half of the rounds of the whole way where a tenth or more of the losses count, nine tenths where one in a
hundred does.

Sources: C. Lemarechal, A. Nemirovskii, Y. Nesterov, "New variants of bundle methods", 1995, for the model;
W. Ben-Ameur, J. Neto, "Acceleration of cutting-plane and column generation algorithms", 2007, for the way.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from topline.solvers.core.codec import stored
from topline.solvers.core.dual_points import Summed
from topline.solvers.core.problem import Problem
from topline.solvers.core.state import SolverState
from topline.solvers.methods.atoms import Atoms
from topline.solvers.methods.base import Advance, Measurement, Method, measured_at, product_of, rises, towards
from topline.solvers.methods.certificate import DualSide, FinalValues, with_best_primal
from topline.solvers.methods.simplex_qp import maximise_on_simplex, rise_between
from topline.solvers.operations import FindVertices, OperationRunner, Runner
from topline.solvers.typing import Float64Array

#: Atoms of weight 0 that are kept, for they may come back.
_IDLE = 30


@stored
@dataclass(frozen=True, eq=False)
class BundleMemory:
    """W (d, m) of the mixture and its atoms, None before the first round."""

    mixture: Float64Array | None = None
    atoms: Atoms | None = None


@dataclass(frozen=True)
class Bundle(Method):
    """In the state W is where the next vertex is sought, and b that of the mixture.

    Products are float64, and every atom keeps the W at which it was found, from which it can be made again.
    """

    #: Share of the way from the best W to that of the mixture.
    share: float = 0.3

    def needs_float64(self, _problem: Problem) -> bool:
        """Return True: atoms that float32 has rounded would bound nothing."""
        return True

    def measure(self, problem: Problem, run: Runner, state: SolverState) -> Measurement:
        """Evaluate P and the vertex at W; D is that of the mixture."""
        point, mixture = state.point, _mixture(state)
        stats = run(FindVertices(round=point.round, W=point.W, envelope=True, exact=True))
        primal = problem.primal(point.W, stats.loss / problem.n)
        dual = problem.dual(mixture, point.conjugate_mean, point.mean_sq_dual)
        known = Summed(mixture, point.conjugate_mean)
        return measured_at(problem, state, stats, primal, dual, dual_point=known)

    def advance(self, problem: Problem, _run: Runner, measured: Measurement) -> Advance:
        """Take the vertex among the atoms, give them their best weights, and continue between."""
        state, before, stats = measured.before, measured.before.point, measured.stats
        mixture, best = _mixture(state), before.W if state.best.W is None else state.best.W
        atoms = atoms_of(problem, state.with_point(W=mixture))
        W, conjugate_mean = problem.scale * product_of(stats), stats.conjugate_u / problem.n
        direction = towards(problem, mixture, before.conjugate_mean, W, conjugate_mean)
        point = replace(before, round=before.round + 1)
        if not (math.isfinite(direction.slope) and math.isfinite(direction.curvature)):
            point = replace(point, W=math.nan * before.W)
            return Advance(math.nan, point, state.memory, active=stats.active, passes=0)
        step, raised = 0.0, False
        if rises(direction):
            atoms, newest = atoms.with_atom(problem.lam, W, conjugate_mean, found_at=before.W)
            weights = maximise_on_simplex(atoms.gram, atoms.conjugate_means, atoms.weights)
            step = float(weights[newest])
            raised = rise_between(atoms.gram, atoms.conjugate_means, atoms.weights, weights) > 0
        if raised:
            atoms = atoms.weighted(weights, _IDLE)
            mixture, linear = atoms.point()
            point = replace(point, conjugate_mean=linear)
        # A vertex at the mixture itself that does not rise says that the mixture is the optimum.
        moved = raised or not np.array_equal(before.W, mixture)
        share = self.share if raised else 1.0
        point = replace(point, W=best + share * (mixture - best) if share < 1.0 else mixture)
        memory = BundleMemory(mixture, atoms)
        return Advance(step, point, memory, active=stats.active, passes=0, spent=not moved)

    def final(
        self,
        problem: Problem,
        executor: OperationRunner,
        state: SolverState,
        *,
        duals_kept: bool,  # noqa: ARG002 - never, see MethodSpec.dual_free
    ) -> FinalValues:
        """Return the best W and the mixture in float64.

        Raises CertificateError where D exceeds P by more than rounding.
        """
        dual = DualSide(_mixture(state), state.point.conjugate_mean)
        return with_best_primal(problem, executor, state, dual, duals_kept=False)


def atoms_of(problem: Problem, state: SolverState) -> Atoms:
    """Return the atoms that a state of atoms or of a bundle remembers; any other point is one atom itself."""
    return state.recalled(BundleMemory).atoms or Atoms.of(problem, state)


def _mixture(state: SolverState) -> Float64Array:
    """Return W (d, m) of the mixture, which is that of the point before the first round."""
    mixture = state.recalled(BundleMemory).mixture
    return state.W if mixture is None else mixture
