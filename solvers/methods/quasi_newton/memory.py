"""What L-BFGS remembers from round to round, of W as a whole or of every class by itself.

A loss that is a sum over the classes of functions of one score each, as one-vs-all is, leaves

    P(W) = sum_j P_j(w_j),   P_j(w_j) = lam/2 |w_j|^2 + (1/n) sum_i phi_j(w_j^T x_i; y_i),

with a gradient, a dual point and a gap for every class, which are the parts of W that are minimised side by
side.  An evaluation of P is one of all P_j, each at a point of its own: where one class is to try another
step, the others set off in their next direction.  Pairs are the last steps with what the gradient changed by,
and stand for the inverse Hessian.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Protocol, Self

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import blas

from topline.solvers.core.codec import stored
from topline.solvers.core.problem import Problem, inner
from topline.solvers.jit_cache import jit
from topline.solvers.methods.line_search import Bracket
from topline.solvers.operations import VertexSums
from topline.solvers.typing import Float64Array

#: The share of a first step that was too long which the next one has at least.
_LEAST_SHARE = 0.1
#: Steps of Newton's method that find the least value of a model.
_MODEL_STEPS = 12


@stored
@dataclass(frozen=True)
class Parts:
    """What is minimised by itself: the columns of W (d, m) where they are `apart`, else W.

    Numbers of the parts have the shape (m,) or (1,), with which W is multiplied as it is.
    """

    apart: bool = False

    @classmethod
    def of(cls, problem: Problem) -> Parts:
        """Return the parts in which P is minimised."""
        return cls(problem.by_class)

    def values(self, problem: Problem, W: Float64Array, stats: VertexSums) -> Float64Array:
        """Return P of every part at W, from the answer of the blocks."""
        if not self.apart or stats.class_losses is None:
            return np.array([problem.primal(W, stats.loss / problem.n)])
        return 0.5 * problem.lam * self.inner(W, W) + stats.class_losses / problem.n

    def inner(self, V: Float64Array, W: Float64Array) -> Float64Array:
        """Return <V, W> of every part, the same for every memory layout."""
        if not self.apart:
            return np.array([inner(V, W)])
        return _inner_columns(np.ascontiguousarray(V), np.ascontiguousarray(W))

    def norm(self, W: Float64Array) -> Float64Array:
        """Return |W| of every part."""
        return np.asarray(np.sqrt(self.inner(W, W)))

    def add(self, V: Float64Array, factors: Float64Array, to: Float64Array) -> None:
        """Add every part of V times its factor; both are C-contiguous."""
        if self.apart:
            _add_columns(V, factors, to)
        else:
            blas.daxpy(V.ravel(), to.ravel(), a=float(factors[0]))


@jit
def _inner_columns(V: Float64Array, W: Float64Array) -> Float64Array:
    """Return the inner products of the columns."""
    products = np.zeros(V.shape[1])
    for i in range(V.shape[0]):
        for j in range(V.shape[1]):
            products[j] += V[i, j] * W[i, j]
    return products


@jit
def _add_columns(V: Float64Array, factors: Float64Array, to: Float64Array) -> None:
    """Add every column of V times its factor."""
    for i in range(V.shape[0]):
        for j in range(V.shape[1]):
            to[i, j] += factors[j] * V[i, j]


#: W as a whole.
WHOLE = Parts()
#: What a part that does not step adds.
NONE = np.zeros(1)


def quotient(numbers: Float64Array, by: Float64Array, without: float) -> Float64Array:
    """Return the quotients of numbers of the parts, another number where the divisor is not positive."""
    return np.divide(numbers, by, out=np.full_like(numbers, without), where=by > 0.0)


def chosen(parts: NDArray[np.bool_], V: Float64Array, W: Float64Array) -> Float64Array:
    """Return V in some parts and W in the others; either may be one number for all."""
    if parts.all():
        return V
    return np.where(parts, V, W) if parts.any() else W


@stored
@dataclass(frozen=True)
class Lines:
    """A line search for every part.

    A part without a slope is at rest: it stays where it is.  It has trials if its last line was lost
    (`searches.Searches`).
    """

    brackets: tuple[Bracket, ...]

    @classmethod
    def start(cls, values: Float64Array, slopes: Float64Array, steps: Float64Array) -> Lines:
        """Begin with a first step of every part; one that is at rest has the slope 0."""
        return cls(tuple(map(Bracket.start, values.tolist(), slopes.tolist(), steps.tolist())))

    @property
    def steps(self) -> Float64Array:
        """The step of every part to try next."""
        return np.array([line.step for line in self.brackets])

    @property
    def values(self) -> Float64Array:
        """P of every part where its line begins."""
        return np.array([line.value for line in self.brackets])

    @property
    def slopes(self) -> Float64Array:
        """The slope of every part where its line begins."""
        return np.array([line.slope for line in self.brackets])

    @property
    def trials(self) -> NDArray[np.int64]:
        """The steps that every part has tried in vain."""
        return np.array([line.trials for line in self.brackets])

    def accept(self, values: Float64Array, slopes: Float64Array) -> NDArray[np.bool_]:
        """Return in which parts P and its slope at the steps tried are good enough."""
        tried = zip(self.brackets, values.tolist(), slopes.tolist(), strict=True)
        return np.array([line.accepts(value, slope) for line, value, slope in tried])

    def after(self, values: Float64Array, slopes: Float64Array, taken: NDArray[np.bool_]) -> Lines:
        """Return the lines with another step to try where none was `taken`."""
        tried = zip(self.brackets, values.tolist(), slopes.tolist(), taken, strict=True)
        after = _convex_after if len(self.brackets) > 1 else Bracket.after
        return Lines(tuple(line if good else after(line, value, slope) for line, value, slope, good in tried))

    def at_rest(self, parts: NDArray[np.bool_], lost: NDArray[np.bool_]) -> Lines:
        """Return the lines with some parts at rest."""
        lines = zip(self.brackets, parts, lost, strict=True)
        return Lines(
            tuple(
                replace(line, slope=0.0, trials=int(gone)) if rests else line for line, rests, gone in lines
            )
        )

    def where(self, parts: NDArray[np.bool_], others: Lines) -> Lines:
        """Return these in some parts, and others in the rest."""
        pairs = zip(self.brackets, others.brackets, parts, strict=True)
        return Lines(tuple(mine if here else other for mine, other, here in pairs))


def gradient_steps(problem: Problem, values: Float64Array, slopes: Float64Array) -> Float64Array:
    """Return for every part the step along -grad P, of slope -|grad P|^2, to the least value of a model of P.

    In the model the scores of all rows rise alike.  A hinge falls along its tangent to zero, but no further
    than 1/lam: P bends upwards by lam at least, so that no least value lies beyond.  A smooth loss falls as
    L(t) = c log(1 + (M - 1) exp(-a t)), as the softmax does from W = 0, with M = 2 where classes do not
    compete; with lam t^2 |grad P|^2 / 2 the least value is at u = a t where u (e^u + M - 1) = M a / lam.
    Without a slope the step is 1.
    """
    steps, moving = np.ones_like(values), (slopes < 0.0) & (values > 0.0)
    values, falls = values[moving], -slopes[moving]
    if not problem.form.smooth:
        steps[moving] = np.minimum(values / falls, 1.0 / problem.lam)
        return steps
    M = float(problem.m if problem.form.family.balanced else 2)
    a = falls * (M / (M - 1.0) * math.log(M)) / values
    goal = M * a / problem.lam
    # Newton's method falls onto the root of a convex function from any point right of it.
    u = np.minimum(a / problem.lam, np.log1p(goal))
    for _ in range(_MODEL_STEPS):
        powers = np.exp(u)
        u -= (u * (powers + M - 1.0) - goal) / (powers * (1.0 + u) + M - 1.0)
    steps[moving] = u / a
    return steps


def _convex_after(line: Bracket, value: float, slope: float) -> Bracket:
    """Return the bracket after a step that was not accepted, along which P is convex.

    Far beyond the minimum the loss is linear, where a secant says little and the tangents at both ends all.
    """
    after = line.after(value, slope)
    if line.low > 0.0 or after.high != line.step or not slope > 0.0:
        return after
    meet = (line.value - value + slope * line.step) / (slope - line.slope)
    return replace(after, step=max(min(after.step, meet), _LEAST_SHARE * line.step))


#: Pairs that are remembered at least and at most: as many as fit into so many numbers, and no more than one
#: for so many examples, lest the product with them takes longer than a pass.
_PAIRS = 10, 80
_NUMBERS, _EXAMPLES = 1 << 22, 64
#: A pair that changed the gradient by so many times what a later Hessian says no longer holds.
_FALLEN = 4.0
#: A pair whose curvature is below this share of the sizes is rounding.
_FLAT = 1e-12


class Metric(Protocol):
    """What stands for the Hessian before steps have shown it."""

    def fitted(self, step: Float64Array, change: Float64Array, parts: Parts) -> Self:
        """Return the metric scaled by what the gradient changed by along a step; 0 where none was taken."""

    def inverse_times(self, V: Float64Array) -> Float64Array:
        """Return the product of the inverse with V (d, m)."""


@stored
@dataclass(frozen=True, eq=False)
class Pairs:
    """The inverse Hessian of L-BFGS (J. Nocedal, Math. Comp. 35, 1980), as a product with it.

    The last steps s, what the gradient changed by along them, y, and <s, y> of every part, oldest first; s
    and y are all of one shape.  A part that did not step with the others has 0 in all three.
    """

    steps: tuple[Float64Array, ...] = ()
    changes: tuple[Float64Array, ...] = ()
    curvatures: tuple[Float64Array, ...] = ()
    parts: Parts = WHOLE

    @property
    def known(self) -> NDArray[np.bool_]:
        """Which parts have a pair."""
        return np.any(self.curvatures, axis=0) if self.steps else np.zeros(1, dtype=np.bool_)

    def with_pair(self, step: Float64Array, change: Float64Array, most: int) -> Pairs:
        """Add a pair, and let go of the oldest beyond `most`; one without curvature is left out."""
        inner = self.parts.inner
        curvature = inner(step, change)
        curved = curvature > _FLAT * np.sqrt(inner(step, step) * inner(change, change))
        if not curved.any():
            return self
        return Pairs(
            (*self.steps, chosen(curved, step, NONE))[-most:],
            (*self.changes, chosen(curved, change, NONE))[-most:],
            (*self.curvatures, chosen(curved, curvature, NONE))[-most:],
            self.parts,
        )

    def of_parts(self, kept: NDArray[np.bool_]) -> Pairs:
        """Return the pairs of some parts."""
        if kept.all():
            return self
        found = Pairs(parts=self.parts)
        for step, change in zip(self.steps, self.changes, strict=True) if kept.any() else ():
            found = found.with_pair(chosen(kept, step, NONE), chosen(kept, change, NONE), len(self.steps))
        return found

    def consistent_with(self, metric: Metric) -> Pairs:
        """Return those whose curvature has not fallen since by much, as a metric of now has it, and the last.

        Where a loss has fallen by orders of magnitude, so has its Hessian.
        """
        pairs = zip(self.steps, self.changes, self.curvatures, strict=True)
        kept = Pairs(parts=self.parts)
        for i, (step, change, curvature) in enumerate(pairs, start=1):
            shown = self.parts.inner(change, metric.inverse_times(change))
            if i == len(self.steps) or (shown <= _FALLEN * curvature).all():
                kept = kept.with_pair(step, change, len(self.steps))
        return kept

    def times(self, gradient: Float64Array, metric: Metric | None = None) -> Float64Array:
        """Return H g by the two loops around the inverse of the metric; without one around g's multiple."""
        inner, add = self.parts.inner, self.parts.add
        product = np.array(gradient, order="C")
        pairs = list(zip(self.steps, self.changes, self.curvatures, strict=True))
        shares = []
        for s, y, curvature in reversed(pairs):
            share = quotient(inner(s, product), curvature, 0.0)
            add(y, -share, product)
            shares.append(share)
        if metric is not None:
            metric = metric.fitted(*self._last(), self.parts) if pairs else metric
            product = metric.inverse_times(product)
        elif pairs:
            step, change = self._last()
            product *= quotient(inner(step, change), inner(change, change), 1.0)
        for (s, y, curvature), share in zip(pairs, reversed(shares), strict=True):
            add(s, share - quotient(inner(y, product), curvature, 0.0), product)
        return product

    def _last(self) -> tuple[Float64Array, Float64Array]:
        """Return the last step of every part and what the gradient changed by along it, 0 of one without."""
        step, change, there = self.steps[-1], self.changes[-1], self.curvatures[-1] != 0.0
        for s, y, curvature in zip(
            self.steps[-2::-1], self.changes[-2::-1], self.curvatures[-2::-1], strict=True
        ):
            if there.all():
                break
            older = ~there & (curvature != 0.0)
            step, change, there = chosen(older, s, step), chosen(older, y, change), there | older
        return step, change


