"""Losses of a margin t = y f(x) with two continuous derivatives, which weight learning needs.

A new one is a frozen class with these methods, and an entry in `LOSSES` of its tests.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from topline.solvers.core.inputs import positive_number
from topline.solvers.typing import Float64Array


class MarginLoss(Protocol):
    """A convex loss L(t), not increasing and twice continuously differentiable."""

    @property
    def steepest(self) -> float:
        """The largest L'' there is."""
        ...

    def value(self, t: Float64Array) -> Float64Array:
        """Return L(t)."""
        ...

    def slope(self, t: Float64Array) -> Float64Array:
        """Return L'(t)."""
        ...

    def curvature(self, t: Float64Array) -> Float64Array:
        """Return L''(t)."""
        ...


@dataclass(frozen=True)
class TwiceSmoothHinge:
    """L_delta: 1 - t - delta below 1 - 2 delta, 0 above 1, a quartic between (3.26); delta -> 0 is the hinge.

    On [1 - 2 delta, 1] it is (1 - t)^3 (t - 1 + 4 delta) / (16 delta^3).
    """

    delta: float = 0.1

    def __post_init__(self) -> None:
        object.__setattr__(self, "delta", positive_number("delta", self.delta))

    @property
    def steepest(self) -> float:
        """L'' in the middle of the quartic: 3 / (4 delta)."""
        return 0.75 / self.delta

    def value(self, t: Float64Array) -> Float64Array:
        """Return L(t)."""
        s = self._share(t)
        return np.asarray(self.delta * s**3 * (2.0 - s) + np.maximum(1.0 - t - 2.0 * self.delta, 0.0))

    def slope(self, t: Float64Array) -> Float64Array:
        """Return L'(t)."""
        s = self._share(t)
        return np.asarray(-(s**2) * (3.0 - 2.0 * s))

    def curvature(self, t: Float64Array) -> Float64Array:
        """Return L''(t)."""
        s = self._share(t)
        return np.asarray(3.0 * s * (1.0 - s) / self.delta)

    def _share(self, t: Float64Array) -> Float64Array:
        """How much of the quartic's interval lies above t, 0 to 1."""
        return np.asarray(np.clip((1.0 - t) / (2.0 * self.delta), 0.0, 1.0))
