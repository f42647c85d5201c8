"""How every HTML page is made: templates, charts as inline SVG, and numbers as people read them.

A page from `make_page` is complete in itself: style and script are inside, allowed by their digests, and
nothing is loaded from elsewhere.  Reports, sweeps and the dashboard share one base template and style sheet.
"""

from __future__ import annotations

from topline.pipeline.pages.charts import Scale, Series, bar_chart, legend, line_chart, x_ticks, y_grid
from topline.pipeline.pages.formatting import (
    DASH,
    amount,
    clock,
    count,
    duration,
    flat,
    gap,
    number,
    percent,
    when,
)
from topline.pipeline.pages.templating import Live, Page, Tile, environment, macros, make_page, message_page

__all__ = [
    "DASH",
    "Live",
    "Page",
    "Scale",
    "Series",
    "Tile",
    "amount",
    "bar_chart",
    "clock",
    "count",
    "duration",
    "environment",
    "flat",
    "gap",
    "legend",
    "line_chart",
    "macros",
    "make_page",
    "message_page",
    "number",
    "percent",
    "when",
    "x_ticks",
    "y_grid",
]
