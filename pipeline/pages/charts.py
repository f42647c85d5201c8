"""Line and bar charts as inline SVG: no script, no network, colours from the page's style sheet."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from markupsafe import Markup
from numpy.typing import ArrayLike, NDArray

WIDTH, HEIGHT = 560, 280
LEFT, RIGHT, TOP, BOTTOM = 62, 14, 14, 44

# A line of the width of a chart has room for about this many points; more would only make the file larger.
MOST_POINTS = 300
MOST_DECADES = 7
# Of a linear axis the least span, as a share of its largest value, and of a logarithmic one as a ratio: what
# varies by less is drawn nearly flat.
LEAST_SHARE, LEAST_RATIO = 0.3, 2.0


@dataclass(frozen=True)
class Series:
    """A line: its name in the legend, points of shape (p,), and `style`, its colour on the page.

    Styles 1 to 4 are colours, 5 a faint line, 6 to 9 the colours dashed.  With `dots`, which says of each
    point whether it is whole, every point has a disc, filled or hollow.
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
    """Draw lines over one pair of axes, the vertical one logarithmic with `log`, the other with `log_x`.

    The vertical one then has at most `decades`.  `target` is a horizontal line; its name is in the legend,
    and it is not drawn where the axis does not reach.  An axis spans so much at least that what is noise does
    not look like a cliff, and ends at `most`, which no value exceeds.
    """
    shown = [line for line in lines if len(line.x)]
    if not shown:
        return Markup('<p class="empty">No rounds were recorded.</p>')
    values = np.concatenate([line.y for line in shown])
    if target is not None:
        values = np.append(values, target[1])
    x_axis = _x_scale(np.concatenate([line.x for line in shown]), log=log_x)
    y_axis = _y_scale(values, log=log, decades=decades, most=most)
    parts = [axes(x_axis, y_axis, x_label, y_label)]
    if target is not None and y_axis.low <= target[1] <= y_axis.high:
        drawn_at = Markup('<line class="target" x1="{0}" x2="{1}" y1="{2:.1f}" y2="{2:.1f}"/>')
        parts.append(drawn_at.format(LEFT, WIDTH - RIGHT, y_axis(target[1])))
    parts += [_line(line, x_axis, y_axis) for line in shown]
    names = ", ".join(line.name for line in shown if line.name)
    drawn = svg(WIDTH, HEIGHT, f"{names} against {x_label}", parts)
    return drawn + legend(shown, None if target is None else target[0])


def legend(lines: Sequence[Series], target: str | None = None) -> Markup:
    """Name the lines below a chart, and its target; a single line is named by its axis already."""
    item = Markup('<span class="key {0}"><i></i>{1}</span>')
    named = [line for line in lines if line.name]
    keys = [item.format(f"s{line.style}", line.name) for line in named] if len(lines) > 1 else []
    if target is not None:
        keys.append(item.format("target", target))
    return Markup('<div class="legend">{}</div>').format(Markup("").join(keys)) if keys else Markup("")


def bar_chart(rows: Sequence[tuple[str, float]], *, mark: tuple[str, float] | None = None) -> Markup:
    """Draw shares between 0 and 1 as horizontal bars; `mark` is a named vertical line across them."""
    height = 34 * len(rows) + 30
    axis = Scale(0.0, 1.0, 74, WIDTH - 84)
    parts = []
    for index, (name, share) in enumerate(rows):
        top = 34 * index + 6
        parts.append(
            Markup(
                '<text class="tick" x="66" y="{1}" text-anchor="end">{0}</text>'
                '<rect class="track" x="{2}" y="{3}" width="{4}" height="20" rx="3"/>'
                '<rect class="bar" x="{2}" y="{3}" width="{5}" height="20" rx="3"/>'
                '<text class="value" x="{6}" y="{1}">{7}</text>'
            ).format(
                name,
                top + 15,
                axis(0),
                top,
                axis(1) - axis(0),
                f"{axis(share) - axis(0):.1f}",
                axis(1) + 8,
                f"{share:.1%}",
            )
        )
    if mark is not None:
        at = axis(mark[1])
        side = "end" if mark[1] > 0.6 else "start"
        parts.append(
            Markup(
                '<line class="target" x1="{0}" x2="{0}" y1="0" y2="{1}"/>'
                '<text class="note" x="{0}" y="{2}" text-anchor="{3}">{4}</text>'
            ).format(f"{at:.1f}", height - 24, height - 8, side, mark[0])
        )
    return svg(WIDTH, height, "top-k accuracies", parts)


