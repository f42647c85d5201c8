"""A run as report and dashboard show it: its charts, costs and events."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from markupsafe import Markup
from numpy.typing import NDArray

from topline.pipeline.pages import (
    DASH,
    Column,
    Series,
    Table,
    amount,
    clock,
    count,
    duration,
    line_chart,
    number,
    percent,
)
from topline.pipeline.telemetry import EVENTS_SHOWN, RunEvent, RunView, view_run
from topline.solvers.counts import how_many
from topline.storage.stores import Store

#: A chart with its title and its horizontal axis.
Titled = tuple[str, str, Markup]
Floats = NDArray[np.float64]

# Stretches of rounds over which shares of time are averaged.
STRETCHES = 80

PARTS = {
    "products": "Products and reading",
    "kernels": "Work per row",
    "waiting": "Waiting and messages",
    "other": "Coordinator and checkpoints",
}
EVENT_NAMES = {
    "begin": "begun",
    "worker-joined": "worker joined",
    "worker-lost": "worker left",
    "loss": "blocks lost",
    "rebalance": "blocks moved",
    "note": "note",
    "store-retried": "requests repeated",
    "rollback": "back to the last checkpoint",
    "end": "ended",
}


def run_charts(columns: Mapping[str, Floats], tol: float | None) -> list[Titled]:
    """Draw the run's course over rounds and over seconds."""
    axes = {"rounds": columns["round"], "seconds": columns["seconds"]}
    gaps, title, label = columns["relative_gap"], "Relative duality gap", "relative gap"
    if not np.isnan(columns["stationarity"]).all():
        gaps, title, label = columns["stationarity"], "Gradient beside the first one", "share"
    target = None if tol is None else (f"tolerance {number(tol)}", tol)
    drawn = []
    for axis, x in axes.items():
        lines = [
            Series.of("this round", x, gaps, 5, positive=True),
            Series.of("best so far", x, columns["best_gap"], 1, positive=True),
        ]
        drawn.append((title, axis, line_chart(lines, x_label=axis, y_label=label, log=True, target=target)))
    for axis, x in axes.items():
        # The dual starts at 0, so that a logarithmic scale omits its first rounds.
        lines = [
            Series.of(name, x, columns[name], style, positive=True)
            for name, style in (("primal", 2), ("dual", 1))
        ]
        chart = line_chart(lines, x_label=axis, y_label="objective", log=True, decades=2)
        drawn.append(("Primal and dual objective", axis, chart))
    step = Series.of("step", axes["rounds"], columns["step"], 3, positive=True)
    active = Series.of("active share", axes["rounds"], columns["active"], 4)
    looks = ~np.isnan(columns["held_out"])
    if looks.any():
        line = Series.of("top-1", columns["seconds"][looks], columns["held_out"][looks], 4)
        chart = line_chart([line], x_label="seconds", y_label="share", most=1.0)
        drawn.append(("Accuracy on held-out rows", "seconds", chart))
    steps = line_chart([step], x_label="rounds", y_label="step", log=True)
    shares = line_chart([active], x_label="rounds", y_label="share", most=1.0)
    return [*drawn, ("Step size", "rounds", steps), ("Share of active examples", "rounds", shares)]


def work_charts(run: RunView) -> list[Titled]:
    """Draw the run's costs, as far as its history records them."""
    drawn: list[Titled] = []
    rounds = run.columns["round"]
    parts = run.time_split()
    if sum(float(parts[part].sum()) for part in ("products", "kernels")) > 0.0:
        drawn.append(("Shares of the time", "rounds", _split_chart(rounds, parts)))
    moved = {name: run.columns[f"bytes_{name}"] for name in ("read", "sent", "received")}
    if any(values.any() for values in moved.values()):
        drawn.append(("Data moved in a round", "rounds", _traffic_chart(rounds, moved)))
    memory = run.columns["memory_bytes"]
    if np.nan_to_num(memory).any():
        line = Series.of("memory", rounds, memory / 1e9, 2)
        chart = line_chart([line], x_label="rounds", y_label="GB")
        drawn.append(("Memory of all processes", "rounds", chart))
    return drawn


