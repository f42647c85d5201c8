"""A stopwatch with two hands: products with X, and work per row."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any, ClassVar


@dataclass
class Clock:
    """Seconds in products and in per-row work; each call of a method ends one stretch.

    `laps` counts the stretches of all clocks of the process, so that others see that its work continues.
    """

    laps: ClassVar[int] = 0
    products: float = 0.0
    per_row: float = 0.0
    _last: float = field(default_factory=time.perf_counter)

    def begin(self) -> None:
        """Leave out what has passed since the last stretch ended."""
        self._last = time.perf_counter()

    def product(self) -> None:
        """End a stretch of products with X, or of reading it."""
        self.products += self._lap()

    def row_work(self) -> None:
        """End a stretch of work per row."""
        self.per_row += self._lap()

    def _lap(self) -> float:
        now = time.perf_counter()
        seconds, self._last = now - self._last, now
        Clock.laps += 1
        return seconds

    def seconds(self) -> dict[str, Any]:
        """Return both by their names in an `Answer`."""
        return {"seconds_products": self.products, "seconds_kernels": self.per_row}