def svg(width: int, height: float, label: str, parts: Iterable[Markup], kind: str = "") -> Markup:
    """Put drawn parts into one picture; `label` is read aloud in its place, `kind` its class, if any."""
    named = Markup('class="{}" ').format(kind) if kind else Markup("")
    return Markup('<svg {0}viewBox="0 0 {1} {2}" role="img" aria-label="{3}">{4}</svg>').format(
        named, width, height, label, Markup("").join(parts)
    )


def curve(points: Iterable[Sequence[Any]], style: int, marks: Iterable[Markup]) -> Markup:
    """Draw a line of a style through points, of which x and y in pixels come first, and marks on it."""
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y, *_ in points)
    return Markup('<g class="s{0}"><polyline points="{1}"/>{2}</g>').format(
        style, path, Markup("").join(marks)
    )


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


def tick_text(value: float) -> str:
    """Return the value of a tick, briefly."""
    if value != 0 and not 1e-3 <= abs(value) < 1e5:
        mantissa, exponent = f"{value:.1e}".split("e")
        return f"{mantissa.removesuffix('.0')}e{int(exponent)}"
    return f"{value:.6g}"


def axes(
    x_axis: Scale,
    y_axis: Scale,
    x_label: str,
    y_label: str,
    *,
    text: Callable[[float], str] = tick_text,
    ticks: Sequence[float] | None = None,
    below: int = 16,
) -> Markup:
    """Draw the axes of a chart with their names, the grid, and ticks at round values or at `ticks`.

    `text` writes the values of the vertical axis; those of the other stand so many pixels `below` it.
    """
    left, right, top, bottom = x_axis.start, x_axis.stop, y_axis.stop, y_axis.start
    frame = Markup(
        '<line class="axis" x1="{0}" x2="{1}" y1="{2}" y2="{2}"/>'
        '<text class="note" x="{3}" y="{4}" text-anchor="middle">{5}</text>'
        '<text class="note upright" transform="translate(12 {6}) rotate(-90)" text-anchor="middle">{7}</text>'
    ).format(
        left, right, bottom, (left + right) / 2, bottom + BOTTOM - 6, x_label, (top + bottom) / 2, y_label
    )  # fmt: skip
    return y_grid(y_axis, left, right, text) + x_ticks(x_axis, bottom + below, ticks) + frame


def y_grid(axis: Scale, left: float, right: float, text: Callable[[float], str] = tick_text) -> Markup:
    """Draw a horizontal line at each tick of a vertical axis, with its value as text to the left."""
    line = Markup(
        '<line class="grid" x1="{0}" x2="{1}" y1="{2:.1f}" y2="{2:.1f}"/>'
        '<text class="tick" x="{3}" y="{4:.1f}" text-anchor="end">{5}</text>'
    )
    return Markup("").join(
        line.format(left, right, axis(value), left - 8, axis(value) + 4, text(value))
        for value in axis.ticks()
    )


def x_ticks(axis: Scale, y: float, values: Sequence[float] | None = None) -> Markup:
    """Write round values of a horizontal axis, or `values`, at the height `y`, in pixels."""
    tick = Markup('<text class="tick" x="{0:.1f}" y="{1}" text-anchor="middle">{2}</text>')
    shown = axis.ticks() if values is None else values
    return Markup("").join(tick.format(axis(value), y, tick_text(value)) for value in shown)


def _line(line: Series, x_axis: Scale, y_axis: Scale) -> Markup:
    kept = thin(line.x, line.y)
    floor = y_axis.low
    points = [(x_axis(float(line.x[i])), y_axis(max(float(line.y[i]), floor)), i) for i in kept]
    # Invisible discs carry the browser's own tool tips: the value under the pointer, without a script.
    spot = Markup('<circle class="spot" cx="{0:.1f}" cy="{1:.1f}" r="5"><title>{2}</title></circle>')
    marks = [
        spot.format(x, y, f"{line.name} at {tick_text(float(line.x[i]))}: {float(line.y[i]):.6g}")
        for x, y, i in points
    ]
    disc = Markup('<circle class="dot{2}" cx="{0:.1f}" cy="{1:.1f}" r="3.5"/>')
    if line.dots:
        marks += [disc.format(x, y, "" if line.dots[i] else " hollow") for x, y, i in points]
    elif len(points) == 1:
        # A line of one point draws nothing.
        marks.append(disc.format(*points[0][:2], ""))
    return curve(points, line.style, marks)