def _split_chart(rounds: Floats, parts: Mapping[str, Floats]) -> Markup:
    ends, sums = _stretches(rounds, np.stack(list(parts.values())))
    shares = sums / np.maximum(sums.sum(axis=0), 1e-300)
    named = zip(parts, shares, (1, 2, 3, 4), strict=True)
    lines = [Series.of(PARTS[part].lower(), ends, share, style) for part, share, style in named]
    return line_chart(lines, x_label="rounds", y_label="share", most=1.0)


def _traffic_chart(rounds: Floats, moved: Mapping[str, Floats]) -> Markup:
    ends, sums = _stretches(rounds, np.stack(list(moved.values())))
    lengths = np.diff(ends, prepend=-1.0)
    lines = [
        Series.of(name, ends, values / lengths / 1e6, style)
        for name, values, style in zip(moved, sums, (1, 2, 3), strict=True)
        if values.any()
    ]
    return line_chart(lines, x_label="rounds", y_label="MB")


def _stretches(rounds: Floats, values: Floats) -> tuple[Floats, Floats]:
    """Return the last round of each of at most `STRETCHES`, and sums of `values` (parts, rows) over it."""
    starts = np.unique(np.linspace(0, len(rounds), min(len(rounds), STRETCHES), endpoint=False).astype(int))
    ends = np.append(starts[1:], len(rounds)) - 1
    return rounds[ends], np.add.reduceat(values, starts, axis=1)


def work_facts(run: RunView) -> list[tuple[str, str]]:
    """Return the run's costs as (name, value) pairs; empty before its first round."""
    if not run.rounds:
        return []
    parts = {part: float(seconds.sum()) for part, seconds in run.time_split().items()}
    whole = max(sum(parts.values()), 1e-300)
    facts = [
        (title, f"{duration(parts[part])}, {percent(parts[part] / whole)}") for part, title in PARTS.items()
    ]
    columns = run.columns
    moved = {"Read from storage": "bytes_read", "Sent to workers": "bytes_sent", "Received": "bytes_received"}
    facts += [
        (title, amount(total)) for title, name in moved.items() if (total := float(columns[name].sum()))
    ]
    if not np.isnan(columns["memory_bytes"]).all():
        facts.append(("Most memory", amount(float(np.nanmax(columns["memory_bytes"])))))
    if run.workers:
        facts.append(("Workers at the end", count(sum(worker.here for worker in run.workers))))
    saved = [event.facts for event in run.events if event.kind == "checkpoint"]
    if saved:
        each = math.fsum(facts["seconds"] for facts in saved) / len(saved)
        facts.append(("Checkpoints", f"{count(len(saved))}, {each:.2g} s each, {amount(saved[-1]['bytes'])}"))
    if run.repeated:
        facts.append(("Rounds done again", count(run.repeated)))
    return facts


def event_table(run: RunView) -> Table:
    """Return the latest events, newest first."""
    columns = (Column("time (UTC)", "t"), Column("when"), Column("what"), Column("more", "path"))
    rows = [
        (
            clock(event.at),
            f"after {how_many(event.after + 1, 'rounds')}",
            EVENT_NAMES.get(event.kind, event.kind),
            _event_details(event),
        )
        for event in sorted(run.events[-EVENTS_SHOWN:], key=lambda event: event.at, reverse=True)
    ]
    return Table.of("events", columns, rows, empty="Nothing has happened yet.")


def logged_lines(store: Store, run: str | None) -> list[str]:
    """Return a run's latest events, including log lines, as text, oldest first."""
    events = view_run(store, run).events if run else ()
    return [
        f"{clock(event.at)} {EVENT_NAMES.get(event.kind, event.facts.get('level', event.kind))}:"
        f" {_event_details(event)}"
        for event in events
    ]


def _event_details(event: RunEvent) -> str:
    facts: Mapping[str, Any] = event.facts
    if event.kind == "checkpoint":
        parts = [duration(facts.get("seconds")), amount(facts.get("bytes"))]
        return ", ".join(part for part in parts if part != DASH)
    said = [facts.get("reason"), facts.get("worker")]
    if facts.get("moved_blocks"):
        said.append(f"{how_many(len(facts['moved_blocks']), 'blocks')} moved")
    if facts.get("lost_blocks"):
        said.append(f"{how_many(len(facts['lost_blocks']), 'blocks')} as of round {facts.get('saved_round')}")
    return ", ".join(str(part) for part in said if part)
