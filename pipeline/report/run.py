"""What a report says in words about a run: what it cost, and what happened to it."""

from __future__ import annotations

import datetime as dt
import math

import numpy as np

from topline.pipeline.pages.formatting import amount, count, duration, percent
from topline.pipeline.telemetry.run_view import RunView

MOST_EVENTS = 50

PARTS = {
    "products": "Products and reading",
    "kernels": "Work per row",
    "waiting": "Waiting and messages",
    "other": "Coordinator and checkpoints",
}
KINDS = {
    "begin": "begun",
    "worker-joined": "worker joined",
    "worker-lost": "worker left",
    "loss": "blocks lost",
    "rebalance": "blocks moved",
    "rollback": "back to the last checkpoint",
    "end": "ended",
}


def work_facts(run: RunView) -> list[tuple[str, str]]:
    """Give what the run cost, by name."""
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


def run_events(run: RunView) -> list[tuple[str, str, str]]:
    """Give what happened to the run, but for checkpoints, as (time, what, more); the last ones of many."""
    shown = []
    for event in run.events:
        if event.kind in KINDS:
            time = "" if math.isnan(event.at) else _clock(event.at)
            more = event.facts.get("reason") or event.facts.get("worker") or ""
            shown.append((time, f"{KINDS[event.kind]} after {event.after + 1:,} rounds", str(more)))
    return shown[-MOST_EVENTS:]


def _clock(at: float) -> str:
    return dt.datetime.fromtimestamp(at, dt.UTC).isoformat(sep=" ", timespec="seconds").removesuffix("+00:00")
