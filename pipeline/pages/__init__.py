"""How every HTML page is made: templates, charts as inline SVG, and numbers as people read them.

A page from `make_page` is complete in itself: style and script are inside, allowed by their digests, and
nothing is loaded from elsewhere.  Reports, sweeps and the dashboard share one base template and style sheet.
"""

from __future__ import annotations

from topline.pipeline.pages.charts import Scale, Series, bar_chart, line_chart
from topline.pipeline.pages.formatting import (
    DASH,
    amount,
    clock,
    count,
    csv_url,
    duration,
    flat,
    gap,
    number,
    percent,
    when,
)
from topline.pipeline.pages.tables import Column, ConfusionMatrix, Table, TableCell, cell_table
from topline.pipeline.pages.templating import Live, Page, Tile, environment, macros, make_page, message_page
