"""The best point near the span of the last changes of the dual rows: where many more sweeps would lead."""

from __future__ import annotations

from typing import ClassVar, Protocol, TypeAlias

import numpy as np

from topline.solvers.blocks.ascent.dual_changes import change_sums
from topline.solvers.blocks.ascent.passes import AscentPass
from topline.solvers.blocks.ascent.rows import RowFeed
from topline.solvers.blocks.ascent.sweeps import ALL_CLASSES
from topline.solvers.core.problem import Problem
from topline.solvers.typing import Float64Array, Int64Array, IntArray

#: Number of changes remembered.
REMEMBERED = 6
#: Ridge on the system of a few equations, as a share of its trace.
_RIDGE = 1e-10
#: Bytes needed per number of the dual rows and of W, and the limit beyond which sweeps continue without it.
_NUMBER_BYTES = 8 * (REMEMBERED + 3)
_MOST_BYTES = 1 << 28
#: Least gain of an extrapolation, as a share of the last sweeps' gain, to be worth its time.
_WORTH = 0.25


def extrapolation_bytes(numbers: int) -> int:
    """Return the most bytes that extrapolation takes for this many `numbers` of dual rows and W together."""
    return min(_MOST_BYTES, _NUMBER_BYTES * numbers)


_Change: TypeAlias = tuple[Float64Array, Float64Array]


class SweptRows(Protocol):
    """Some rows moved by sweeps, with the scores or the weights that follow their dual rows.

    Those of dual rows B are V(B), linear in B; the image of a change D is V(D).  Scores and dual rows are
    those of a row with weight 1, and n D(B) has the quadratic part -(<V(B), B> + gamma |B|^2)/2 in the inner
    product that counts row i w_i times.

    Attributes
    ----------
    problem, y, weights : the problem, labels of the rows, and how often each counts.
    tries_again : whether extrapolations that were not worth their time are tried again later.
    """

    problem: Problem
    y: IntArray
    weights: Float64Array
    tries_again: ClassVar[bool]

    def now(self) -> tuple[Float64Array, Float64Array]:
        """Return the dual rows B (r, m) and V(B), in float64."""

    def inner(self, V: Float64Array, change: Float64Array, image: Float64Array) -> float:
        """Return <V, D> for the current V, and the image of a change D."""

    def curvature(self, left: Float64Array, right: Float64Array, change: Float64Array) -> float:
        """Return <V(C), D> for the images of changes C and D, and the change D."""

    def image(self, change: Float64Array) -> Float64Array:
        """Return the image of a change."""

    def feasible(self, B: Float64Array, trial: Float64Array) -> Float64Array:
        """Return the change from B to a point of the domain near `trial`, which is overwritten."""

    def move(self, B: Float64Array, V: Float64Array, change: Float64Array, image: Float64Array) -> None:
        """Apply a change of B with its image, and add its stored (rounded) value to B and V."""


class Extrapolation:
    """Remembers the changes of some rows, with their images.

    With D restricted to these rows and B their dual rows, D(B + sum c_t D_t) is a parabola in c: its linear
    term is the slope of D along each D_t at B, its curvature <V(D_s), D_t> + gamma <D_s, D_t>.
    """

    def __init__(self, rows: SweptRows) -> None:
        self._rows = rows
        self._changes: list[Float64Array] = []
        self._images: list[Float64Array] = []
        self._system = np.empty((0, 0))
        self._failures = self._waits = 0
        self._B, self._V = rows.now()

    def step(self, swept: float) -> float:
        """Move to the best point found; return n times the rise of D, where `swept` is the rise by sweeps."""
        if self._failures and not self._rows.tries_again:
            return 0.0
        B, V = self._B, self._V
        self._B, self._V = self._rows.now()
        self._remember(self._B - B, self._V - V)
        if self._waits:
            self._waits -= 1
            return 0.0
        rise = self._towards(self._best_of_span())
        self._failures = 0 if rise > _WORTH * swept else self._failures + 1
        # After t failures in a row the next 2^t - 1 occasions are skipped.
        self._waits = 2**self._failures - 1
        return rise

    def _remember(self, change: Float64Array, image: Float64Array) -> None:
        first = max(len(self._changes) + 1 - REMEMBERED, 0)
        self._changes = [*self._changes[first:], change]
        self._images = [*self._images[first:], image]
        known = len(self._changes)
        system = np.empty((known, known))
        system[:-1, :-1] = self._system[first:, first:]
        for t in range(known):
            pair = self._changes[t], self._images[t]
            system[-1, t] = system[t, -1] = self._curvature((change, image), pair)
        self._system = system

    def _best_of_span(self) -> Float64Array:
        """Return the dual rows at the best mixture of the remembered changes."""
        known = len(self._changes)
        slopes = np.array([self._slope(*pair) for pair in zip(self._changes, self._images, strict=True)])
        system = self._system.copy()
        system[np.diag_indices(known)] += _RIDGE * np.trace(system) / known
        trial = self._B.copy()
        for factor, change in zip(np.linalg.lstsq(system, slopes, rcond=None)[0], self._changes, strict=True):
            trial += factor * change
        return trial

    def _slope(self, change: Float64Array, image: Float64Array) -> float:
        rows, problem, form = self._rows, self._rows.problem, self._rows.problem.form
        linear, cross, _, _ = change_sums(
            form.conjugate, form.linear_conjugate, (np.arange(len(change)), rows.y, rows.weights),
            ALL_CLASSES, (self._B, change), form.table, problem.own_share,
        )  # fmt: skip
        return linear - rows.inner(self._V, change, image) - problem.smoothing * cross

    def _curvature(self, left: _Change, right: _Change) -> float:
        rows, problem = self._rows, self._rows.problem
        value = rows.curvature(left[1], right[1], right[0])
        if problem.smoothing == 0.0:
            return value
        products = left[0] * right[0]
        if problem.own_share != 1.0:
            products[np.arange(len(products)), rows.y] *= problem.own_share
        return value + problem.smoothing * float(products.sum(axis=1) @ rows.weights)

    def _towards(self, trial: Float64Array) -> float:
        """Take the best step to a nearby feasible point; return the rise."""
        change = self._rows.feasible(self._B, trial)
        image = self._rows.image(change)
        slope = self._slope(change, image)
        if not slope > 0.0:
            return 0.0
        curvature = self._curvature((change, image), (change, image))
        step = min(slope / curvature, 1.0) if curvature > 0.0 else 1.0
        self._rows.move(self._B, self._V, step * change, step * image)
        return step * (slope - 0.5 * step * curvature)


