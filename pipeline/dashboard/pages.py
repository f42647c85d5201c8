"""Pages of runs and models, of comparisons of two, and the parts of them that change."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from markupsafe import Markup

from topline.pipeline.dashboard.charts import reigns_chart, timelines_chart, versions_chart
from topline.pipeline.dashboard.models import (
    ModelSeen,
    Paired,
    class_gains,
    evidence_table,
    export_table,
    lineage_rows,
    model_tiles,
    others_table,
    own_decisions,
    problem,
    recorded_table,
    run_comparison_charts,
    run_facts,
    setting_table,
)
from topline.pipeline.dashboard.overview import (
    Overview,
    champion_table,
    decision_table,
    model_table,
    round_table,
    run_table,
)
from topline.pipeline.dashboard.run_status import last_rounds, problem_words, remark, verdict
from topline.pipeline.dashboard.run_status import tiles as run_tiles
from topline.pipeline.dashboard.store_follower import StoreFollower
from topline.pipeline.dashboard.sweeps import sweep_parts, sweep_table
from topline.pipeline.evaluation import read_evaluation
from topline.pipeline.pages import Live, Page, clock, flat, macros, make_page
from topline.pipeline.registry import settings
from topline.pipeline.report import tables
from topline.pipeline.report.document import answer_words, confusion_matrix, unit_of
from topline.pipeline.report.run_section import event_table, run_charts, work_charts, work_facts
from topline.pipeline.report.training_sizes import size_words
from topline.pipeline.telemetry import RunView
from topline.storage.runs import RunRecord, SweepRecord
from topline.storage.stores import open_store


def run_parts(run: RunView, now: float) -> dict[str, Markup]:
    """Return the parts of a run's page that change while it lives, by name."""
    make = macros()
    return {
        "verdict": make.badge(*verdict(run, now)),
        "remark": Markup("{}").format(remark(run)),
        "tiles": make.tiles(run_tiles(run)),
        "charts": make.figures(run_charts(run.columns, run.tol) if run.rounds else []),
        "rounds": make.table(round_table(last_rounds(run))),
        "workers": timelines_chart(run),
        "work": make.facts(work_facts(run), name="cost")
        + make.figures(work_charts(run) if run.rounds else []),
        "events": make.table(event_table(run)),
    }


def run_page(
    record: RunRecord,
    run: RunView,
    now: float,
    *,
    live: Live | None = None,
    root: str | None = None,
    others: Sequence[str] = (),
) -> Page:
    """Return the page of a run; `root` links to the overview or is None, `others` are runs to compare."""
    return make_page(
        "run.html.j2",
        live,
        title=f"Run {record.id}",
        root=root,
        record=record,
        problem=problem_words(record.config),
        configuration=[("begun", record.created), *flat(record.config)],
        written=clock(now),
        others=[name for name in others if name != record.id],
        parts=run_parts(run, now),
    )


def model_page(seen: ModelSeen, now: float, root: str | None = None) -> Page:
    """Return the page of a model; `root` links to the overview, or is None."""
    record = seen.record
    lineage = lineage_rows(seen, root)
    evaluation, labels = read_evaluation(record)
    return make_page(
        "model.html.j2",
        title=f"Model {record.id}",
        root=root,
        seen=seen,
        problem=problem(record),
        tiles=model_tiles(seen),
        evaluation=evaluation,
        labels=labels,
        tables=tables,
        answer=answer_words(evaluation, unit_of(record)),
        size_words=size_words(evaluation.sizes if evaluation else (), unit_of(record)),
        matrix=confusion_matrix(evaluation, record.class_names),
        exports=export_table(seen),
        lineage=lineage,
        lineage_pairs=[
            (name, said if isinstance(said, str) else ", ".join(map(str, said))) for name, said in lineage
        ],
        configuration=flat(record.config),
        others=others_table(seen, root),
        decisions=own_decisions(seen, root),
        written=clock(now),
    )


def models_page(found: Paired, runs: Sequence[tuple[RunRecord, RunView]], root: str) -> Page:
    """Return the page that compares two models; `runs` are those of their runs that still exist."""
    return make_page(
        "compare_models.html.j2",
        title=" and ".join(found.ids),
        root=root,
        ids=found.ids,
        problems=[problem(seen.record) for seen in (found.first, found.second)],
        evidence=found.evidence,
        same=evidence_table(found),
        recorded=recorded_table(found),
        classes=class_gains(found),
        settings=setting_table(found.ids, settings(found.first.record), settings(found.second.record)),
        charts=run_comparison_charts(runs) if len(runs) == 2 else [],
    )


def runs_page(runs: Sequence[tuple[RunRecord, RunView]], now: float, root: str) -> Page:
    """Return the page that compares two runs."""
    records = [record for record, _ in runs]
    ids = [record.id for record in records]
    return make_page(
        "compare_runs.html.j2",
        title=" and ".join(ids),
        root=root,
        ids=ids,
        problems=[problem_words(record.config) for record in records],
        reached=run_facts(runs, now),
        charts=run_comparison_charts(runs),
        settings=setting_table(ids, *({"dataset": one.dataset, **one.config} for one in records)),
    )


def sweep_page(
    record: SweepRecord,
    answers: Sequence[Mapping[str, Any]],
    now: float,
    *,
    live: Live | None = None,
    root: str | None = None,
) -> Page:
    """Return the page of a sweep; `root` links to the overview, or is None."""
    return make_page(
        "live_sweep.html.j2",
        live,
        title=f"Sweep {record.id}",
        root=root,
        record=record,
        configuration=[("begun", record.created), *flat(record.config)],
        written=clock(now),
        parts=sweep_parts(record, answers),
    )


def overview_parts(seen: Overview, now: float, root: str | None) -> dict[str, Markup]:
    """Return the parts of the overview; runs/r0001 is a page below `root`."""
    make = macros()
    return {
        "tiles": make.tiles(seen.tiles),
        "versions": versions_chart(seen.models, seen.metrics),
        "reigns": reigns_chart(seen.reigns, now),
        "history": make.table(champion_table(seen.reigns, root)),
        "models": make.table(model_table(seen, root)),
        "runs": make.table(run_table(seen.runs, root, seen.in_all.get("runs"))),
        "sweeps": make.table(sweep_table(seen.sweeps, root, seen.in_all.get("sweeps"))),
        "decisions": make.table(decision_table(seen.decisions, root, seen.in_all.get("decisions"))),
    }


def overview_page(
    store: str, seen: Overview, now: float, *, live: Live | None = None, root: str | None = None
) -> Page:
    """Return the overview of the store at the URL `store`."""
    return make_page(
        "overview.html.j2",
        live,
        title="Runs and models",
        store=store,
        written=clock(now),
        parts=overview_parts(seen, now, root),
    )


def write_page(store_url: str, name: str | None, path: Path) -> str:
    """Write the page of the run, model or sweep `name`, or the overview, to a file, and return its path.

    An existing file is replaced atomically.  Raises `NotFoundError` if there is nothing of that name.
    """
    follower, now = StoreFollower(open_store(store_url)), time.time()
    if name is None:
        page = overview_page(follower.store.url, follower.overview(now), now)
    elif name.startswith("s"):
        page = sweep_page(*follower.sweep(name), now)
    elif name.startswith("m"):
        page = model_page(follower.model(name), now)
    else:
        page = run_page(*follower.run(name), now)
    return page.write(path)
