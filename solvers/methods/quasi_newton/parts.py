"""The parts of W that are minimised side by side: W as a whole, or every class by itself.

A loss that is a sum over the classes of functions of one score each, as one-vs-all is, leaves

    P(W) = sum_j P_j(w_j),   P_j(w_j) = lam/2 |w_j|^2 + (1/n) sum_i phi_j(w_j^T x_i; y_i),

with a gradient, a dual point and a gap for every class.  An evaluation of P is one of all P_j, each at a
point of its own: where one class is to try another step, the others set off in their next direction.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

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
