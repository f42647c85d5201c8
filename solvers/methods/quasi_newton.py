"""The inverse Hessian of L-BFGS (J. Nocedal, Math. Comp. 35, 1980), as a product with it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from scipy.linalg import blas

from topline.solvers.typing import Float64Array

#: A pair whose curvature is below this share of the sizes is rounding.
_FLAT = 1e-12


@dataclass(frozen=True, eq=False)
class Pairs:
    """The last steps s and what the gradient changed by along them, y, oldest first; all of one shape."""

    steps: tuple[Float64Array, ...] = ()
    changes: tuple[Float64Array, ...] = ()

    @classmethod
    def of(cls, memory: Mapping[str, Float64Array]) -> Pairs:
        """Give what `to_memory` was made from; what else is in the mapping is left alone."""
        count = sum(name.startswith("step_") for name in memory)
        return cls(
            tuple(memory[f"step_{i}"] for i in range(count)),
            tuple(memory[f"change_{i}"] for i in range(count)),
        )

    def to_memory(self) -> dict[str, Float64Array]:
        """Give the arrays by name."""
        named = {f"step_{i}": step for i, step in enumerate(self.steps)}
        return named | {f"change_{i}": change for i, change in enumerate(self.changes)}

    def with_pair(self, step: Float64Array, change: Float64Array, most: int) -> Pairs:
        """Add a pair, and let go of the oldest beyond `most`; one without curvature is left out."""
        s, y = step.ravel(), change.ravel()
        if not s @ y > _FLAT * np.sqrt((s @ s) * (y @ y)):
            return self
        return Pairs((*self.steps, step)[-most:], (*self.changes, change)[-most:])

    def times(self, gradient: Float64Array) -> Float64Array:
        """Give H g by the two loops; g itself where there are no pairs."""
        product = gradient.copy()
        flat = product.ravel()
        pairs = [(s.ravel(), y.ravel()) for s, y in zip(self.steps, self.changes, strict=True)]
        curvatures = [float(s @ y) for s, y in pairs]
        shares = []
        for (s, y), curvature in zip(reversed(pairs), reversed(curvatures), strict=True):
            share = float(s @ flat) / curvature
            blas.daxpy(y, flat, a=-share)
            shares.append(share)
        if pairs:
            y = pairs[-1][1]
            flat *= curvatures[-1] / float(y @ y)
        for (s, y), curvature, share in zip(pairs, curvatures, reversed(shares), strict=True):
            blas.daxpy(s, flat, a=share - float(y @ flat) / curvature)
        return product
