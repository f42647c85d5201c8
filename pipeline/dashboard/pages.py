"""Pages of runs and models, of comparisons of two, the parts of them that change, and their charts."""

from __future__ import annotations

import datetime as dt
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
    own_decisions,
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
    last_rounds,
    model_table,
    problem_words,
    remark,
    round_table,
    run_table,
    verdict,
)
from topline.pipeline.dashboard.overview import tiles as run_tiles
from topline.pipeline.dashboard.store_follower import StoreFollower
from topline.pipeline.evaluation import Metric, read_evaluation
from topline.pipeline.pages import (
    Live,
    Page,
    Scale,
    Series,
    clock,
    count,
    curve,
    flat,
    legend,
    macros,
    make_page,
    percent,
    svg,
    when,
    x_ticks,
    y_grid,
)
from topline.pipeline.registry import settings
from topline.pipeline.report import tables
from topline.pipeline.report.document import answer_words, confusion_matrix, unit_of
from topline.pipeline.report.run_section import event_table, run_charts, work_charts, work_facts
from topline.pipeline.report.training_sizes import size_words
from topline.pipeline.telemetry import RunEvent, RunView, WorkerTimeline
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


#: A model's line, as `overview.model_line` makes it.
Model: TypeAlias = Mapping[str, Any]

# Timelines that fit a page; the busiest workers are drawn.
MOST_WORKERS = 24
# Stretches of equal time in a timeline.
STRETCHES = 120
# Most versions of a chart, and reigns of a strip.
MOST_VERSIONS, MOST_REIGNS = 60, 60
# Largest width of one version.
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
_AXIS_TITLE = Markup(
    '<text class="note" x="{0}" y="{1}" text-anchor="middle">seconds since the first record</text>'
)


def timelines_chart(run: RunView) -> Markup:
    """Draw a timeline per worker: how busy it was in each stretch of time, and the events."""
    known = [worker for worker in run.workers if len(worker.at)]
    if not known or run.begun is None:
        return Markup('<p class="empty">No worker has reported yet.</p>')
    shown = sorted(known, key=lambda worker: -worker.seconds_busy)[:MOST_WORKERS]
    shown = [worker for worker in known if any(worker is one for one in shown)]
    end = max(max(float(worker.at[-1]) for worker in shown), run.heard or 0.0, run.begun + 1e-3)
    axis = Scale(0.0, end - run.begun, NAMES, WIDE - SHARES)
    bottom = ROW * len(shown) + 22
    parts = [_timeline(worker, 22 + ROW * row, axis, run.begun) for row, worker in enumerate(shown)]
    parts += [_mark(event, axis, run.begun, bottom) for event in run.events if event.kind in _MARKED]
    parts.append(x_ticks(axis, bottom + 16))
    parts.append(_AXIS_TITLE.format((NAMES + WIDE - SHARES) / 2, bottom + 34))
    workers = how_many(len(known), "workers")
    note = f"{len(shown)} of {workers}" if len(known) > len(shown) else workers
    label = f"{note}: share of the time in which each worked, over {end - run.begun:.0f} seconds"
    return svg(WIDE, bottom + 40, label, parts, "workers")


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


def _timeline(worker: WorkerTimeline, top: float, axis: Scale, begun: float) -> Markup:
    edges = np.linspace(axis.low, axis.high, STRETCHES + 1)
    shares = busy_shares(worker, begun, edges)
    tall = ROW - 8
    bars = Markup("").join(
        Markup('<rect class="busy" x="{0}" y="{1}" width="{2}" height="{3}"/>').format(
            f"{axis(float(edges[i])):.1f}",
            f"{top + tall * (1 - share):.1f}",
            f"{axis(float(edges[i + 1])) - axis(float(edges[i])):.2f}",
            f"{tall * share:.1f}",
        )
        for i, share in enumerate(shares.tolist())
        if share > 0.0
    )
    whole = max(float(worker.at[-1]) - begun, 1e-9)
    state = "" if worker.here else ", gone"
    title = f"{worker.name}: {count(worker.rows)} rows, worked {worker.seconds_busy:.1f} s{state}"
    name = worker.name if len(worker.name) <= 30 else f"\u2026{worker.name[-29:]}"
    return Markup(
        '<g class="{8}"><title>{0}</title><text class="tick" x="{1}" y="{2}" text-anchor="end">{3}</text>'
        '<rect class="track" x="{4}" y="{5}" width="{6}" height="{7}"/>{9}'
        '<text class="value" x="{10}" y="{2}">{11}</text></g>'
    ).format(
        title, NAMES - 8, top + tall - 4, name, NAMES, top, axis.stop - axis.start, tall,
        "here" if worker.here else "gone", bars, WIDE - SHARES + 8,
        percent(min(1.0, worker.seconds_busy / whole)),
    )  # fmt: skip


