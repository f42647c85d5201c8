"""Figures of a model registry: metrics over versions, and who was champion when."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence

from markupsafe import Markup

from topline.pipeline.dashboard.overview import ModelLine
from topline.pipeline.evaluation import Metric
from topline.pipeline.pages.charts import Scale, Series, legend
from topline.pipeline.pages.formatting import percent, when
from topline.storage.models import Reign

# Versions that a chart has room for.
MOST_VERSIONS = 60
# Reigns that a strip has room for.
MOST_REIGNS = 60

WIDE, TALL = 1140, 260
LEFT, RIGHT, TOP, BOTTOM = 62, 20, 14, 42


def versions_chart(models: Sequence[ModelLine], metrics: Sequence[Metric]) -> Markup:
    """Draw the metrics of the newest versions that are shares, a line each; champions have a ring.

    `models` come newest first.
    """
    drawn = [metric for metric in metrics if metric.percent]
    known = [model for model in models if model.metrics][:MOST_VERSIONS][::-1]
    shares = [
        model.metrics[metric.name] for model in known for metric in drawn if metric.name in model.metrics
    ]
    if not shares:
        return Markup('<p class="empty">No model has been evaluated.</p>')
    low, high = min(shares), max(shares)
    air = max(0.08 * (high - low), 0.004)
    y_axis = Scale(max(0.0, low - air), min(1.0, high + air), TALL - BOTTOM, TOP)
    step = (WIDE - LEFT - RIGHT) / len(known)
    places = [LEFT + step * (number + 0.5) for number in range(len(known))]
    parts = [_heights(y_axis), _names(known, places)]
    lines = []
    for style, metric in enumerate(drawn, start=1):
        points = [
            (x, y_axis(model.metrics[metric.name]), model)
            for x, model in zip(places, known, strict=True)
            if metric.name in model.metrics
        ]
        parts.append(_line(points, style, metric))
        lines.append(Series.of(metric.column, [], [], style))
    spoken = ", ".join(metric.column for metric in drawn)
    svg = Markup('<svg class="wide" viewBox="0 0 {0} {1}" role="img" aria-label="{2}">{3}</svg>').format(
        WIDE, TALL, f"{spoken} of {len(known)} versions", Markup("").join(parts)
    )
    return svg + legend(lines)


def reigns_chart(reigns: Sequence[Reign], now: float) -> Markup:
    """Draw who was champion when, as a strip over time."""
    shown = reigns[-MOST_REIGNS:]
    if not shown:
        return Markup('<p class="empty">No model has been champion.</p>')
    spans = [(_seconds(reign.since), _seconds(reign.until) if reign.until else now, reign) for reign in shown]
    first, last = spans[0][0], max(now, spans[-1][1], spans[0][0] + 1.0)
    axis = Scale(first, last, LEFT, WIDE - RIGHT)
    blocks = Markup("").join(_reign(axis(start), axis(max(end, start)), reign) for start, end, reign in spans)
    until = "now" if shown[-1].until is None else when(shown[-1].until)
    tick = Markup('<text class="tick" x="{0}" y="54" text-anchor="{1}">{2}</text>')
    ends = tick.format(LEFT, "start", when(shown[0].since)) + tick.format(WIDE - RIGHT, "end", until)
    return Markup(
        '<svg class="wide reigns" viewBox="0 0 {0} 60" role="img" aria-label="{1}">'
        '<rect class="track" x="{2}" y="8" width="{3}" height="28"/>{4}{5}</svg>'
    ).format(
        WIDE, f"Champions over time, now {_current(reigns)}", LEFT, WIDE - RIGHT - LEFT, blocks, ends
    )  # fmt: skip


def _reign(start: float, end: float, reign: Reign) -> Markup:
    width = max(end - start, 2.0)
    until = "now" if reign.until is None else when(reign.until)
    title = f"{reign.model}: {when(reign.since)} to {until}, by {reign.by} ({reign.reason})"
    name = reign.model if width > 9.0 * len(reign.model) else ""
    return Markup(
        '<g class="{0}"><title>{1}</title><rect x="{2:.1f}" y="8" width="{3:.1f}" height="28" rx="3"/>'
        '<text x="{4:.1f}" y="27" text-anchor="middle">{5}</text></g>'
    ).format(
        "reign now" if reign.until is None else "reign",
        title,
        start,
        max(width - 1.5, 1.0),
        start + width / 2,
        name,
    )


def _current(reigns: Sequence[Reign]) -> str:
    return reigns[-1].model if reigns[-1].until is None else "none"


def _seconds(text: str) -> float:
    return dt.datetime.fromisoformat(text).timestamp()


def _heights(y_axis: Scale) -> Markup:
    line = Markup(
        '<line class="grid" x1="{0}" x2="{1}" y1="{2:.1f}" y2="{2:.1f}"/>'
        '<text class="tick" x="{3}" y="{4:.1f}" text-anchor="end">{5}</text>'
    )
    return Markup("").join(
        line.format(LEFT, WIDE - RIGHT, y_axis(value), LEFT - 8, y_axis(value) + 4, percent(value))
        for value in y_axis.ticks()
    )


def _names(models: Sequence[ModelLine], places: Sequence[float]) -> Markup:
    # A name takes about 50 pixels.
    every = max(1, round(50 * len(models) / (WIDE - LEFT - RIGHT)))
    text = Markup('<text class="{0}" x="{1:.1f}" y="{2}" text-anchor="middle">{3}</text>')
    return Markup("").join(
        text.format("tick now" if model.stage == "champion" else "tick", x, TALL - BOTTOM + 20, model.id)
        for number, (model, x) in enumerate(zip(models, places, strict=True))
        if (len(models) - 1 - number) % every == 0
    )


def _line(points: Sequence[tuple[float, float, ModelLine]], style: int, metric: Metric) -> Markup:
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y, _ in points)
    dots = Markup("").join(
        Markup('{0}<circle class="dot" cx="{1:.1f}" cy="{2:.1f}" r="4"><title>{3}</title></circle>').format(
            Markup('<circle class="ring" cx="{0:.1f}" cy="{1:.1f}" r="7.5"/>').format(x, y)
            if model.reigned
            else "",
            x,
            y,
            f"{model.id}, {model.stage}: {metric.column} {metric.text(model.metrics[metric.name])}"
            f" on {model.dataset}",
        )
        for x, y, model in points
    )
    return Markup('<g class="s{0}"><polyline points="{1}"/>{2}</g>').format(style, path, dots)
