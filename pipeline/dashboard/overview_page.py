"""The page of runs and models."""

from __future__ import annotations

from markupsafe import Markup

from topline.pipeline.dashboard.overview import Overview
from topline.pipeline.dashboard.pages import Live, Page, macros, make_page
from topline.pipeline.dashboard.registry_charts import reigns_chart, versions_chart
from topline.pipeline.dashboard.run_status import clock


def overview_parts(seen: Overview, now: float, root: str | None) -> dict[str, Markup]:
    """Make the parts that change; `root` leads to where runs/r0001 is a page, None where there is none."""
    make = macros()
    return {
        "tiles": make.tiles(seen.tiles),
        "versions": versions_chart(seen.models, seen.ks),
        "reigns": reigns_chart(seen.reigns, now),
        "history": make.history(seen.reigns),
        "models": make.models(seen.models, seen.ks, seen.models_in_all, root),
        "runs": make.runs(seen.runs, root),
        "decisions": make.decisions(seen.decisions),
    }


def overview_page(
    store: str, seen: Overview, now: float, *, live: Live | None = None, root: str | None = None
) -> Page:
    """Make the page of what the store at the URL `store` holds."""
    return make_page(
        "dashboard_overview.html.j2",
        live,
        title="Runs and models",
        store=store,
        written=clock(now),
        parts=overview_parts(seen, now, root),
    )