def _mark(event: RunEvent, axis: Scale, begun: float, bottom: float) -> Markup:
    at = axis(min(max(event.at - begun, axis.low), axis.high))
    return Markup(
        '<g class="mark {0}"><title>{1} at {2}</title><line x1="{3}" x2="{3}" y1="16" y2="{4}"/>'
        '<path d="M{5},4 h8 l-4,9 z"/></g>'
    ).format(_MARKED[event.kind], event.kind, clock(event.at), f"{at:.1f}", bottom, f"{at - 4:.1f}")


def versions_chart(models: Sequence[Model], metrics: Sequence[Metric]) -> Markup:
    """Draw metrics that are shares over the newest versions of `models` (newest first), champions ringed."""
    drawn = [metric for metric in metrics if metric.percent]
    known = [model for model in models if model["metrics"]][:MOST_VERSIONS][::-1]
    shares = [
        model["metrics"][metric.name]
        for model in known
        for metric in drawn
        if metric.name in model["metrics"]
    ]
    if not shares:
        return Markup('<p class="empty">No model has been evaluated.</p>')
    low, high = min(shares), max(shares)
    # A wide enough axis keeps a difference of a few rows from looking like a cliff.
    short = max(0.0, LEAST_SPAN - (high - low))
    air = 0.08 * (high - low) + 0.004
    y_axis = Scale(max(0.0, low - air - short), min(1.0, high + air), TALL - BOTTOM, TOP)
    # A phone shows the left end, where a few versions should be visible without scrolling.
    step = min((WIDE - LEFT - RIGHT) / len(known), MOST_APART)
    places = [LEFT + step * (number + 0.5) for number in range(len(known))]
    parts = [y_grid(y_axis, LEFT, WIDE - RIGHT, percent), _names(known, places)]
    lines = []
    for style, metric in enumerate(drawn, start=1):
        points = [
            (x, y_axis(model["metrics"][metric.name]), model)
            for x, model in zip(places, known, strict=True)
            if metric.name in model["metrics"]
        ]
        parts.append(_line(points, style, metric))
        lines.append(Series.of(metric.column, [], [], style))
    spoken = ", ".join(metric.column for metric in drawn)
    return svg(WIDE, TALL, f"{spoken} of {len(known)} versions", parts, "wide") + legend(lines)


def reigns_chart(reigns: Sequence[Reign], now: float) -> Markup:
    """Draw who was champion when, as a strip over time."""
    shown = reigns[-MOST_REIGNS:]
    if not shown:
        return Markup('<p class="empty">No model has been champion.</p>')
    spans = [(_seconds(reign.since), _seconds(reign.until) if reign.until else now, reign) for reign in shown]
    first, last = spans[0][0], max(now, spans[-1][1], spans[0][0] + 1.0)
    axis = Scale(first, last, LEFT, WIDE - RIGHT)
    blocks = [_reign(axis(start), axis(max(end, start)), reign) for start, end, reign in spans]
    last_reign = shown[-1]
    until = "now" if last_reign.until is None else when(last_reign.until)
    current = last_reign.model if last_reign.until is None else "none"
    tick = Markup('<text class="tick" x="{0}" y="54" text-anchor="{1}">{2}</text>')
    ends = tick.format(LEFT, "start", when(shown[0].since)) + tick.format(WIDE - RIGHT, "end", until)
    track = Markup('<rect class="track" x="{0}" y="8" width="{1}" height="28"/>')
    parts = [track.format(LEFT, WIDE - RIGHT - LEFT), *blocks, ends]
    return svg(WIDE, 60, f"Champions over time, now {current}", parts, "wide reigns")


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


def _seconds(text: str) -> float:
    return dt.datetime.fromisoformat(text).timestamp()


def _names(models: Sequence[Model], places: Sequence[float]) -> Markup:
    # A name takes about 56 pixels, 70 in the larger letters of phones.
    every = max(1, math.ceil(70 * len(models) / (WIDE - LEFT - RIGHT)))
    text = Markup('<text class="{0}" x="{1:.1f}" y="{2}" text-anchor="middle">{3}</text>')
    return Markup("").join(
        text.format(
            "tick now" if model["stage"] == "champion" else "tick", x, TALL - BOTTOM + 20, model["id"]
        )
        for number, (model, x) in enumerate(zip(models, places, strict=True))
        if (len(models) - 1 - number) % every == 0
    )


def _line(points: Sequence[tuple[float, float, Model]], style: int, metric: Metric) -> Markup:
    ring = Markup('<circle class="ring" cx="{0:.1f}" cy="{1:.1f}" r="7.5"/>')
    dot = Markup('<circle class="dot" cx="{0:.1f}" cy="{1:.1f}" r="4"><title>{2}</title></circle>')
    marks = []
    for x, y, model in points:
        value = metric.text(model["metrics"][metric.name])
        said = f"{model['id']}, {model['stage']}: {metric.column} {value} on {model['dataset']}"
        marks += [ring.format(x, y)] if model["reigned"] else []
        marks.append(dot.format(x, y, said))
    return curve(points, style, marks)
