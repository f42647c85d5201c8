"""The page of a run: how it goes, or how it went."""

from __future__ import annotations

from markupsafe import Markup

from topline.pipeline.dashboard.pages import Live, Page, macros, make_page
from topline.pipeline.dashboard.run_status import (
    clock,
    event_rows,
    last_rounds,
    problem_words,
    remark,
    tiles,
    verdict,
)
from topline.pipeline.dashboard.timelines import timelines_chart
from topline.pipeline.report.charts import charts, work_charts
from topline.pipeline.report.document import flat
from topline.pipeline.report.run import work_facts
from topline.pipeline.telemetry.run_view import RunView
from topline.storage.runs import RunRecord


def run_parts(run: RunView, now: float) -> dict[str, Markup]:
    """Make the parts that change while the run lives."""
    make = macros()
    words = make.badge(*verdict(run, now))
    return {
        "verdict": words,
        "remark": Markup("{}").format(remark(run)),
        "tiles": make.tiles(tiles(run)),
        "charts": make.figures(charts(run.columns, run.tol) if run.rounds else []),
        "rounds": make.rounds(last_rounds(run)),
        "workers": timelines_chart(run),
        "work": make.facts(work_facts(run)) + make.figures(work_charts(run) if run.rounds else []),
        "events": make.events(event_rows(run)),
    }


def run_page(
    record: RunRecord, run: RunView, now: float, *, live: Live | None = None, root: str | None = None
) -> Page:
    """Make the page of a run; `root` leads to the page of runs and models, None where there is none."""
    return make_page(
        "dashboard_run.html.j2",
        live,
        title=f"Run {record.id}",
        root=root,
        record=record,
        problem=problem_words(record.config),
        configuration=flat(record.config),
        written=clock(now),
        parts=run_parts(run, now),
    )
