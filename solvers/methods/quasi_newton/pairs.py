"""What L-BFGS remembers of its last steps, and the product with the inverse Hessian that they stand for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol, Self

import numpy as np
from scipy.linalg import blas

from topline.solvers.core.problem import Problem, inner
from topline.solvers.typing import Float64Array

#: Pairs that are remembered at least and at most: as many as fit into so many numbers, and no more than one
#: for so many examples, lest the product with them takes longer than a pass.
_PAIRS = 10, 80
_NUMBERS, _EXAMPLES = 1 << 22, 64
#: Names in `SolverState.memory` of the pairs and of their curvatures.
_STEPS = tuple(f"step_{i}" for i in range(_PAIRS[1]))
_CHANGES = tuple(f"change_{i}" for i in range(_PAIRS[1]))
CURVATURES = "curvatures"
#: A pair that changed the gradient by so many times what a later Hessian says no longer holds.
_FALLEN = 4.0
#: A pair whose curvature is below this share of the sizes is rounding.
_FLAT = 1e-12


class Metric(Protocol):
    """What stands for the Hessian before steps have shown it."""

    def fitted(self, step: Float64Array, change: Float64Array) -> Self:
        """Return the metric scaled by what the gradient changed by along a step."""

    def inverse_times(self, V: Float64Array) -> Float64Array:
        """Return the product of the inverse with V (d, m)."""


@dataclass(frozen=True, eq=False)
class Pairs:
    """The inverse Hessian of L-BFGS (J. Nocedal, Math. Comp. 35, 1980), as a product with it.

    The last steps s, what the gradient changed by along them, y, and <s, y>, oldest first; s and y are all of
    one shape.
    """

    steps: tuple[Float64Array, ...] = ()
    changes: tuple[Float64Array, ...] = ()
    curvatures: tuple[float, ...] = ()

    @classmethod
    def of(cls, memory: Mapping[str, Float64Array]) -> Pairs:
        """Return what `to_memory` was made from; what else is in the mapping is left alone."""
        curvatures = memory.get(CURVATURES, np.empty(0)).tolist()
        return cls(
            tuple(memory[name] for name in _STEPS[: len(curvatures)]),
            tuple(memory[name] for name in _CHANGES[: len(curvatures)]),
            tuple(curvatures),
        )

    def to_memory(self) -> dict[str, Float64Array]:
        """Return the arrays by name."""
        named = {
            **dict(zip(_STEPS, self.steps, strict=False)),
            **dict(zip(_CHANGES, self.changes, strict=False)),
        }
        return named | {CURVATURES: np.array(self.curvatures)}

    def with_pair(self, step: Float64Array, change: Float64Array, most: int) -> Pairs:
        """Add a pair, and let go of the oldest beyond `most`; one without curvature is left out."""
        s, y = step.ravel(), change.ravel()
        curvature = float(s @ y)
        if not curvature > _FLAT * np.sqrt((s @ s) * (y @ y)):
            return self
        return Pairs(
            (*self.steps, step)[-most:],
            (*self.changes, change)[-most:],
            (*self.curvatures, curvature)[-most:],
        )

    def that_hold(self, metric: Metric) -> Pairs:
        """Return those whose curvature has not fallen since by much, as a metric of now has it, and the last.

        Where a loss has fallen by orders of magnitude, so has its Hessian.
        """
        pairs = zip(self.steps, self.changes, self.curvatures, strict=True)
        kept = Pairs()
        for i, (step, change, curvature) in enumerate(pairs, start=1):
            if i == len(self.steps) or inner(change, metric.inverse_times(change)) <= _FALLEN * curvature:
                kept = kept.with_pair(step, change, len(self.steps))
        return kept

    def times(self, gradient: Float64Array, metric: Metric | None = None) -> Float64Array:
        """Return H g by the two loops around the inverse of the metric; without one around g's multiple."""
        product = gradient.copy()
        flat = product.ravel()
        pairs = [
            (s.ravel(), y.ravel(), c)
            for s, y, c in zip(self.steps, self.changes, self.curvatures, strict=True)
        ]
        shares = []
        for s, y, curvature in reversed(pairs):
            share = float(s @ flat) / curvature
            blas.daxpy(y, flat, a=-share)
            shares.append(share)
        if metric is not None:
            metric = metric.fitted(self.steps[-1], self.changes[-1]) if pairs else metric
            product = metric.inverse_times(product)
            flat = product.ravel()
        elif pairs:
            _, y, curvature = pairs[-1]
            flat *= curvature / float(y @ y)
        for (s, y, curvature), share in zip(pairs, reversed(shares), strict=True):
            blas.daxpy(s, flat, a=share - float(y @ flat) / curvature)
        return product


def most_pairs(problem: Problem) -> int:
    """Return how many steps are remembered: where W is small many, which halve the passes."""
    least, most = _PAIRS
    return max(least, min(most, _NUMBERS // (2 * problem.d * problem.m), problem.n // _EXAMPLES))
