"""The pages of a run and of a store's runs and models, and the parts of them that change."""

from __future__ import annotations

import time
from pathlib import Path

from markupsafe import Markup

from topline.pipeline.dashboard.charts import reigns_chart, timelines_chart, versions_chart
from topline.pipeline.dashboard.overview import Overview
from topline.pipeline.dashboard.run_status import last_rounds, problem_words, remark, tiles, verdict
from topline.pipeline.dashboard.store_follower import StoreFollower
from topline.pipeline.dashboard.tables import (
    champion_table,
    decision_table,
    model_table,
    round_table,
    run_table,
)
from topline.pipeline.pages import Live, Page, clock, flat, macros, make_page
from topline.pipeline.report.run_section import event_table, run_charts, work_charts, work_facts
from topline.pipeline.telemetry import RunView
from topline.storage.runs import RunRecord
from topline.storage.stores import open_store


def run_parts(run: RunView, now: float) -> dict[str, Markup]:
    """Return the parts of a run's page that change while it lives, by name."""
    make = macros()
    return {
        "verdict": make.badge(*verdict(run, now)),
        "remark": Markup("{}").format(remark(run)),
        "tiles": make.tiles(tiles(run)),
        "charts": make.figures(run_charts(run.columns, run.tol) if run.rounds else []),
        "rounds": make.table(round_table(last_rounds(run))),
        "workers": timelines_chart(run),
        "work": make.facts(work_facts(run), name="cost")
        + make.figures(work_charts(run) if run.rounds else []),
        "events": make.table(event_table(run)),
    }


def run_page(
    record: RunRecord, run: RunView, now: float, *, live: Live | None = None, root: str | None = None
) -> Page:
    """Return the page of a run; `root` leads to the page of runs and models, None where there is none."""
    return make_page(
        "run.html.j2",
        live,
        title=f"Run {record.id}",
        root=root,
        record=record,
        problem=problem_words(record.config),
        configuration=[("begun", record.created), *flat(record.config)],
        written=clock(now),
        parts=run_parts(run, now),
    )


def overview_parts(seen: Overview, now: float, root: str | None) -> dict[str, Markup]:
    """Return the parts of the page of runs and models; `root` leads to where runs/r0001 is a page."""
    make = macros()
    return {
        "tiles": make.tiles(seen.tiles),
        "versions": versions_chart(seen.models, seen.metrics),
        "reigns": reigns_chart(seen.reigns, now),
        "history": make.table(champion_table(seen.reigns, root)),
        "models": make.table(model_table(seen, root)),
        "runs": make.table(run_table(seen.runs, root)),
        "decisions": make.table(decision_table(seen.decisions, root)),
    }


def overview_page(
    store: str, seen: Overview, now: float, *, live: Live | None = None, root: str | None = None
) -> Page:
    """Return the page of what the store at the URL `store` holds."""
    return make_page(
        "overview.html.j2",
        live,
        title="Runs and models",
        store=store,
        written=clock(now),
        parts=overview_parts(seen, now, root),
    )


def write_page(store_url: str, run_id: str | None, path: Path) -> str:
    """Write the page of a run, or that of runs and models, to a file that needs no server; return its path.

    A file that exists is replaced in one step.  `NotFoundError` for a run that is not there.
    """
    follower, now = StoreFollower(open_store(store_url)), time.time()
    if run_id is None:
        page = overview_page(follower.store.url, follower.overview(now), now)
    else:
        page = run_page(*follower.run(run_id), now)
    path = path.absolute()
    open_store(str(path.parent), create=True).write_bytes(path.name, page.html.encode())
    return str(path)
