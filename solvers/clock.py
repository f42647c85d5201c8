"""A stopwatch with two hands: products with X, and work per row."""

from __future__ import annotations

import time
from dataclasses import dataclass, field


@dataclass
class Clock:
    """Seconds in products and in per-row work; each call of a method ends one stretch."""

    products: float = 0.0
    kernels: float = 0.0
    _last: float = field(default_factory=time.perf_counter)

    def product(self) -> None:
        """End a stretch of products with X, or of reading it."""
        now = time.perf_counter()
        self.products += now - self._last
        self._last = now

    def kernel(self) -> None:
        """End a stretch of work per row."""
        now = time.perf_counter()
        self.kernels += now - self._last
        self._last = now
