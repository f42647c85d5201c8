"""Text and verdicts of pages about a run, from its view alone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import numpy as np

from topline.pipeline.pages import DASH, Tile, amount, clock, count, duration, gap, number, percent
from topline.pipeline.telemetry import EVENTS_SHOWN, RunView, TimeLeft, finite, rough_time
from topline.solvers.counts import how_many
from topline.storage.records import plain

# A run is silent if it wrote nothing for longer than this, and than several of its rounds take.
SILENT_SECONDS = 60.0
SILENT_ROUNDS = 20.0

ROUNDS_SHOWN = 20

_STATUS = {
    "solved": ("good", "Solved"),
    "max_passes": ("fair", "Out of passes"),
    "time_limit": ("fair", "Out of time"),
    "no_progress": ("fair", "No further progress"),
    "interrupted": ("fair", "Interrupted"),
    "nonfinite": ("bad", "Numbers overflowed"),
}


#: Verdicts of a run that `topline train --resume` continues.
UNFINISHED = ("Stopped", "Silent")


def verdict(run: RunView, now: float) -> tuple[str, str]:
    """Return the tone and text of a run's state at the time `now`."""
    if run.stage == "finished":
        status = str((run.outcome or {}).get("status", ""))
        return _STATUS.get(status, ("", status or "Finished"))
    if run.stage == "stopped":
        return "fair", "Stopped"
    if run.stage == "waiting":
        return "", "Not begun"
    if is_silent(run, now):
        return "bad", "Silent"
    return "", "Running" if run.stage == "running" else "Publishing"


def remark(run: RunView) -> str:
    """Return the remark beside the verdict: why the run stopped, or when it last wrote a record."""
    if run.stage == "finished":
        ended = str((run.outcome or {}).get("finished", ""))
        return f"finished {ended}".replace("T", " ").replace("+00:00", " UTC")
    if run.reason:
        return run.reason
    return f"last record {clock(run.heard)} UTC" if run.heard is not None else "nothing is recorded yet"


def is_silent(run: RunView, now: float) -> bool:
    """Return whether an unfinished run has written nothing for long: it hangs or was killed."""
    if run.stage not in ("running", "publishing") or run.heard is None:
        return False
    times = run.columns["at"]
    steps = np.diff(times[np.isfinite(times)])
    usual = float(np.median(steps)) if len(steps) else 0.0
    return now - run.heard > max(SILENT_SECONDS, SILENT_ROUNDS * usual)


def numbers(run: RunView, now: float) -> dict[str, Any]:
    """Return a run in JSON's types: its state, last round, workers and latest events."""
    workers = [
        {"name": worker.name, "rows": worker.rows, "memory_bytes": worker.memory_bytes, "here": worker.here,
         "seconds_busy": worker.seconds_busy}
        for worker in run.workers
    ]  # fmt: skip
    found: dict[str, Any] = plain(
        {
            "run": run.run,
            "stage": run.stage,
            "verdict": verdict(run, now)[1],
            "silent": is_silent(run, now),
            "reason": run.reason,
            "tol": run.tol,
            "begun": run.begun,
            "heard": run.heard,
            "rounds": run.rounds,
            "rounds_again": run.repeated,
            "last": run.last,
            "left": None if run.left is None else asdict(run.left),
            "workers": workers,
            "events": [asdict(event) for event in run.events[-EVENTS_SHOWN:]],
            "outcome": run.outcome,
        }
    )
    return found


def tiles(run: RunView) -> list[Tile]:
    """Return the headline figures."""
    if not run.rounds:
        return []
    columns = run.columns
    kind, best = bound(run)
    target = "" if run.tol is None else f", tolerance {run.tol:g}"
    reached = "good" if run.tol is not None and best is not None and best <= run.tol else ""
    shown = [Tile(kind, gap(best), f"smallest so far{target}", reached)]
    if run.stage == "running":
        shown.append(Tile("time left", *left_words(run.left)))
    looks = columns["held_out"][np.isfinite(columns["held_out"])]
    if len(looks):
        shown.append(Tile("held-out top-1", percent(float(looks[-1])), "a sample, at the last look"))
    last = run.last
    bounds = f"dual {number(last['dual'])}" if last["dual"] is not None else "no dual"
    shown.append(Tile("primal", number(last["primal"]), bounds))
    passes = "" if last["passes"] is None else how_many(last["passes"], "passes", ".5g")
    shown.append(Tile("rounds", count(run.rounds), passes))
    pace = f"{(last['seconds'] or 0.0) / run.rounds:.2g} s a round"
    shown.append(Tile("solving time", duration(last["seconds"]), pace))
    here = sum(timeline.here for timeline in run.workers)
    if here:
        memory = "" if last["memory_bytes"] is None else f"{amount(last['memory_bytes'])} in all"
        shown.append(Tile("workers", count(here), memory))
    return shown


def bound(run: RunView) -> tuple[str, float | None]:
    """Return the name of the quantity that falls to the tolerance, and its smallest value so far."""
    best = run.columns["best_gap"]
    known = best[np.isfinite(best)]
    convex = bool(np.isnan(run.columns["stationarity"]).all())
    name = "relative gap" if convex else "gradient beside the first one"
    return name, float(known[-1]) if len(known) else None


def left_words(left: TimeLeft | None) -> tuple[str, str]:
    """Return an estimate and its range."""
    if left is None:
        return DASH, "not known yet"
    if left.high < 1.0:
        return "0 s", "the tolerance is reached"
    return rough_time(left.seconds), f"{rough_time(left.low)} to {rough_time(left.high)}"


def last_rounds(run: RunView) -> list[dict[str, float | None]]:
    """Return the last known rounds, newest first."""
    names = ("round", "seconds", "primal", "dual", "relative_gap", "step", "active")
    columns = [run.columns[name][-ROUNDS_SHOWN:][::-1].tolist() for name in names]
    return [dict(zip(names, map(finite, row), strict=True)) for row in zip(*columns, strict=True)]


def problem_words(config: Mapping[str, Any]) -> str:
    """Return the problem and method of a run, in one line."""
    loss = str(config.get("loss", "unknown loss"))
    named = f"{loss}, k = {config['k']}" if config.get("k") else loss
    said = [named, *(f"{name} {config[name]:g}" for name in ("C", "smoothing") if config.get(name))]
    if config.get("method"):
        said.append(f"method {config['method']}")
    return ", ".join(said)
