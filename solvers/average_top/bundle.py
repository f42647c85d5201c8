"""The fully corrective bundle method, for features that are too wide or too sparse for the interior point.

Every w gives a cut: the weights p of its k largest losses and their derivatives make a lower bound of P,
known by W = -C X^T u and b alone.  The next w is where the best convex combination of all cuts has its
minimum, a small quadratic program over the simplex.  In the language of `topline.solvers.methods.atoms` cuts
are atoms with lam = 1/C, and this is Frank-Wolfe on (u, p) whose direction is the top k, fully corrective.
"""

from __future__ import annotations

import math

import numpy as np

from topline.solvers.average_top.problem import AverageTopProblem, AverageTopResult, finished, is_converged
from topline.solvers.blas_threads import blas_threads_for
from topline.solvers.core.stopping import Status
from topline.solvers.methods.atoms import Atoms
from topline.solvers.methods.simplex_qp import maximise_on_simplex
from topline.solvers.typing import Float64Array

#: Cuts of weight 0 that are kept for a while: they often come back.
_IDLE = 50
#: Rounds in which neither P nor D moved after which only rounding is left.
_PATIENCE = 20


def bundle(problem: AverageTopProblem, tol: float = 1e-4, max_iterations: int = 2000) -> AverageTopResult:
    """Minimise P to the relative gap `tol`; a round is two passes over the features, array or CSR.

    Rounds grow with 1/tol and with C: the losses of large C and small tolerance want the interior point.
    MAX_PASSES is the status where the rounds ran out.
    """
    with blas_threads_for(problem.n * problem.d):
        return _corrected(problem, tol, max_iterations)


def _corrected(problem: AverageTopProblem, tol: float, max_iterations: int) -> AverageTopResult:
    lam = 1.0 / problem.C
    atoms = Atoms(
        W=np.zeros((1, problem.d, 1)), conjugate_means=np.zeros(1), weights=np.ones(1), gram=np.zeros((1, 1))
    )
    w, best_w = np.zeros(problem.d), np.zeros(problem.d)
    primal, dual = np.inf, 0.0
    iteration = stalled = 0
    while True:
        value, cut = problem.evaluated(w)
        if not (math.isfinite(value) and math.isfinite(cut.value)):
            return finished(
                problem, w, value, cut.value, tol=tol, iterations=iteration, unsolved=Status.NONFINITE
            )
        before = (primal, dual)
        if value < primal:
            best_w, primal = w, value
        atoms, _ = atoms.with_atom(lam, cut.w[:, None], cut.b)
        weights = maximise_on_simplex(atoms.gram, atoms.conjugate_means, atoms.weights)
        atoms = atoms.weighted(weights, idle=_IDLE)
        w, dual = _minimum(problem, atoms, dual)
        stalled = 0 if (primal, dual) != before else stalled + 1
        done = is_converged(problem, best_w, primal, dual, tol)
        if done or stalled > _PATIENCE or iteration == max_iterations:
            break
        iteration += 1
    unsolved = Status.MAX_PASSES if iteration == max_iterations else Status.NO_PROGRESS
    return finished(problem, best_w, primal, dual, tol=tol, iterations=iteration, unsolved=unsolved)


def _minimum(problem: AverageTopProblem, atoms: Atoms, dual: float) -> tuple[Float64Array, float]:
    """Return where the combination of the cuts has its minimum, and the largest minimum so far."""
    W, b = atoms.point()
    w = W[:, 0]
    return w, max(dual, b - float(w @ w) / (2.0 * problem.C))
