"""Approximations of the Hessian for L-BFGS before steps have revealed it: second moments of the rows.

**Of all rows.**  A smooth loss has the Hessian lam I + (1/n) sum_i x_i x_i^T (x) J_i, which resembles
lam I + s C (x) J:
C = (1/n) sum_i x_i x_i^T is common to all classes, J is that of one row with the total openness of all rows
in every class, and s is one number (D. Boehning, Ann. Inst. Statist. Math. 44, 1992, bounds the Hessian of
the softmax by such a product).  If the rows of the dual domain sum to zero J is diag(a) - a a^T / sum(a), as
diag(p) - p p^T for probabilities p, else diag(a).  A sample of the rows suffices for C, and one decomposition
serves every round.

**Of the rows that are open in a class.**  The Hessian has for class j the diagonal block

    H_j = lam I + (1/n) sum_i o_ij x_i x_i^T,

where o_ij is the openness of row i in it, p_ij (1 - p_ij) for the softmax and about |u_ij| - u_ij^2 in
general.  Over rows with o_ij at most a multiple of the mean o_j, the sum is at most that multiple of o_j C in
the order of symmetric matrices.  That bound replaces them, so every row counts and the sum is over few rows
if few are open.  The blocks are found again as W moves, once the rows are half as open or after twice as many
passes, if more passes remain than that costs, in an evaluation that is made anyway.  Directions in which no
row is open are left to lam alone.

**If P is a sum over the classes,** H_j is the whole Hessian of a class, and all rows are summed except those
that together add less than lam.
"""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass, replace

import numpy as np
from scipy.linalg import eigh, lapack

from topline.solvers.core.problem import Problem, inner, squared_norm
from topline.solvers.core.state import SolverState
from topline.solvers.methods.base import Measurement
from topline.solvers.methods.quasi_newton.memory import (
    ClassBlocks,
    LbfgsMemory,
    Openness,
    RowMoments,
)
from topline.solvers.operations import Runner, SumMoments, VertexSums
from topline.solvers.typing import Float64Array

#: Sampled rows per column.
_ROWS_A_COLUMN = 5
#: The sample has at least this share of n m / d rows, whose sum costs an eighth of a pass; the second where C
#: replaces omitted rows, so that it does not miss a column that few rows have.
_SHARE, _SHARE_THAT_STANDS = 0.25, 8.0
#: Columns beyond which C is not decomposed.
_MOST_COLUMNS = 4_096
#: C is made if d^2 is at most this share of n m: decomposing it then costs no more than a pass.
_WORTH_IT = 1 / 16
#: The least a_j as a share of the largest.
_OPEN = 1e-3
#: Least share of open rows for C: few open rows have another C.
_SPREAD = 0.8
#: Limits on the numbers in all blocks, and on d^2 / n: inverting them then takes some passes.
_MOST_NUMBERS, _MOST_SIDE = 1 << 21, 12.0
#: A first step that leaves a smaller share of open rows has gone astray.
_ASTRAY = 0.6
#: Arrays of d x d for the decomposition, including the part kept.
_ARRAYS = 4


@dataclass(frozen=True, eq=False)
class RowMetric:
    """The inverse of lam I + scale C (x) J.

    Attributes
    ----------
    basis, spectrum : eigenvectors (d, d) of C and its eigenvalues (d,).
    openness : a (m,), positive.
    lam, scale : see above.
    balanced : whether J has the second term.
    """

    basis: Float64Array
    spectrum: Float64Array
    openness: Float64Array
    lam: float
    balanced: bool
    scale: float = 1.0

    @classmethod
    def of(cls, problem: Problem, rows: RowMoments, stats: VertexSums) -> RowMetric | None:
        """Return the metric at the point of an answer, None if C is not decomposed."""
        if rows.basis is None or rows.spectrum is None:
            return None
        if stats.openness is None or not are_open(problem, stats):
            return None
        openness = stats.openness / problem.n
        openness = np.maximum(openness, _OPEN * float(openness.max()))
        balanced = problem.form.family.balanced
        return cls(rows.basis, rows.spectrum, openness, problem.lam, balanced)

    def fitted(self, step: Float64Array, change: Float64Array) -> RowMetric:
        """Return the metric with the scale that best explains the change of the gradient along a step."""
        moved = self._turned(step)
        opened = moved * self.openness
        if self.balanced:
            opened -= np.outer(opened.sum(axis=1), self.openness / self.openness.sum())
        opened *= self.spectrum[:, None]
        predicted, observed = squared_norm(opened), inner(opened, self._turned(change) - self.lam * moved)
        return replace(self, scale=observed / predicted if observed > 0.0 and predicted > 0.0 else 1.0)

    def inverse_times(self, V: Float64Array) -> Float64Array:
        """Return the product of the inverse with V (d, m); the second term of J by Sherman and Morrison."""
        curvature = self.scale * self.spectrum
        inverse = 1.0 / (np.outer(curvature, self.openness) + self.lam)
        product = inverse * self._turned(V)
        if self.balanced:
            together = self.openness.sum()
            weighed = inverse * self.openness
            left = self.lam * weighed.sum(axis=1) / together
            product += weighed * (curvature / together * (product @ self.openness) / left)[:, None]
        return np.asarray(self.basis @ product)

    def _turned(self, V: Float64Array) -> Float64Array:
        """Return V in the basis, in the memory layout of a loaded checkpoint, which affects the last bits."""
        return np.asarray(self.basis.T @ np.ascontiguousarray(V))


