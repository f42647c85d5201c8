"""One problem for many C, each solved from the solution of the one before."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from topline.solvers.core.inputs import checked_rows, positive_number
from topline.solvers.core.state import SolveResult, SolverState
from topline.solvers.errors import InvalidProblemError, UnsupportedCombinationError
from topline.solvers.kernels import KernelFeatures
from topline.solvers.losses import Loss
from topline.solvers.methods import method_named
from topline.solvers.methods.quasi_newton import LbfgsMemory
from topline.solvers.names import DEFAULT_METHOD
from topline.solvers.run.api import solve


def regularisation_path(
    X: Any,
    y: Any,
    loss: Loss,
    Cs: Iterable[float],
    smoothing: float = 0.0,
    method: str = DEFAULT_METHOD,
    *,
    keep_duals: bool = False,
    **options: Any,
) -> list[SolveResult]:
    """Solve for each C, with lam = 1/(n C), and return the certified results in the order of `Cs`.

    The smallest C comes first and starts from zero; each further one starts from the dual variables of the
    one before, which are feasible whatever C is, or, where the method needs none, from its weights.  A smooth
    loss gains most, and more where the C lie close: without smoothing the last digits of a gap cost the same
    from any start.

    Parameters
    ----------
    X, y, loss, smoothing, method : as for `solve`; a method that always keeps A, auto, or lbfgs.
    Cs : positive numbers.
    keep_duals : keep A (n, m) with every result; otherwise no result has it.
    options : whatever else `solve` takes, but lam, state and duals.

    Raises
    ------
    InvalidProblemError : no C, one that is not positive, or what makes no problem for `solve`.
    UnsupportedCombinationError : a method that starts from nothing, or what `solve` refuses.

    Examples
    --------
    >>> import numpy as np
    >>> from topline import Softmax, regularisation_path
    >>> X, y = np.eye(3).repeat(4, axis=0), np.arange(3).repeat(4)
    >>> results = regularisation_path(X, y, Softmax(), Cs=[0.1, 1.0])
    >>> results[0].primal > results[1].primal
    True
    """
    if not (method_named(method).keeps_duals or method == "lbfgs"):
        raise UnsupportedCombinationError(
            f"the method {method} starts from no earlier solution; use auto, dual_ascent, sdca or lbfgs"
        )
    if not isinstance(Cs, Iterable):
        raise InvalidProblemError(f"Cs is {Cs!r}; give a sequence of positive numbers")
    values = [positive_number("C", C) for C in Cs]
    if not values:
        raise InvalidProblemError("there is no C; give at least one")
    if options.get("kernel") is not None:
        # One matrix and one factor serve every C.
        options["kernel"] = KernelFeatures.of(options["kernel"], checked_rows(X))
    n = int(checked_rows(X).shape[0])
    results: dict[float, SolveResult] = {}
    last: SolveResult | None = None
    for C in sorted(set(values)):
        start = {} if last is None else start_from(last)
        last = solve(X, y, loss, 1.0 / (n * C), smoothing, method, keep_duals=keep_duals, **options, **start)
        results[C] = last if keep_duals else replace(last, A=None)
    return [results[C] for C in values]


def start_from(result: SolveResult) -> dict[str, Any]:
    """Return what makes `solve` start from another solution of the same rows."""
    if result.method == "lbfgs" or (result.method == "newton" and result.problem.form.smooth):
        rows = result.state.recalled(LbfgsMemory).rows
        return {"state": replace(SolverState.at(result.W), memory=LbfgsMemory(rows=rows))}
    if result.A is None:
        raise UnsupportedCombinationError(
            f"{result.method} left no dual variables here that the next C could start from; leave executor "
            "and risk out"
        )
    return {"duals": [(0, len(result.A), result.A)]}
