"""Figures that only the dashboard has: who worked when, accuracies over versions, reigns of champions."""

from __future__ import annotations

import numpy as np
from markupsafe import Markup

from topline.pipeline.pages.charts import Scale
from topline.pipeline.pages.formatting import clock, count, percent
from topline.pipeline.telemetry.run_view import RunEvent, RunView
from topline.pipeline.telemetry.timeline import WorkerTimeline

# Timelines that fit a page; of more workers the busiest ones are drawn.
MOST_WORKERS = 24
# Shades of a worker: stretches of equal time.
STRETCHES = 120

WIDE, LEFT, RIGHT = 1140, 210, 70
ROW = 26

_MARKED = {
    "worker-lost": "lost",
    "worker-joined": "joined",
    "loss": "loss",
    "rebalance": "moved",
    "rollback": "loss",
    "checkpoint": "saved",
}


def timelines_chart(run: RunView) -> Markup:
    """Draw one timeline a worker: how busy it was in each stretch of time, and what happened meanwhile."""
    known = [worker for worker in run.workers if len(worker.at)]
    if not known or run.begun is None:
        return Markup('<p class="empty">No worker has been heard of.</p>')
    shown = sorted(known, key=lambda worker: -worker.seconds_busy)[:MOST_WORKERS]
    shown = [worker for worker in known if any(worker is one for one in shown)]
    end = max(max(float(worker.at[-1]) for worker in shown), run.heard or 0.0, run.begun + 1e-3)
    axis = Scale(0.0, end - run.begun, LEFT, WIDE - RIGHT)
    bottom = ROW * len(shown) + 22
    parts = [_timeline(worker, 22 + ROW * row, axis, run.begun) for row, worker in enumerate(shown)]
    parts += [_mark(event, axis, run.begun, bottom) for event in run.events if event.kind in _MARKED]
    parts.append(_time_axis(axis, bottom))
    note = f"{len(shown)} of {len(known)} workers" if len(known) > len(shown) else f"{len(known)} workers"
    return Markup(
        '<svg class="workers" viewBox="0 0 {0} {1}" role="img" aria-label="{2}: share of the time in which'
        ' each worked, over {3:.0f} seconds">{4}</svg>'
    ).format(WIDE, bottom + 40, note, end - run.begun, Markup("").join(parts))


def busy_shares(worker: WorkerTimeline, begun: float, edges: np.ndarray) -> np.ndarray:
    """Spread a timeline's busy seconds over stretches of time between `edges`; NaN where nothing is known."""
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
        title, LEFT - 8, top + tall - 4, name, LEFT, top, axis.stop - axis.start, tall,
        "here" if worker.here else "gone", bars, WIDE - RIGHT + 8,
        percent(min(1.0, worker.seconds_busy / whole)),
    )  # fmt: skip


def _mark(event: RunEvent, axis: Scale, begun: float, bottom: float) -> Markup:
    at = axis(min(max(event.at - begun, axis.low), axis.high))
    return Markup(
        '<g class="mark {0}"><title>{1} at {2}</title><line x1="{3}" x2="{3}" y1="16" y2="{4}"/>'
        '<path d="M{5},4 h8 l-4,9 z"/></g>'
    ).format(_MARKED[event.kind], event.kind, clock(event.at), f"{at:.1f}", bottom, f"{at - 4:.1f}")


def _time_axis(axis: Scale, bottom: float) -> Markup:
    ticks = Markup("").join(
        Markup('<text class="tick" x="{0:.1f}" y="{1}" text-anchor="middle">{2:g}</text>').format(
            axis(value), bottom + 16, value
        )
        for value in axis.ticks()
    )
    return ticks + Markup(
        '<text class="note" x="{0}" y="{1}" text-anchor="middle">seconds since the first record</text>'
    ).format((LEFT + WIDE - RIGHT) / 2, bottom + 34)