def wants_metric(problem: Problem, state: SolverState, stats: VertexSums) -> bool:
    """Return whether to compute C: decided at the first point, independently of later budgets."""
    memory = state.recalled(LbfgsMemory)
    if memory.pairs is not None or memory.rows.known or stats.openness is None:
        return False
    return wants_classes(problem) or (_worth_it(problem) and are_open(problem, stats))


def wants_classes(problem: Problem) -> bool:
    """Return whether the Hessian's blocks of single classes (m, d, d) are known, and cost little.

    The gradient of a smoothed hinge does not give them.
    """
    n, d, m = problem.n, problem.d, problem.m
    return (
        problem.form.smooth and problem.form.convex and m * d**2 <= _MOST_NUMBERS and d**2 <= _MOST_SIDE * n
    )


def open_rows(problem: Problem, stats: VertexSums) -> float:
    """Return (sum_i o_i)^2 / (n sum_i o_i^2) of the openness o_i: the share of the rows that carries it."""
    if stats.openness is None or not stats.openness_sq > 0.0:
        return 0.0
    return float(stats.openness.sum()) ** 2 / (problem.n * stats.openness_sq)


def are_open(problem: Problem, stats: VertexSums) -> bool:
    """Return whether a loss is open in enough rows for C to describe them."""
    return open_rows(problem, stats) >= _SPREAD


def find_moments(problem: Problem, run: Runner) -> RowMoments | None:
    """Sum C over a sample of the rows, one pass; return None where blocks have no C."""
    n, d, m = problem.n, problem.d, problem.m
    classes = wants_classes(problem)
    rows = max(_ROWS_A_COLUMN * d, (_SHARE_THAT_STANDS if classes else _SHARE) * n * m / d)
    stats = run(SumMoments(max(1, round(n / rows))))
    if stats.total is None:
        return None
    moments = stats.total / max(stats.rows, 1)
    if not np.isfinite(moments).all():
        # Squares may overflow float32 even if the features do not.
        return RowMoments(misled=True)
    found = RowMoments(moments=moments.copy() if classes else None)
    if not _worth_it(problem):
        return found
    spectrum, basis = eigh(moments, driver="evd", overwrite_a=True, check_finite=False)
    return replace(found, basis=np.ascontiguousarray(basis), spectrum=np.maximum(spectrum, 0.0))


def misled(problem: Problem, stats: VertexSums) -> bool:
    """Return whether a first step by a metric of all rows led to where few are open.

    When the classes separate such a step goes far along directions that hardly any row constrains.
    """
    return open_rows(problem, stats) < _ASTRAY


