"""The one call of this package: which method, and what it costs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import numpy as np

from topline.solvers.average_top.bundle import bundle
from topline.solvers.average_top.interior_point import interior_point
from topline.solvers.average_top.problem import AverageTopProblem, AverageTopResult
from topline.solvers.core.stopping import StoppingCriteria
from topline.solvers.errors import InvalidProblemError

#: Multiplications a round, and bytes of dense features, up to which "auto" takes the interior point.
_MULTIPLICATIONS = 2e10
_BYTES = 1 << 30

SOLVERS: Mapping[str, Callable[[AverageTopProblem, float, int], AverageTopResult]] = MappingProxyType(
    {"interior_point": interior_point, "bundle": bundle}
)


def minimise(
    X: Any,
    y: Any,
    loss: Any,
    k: float,
    C: float,
    *,
    solver: str = "auto",
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
    solver : "interior_point", exact to nine digits where n d min(n, d) multiplications are cheap; "bundle",
        which takes wide and sparse features and a tol of about 1e-4; or "auto", the first where it fits.
    tol : relative gap to reach.
    max_iterations : rounds.

    Raises
    ------
    InvalidProblemError, NonFiniteError : as `AverageTopProblem.of`, and for an unknown solver or bad bounds.
    """
    StoppingCriteria(tol=tol, max_passes=max_iterations)
    return solve_problem(AverageTopProblem.of(X, y, loss, k, C), solver, tol, max_iterations)


def solve_problem(
    problem: AverageTopProblem, solver: str, tol: float, max_iterations: int
) -> AverageTopResult:
    """Minimise a problem that was checked before."""
    if solver != "auto" and solver not in SOLVERS:
        raise InvalidProblemError(f"there is no solver {solver!r}; take auto, {', '.join(SOLVERS)}")
    name = _cheapest(problem) if solver == "auto" else solver
    # Overflow ends a run with the status NONFINITE, which says more than a warning.
    with np.errstate(over="ignore", invalid="ignore"):
        return SOLVERS[name](problem, tol, max_iterations)


def _cheapest(problem: AverageTopProblem) -> str:
    n, d = problem.n, problem.d
    fits = n * d * min(n, d) <= _MULTIPLICATIONS and 8 * n * d <= _BYTES
    return "interior_point" if fits else "bundle"
