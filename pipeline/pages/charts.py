"""Line and bar charts as inline SVG: no script, no network, colours from the page's style sheet."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from markupsafe import Markup
from numpy.typing import ArrayLike, NDArray

from topline.pipeline.pages.formatting import tick
from topline.pipeline.pages.templating import macros

WIDTH, HEIGHT = 560, 280
LEFT, RIGHT, TOP, BOTTOM = 62, 14, 14, 44

# A line of the width of a chart has room for about this many points; more would only make the file larger.
MOST_POINTS = 300
MOST_DECADES = 7
# Of a linear axis the least span, as a share of its largest value, and of a logarithmic one as a ratio: what
# varies by less is drawn nearly flat.
LEAST_SHARE, LEAST_RATIO = 0.3, 2.0


class Point(NamedTuple):
    """A point of a line: its pixels, what it shows, and whether its disc is hollow."""

    x: float
    y: float
    at: float
    value: float
    hollow: bool


@dataclass(frozen=True)
class Series:
    """A line: its name in the legend, points (p,), and `style`, its colour: 1 to 4, 5 faint, 6 to 9 dashed.

    With `dots`, which says of each point whether it is whole, every point has a disc, filled or hollow.
    """

    name: str
    x: NDArray[np.float64]
    y: NDArray[np.float64]
    style: int = 1
    dots: tuple[bool, ...] = ()

    @classmethod
    def of(
        cls,
        name: str,
        x: ArrayLike,
        y: ArrayLike,
        style: int = 1,
        *,
        positive: bool = False,
        dots: bool = False,
    ) -> Series:
        """Make a line of the finite points, with `positive` of those a logarithmic scale can show."""
        xs, ys = np.asarray(x, np.float64), np.asarray(y, np.float64)
        seen = np.isfinite(xs) & np.isfinite(ys)
        if positive:
            seen &= np.where(seen, ys, -1.0) > 0.0
        return cls(name, xs[seen], ys[seen], style, (True,) * int(seen.sum()) if dots else ())

    def points(self, x: Scale, y: Scale) -> list[Point]:
        """Return the points to draw; what lies below the axis stands at its end."""
        found = []
        for i in thin(self.x, self.y):
            at, value = float(self.x[i]), float(self.y[i])
            hollow = bool(self.dots) and not self.dots[i]
            found.append(Point(x(at), y(max(value, y.low)), at, value, hollow))
        return found


@dataclass(frozen=True)
class Scale:
    """Maps values to pixels along one axis."""

    low: float
    high: float
    start: float
    stop: float
    log: bool = False

    def __call__(self, value: float) -> float:
        """Return the pixel of a value."""
        low, high, at = self.low, self.high, value
        if self.log:
            low, high, at = math.log10(low), math.log10(high), math.log10(value)
        return self.start + (at - low) / (high - low) * (self.stop - self.start)

    def ticks(self) -> list[float]:
        """Return round values on the axis: decades where it is logarithmic, else multiples of 1, 2 or 5."""
        return _decades(self.low, self.high) if self.log else _round_steps(self.low, self.high)


def thin(x: NDArray[np.float64], y: NDArray[np.float64], most: int = MOST_POINTS) -> list[int]:
    """Indices of at most `most` points that draw the same line: ends, and the extremes of each stretch."""
    count = len(x)
    if count <= most:
        return list(range(count))
    edges = np.linspace(0, count, max(2, (most - 2) // 2) + 1).astype(int)
    kept = {0, count - 1}
    for start, stop in pairwise(edges.tolist()):
        stretch = y[start:stop]
        kept.update((int(start + stretch.argmin()), int(start + stretch.argmax())))
    return sorted(kept)


def line_chart(
    lines: Sequence[Series],
    *,
    x_label: str,
    y_label: str,
    log: bool = False,
    log_x: bool = False,
    decades: int = MOST_DECADES,
    target: tuple[str, float] | None = None,
    most: float = math.inf,
) -> Markup:
    """Draw lines over axes that are logarithmic with `log` (vertical, at most `decades`) and `log_x`.

    `target` is a named horizontal line.  An axis has a least span, so that noise does not look like a cliff,
    and ends at `most`, which no value exceeds.
    """
    shown = [line for line in lines if len(line.x)]
    if not shown:
        return Markup('<p class="empty">No rounds were recorded.</p>')
    values = np.concatenate([line.y for line in shown])
    if target is not None:
        values = np.append(values, target[1])
    x_axis = _x_scale(np.concatenate([line.x for line in shown]), log=log_x)
    y_axis = _y_scale(values, log=log, decades=decades, most=most)
    drawn: Markup = macros("charts").line_chart(shown, x_axis, y_axis, x_label, y_label, target, tick)
    return drawn


def bar_chart(rows: Sequence[tuple[str, float]], *, mark: tuple[str, float] | None = None) -> Markup:
    """Draw shares between 0 and 1 as horizontal bars; `mark` is a named vertical line across them."""
    drawn: Markup = macros("charts").bar_chart(
        rows, Scale(0.0, 1.0, 74, WIDTH - 84), mark, 34 * len(rows) + 30
    )
    return drawn


def _x_scale(values: NDArray[np.float64], *, log: bool) -> Scale:
    low, high = float(values.min()), float(values.max())
    if high <= low:
        low, high = (low / LEAST_RATIO, high * LEAST_RATIO) if log else (low, low + 1.0)
    return Scale(low, high, LEFT, WIDTH - RIGHT, log=log)


def _y_scale(values: NDArray[np.float64], *, log: bool, decades: int, most: float) -> Scale:
    low, high = float(values.min()), float(values.max())
    if log:
        middle, half = math.sqrt(low) * math.sqrt(high), math.sqrt(LEAST_RATIO)
        low, high = min(low, middle / half), max(high, middle * half)
        # A little air, and never so many decades that the interesting ones become thin.
        low = max(low, high * 10.0**-decades)
        return Scale(low / 1.4, high * 1.4, HEIGHT - BOTTOM, TOP, log=True)
    half = 0.5 * LEAST_SHARE * max(abs(low), abs(high)) + 1e-9
    middle = 0.5 * (low + high)
    # What is never negative has no axis below zero.
    floor = 0.0 if low >= 0.0 else -math.inf
    low, high = max(floor, min(low, middle - half)), max(high, middle + half)
    air = 0.05 * (high - low)
    return Scale(max(floor, low - air), min(most, high + air), HEIGHT - BOTTOM, TOP)


def _decades(low: float, high: float) -> list[float]:
    exponents = range(math.ceil(math.log10(low)), math.floor(math.log10(high)) + 1)
    if len(exponents) >= 2:
        return [10.0**exponent for exponent in exponents]
    finer = [
        step * 10.0**exponent
        for exponent in range(exponents.start - 1, exponents.stop + 1)
        for step in (1, 2, 5)
    ]
    return [value for value in finer if low <= value <= high]


def _round_steps(low: float, high: float) -> list[float]:
    raw = (high - low) / 5
    unit = 10.0 ** math.floor(math.log10(raw))
    step = next(unit * factor for factor in (1, 2, 5, 10) if unit * factor >= raw * 0.999)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [index * step for index in range(first, last + 1)]
