"""Charts of the answer: accuracies, reliability of the probabilities, accuracy against training rows."""

from __future__ import annotations

import math
from collections.abc import Sequence

from markupsafe import Markup

from topline.pipeline.evaluation import Evaluation, SizePoint
from topline.pipeline.pages import Scale, axes, bar_chart
from topline.solvers.calibration import ReliabilityBin
from topline.solvers.counts import how_many

WIDE, TALL = 560, 300
LEFT, RIGHT, TOP, BOTTOM = 62, 20, 14, 44
# Of accuracies the least span of an axis: a difference of one point is not to look like a cliff.
LEAST_SPAN = 0.2


def accuracy_chart(evaluation: Evaluation | None) -> Markup:
    """Draw the top-k accuracies against always answering the largest class."""
    if evaluation is None:
        return Markup("")
    rows = [(f"top-{k}", share) for k, share in evaluation.topk.items()]
    return bar_chart(rows, mark=("always the largest class", evaluation.majority_baseline))


def reliability_chart(bins: Sequence[ReliabilityBin]) -> Markup:
    """Draw how often the first class is right against how probable it is, a disc a bin.

    The area of a disc is its share of the rows, so that a bin of three rows does not look like a finding.
    """
    x_axis, y_axis = Scale(0.0, 1.03, LEFT, WIDE - RIGHT), Scale(0.0, 1.06, TALL - BOTTOM, TOP)
    total = max(sum(part.rows for part in bins), 1)
    disc = Markup('<circle class="bin" cx="{0:.1f}" cy="{1:.1f}" r="{2:.1f}"><title>{3}</title></circle>')
    discs = [
        disc.format(
            x_axis(part.confidence),
            y_axis(part.accuracy),
            3.0 + 20.0 * math.sqrt(part.rows / total),
            f"{how_many(part.rows, 'rows')} of probability {part.confidence:.1%} on average:"
            f" {part.accuracy:.1%} right",
        )
        for part in sorted(bins, key=lambda part: -part.rows)
    ]
    exact = Markup('<line class="target" x1="{0}" y1="{1}" x2="{2}" y2="{3}"/>').format(
        x_axis(0.0), y_axis(0.0), x_axis(1.0), y_axis(1.0)
    )
    frame = _frame(x_axis, y_axis, "probability of the first class", "share right")
    return _svg([frame, exact, *discs], "Share right against the probability of the first class")


def sizes_chart(points: Sequence[SizePoint]) -> Markup:
    """Draw accuracy against training rows, with two standard errors of the differences to all rows."""
    if len(points) < 2:
        return Markup("")
    ks = [k for k in (1, 5) if k in points[-1].topk]
    shares = [point.topk[k] for point in points for k in ks]
    low, high = min(shares), max(shares)
    low = max(0.0, min(low - 0.03, high - LEAST_SPAN))
    x_axis = Scale(points[0].rows / 1.15, points[-1].rows * 1.15, LEFT, WIDE - RIGHT, log=True)
    y_axis = Scale(low, min(1.01, high + 0.02), TALL - BOTTOM, TOP)
    drawn = [_frame(x_axis, y_axis, "training rows", "accuracy", [float(point.rows) for point in points])]
    for style, k in enumerate(ks, start=1):
        drawn.append(_curve(points, k, style, x_axis, y_axis))
    key = Markup('<span class="key s{0}"><i></i>top-{1}</span>')
    keys = Markup("").join(key.format(style, k) for style, k in enumerate(ks, start=1))
    return _svg(drawn, "Accuracy against training rows") + Markup('<div class="legend">{}</div>').format(keys)


def _curve(points: Sequence[SizePoint], k: int, style: int, x_axis: Scale, y_axis: Scale) -> Markup:
    places = [(x_axis(point.rows), point.topk[k], point) for point in points]
    path = " ".join(f"{x:.1f},{y_axis(share):.1f}" for x, share, _ in places)
    bar = Markup('<line class="error" x1="{0:.1f}" x2="{0:.1f}" y1="{1:.1f}" y2="{2:.1f}"/>')
    dot = Markup('<circle class="dot" cx="{0:.1f}" cy="{1:.1f}" r="4"><title>{2}</title></circle>')
    parts = [
        bar.format(
            x,
            y_axis(max(y_axis.low, share - 2.0 * point.error)),
            y_axis(min(y_axis.high, share + 2.0 * point.error)),
        )
        for x, share, point in places
        if k == 1 and point.error
    ]
    parts += [
        dot.format(x, y_axis(share), f"top-{k} {share:.1%} with {point.rows:,} training rows")
        for x, share, point in places
    ]
    return Markup('<g class="s{0}"><polyline points="{1}"/>{2}</g>').format(
        style, path, Markup("").join(parts)
    )


def _frame(
    x_axis: Scale, y_axis: Scale, x_label: str, y_label: str, ticks: Sequence[float] | None = None
) -> Markup:
    return axes(x_axis, y_axis, x_label, y_label, text="{:.0%}".format, ticks=ticks, below=17)


def _svg(parts: Sequence[Markup], title: str) -> Markup:
    return Markup('<svg viewBox="0 0 {0} {1}" role="img" aria-label="{2}">{3}</svg>').format(
        WIDE, TALL, title, Markup("").join(parts)
    )
