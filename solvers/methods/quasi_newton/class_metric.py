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
from dataclasses import dataclass, replace

import numpy as np
from scipy.linalg import lapack

from topline.solvers.core.problem import Problem
from topline.solvers.methods.base import Measurement
from topline.solvers.methods.quasi_newton.memory import (
    ClassBlocks,
    LbfgsMemory,
    Openness,
    RowMoments,
)
from topline.solvers.methods.quasi_newton.parts import WHOLE, Parts, quotient
from topline.solvers.methods.quasi_newton.row_metric import (
    are_open,
    open_rows,
    wants_classes,
)
from topline.solvers.operations import VertexSums
from topline.solvers.typing import Float64Array

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
    def of(cls, problem: Problem, blocks: ClassBlocks) -> ClassMetric | None:
        """Return the metric of blocks that are known, None where none are."""
        if blocks.inverses is None:
            return None
        return cls(blocks.inverses, problem.lam, problem.form.family.balanced)

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


def with_asked(problem: Problem, memory: LbfgsMemory, measured: Measurement) -> ClassBlocks:
    """Return the blocks with the o_ij from which on the next evaluation sums rows, where that pays.

    It pays where the fall of the gap since the H_j were found says that many passes are to come.
    """
    blocks, openness = memory.classes, memory.classes.openness
    if openness is None or memory.rows.moments is None:
        return blocks
    since = measured.before.passes - openness.passes
    cost = SUM * openness.rows * problem.d + INVERSE * problem.d**2 / problem.n
    # A start elsewhere than at W = 0, and rows that come apart, have no metric before.
    first = _FIRST if blocks.inverses is not None or are_open(problem, measured.stats) else 0.0
    total = sum(openness.classes.tolist())
    changed = not openness.total / _CHANGED <= total <= openness.total * _CHANGED
    wait = 0.0 if changed else (_TIMES - 1.0) * openness.passes + first
    to_go = passes_to_go(since, openness.gap, _gap(measured), measured.tol)
    if since < wait + cost or to_go < cost:
        return blocks
    return replace(blocks, asked=_LEAST * openness.classes / problem.n)


def passes_to_go(passes: float, gap_then: float, gap: float, tol: float) -> float:
    """Return how many passes the gap takes to the tolerance if it falls as it did in so many passes."""
    if gap >= gap_then:
        return math.inf
    return passes * math.log(gap / min(tol, gap)) / math.log(gap_then / gap)


def _gap(measured: Measurement) -> float:
    return max(measured.relative_gap, sys.float_info.epsilon)


def with_openness(problem: Problem, measured: Measurement) -> Measurement:
    """Return a measurement that remembers how open the classes are."""
    before, stats = measured.before, measured.stats
    if stats.openness is None or not wants_classes(problem):
        return measured
    memory, rows = before.recalled(LbfgsMemory), open_rows(problem, stats)
    seen = memory.classes.openness
    if seen is None:
        seen = Openness(stats.openness, rows, 0.0, _gap(measured), float(stats.openness.sum()))
    blocks = replace(memory.classes, openness=replace(seen, classes=stats.openness, rows=rows))
    return replace(measured, before=replace(before, memory=replace(memory, classes=blocks)))


def with_classes(problem: Problem, memory: LbfgsMemory, measured: Measurement) -> ClassBlocks:
    """Return the H_j at a point that was stepped to, where they were summed."""
    stats, C = measured.stats, memory.rows.moments
    blocks, openness = replace(memory.classes, asked=None), memory.classes.openness
    if stats.moments is None or stats.openness is None or openness is None or C is None:
        return blocks
    openness = replace(
        openness, passes=measured.before.passes, gap=_gap(measured), total=float(stats.openness.sum())
    )
    inverses = inverses_of(problem, C, stats.openness, stats.moments)
    known = blocks.inverses if inverses is None else inverses
    return replace(blocks, openness=openness, inverses=known)


def alike_classes(problem: Problem, rows: RowMoments, stats: VertexSums) -> Float64Array | None:
    """Return the inverses (1, d, d) by C alone where all rows are open, which makes the H_j alike."""
    if rows.moments is None or stats.openness is None or not are_open(problem, stats):
        return None
    C, openness = rows.moments, stats.openness.mean(keepdims=True)
    return inverses_of(problem, C, openness, np.zeros((1, *C.shape)), share=1.0)


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
