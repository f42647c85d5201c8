"""Minimise P by the method that its size asks for, and certify weights that come from anywhere.

What is too wide or too sparse for the interior point takes a fully corrective bundle method.  Every w gives a
cut: the weights p of its k largest losses and their derivatives make a lower bound of P, known by
W = -C X^T u and b alone.  The next w is where the best convex combination of all cuts has its minimum, a
small quadratic program over the simplex.  In the language of `topline.solvers.methods.atoms` cuts are atoms
with lam = 1/C, and this is Frank-Wolfe on (u, p) whose direction is the top k, fully corrective.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import numpy as np

from topline.solvers.average_top.interior_point import interior_point
from topline.solvers.average_top.problem import (
    AverageTopProblem,
    AverageTopResult,
    LowerBound,
    collapse_shown_by,
    finished,
    is_converged,
)
from topline.solvers.core.objective import Objective
from topline.solvers.core.stopping import Status, StoppingCriteria
from topline.solvers.crew import blas_threads_for
from topline.solvers.errors import InvalidProblemError, NonFiniteError
from topline.solvers.methods.atoms import Atoms
from topline.solvers.methods.simplex_qp import maximise_on_simplex
from topline.solvers.typing import Float64Array

#: Multiplications a round, and bytes of dense features, up to which "auto" takes the interior point.
_MULTIPLICATIONS = 2e10
_BYTES = 1 << 30
#: Relative gap to which the bound of the worst rows is computed, and rounds that it may take.
_BOUND_TOL = 1e-8
#: What a bound may exceed P by, as a share of both.
_ROUNDING = 1e-6
_BOUND_ROUNDS = 200

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


METHODS: Mapping[str, Callable[[AverageTopProblem, float, int], AverageTopResult]] = MappingProxyType(
    {"interior_point": interior_point, "bundle": bundle}
)


def minimise(
    X: Any,
    y: Any,
    loss: Any,
    k: float,
    C: float,
    *,
    method: str = "auto",
    tol: float = 1e-6,
    max_iterations: int = 2000,
) -> AverageTopResult:
    """Minimise P(w) = AT_k(l(w)) + |w|^2 / (2 C) and certify the result.

    Parameters
    ----------
    X : (n, d) features, an array or CSR matrix; a bias is a feature that is always 1.
    y : (n,) targets: -1 and 1 for "hinge" and "logistic", any numbers for "square" and "absolute".
    loss : a name in `INDIVIDUAL_LOSSES`, or such a value.
    k : how many of the largest losses are averaged, real, from 1 (the maximum) to n (the average).
    C : weight of the losses against |w|^2 / 2; `aggregates` says what other people's C is.
    method : "interior_point", exact to nine digits where n d min(n, d) multiplications are cheap; "bundle",
        which takes wide and sparse features and a tol of about 1e-4; or "auto", the first where it fits.
    tol : relative gap to reach.
    max_iterations : rounds.

    Raises
    ------
    InvalidProblemError, NonFiniteError : as `AverageTopProblem.of`, and for an unknown method or bad bounds.
    """
    StoppingCriteria(tol=tol, max_passes=max_iterations)
    return solve_problem(AverageTopProblem.of(X, y, loss, k, C), method, tol, max_iterations)


def certify(problem: AverageTopProblem, w: Float64Array, dual: float | None = None) -> Objective:
    """Certify any w (d,): P(w) and a lower bound of the optimum.

    `dual` is such a bound if one is known, like the `dual` of an exact run on the same problem.  Without one
    it is what AT_k of the ceil(k) worst examples at w alone can be brought down to, which is exact for k = n
    and never above the optimum, because AT_k only grows with more examples.

    Raises InvalidProblemError for a w of another shape, NonFiniteError for one that overflowed, and
    CertificateError for a `dual` above P(w), which is no bound.
    """
    w = np.asarray(w, dtype=np.float64)
    if w.shape != (problem.d,):
        raise InvalidProblemError(f"the weights have the shape {w.shape}; give {problem.d}, one per feature")
    if not np.isfinite(w).all():
        raise NonFiniteError("the weights hold NaN or infinity and cannot be certified; lower the step size")
    primal, cut = problem.evaluated(w)
    if dual is None:
        worst = np.flatnonzero(cut.p > 0.0)
        fewer = replace(problem, X=problem.X[worst], y=problem.y[worst])
        dual = max(cut.value, solve_problem(fewer, "auto", _BOUND_TOL, _BOUND_ROUNDS).dual)
    return Objective.checked(primal, dual, abs(primal) + abs(dual), _ROUNDING)


def solve_problem(
    problem: AverageTopProblem,
    method: str,
    tol: float,
    max_iterations: int,
    known: LowerBound | None = None,
) -> AverageTopResult:
    """Minimise a problem that was checked before.

    `known` is a bound of the same examples and loss at another k or C: where it shows that w = 0 is the
    optimum here as well, no round is taken.
    """
    if method != "auto" and method not in METHODS:
        raise InvalidProblemError(f"there is no method {method!r}; use auto, {', '.join(METHODS)}")
    collapsed = None if known is None else collapse_shown_by(problem, known, tol)
    if collapsed is not None:
        return collapsed
    name = _cheapest(problem) if method == "auto" else method
    # Overflow ends a run with the status NONFINITE, which says more than a warning.
    with np.errstate(over="ignore", invalid="ignore"):
        return METHODS[name](problem, tol, max_iterations)


def _cheapest(problem: AverageTopProblem) -> str:
    n, d = problem.n, problem.d
    fits = n * d * min(n, d) <= _MULTIPLICATIONS and 8 * n * d <= _BYTES
    return "interior_point" if fits else "bundle"