class PassRows:
    """Some rows of a block, in the order of the block, with the weights that an ascent pass moves."""

    tries_again: ClassVar[bool] = False

    def __init__(self, work: AscentPass, held: RowFeed, rows: Int64Array) -> None:
        self._work, self._held, self._numbers = work, held, rows
        self.problem, self.y, self.weights = work.block.problem, work.block.y[rows], work.block.weights[rows]

    @staticmethod
    def fits(work: AscentPass, rows: Int64Array) -> bool:
        """Return whether the dual is a parabola, the rows are one array and their changes fit in memory."""
        numbers = len(rows) * work.block.problem.m + work.W.size
        return work.linear and work.duals.open_whole() and _NUMBER_BYTES * numbers <= _MOST_BYTES

    def now(self) -> tuple[Float64Array, Float64Array]:
        """Return the dual rows B (r, m), and W in its layout."""
        duals, rows = self._work.duals, self._numbers
        duals.open_whole()
        B = duals.A[rows].astype(np.float64) + duals.delta[rows].astype(np.float64)
        return B, self._work.W.astype(np.float64)

    def inner(self, V: Float64Array, change: Float64Array, image: Float64Array) -> float:  # noqa: ARG002
        """Return <V, D>, from V, the image and the deflated part."""
        work, value = self._work, float(np.vdot(V, image))
        if work.kept_apart:
            value += float(work.apart @ work.part_apart(image))
        return value / work.scale

    def curvature(self, left: Float64Array, right: Float64Array, change: Float64Array) -> float:  # noqa: ARG002
        """Return <V(C), D>, from the images, less the deflated part."""
        work, value = self._work, float(np.vdot(left, right))
        if work.kept_apart:
            value -= work.kept_apart * float(work.part_apart(left) @ work.part_apart(right))
        return value / work.scale

    def image(self, change: Float64Array) -> Float64Array:
        """Return the change of W caused by a change of the dual rows."""
        image = np.zeros(self._work.W.shape)
        for portion in self._held.in_order(self._numbers):
            self._work.image(portion, change[np.searchsorted(self._numbers, portion.rows)], image)
        image *= self._work.scale
        return image

    def feasible(self, B: Float64Array, trial: Float64Array) -> Float64Array:
        """Return the change to the nearest point of the domain in the classes that sweeps touch."""
        self._work.project(trial, self._numbers)
        self._work.visited += len(self._numbers)
        trial -= B
        return trial

    def move(self, B: Float64Array, V: Float64Array, change: Float64Array, image: Float64Array) -> None:
        """Apply a change to A and W."""
        work, duals, rows = self._work, self._work.duals, self._numbers
        # W takes the change as stored, after rounding to A's precision.
        stored = (B + change - duals.A[rows]).astype(duals.delta.dtype)
        taken = stored.astype(np.float64) - duals.delta[rows]
        duals.delta[rows] = stored
        image = self.image(taken) if duals.delta.dtype != np.float64 else image
        B += taken
        V += image
        work.W[:] = V
        if work.kept_apart:
            work.apart -= work.kept_apart * work.part_apart(image)
