"""The Hessian's blocks of single classes as a metric: what L-BFGS takes for the Hessian where rows differ.

The Hessian of a smooth loss has for class j the diagonal block

    H_j = lam I + (1/n) sum_i o_ij x_i x_i^T,

where o_ij is how open row i is in it, p_ij (1 - p_ij) for the softmax and about |u_ij| - u_ij^2 in general.
Of rows whose o_ij is at most so many times the mean o_j, the sum is at most that times o_j C in the order of
symmetric matrices, with C = (1/n) sum_i x_i x_i^T.  That stands for them, so that no row counts for nothing
and the sum is over few rows where few are open.  The blocks are found anew as W moves, once the rows are half
as open or after twice as many passes, and where more are to come than that costs, from an evaluation that is
made in any case.

Where the rows of the dual domain sum to zero so do the gradients of the loss over the classes, and a step
that no row has a say in is left to lam alone.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
from scipy.linalg import lapack

from topline.solvers.core.problem import Problem, relative_gap
from topline.solvers.methods.base import Measurement
from topline.solvers.methods.quasi_newton.parts import WHOLE, Parts, quotient
from topline.solvers.methods.quasi_newton.row_metric import (
    MOMENTS,
    are_open,
    open_rows,
    wants_classes,
)
from topline.solvers.operations import VertexSums
from topline.solvers.typing import Float64Array

#: Names in `SolverState.memory` of the inverses of the H_j; of how open the classes are, with the share of
#: the rows that are open and the passes and relative gap at which the H_j were found, or the run began; of
#: what the next evaluation is asked for; and of how open all classes together were then.
CLASSES = _INVERSES, _OPEN, _ASKED, _THEN = (
    "metric.inverses",
    "metric.open",
    "metric.asked",
    "metric.open_then",
)
#: Rows are left out whose o_ij is at most this share of the mean.
_LEAST = 0.4
#: Passes before the H_j are found, to which come what they cost, and how many times as many there are before
#: they are found again.
_FIRST, _TIMES = 4.0, 2.0
#: How many times as open classes are, or were, when they are found again as soon as they are paid for: the
#: Hessian of classes that come apart falls with P, by orders of magnitude.
_CHANGED = 2.0
#: By how many times a step may show another curvature than the H_j before these are scaled.
_TRUSTED = 2.0
#: Passes that their sum costs for every column, where all rows are open, and their inverses for d^2 / n.
SUM, INVERSE = 0.1, 2.0
#: Arrays of the size of all H_j that finding them takes.
_ARRAYS = 4


@dataclass(frozen=True, eq=False)
class ClassMetric:
    """The inverse of the blocks H_j.

    Attributes
    ----------
    inverses : (m, d, d) the inverse of each H_j, symmetric, or (1, d, d) where all are alike.
    lam : see above.
    balanced : whether gradients of the loss sum to zero over the classes.
    scale : what the inverse is times, or that of each class.
    """

    inverses: Float64Array
    lam: float
    balanced: bool
    scale: float | Float64Array = 1.0

    @classmethod
    def of(cls, problem: Problem, memory: Mapping[str, Float64Array]) -> ClassMetric | None:
        """Return the metric that the memory holds, None where there is none."""
        if _INVERSES not in memory:
            return None
        return cls(memory[_INVERSES], problem.lam, problem.form.family.balanced)

    def fitted(self, step: Float64Array, change: Float64Array, parts: Parts = WHOLE) -> ClassMetric:
        """Return the metric, scaled as far as what the gradient changed by along a step is beyond trust."""
        said = parts.inner(change, self.inverse_times(change))
        ratio = quotient(parts.inner(step, change), said, 1.0)
        return replace(self, scale=ratio / np.clip(ratio, 1.0 / _TRUSTED, _TRUSTED))

    def inverse_times(self, V: Float64Array) -> Float64Array:
        """Return the product of the inverse with V (d, m)."""
        product = (self.inverses @ np.ascontiguousarray(V.T)[:, :, None])[:, :, 0].T
        if self.balanced:
            product += (V.mean(axis=1) / self.lam - product.mean(axis=1))[:, None]
        return np.ascontiguousarray(self.scale * product)


def with_least_openness(
    problem: Problem, memory: Mapping[str, Float64Array], measured: Measurement
) -> dict[str, Float64Array]:
    """Return the memory with the o_ij from which on rows are summed in the next evaluation, where that pays.

    It pays where the fall of the gap since the H_j were found says that many passes are to come.
    """
    known = dict(memory)
    if _OPEN not in memory or MOMENTS not in memory:
        return known
    *openness, share, found, gap_then = memory[_OPEN]
    passes = measured.before.passes
    cost = SUM * share * problem.d + INVERSE * problem.d**2 / problem.n
    # A start elsewhere than at W = 0, and rows that come apart, have no metric before.
    first = _FIRST if _INVERSES in memory or are_open(problem, measured.stats) else 0.0
    wait = 0.0 if _have_changed(memory, sum(openness)) else (_TIMES - 1.0) * found + first
    to_go = passes_to_go(passes - found, gap_then, _gap(measured), measured.tol)
    if passes - found < wait + cost or to_go < cost:
        return known
    return known | {_ASKED: _LEAST * np.array(openness) / problem.n}


def _have_changed(memory: Mapping[str, Float64Array], openness: float) -> bool:
    """Return whether the rows are much more or less open than when the H_j were found."""
    # A state of an earlier version does not say.
    then = float(memory[_THEN][0]) if _THEN in memory else openness
    return not then / _CHANGED <= openness <= then * _CHANGED


def passes_to_go(passes: float, gap_then: float, gap: float, tol: float) -> float:
    """Return how many passes the gap takes to the tolerance if it falls as it did in so many passes."""
    if gap >= gap_then:
        return math.inf
    return passes * math.log(gap / min(tol, gap)) / math.log(gap_then / gap)


def _gap(measured: Measurement) -> float:
    return max(relative_gap(measured.primal - measured.dual, measured.primal), sys.float_info.epsilon)


def least_openness(memory: Mapping[str, Float64Array]) -> Float64Array | None:
    """Return from which o_ij on (m,) rows are to be summed in this evaluation, None where none are."""
    return memory.get(_ASKED)


def with_openness(problem: Problem, measured: Measurement) -> Measurement:
    """Return a measurement that remembers how open the classes are."""
    before, stats = measured.before, measured.stats
    if stats.openness is None or not wants_classes(problem):
        return measured
    found, gap_then = before.memory[_OPEN][-2:] if _OPEN in before.memory else (0.0, _gap(measured))
    seen = np.array([*stats.openness, open_rows(problem, stats), found, gap_then])
    first = {} if _OPEN in before.memory else {_THEN: stats.openness.sum(keepdims=True)}
    return replace(measured, before=replace(before, memory={**before.memory, **first, _OPEN: seen}))


def with_classes(
    problem: Problem, memory: Mapping[str, Float64Array], measured: Measurement
) -> dict[str, Float64Array]:
    """Return the memory with the H_j at a point that was stepped to, where they were summed."""
    known, stats = {name: array for name, array in memory.items() if name != _ASKED}, measured.stats
    if stats.moments is None or stats.openness is None:
        return known
    known[_OPEN] = np.array([*memory[_OPEN][:-2], measured.before.passes, _gap(measured)])
    known[_THEN] = stats.openness.sum(keepdims=True)
    inverses = inverses_of(problem, memory[MOMENTS], stats.openness, stats.moments)
    return known if inverses is None else {**known, _INVERSES: inverses}


def alike_classes(
    problem: Problem, memory: Mapping[str, Float64Array], stats: VertexSums
) -> dict[str, Float64Array]:
    """Return what to remember where all rows are open, which makes the H_j alike: by C alone."""
    if MOMENTS not in memory or stats.openness is None or not are_open(problem, stats):
        return {}
    C, openness = memory[MOMENTS], stats.openness.mean(keepdims=True)
    inverses = inverses_of(problem, C, openness, np.zeros((1, *C.shape)), share=1.0)
    return {} if inverses is None else {_INVERSES: inverses}


def inverses_of(
    problem: Problem, C: Float64Array, openness: Float64Array, moments: Float64Array, share: float = _LEAST
) -> Float64Array | None:
    """Return the inverse of each H_j, with C for a share of the openness.

    None where rounding leaves one that is not positive definite.
    """
    inverses, diagonal = np.empty_like(moments), np.diag_indices(problem.d)
    for inverse, total, size in zip(inverses, moments, openness, strict=True):
        block = (share * size) * C
        block += total
        block /= problem.n
        block[diagonal] += problem.lam
        # LAPACK works in the place of an array whose columns lie together, as those of the transpose do.
        factor, failed = lapack.dpotrf(block.T, lower=1, clean=1, overwrite_a=1)
        if failed:
            return None
        lower, _ = lapack.dpotri(factor, lower=1, overwrite_c=1)
        np.add(lower, lower.T, out=inverse)
        inverse[diagonal] *= 0.5
    return inverses


def arrays_of_classes(problem: Problem) -> int:
    """Return how many arrays of the shape of W that takes."""
    return _ARRAYS * problem.d if wants_classes(problem) else 0


def numbers_in_classes(problem: Problem) -> int:
    """Return how many numbers all H_j have that blocks are asked to sum, 0 where they are not."""
    return problem.m * problem.d**2 if wants_classes(problem) else 0
