"""What L-BFGS remembers of its last steps, and the product with the inverse Hessian that they stand for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, Self

import numpy as np
from numpy.typing import NDArray

from topline.solvers.core.codec import stored
from topline.solvers.core.problem import Problem
from topline.solvers.methods.quasi_newton.parts import NONE, WHOLE, Parts, chosen, quotient
from topline.solvers.typing import Float64Array

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
