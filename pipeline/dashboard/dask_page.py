"""A page of the run that is going on, among those of Dask's dashboard: /topline.

It reads the run's history in the store and nothing else, so it shows a run that ended as well, as long as the
scheduler lives; `topline dashboard` shows it afterwards.  The clusters that topline starts have it.  A
scheduler of one's own gets it by

    dask scheduler --preload topline.pipeline.dashboard.dask_page

and must reach the store by the same URL as the job.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import time
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from topline.pipeline.cluster.run_events import TOPIC
from topline.pipeline.dashboard.run_status import problem_words, remark, tiles, verdict
from topline.pipeline.dashboard.store_follower import StoreFollower
from topline.pipeline.report.run_section import event_rows
from topline.pipeline.telemetry.run_view import RunView
from topline.storage.errors import StorageError
from topline.storage.runs import RunRecord
from topline.storage.stores import open_store

logger = logging.getLogger(__name__)

PATHS = ("/topline", "/individual-topline")
UPDATE_MILLISECONDS = 2000
EVENTS_SHOWN = 6

# Lines by figure: title, kind of axis, and the columns with their colours.
FIGURES = (
    ("Relative gap", "log", (("relative_gap", "#9ec1ea"), ("best_gap", "#2a78d6"))),
    ("Objective", "log", (("primal", "#c9541a"), ("dual", "#2a78d6"))),
    ("Step size", "log", (("step", "#0f8a6d"),)),
    ("Share of active examples", "linear", (("active", "#8a4fc4"),)),
)
LINES = ("round", "seconds", "relative_gap", "best_gap", "primal", "dual", "step", "active")


def install() -> bool:
    """Add the page to the dashboards of schedulers that this process starts from now on.

    False where there is no dashboard (no Bokeh), or one whose inside is not what it was.
    """
    try:
        from distributed.dashboard.scheduler import applications
    except ImportError as error:
        logger.info("Dask's dashboard gets no page of runs: %s", error)
        return False
    for path in PATHS:
        applications[path] = run_document
    return True


def run_document(scheduler: Any, extra: Mapping[str, Any], doc: Any) -> None:  # noqa: ARG001 - Dask's signature
    """Fill a Bokeh document with the run that was announced last, and keep it up to date."""
    from bokeh.layouts import column, gridplot
    from bokeh.models import ColumnDataSource
    from bokeh.models.widgets import PreText

    source = ColumnDataSource({name: [] for name in LINES})
    busy = ColumnDataSource({name: [] for name in ("worker", "share")})
    head, events = PreText(text="No run has been announced to this scheduler."), PreText(text="")
    plots = [_plot(source, title, axis, lines) for title, axis, lines in FIGURES]
    workers = _workers_plot(busy)
    # Nothing here may hold up the scheduler, whose loop this runs in: reading is done by a thread.
    look = functools.partial(_look, scheduler)

    async def update() -> None:
        seen = await asyncio.to_thread(look)
        if isinstance(seen, str):
            head.text = seen
        elif seen is not None:
            record, run = seen
            head.text, events.text = summary(record, run, time.time()), event_lines(run)
            source.data = shown_columns(run)
            busy.data = shown_workers(run)
            workers.y_range.factors = list(busy.data["worker"])

    doc.title = "Topline"
    grid = gridplot([plots[:2], plots[2:], [workers]], sizing_mode="stretch_width", toolbar_location=None)
    doc.add_root(column(head, grid, events, sizing_mode="stretch_width"))
    doc.add_next_tick_callback(update)
    doc.add_periodic_callback(update, UPDATE_MILLISECONDS)


def summary(record: RunRecord, run: RunView, now: float) -> str:
    """Give a run in a few lines of text."""
    lines = [f"run {record.id}: {verdict(run, now)[1]}", problem_words(record.config), remark(run), ""]
    return "\n".join([*lines, *(f"{tile.label:<16} {tile.figure:<14} {tile.note}" for tile in tiles(run))])


def event_lines(run: RunView) -> str:
    """Give the latest events, one a line."""
    return "\n".join("  ".join(part for part in row if part) for row in event_rows(run)[:EVENTS_SHOWN])


def shown_columns(run: RunView) -> dict[str, NDArray[np.float64]]:
    """Give the columns that are drawn; a logarithmic axis has no place for what is not positive."""
    columns = {name: run.columns[name] for name in LINES}
    for _, axis, lines in FIGURES:
        if axis == "log":
            for name, _ in lines:
                columns[name] = np.where(columns[name] > 0.0, columns[name], np.nan)
    return columns


def shown_workers(run: RunView) -> dict[str, list[Any]]:
    """Give the workers that are there, and the share of the time in which each worked."""
    here = [
        timeline for timeline in run.workers if timeline.here and len(timeline.at) and run.begun is not None
    ]
    spans = [max(float(timeline.at[-1]) - float(run.begun or 0.0), 1e-9) for timeline in here]
    shares = [min(1.0, timeline.seconds_busy / span) for timeline, span in zip(here, spans, strict=True)]
    return {"worker": [timeline.name for timeline in here], "share": shares}


def last_announced(scheduler: Any) -> tuple[str, str] | None:
    """Give store and run of the newest announcement."""
    events = scheduler.get_events(TOPIC)
    if not events:
        return None
    said = events[-1][1]
    return str(said["store"]), str(said["run"])


@functools.lru_cache(maxsize=4)
def _feed(store_url: str) -> StoreFollower:
    return StoreFollower(open_store(store_url))


def _look(scheduler: Any) -> tuple[RunRecord, RunView] | str | None:
    announced = last_announced(scheduler)
    if announced is None:
        return None
    store_url, run_id = announced
    try:
        return _feed(store_url).run(run_id)
    except StorageError as error:
        return f"The scheduler cannot read the run's history: {error}"


def _plot(source: Any, title: str, axis: str, lines: tuple[tuple[str, str], ...]) -> Any:
    from bokeh.models import HoverTool

    tips = [("round", "@round{0,0}"), ("seconds", "@seconds"), *((name, f"@{name}") for name, _ in lines)]
    plot = _figure(title, y_axis_type=axis, x_axis_label="seconds")
    plot.add_tools(HoverTool(tooltips=tips, mode="vline"))
    for name, colour in lines:
        label = {"legend_label": name.replace("_", " ")} if len(lines) > 1 else {}
        plot.line("seconds", name, source=source, color=colour, line_width=2, **label)
    if len(lines) > 1:
        plot.legend.location = "bottom_left"
    return plot


def _workers_plot(busy: Any) -> Any:
    plot = _figure("Share of the time in which each worker worked", y_range=[], x_range=(0, 1))
    plot.hbar(y="worker", right="share", height=0.7, source=busy, color="#2a78d6")
    return plot


def _figure(title: str, **options: Any) -> Any:
    from bokeh.plotting import figure

    # Bokeh's own types know less than it accepts.
    make: Any = figure
    return make(title=title, height=240, tools="", **options)


# Dask makes its pages before it calls a preload's setup, and after it has imported it.
installed: bool = install()
