"""Pages of runs and models, of comparisons of two, the parts of them that change, and their charts."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from markupsafe import Markup

from topline.pipeline.dashboard.models import (
    ModelSeen,
    Paired,
    class_gains,
    evidence_table,
    export_table,
    lineage_rows,
    model_tiles,
    others_table,
    problem,
    recorded_table,
    run_comparison_charts,
    run_facts,
    setting_table,
    sweep_parts,
    sweep_table,
)
from topline.pipeline.dashboard.overview import (
    Overview,
    champion_table,
    decision_table,
    model_table,
    problem_words,
    remark,
    round_table,
    run_table,
    verdict,
)
from topline.pipeline.dashboard.overview import tiles as run_tiles
from topline.pipeline.dashboard.store_follower import StoreFollower, seconds_of
from topline.pipeline.evaluation import Metric, read_evaluation
from topline.pipeline.pages import Live, Page, Scale, clock, count, flat, macros, make_page
from topline.pipeline.registry import settings
from topline.pipeline.report import tables
from topline.pipeline.report.document import answer_words, confusion_matrix, unit_of
from topline.pipeline.report.run_section import event_table, run_charts, work_charts, work_facts
from topline.pipeline.report.training_sizes import size_words
from topline.pipeline.telemetry import RunView, WorkerTimeline
from topline.solvers.counts import how_many
from topline.storage.models import Reign
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
        "rounds": make.table(round_table(run)),
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
        decisions=decision_table(seen.standing.of(record.id)[::-1], root),
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
    """Write the page of a run, model, sweep or the overview to `path`; raise `NotFoundError` if unknown."""
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


#: A model's line, as `overview.model_line` makes it.
Model: TypeAlias = Mapping[str, Any]

# Timelines that fit a page; the busiest workers are drawn.
MOST_WORKERS = 24
# Stretches of equal time in a timeline.
STRETCHES = 120
# Most versions of a chart, and reigns of a strip.
MOST_VERSIONS, MOST_REIGNS = 60, 60
# Largest width of one version, in pixels.
MOST_APART = 110.0
# Smallest span of an axis of accuracies.
LEAST_SPAN = 0.1

WIDE, TALL = 1140, 260
LEFT, RIGHT, TOP, BOTTOM = 62, 20, 14, 42
# Timelines: pixels for names at the left and shares at the right, and the height of a row.
NAMES, SHARES, ROW = 210, 70, 26

_MARKED = {
    "worker-lost": "lost",
    "worker-joined": "joined",
    "loss": "loss",
    "rebalance": "moved",
    "rollback": "loss",
    "checkpoint": "saved",
}


def timelines_chart(run: RunView) -> Markup:
    """Draw a timeline per worker: how busy it was in each stretch of time, and the events."""
    known = [worker for worker in run.workers if len(worker.at)]
    begun = run.begun
    if not known or begun is None:
        return Markup('<p class="empty">No worker has reported yet.</p>')
    busiest = sorted(known, key=lambda worker: -worker.seconds_busy)[:MOST_WORKERS]
    shown = [worker for worker in known if any(worker is one for one in busiest)]
    end = max(max(float(worker.at[-1]) for worker in shown), run.heard or 0.0, begun + 1e-3) - begun
    marks = [
        (_MARKED[event.kind], f"{event.kind} at {clock(event.at)}", min(max(event.at - begun, 0.0), end))
        for event in run.events
        if event.kind in _MARKED
    ]
    workers = how_many(len(known), "workers")
    note = f"{len(shown)} of {workers}" if len(known) > len(shown) else workers
    label = f"{note}: share of the time in which each worked, over {end:.0f} seconds"
    lines, axis = [_timeline(worker, begun, end) for worker in shown], Scale(0.0, end, NAMES, WIDE - SHARES)
    drawn: Markup = macros("charts").timelines(lines, marks, axis, ROW * len(shown) + 62, label)
    return drawn


def busy_shares(worker: WorkerTimeline, begun: float, edges: np.ndarray) -> np.ndarray:
    """Spread a timeline's busy seconds over the stretches between `edges`; NaN where unknown."""
    ends = np.asarray(worker.at) - begun
    starts = np.concatenate([[max(0.0, float(ends[0]) - max(float(worker.busy[0]), 1e-3))], ends[:-1]])
    done = np.concatenate([[0.0], np.cumsum(worker.busy)])
    times = np.concatenate([starts[:1], ends])
    work = np.diff(np.interp(edges, times, done))
    covered = np.diff(np.clip(edges, times[0], times[-1]))
    shares: np.ndarray = np.full(len(work), np.nan)
    known = covered > 0
    shares[known] = np.clip(work[known] / covered[known], 0.0, 1.0)
    return shares


def _timeline(worker: WorkerTimeline, begun: float, end: float) -> dict[str, Any]:
    edges = np.linspace(0.0, end, STRETCHES + 1)
    shares = busy_shares(worker, begun, edges).tolist()
    state = "" if worker.here else ", gone"
    return {
        "here": worker.here,
        "name": worker.name if len(worker.name) <= 30 else f"\u2026{worker.name[-29:]}",
        "title": f"{worker.name}: {count(worker.rows)} rows, worked {worker.seconds_busy:.1f} s{state}",
        "stretches": list(zip(edges[:-1].tolist(), edges[1:].tolist(), shares, strict=True)),
        "busy": min(1.0, worker.seconds_busy / max(float(worker.at[-1]) - begun, 1e-9)),
    }


def versions_chart(models: Sequence[Model], metrics: Sequence[Metric]) -> Markup:
    """Draw metrics that are shares over the newest versions of `models` (newest first), champions ringed."""
    drawn = [metric for metric in metrics if metric.percent]
    known = [model for model in models if model["metrics"]][:MOST_VERSIONS][::-1]
    names = {metric.name for metric in drawn}
    shares = [share for model in known for name, share in model["metrics"].items() if name in names]
    if not shares:
        return Markup('<p class="empty">No model has been evaluated.</p>')
    low, high = min(shares), max(shares)
    # A wide enough axis keeps a difference of a few rows from looking like a cliff.
    short = max(0.0, LEAST_SPAN - (high - low))
    air = 0.08 * (high - low) + 0.004
    y = Scale(max(0.0, low - air - short), min(1.0, high + air), TALL - BOTTOM, TOP)
    # A phone shows the left end, where a few versions should be visible without scrolling.
    width = min(WIDE - LEFT - RIGHT, MOST_APART * len(known))
    x = Scale(-0.5, len(known) - 0.5, LEFT, LEFT + width)
    # A name takes about 56 pixels, 70 in the larger letters of phones.
    every = max(1, math.ceil(70 * len(known) / (WIDE - LEFT - RIGHT)))
    made: Markup = macros("charts").versions(known, drawn, x, y, WIDE - RIGHT, every)
    return made


def reigns_chart(reigns: Sequence[Reign], now: float) -> Markup:
    """Draw who was champion when, as a strip over time."""
    shown = reigns[-MOST_REIGNS:]
    if not shown:
        return Markup('<p class="empty">No model has been champion.</p>')
    spans = [
        (seconds_of(reign.since), seconds_of(reign.until) if reign.until else now, reign) for reign in shown
    ]
    first, end = spans[0][0], max(now, spans[-1][1], spans[0][0] + 1.0)
    drawn: Markup = macros("charts").reigns(spans, Scale(first, end, LEFT, WIDE - RIGHT), shown[-1])
    return drawn
