"""The best point of L-BFGS so far, which is put together of the best points of its parts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from topline.solvers.core.dual_points import FoundAt
from topline.solvers.core.problem import Problem
from topline.solvers.methods.base import Measurement
from topline.solvers.methods.quasi_newton.parts import Parts, chosen
from topline.solvers.methods.quasi_newton.row_metric import of_rows
from topline.solvers.typing import Float64Array

#: Names in `SolverState.memory` of the best point, and of P there, |grad P|^2 there and the lowest P.
BEST, VALUES = "best", "best_values"
#: A step that lowers P by a smaller share is where float64 products begin, and points whose P differ by less
#: are told apart by their gradients.
STALLED = 1e-7


def with_best(
    memory: Mapping[str, Float64Array], W: Float64Array, values: Float64Array, steepness: Float64Array
) -> dict[str, Float64Array]:
    """Return the best point with W in it, where P and |grad P|^2 of a part say that it is better there."""
    if VALUES not in memory:
        return _named(W, values, steepness, values)
    _, _, lowest = known = memory[VALUES].reshape(3, -1)
    better = _are_best(values, steepness, known)
    if not better.any():
        return {}
    return _named(
        chosen(better, W, memory[BEST]),
        np.where(better, values, known[0]),
        np.where(better, steepness, known[1]),
        np.where(better, np.minimum(values, lowest), lowest),
    )


def at_best_of_parts(problem: Problem, measured: Measurement) -> Measurement:
    """Let a measurement stand for the best point: each class has P there, and D from its gradient."""
    values, steepness, _ = measured.before.memory[VALUES]
    W, primal = measured.before.memory[BEST], float(values.sum())
    measured = replace(measured, primal=primal, W=W)
    dual = primal - float(steepness.sum()) / (2.0 * problem.lam)
    return measured if measured.dual > dual else replace(measured, dual=dual, point=FoundAt(W))


def of_these_parts(
    problem: Problem, memory: Mapping[str, Float64Array], parts: Parts
) -> dict[str, Float64Array]:
    """Return what is remembered of the same parts; of others, as in a state of before, that of the rows."""
    count = problem.m if parts.apart else 1
    return dict(memory) if VALUES not in memory or memory[VALUES].size == 3 * count else of_rows(memory)


def _are_best(values: Float64Array, steepness: Float64Array, known: Float64Array) -> NDArray[np.bool_]:
    """Return where a point with this P and |grad P|^2 is better than those remembered."""
    _, least, lowest = known
    lower = values < (1.0 - STALLED) * lowest
    return np.asarray(lower | ((values <= (1.0 + STALLED) * lowest) & (steepness < least)))


def _named(W: Float64Array, *values: Float64Array) -> dict[str, Float64Array]:
    numbers = np.array(values)
    return {BEST: W, VALUES: numbers.ravel() if numbers.shape[1] == 1 else numbers}