def arrays_of_metric(problem: Problem) -> int:
    """Return how many arrays of the shape of W that takes."""
    return -(-_ARRAYS * problem.d // problem.m) if _worth_it(problem) else 0


def _worth_it(problem: Problem) -> bool:
    n, d, m = problem.n, problem.d, problem.m
    return d <= min(_MOST_COLUMNS, n) and d**2 <= _WORTH_IT * n * m


#: Largest o_ij of omitted rows, as a share of the mean.
_LEAST = 0.4
#: Passes before the H_j are found, plus their own cost, and the factor on the passes until the next time.
_FIRST, _TIMES = 4.0, 2.0
#: Change factor of the openness at which they are found again as soon as that pays: the Hessian of separating
#: classes falls with P, by orders of magnitude.
_CHANGED = 2.0
#: Ratio of a step's curvature to that of the H_j up to which these are not scaled.
_TRUSTED = 2.0
#: Passes that their sum costs per column if all rows are open, and their inverses per d^2 / n.
SUM, INVERSE = 0.1, 2.0
#: Arrays of the size of all H_j needed to find them.
_CLASS_ARRAYS = 4


@dataclass(frozen=True, eq=False)
class ClassMetric:
    """The inverse of the blocks H_j.

    Attributes
    ----------
    inverses : (m, d, d) the inverse of each H_j, symmetric, or (1, d, d) if all are equal.
    lam : see above.
    balanced : whether gradients of the loss sum to zero over the classes.
    scale : factor of the inverse.
    """

    inverses: Float64Array
    lam: float
    balanced: bool
    scale: float = 1.0

    @classmethod
    def of(cls, problem: Problem, blocks: ClassBlocks) -> ClassMetric | None:
        """Return the metric of known blocks, None if there are none."""
        if blocks.inverses is None:
            return None
        return cls(blocks.inverses, problem.lam, problem.form.family.balanced)

    def fitted(self, step: Float64Array, change: Float64Array) -> ClassMetric:
        """Return the metric, scaled by the untrusted part of a step's curvature ratio."""
        predicted = inner(change, self.inverse_times(change))
        ratio = inner(step, change) / predicted if predicted > 0.0 else 1.0
        return replace(self, scale=ratio / min(max(ratio, 1.0 / _TRUSTED), _TRUSTED))

    def inverse_times(self, V: Float64Array) -> Float64Array:
        """Return the product of the inverse with V (d, m)."""
        product = (self.inverses @ np.ascontiguousarray(V.T)[:, :, None])[:, :, 0].T
        if self.balanced:
            product += (V.mean(axis=1) / self.lam - product.mean(axis=1))[:, None]
        return np.ascontiguousarray(self.scale * product)


def with_asked(problem: Problem, memory: LbfgsMemory, measured: Measurement) -> ClassBlocks:
    """Return the blocks with the least o_ij to sum next, if the fall of the gap predicts that it pays."""
    blocks, openness = memory.classes, memory.classes.openness
    if openness is None or memory.rows.moments is None:
        return blocks
    since = measured.before.passes - openness.passes
    cost = SUM * openness.rows * problem.d + INVERSE * problem.d**2 / problem.n
    # A start elsewhere than at W = 0, or on separating rows, has no earlier metric.
    first = _FIRST if blocks.inverses is not None or are_open(problem, measured.stats) else 0.0
    total = sum(openness.classes.tolist())
    changed = not openness.total / _CHANGED <= total <= openness.total * _CHANGED
    wait = 0.0 if changed else (_TIMES - 1.0) * openness.passes + first
    to_go = passes_to_go(since, openness.gap, _gap(measured), measured.tol)
    if since < wait + cost or to_go < cost:
        return blocks
    if not problem.by_class:
        return replace(blocks, asked=_LEAST * openness.classes / problem.n)
    # (1/n) sum_i x_i x_i^T is at most its trace, so the omitted part is at most lam.
    least = problem.lam / max(float(np.trace(memory.rows.moments)), sys.float_info.min)
    return replace(blocks, asked=np.full(problem.m, least))


def passes_to_go(passes: float, gap_then: float, gap: float, tol: float) -> float:
    """Return how many passes the gap takes to the tolerance at the rate of the last `passes` passes."""
    if gap >= gap_then:
        return math.inf
    return passes * math.log(gap / min(tol, gap)) / math.log(gap_then / gap)


def _gap(measured: Measurement) -> float:
    return max(measured.relative_gap, sys.float_info.epsilon)


def with_openness(problem: Problem, measured: Measurement) -> Measurement:
    """Return the measurement with the openness of the classes in its memory."""
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
    """Return the H_j at an accepted point, if they were summed."""
    stats, C = measured.stats, memory.rows.moments
    blocks, openness = replace(memory.classes, asked=None), memory.classes.openness
    if stats.moments is None or stats.openness is None or openness is None or C is None:
        return blocks
    openness = replace(
        openness, passes=measured.before.passes, gap=_gap(measured), total=float(stats.openness.sum())
    )
    share = 0.0 if problem.by_class else _LEAST
    inverses = inverses_of(problem, C, stats.openness, stats.moments, share)
    known = blocks.inverses if inverses is None else inverses
    return replace(blocks, openness=openness, inverses=known)


def alike_classes(problem: Problem, rows: RowMoments, stats: VertexSums) -> Float64Array | None:
    """Return the inverses (1, d, d) by C alone if all rows are open, which makes the H_j equal."""
    if rows.moments is None or stats.openness is None or not are_open(problem, stats):
        return None
    C, openness = rows.moments, stats.openness.mean(keepdims=True)
    return inverses_of(problem, C, openness, np.zeros((1, *C.shape)), share=1.0)


def inverses_of(
    problem: Problem, C: Float64Array, openness: Float64Array, moments: Float64Array, share: float
) -> Float64Array | None:
    """Return the inverse of each H_j, with C for a share of the openness.

    None if rounding leaves one that is not positive definite.
    """
    inverses, diagonal = np.empty_like(moments), np.diag_indices(problem.d)
    for inverse, total, size in zip(inverses, moments, openness, strict=True):
        block = (share * size) * C
        block += total
        block /= problem.n
        block[diagonal] += problem.lam
        # LAPACK works in place on column-major arrays, such as the transpose.
        factor, failed = lapack.dpotrf(block.T, lower=1, clean=1, overwrite_a=1)
        if failed:
            return None
        lower, _ = lapack.dpotri(factor, lower=1, overwrite_c=1)
        np.add(lower, lower.T, out=inverse)
        inverse[diagonal] *= 0.5
    return inverses


def arrays_of_classes(problem: Problem) -> int:
    """Return how many arrays of the shape of W that takes."""
    return _CLASS_ARRAYS * problem.d if wants_classes(problem) else 0


def numbers_in_classes(problem: Problem) -> int:
    """Return how many numbers of the H_j blocks are asked to sum, 0 if none."""
    return problem.m * problem.d**2 if wants_classes(problem) else 0
