"""The memory of L-BFGS between rounds.

Pairs are the last steps with the changes of the gradient, and represent the inverse Hessian.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol, Self

import numpy as np
from scipy.linalg import blas

from topline.solvers.core.codec import stored
from topline.solvers.core.problem import Problem, inner, squared_norm
from topline.solvers.methods.step_rules import Bracket
from topline.solvers.typing import Float64Array

#: Newton steps to the minimum of a model.
_MODEL_STEPS = 12


def gradient_step(problem: Problem, value: float, steepness: float) -> float:
    """Return the step along -grad P, with |grad P|^2 = steepness, to the minimum of a model of P.

    In the model the scores of all rows rise alike.  A hinge falls along its tangent to zero, but no further
    than 1/lam: P has curvature of at least lam, so no minimum lies beyond.  A smooth loss falls as L(t) = c
    log(1 + (M - 1) exp(-a t)), as the softmax does from W = 0, with M = 2 where classes do not compete; with
    lam t^2 |grad P|^2 / 2 the minimum is at u = a t where u (e^u + M - 1) = M a / lam.  Without a slope the
    step is 1.
    """
    if not (steepness > 0.0 and value > 0.0):
        return 1.0
    if not problem.form.smooth:
        return min(value / steepness, 1.0 / problem.lam)
    M = float(problem.m if problem.form.family.balanced else 2)
    a = steepness * (M / (M - 1.0) * math.log(M)) / value
    goal = M * a / problem.lam
    # Newton's method descends to the root of a convex function from any point right of it.
    u = min(a / problem.lam, math.log1p(goal))
    for _ in range(_MODEL_STEPS):
        power = math.exp(u)
        u -= (u * (power + M - 1.0) - goal) / (power * (1.0 + u) + M - 1.0)
    return u / a


#: Least and most pairs remembered: as many as fit into this many numbers, and at most one per this many
#: examples, so that the product with them takes no longer than a pass.
_PAIRS = 10, 80
_NUMBERS, _EXAMPLES = 1 << 22, 64
#: A pair is outdated if its change of the gradient is this multiple of a later Hessian's.
_FALLEN = 4.0
#: A pair whose curvature is below this share of the sizes is rounding.
_FLAT = 1e-12


class Metric(Protocol):
    """An approximation of the Hessian before steps have revealed it."""

    def fitted(self, step: Float64Array, change: Float64Array) -> Self:
        """Return the metric scaled to the change of the gradient along a step."""

    def inverse_times(self, V: Float64Array) -> Float64Array:
        """Return the product of the inverse with V (d, m)."""


@stored
@dataclass(frozen=True, eq=False)
class Pairs:
    """The inverse Hessian of L-BFGS (J. Nocedal, Math. Comp. 35, 1980), as a product with it.

    The last steps s, the changes of the gradient along them, y, and <s, y>, oldest first.
    """

    steps: tuple[Float64Array, ...] = ()
    changes: tuple[Float64Array, ...] = ()
    curvatures: tuple[float, ...] = ()

    def with_pair(self, step: Float64Array, change: Float64Array, most: int) -> Pairs:
        """Add a pair, dropping the oldest beyond `most`; a pair without curvature is left out."""
        curvature = inner(step, change)
        if not curvature > _FLAT * math.sqrt(squared_norm(step) * squared_norm(change)):
            return self
        return Pairs(
            (*self.steps, step)[-most:],
            (*self.changes, change)[-most:],
            (*self.curvatures, curvature)[-most:],
        )

    def consistent_with(self, metric: Metric) -> Pairs:
        """Return the pairs whose curvature is not far above that of the current metric, and the last pair.

        If a loss has fallen by orders of magnitude, so has its Hessian.
        """
        pairs = list(zip(self.steps, self.changes, self.curvatures, strict=True))
        kept = [
            (s, y, curvature)
            for s, y, curvature in pairs[:-1]
            if inner(y, metric.inverse_times(y)) <= _FALLEN * curvature
        ]
        return Pairs(*zip(*kept, *pairs[-1:], strict=True)) if pairs else self

    def times(self, gradient: Float64Array, metric: Metric | None = None) -> Float64Array:
        """Return H g by the two loops around the inverse of the metric, by default a multiple of I."""
        product = np.array(gradient, order="C")
        pairs = list(zip(self.steps, self.changes, self.curvatures, strict=True))
        shares = []
        for s, y, curvature in reversed(pairs):
            share = inner(s, product) / curvature
            blas.daxpy(y.ravel(), product.ravel(), a=-share)
            shares.append(share)
        if metric is not None:
            metric = metric.fitted(self.steps[-1], self.changes[-1]) if pairs else metric
            product = np.ascontiguousarray(metric.inverse_times(product))
        elif pairs:
            product *= self.curvatures[-1] / squared_norm(self.changes[-1])
        for (s, y, curvature), share in zip(pairs, reversed(shares), strict=True):
            blas.daxpy(s.ravel(), product.ravel(), a=share - inner(y, product) / curvature)
        return product


def most_pairs(problem: Problem) -> int:
    """Return how many steps are remembered: many for a small W, which halves the passes."""
    least, most = _PAIRS
    return max(least, min(most, _NUMBERS // (2 * problem.d * problem.m), problem.n // _EXAMPLES))


#: Relative decrease of P below which float64 products begin and gradients compare points.
STALLED = 1e-7


@stored
@dataclass(frozen=True, eq=False)
class BestPoint:
    """The best point W (d, m) so far, P and |grad P|^2 there, and the lowest P of all points."""

    W: Float64Array
    value: float
    steepness: float
    lowest: float

    def or_better(self, W: Float64Array, value: float, steepness: float) -> BestPoint:
        """Return the other point if it is better by P and |grad P|^2, else this one."""
        same = value <= (1.0 + STALLED) * self.lowest and steepness < self.steepness
        if not (same or value < (1.0 - STALLED) * self.lowest):
            return self
        return BestPoint(W, value, steepness, min(value, self.lowest))


@stored
@dataclass(frozen=True, eq=False)
class Line:
    """The start of a step: `base` W (d, m), the gradient there, its direction, and the search along it."""

    base: Float64Array
    gradient: Float64Array
    direction: Float64Array
    search: Bracket


@stored
@dataclass(frozen=True, eq=False)
class RowMoments:
    """The second moments C of the rows, which serve every lam.

    Attributes
    ----------
    basis, spectrum : its eigenvectors (d, d) and eigenvalues (d,), None if not decomposed.
    moments : C (d, d), None if the metric of classes has no use for it.
    misled : whether a step by them went astray, or they overflowed.
    """

    basis: Float64Array | None = None
    spectrum: Float64Array | None = None
    moments: Float64Array | None = None
    misled: bool = False

    @property
    def known(self) -> bool:
        """Whether they were computed or given up."""
        return self.misled or self.basis is not None or self.moments is not None


@stored
@dataclass(frozen=True, eq=False)
class Openness:
    """The openness of the classes (m,), and the share of the rows that are open.

    `passes`, `gap` and `total` are the passes, the relative gap and the sum of the openness when the Hessian
    of the classes was found, or the run began.
    """

    classes: Float64Array
    rows: float
    passes: float
    gap: float
    total: float


@stored
@dataclass(frozen=True, eq=False)
class ClassBlocks:
    """The Hessian's blocks H_j of single classes.

    Attributes
    ----------
    inverses : (m, d, d), or (1, d, d) if all are equal; None if not found.
    openness : None before it is known.
    asked : (m,) least openness of the rows to sum in the next evaluation, None for no sums.
    """

    inverses: Float64Array | None = None
    openness: Openness | None = None
    asked: Float64Array | None = None


@stored
@dataclass(frozen=True, eq=False)
class LbfgsMemory:
    """The memory of L-BFGS.

    Attributes
    ----------
    first : |grad P(0)| where the loss is not convex.
    best : the best point so far, the answer of a run; None before the first round.
    line : the start of the step to try next, None if there is none.
    pairs : the last steps and the changes of the gradient.
    rows, classes : approximations of the Hessian before steps have revealed it.
    """

    first: float | None = None
    best: BestPoint | None = None
    line: Line | None = None
    pairs: Pairs | None = None
    rows: RowMoments = RowMoments()
    classes: ClassBlocks = ClassBlocks()