def most_pairs(problem: Problem) -> int:
    """Return how many steps are remembered: where W is small many, which halve the passes."""
    least, most = _PAIRS
    return max(least, min(most, _NUMBERS // (2 * problem.d * problem.m), problem.n // _EXAMPLES))


#: A step that lowers P by a smaller share is where float64 products begin, and points whose P differ by less
#: are told apart by their gradients.
STALLED = 1e-7


@stored
@dataclass(frozen=True, eq=False)
class BestParts:
    """The best point so far, put together of the best points of the parts.

    Attributes
    ----------
    W : (d, m) the point.
    values, steepness : P and |grad P|^2 of every part there.
    lowest : the lowest P of every part.
    """

    W: Float64Array
    values: Float64Array
    steepness: Float64Array
    lowest: Float64Array

    def with_point(self, W: Float64Array, values: Float64Array, steepness: Float64Array) -> BestParts:
        """Return the best with W in it, where P and |grad P|^2 of a part say that it is better there."""
        lower = values < (1.0 - STALLED) * self.lowest
        better = lower | ((values <= (1.0 + STALLED) * self.lowest) & (steepness < self.steepness))
        if not better.any():
            return self
        return BestParts(
            chosen(better, W, self.W),
            np.where(better, values, self.values),
            np.where(better, steepness, self.steepness),
            np.where(better, np.minimum(values, self.lowest), self.lowest),
        )


@stored
@dataclass(frozen=True, eq=False)
class Line:
    """Where a step began: `base` W (d, m), the gradient there, its direction, and the searches along it."""

    base: Float64Array
    gradient: Float64Array
    direction: Float64Array
    lines: Lines


@stored
@dataclass(frozen=True, eq=False)
class RowMoments:
    """The second moments C of the rows, which serve every lam.

    Attributes
    ----------
    basis, spectrum : its eigenvectors (d, d) and eigenvalues (d,), None where it is not decomposed.
    moments : C (d, d), None where the metric of classes has no use for it.
    misled : whether a step by them led astray, or they overflowed.
    """

    basis: Float64Array | None = None
    spectrum: Float64Array | None = None
    moments: Float64Array | None = None
    misled: bool = False

    @property
    def known(self) -> bool:
        """Whether they were looked for."""
        return self.misled or self.basis is not None or self.moments is not None


@stored
@dataclass(frozen=True, eq=False)
class Openness:
    """How open the classes (m,) are, and the share of the rows that are open.

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
class Turns:
    """The passes and the gaps (m,) at which the Hessian's block of each class was found, or the run began."""

    passes: Float64Array
    gaps: Float64Array


@stored
@dataclass(frozen=True, eq=False)
class ClassBlocks:
    """The Hessian's blocks H_j of single classes.

    Attributes
    ----------
    inverses : (m, d, d), or (1, d, d) where all are alike; None where they were not found.
    openness : None before it is known, and where every class is minimised by itself.
    asked : (m,) from which openness on the next evaluation sums rows, None where it sums none.
    turns : where every class is minimised by itself, None else.
    """

    inverses: Float64Array | None = None
    openness: Openness | None = None
    asked: Float64Array | None = None
    turns: Turns | None = None


@stored
@dataclass(frozen=True, eq=False)
class LbfgsMemory:
    """What L-BFGS remembers.

    Attributes
    ----------
    first : |grad P(0)| where the loss is not convex.
    best : the best point so far, which is what a run gives; None before the first round.
    line : where the step began that is tried next, None where there is none.
    pairs : the last steps and what the gradient changed by.
    rows, classes : what stands for the Hessian before steps have shown it.
    """

    first: float | None = None
    best: BestParts | None = None
    line: Line | None = None
    pairs: Pairs | None = None
    rows: RowMoments = RowMoments()
    classes: ClassBlocks = ClassBlocks()
