"""Content of the overview: champions, accuracies over versions, decisions, and how the last run stands."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

import numpy as np

from topline.pipeline.certification.recompute import source_of
from topline.pipeline.evaluation import METRICS, Metric, measured
from topline.pipeline.options import PromotionRule
from topline.pipeline.pages import (
    DASH,
    Column,
    Table,
    TableCell,
    Tile,
    amount,
    clock,
    count,
    duration,
    gap,
    number,
    percent,
    when,
)
from topline.pipeline.registry import summary
from topline.pipeline.telemetry import (
    EVENTS_SHOWN,
    RunView,
    Served,
    finite,
    heartbeat_age,
    next_time,
    rough_time,
    served,
)
from topline.solvers.counts import how_many
from topline.storage.models import DecisionRecord, ModelRecord, Reign, Standing
from topline.storage.records import plain
from topline.storage.runs import RunRecord, SweepRecord
from topline.storage.served_schedule import ServedSchedule
from topline.storage.stores import Tenant

MODELS_SHOWN = 100
DECISIONS_SHOWN = 100

_STAGE_TONES = {"champion": "good", "candidate": "", "archived": "soft", "deleted": "soft"}
_ACTION_TONES = {"promote": "good", "keep": "", "rollback": "fair", "archive": "", "delete": "bad"}


@dataclass(frozen=True)
class RunLine:
    """A run in one line: smallest relative gap, model id, and when it ended or was last heard of."""

    id: str
    tone: str
    words: str
    reason: str = ""
    problem: str = ""
    dataset: str = ""
    created: str = ""
    seen: str = ""
    gap: float | None = None
    passes: float | None = None
    seconds: float | None = None
    model: str | None = None


@dataclass(frozen=True)
class Overview:
    """Content of the overview; newest first, except `reigns`.

    `models` are lines of `model_line`, followed by the champion if it is older; `in_all` counts the store's
    records.  `damaged` says by id why models cannot be read, `retraining` who retrains the store; `troubles`
    counts the newest run's problems.
    """

    tiles: Sequence[Tile]
    models: Sequence[Mapping[str, Any]]
    in_all: Mapping[str, int]
    metrics: Sequence[Metric]
    reigns: Sequence[Reign]
    decisions: Sequence[DecisionRecord]
    runs: Sequence[RunLine]
    damaged: Mapping[str, str] = field(default_factory=dict)
    schedule: ScheduleSeen | None = None
    retraining: Tenant | None = None
    sweeps: Sequence[SweepRecord] = ()
    troubles: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class ScheduleSeen:
    """A schedule, whether a process serves it, and the seconds since its last heartbeat."""

    schedule: ServedSchedule
    served: Served
    silent: float

    def words(self, now: datetime) -> tuple[str, str]:
        """Return its status text at `now`, and the tone."""
        schedule, who = self.schedule, self.schedule.process or "its process"
        last = f"last success {when(schedule.succeeded)[:16]}" if schedule.succeeded else "no success yet"
        match self.served:
            case Served.ENDED:
                return f"not served since {when(schedule.ended)[:16]}: topline serve", "fair"
            case Served.BROKEN:
                said = f"ended by an error at {when(schedule.ended)[:16]}, and not served: {schedule.error}"
                return f"{said}; start topline serve again", "bad"
            case Served.DEAD:
                said = f"dead: no heartbeat for {duration(self.silent)}"
                return f"{said} from {who}: start topline serve again", "bad"
            case Served.OVERDUE:
                said = f"overdue: no run of {who} for {duration(self.silent)}, {last}"
                return f"{said}: it is paused, or no worker takes its runs", "bad"
            case Served.LOST:
                return f"waits for Prefect's server since {when(schedule.lost)[:16]}, {last}", "bad"
            case Served.PAUSED:
                said = f"paused since {when(schedule.paused)[:16]}, {last}"
                return f"{said}: nothing is retrained until it is resumed (deploy/README.md)", "bad"
            case Served.FAILING:
                said = f"failing since {when(schedule.failing)[:16]}, {how_many(schedule.failures, 'runs')}"
                return f"{said}, {last}: {schedule.failure}", "bad"
            case Served.ALIVE:
                due = next_time(schedule.every, schedule.timezone, now)
                due_next = "" if due is None else f"next {due:%Y-%m-%d %H:%M}, "
                since = f"{schedule.timezone}, served since {when(schedule.since)[:16]}, {last}"
                return f"{due_next}{since}", ""


def overview(
    standing: Standing,
    records: Sequence[ModelRecord],
    runs: Sequence[RunLine],
    now: float,
    *,
    schedule: ServedSchedule | None = None,
    **facts: Any,
) -> Overview:
    """Return the content at `now`, in seconds since 1970; `facts` are further fields, such as `in_all`."""
    reigned = {reign.model for reign in standing.reigns}
    champion = next((record for record in records if record.id == standing.champion), None)
    newest = records[-MODELS_SHOWN:]
    listed = newest if champion is None or champion in newest else [champion, *newest]
    lines = [model_line(record, standing, reigned) for record in listed]
    leading = champion or (records[-1] if records else None)
    deciding = None if leading is None else PromotionRule().metric_for(leading)
    known = {name for line in lines for name in line["metrics"]}
    moment = datetime.fromtimestamp(now, UTC)
    seen = None
    if schedule is not None:
        seen = ScheduleSeen(schedule, served(schedule, moment), heartbeat_age(schedule, moment))
    damaged = sorted(facts.get("damaged", {}))
    named = ", ".join(damaged[:5]) + (", ..." if len(damaged) > 5 else "")
    damage = [Tile("damaged", count(len(damaged)), f"{named} cannot be read: topline fsck says why", "bad")]
    return Overview(
        tiles=[
            *_champion_tiles(standing, champion, deciding),
            *_other_tiles(standing, records, runs),
            *(damage if damaged else []),
            *_schedule_tiles(standing, seen, facts.get("retraining"), moment),
        ],
        models=lines[::-1],
        in_all={"models": len(records), "decisions": len(standing.entries), **facts.pop("in_all", {})},
        metrics=[
            one for one in METRICS.values() if one.name in known and (one.headline or one.name == deciding)
        ],
        reigns=standing.reigns,
        decisions=standing.entries[: -DECISIONS_SHOWN - 1 : -1],
        runs=runs,
        schedule=seen,
        **facts,
    )


def last_run(runs: Sequence[RunLine]) -> RunLine | None:
    """Return the run that was active last, possibly an old one that was resumed, or None."""
    return max(runs, key=lambda run: run.seen or run.created, default=None)


def followed_line(record: RunRecord, run: RunView, now: float) -> RunLine:
    """Return the line of a run from its history."""
    if run.stage == "finished":
        return outcome_line(replace(record, outcome=run.outcome))
    last = {name: run.last.get(name) for name in ("passes", "seconds")}
    seen = "" if run.heard is None else datetime.fromtimestamp(run.heard, UTC).isoformat(timespec="seconds")
    return _run_line(record, verdict(run, now), reason=run.reason or "", gap=bound(run)[1], seen=seen, **last)


def outcome_line(record: RunRecord) -> RunLine:
    """Return the line of a run from its record alone."""
    outcome = record.outcome
    if outcome is None:
        return _run_line(record, ("fair", "Not finished"))
    best, passes, seconds = (outcome.get(name) for name in ("relative_gap", "passes", "seconds"))
    model = outcome.get("model")
    return _run_line(
        record,
        verdict(RunView(run=record.id, stage="finished", outcome=outcome), 0.0),
        gap=best,
        passes=passes,
        seconds=seconds,
        model=None if model is None else str(model).rpartition("/")[2],
        seen=str(outcome.get("finished") or ""),
    )


def _run_line(record: RunRecord, said: tuple[str, str], **facts: Any) -> RunLine:
    problem = problem_words(record.config)
    return RunLine(record.id, *said, problem=problem, dataset=record.dataset, created=record.created, **facts)


def model_line(record: ModelRecord, standing: Standing, reigned: set[str]) -> dict[str, Any]:
    """Return a model's summary with stage, tone and whether it was ever champion."""
    brief, stage = summary(record), standing.stage(record.id)
    loss, k = brief["loss"].get("name", "?"), brief["loss"].get("k")
    return {
        **brief,
        "stage": stage,
        "tone": _STAGE_TONES.get(stage, ""),
        "reigned": record.id in reigned,
        "problem": f"{loss}, k = {k}, C {record.C:g}" if k else f"{loss}, C {record.C:g}",
    }


def _champion_tiles(standing: Standing, champion: ModelRecord | None, deciding: str | None) -> list[Tile]:
    if standing.champion is None:
        return [Tile("champion", "none", "topline models promote makes a model the champion", "fair")]
    reign = standing.reigns[-1]
    tiles = [Tile("champion", standing.champion, f"since {when(reign.since)[:16]}, by {reign.by}")]
    if champion is None:
        return [Tile("champion", standing.champion, "its record is gone: topline fsck", "bad")]
    evaluation: Mapping[str, Any] = champion.evaluation or {}
    rows = f"{count(evaluation.get('rows'))} {evaluation.get('split', '')} rows"
    tiles += [
        Tile(metric.label, metric.text(value), rows)
        for metric, value in measured(evaluation)
        if metric.headline or metric.name == deciding
    ]
    certificate = champion.certificate
    if certificate is None:
        return [*tiles, Tile("certificate", "none", "topline certify gives it one", "fair")]
    good = bool(certificate.get("certified") and certificate.get("valid", True))
    words, tone = ("certified gap", "good") if good else ("gap, not certified", "bad")
    note = f"tolerance {certificate.get('tol'):g}, from {source_of(str(certificate.get('rests_on')))}"
    return [*tiles, Tile(words, gap(certificate.get("relative_gap")), note, tone)]


def _schedule_tiles(
    standing: Standing, schedule: ScheduleSeen | None, retraining: Tenant | None, now: datetime
) -> list[Tile]:
    tiles = []
    weighed = [entry for entry in standing.entries if entry.action in ("promote", "keep")]
    if weighed:
        last = weighed[-1]
        said, tone = {"promote": ("promoted", "good"), "keep": ("kept out", "fair")}[last.action]
        tiles.append(Tile("last challenger", said, f"{last.model}, {when(last.when)[:16]}", tone))
    if schedule is not None:
        tiles.append(Tile("schedule", schedule.schedule.every, *schedule.words(now)))
    if retraining is not None:
        silent = retraining.is_silent(now.timestamp())
        figure, tone = ("not heard of", "fair") if silent else ("under way", "")
        tiles.append(Tile("retraining", figure, f"by {retraining.words(now.timestamp())}", tone))
    return tiles


def _other_tiles(standing: Standing, records: Sequence[ModelRecord], runs: Sequence[RunLine]) -> list[Tile]:
    tiles = []
    last = last_run(runs)
    if last is not None:
        took = "" if last.seconds is None else f", {duration(last.seconds)}"
        note = f"{last.id}, begun {when(last.created)[:16]}{took}"
        tiles.append(Tile("last run", last.words, note, last.tone))
    back = standing.previous
    note = "nothing to roll back to" if back is None else f"a rollback brings back {back}"
    return [*tiles, Tile("models", count(len(records)), note)]


CERTIFIED = {None: DASH, True: "yes", False: "no"}
GAP, PASSES, TIME = (
    Column("relative gap", "n", gap), Column("passes", "n", number), Column("time", "n", duration),
)  # fmt: skip


def page_link(kind: str, name: str | None, root: str | None) -> TableCell | None:
    """Return a link to the page of a model, run or sweep; only text if there is no server."""
    return None if name is None else TableCell(name, href=None if root is None else f"{root}{kind}/{name}")


def metric_columns(metrics: Sequence[Metric]) -> list[Column]:
    """Return a column for each metric."""
    return [Column(metric.column, "n", metric.text) for metric in metrics]


def model_table(seen: Overview, root: str | None) -> Table:
    """Return the table of models, newest first."""
    columns = [
        Column("model"), Column("stage"), *metric_columns(seen.metrics), GAP, Column("certified"),
        Column("problem"), Column("dataset"), PASSES, TIME, Column("run"), Column("created (UTC)", "t", when),
    ]  # fmt: skip
    rows = [
        (
            page_link("models", line["id"], root), TableCell(line["stage"], line["tone"]),
            *(line["metrics"].get(metric.name) for metric in seen.metrics),
            line["relative_gap"], CERTIFIED[line["certified"]], line["problem"], line["dataset"],
            line["passes"], line["seconds"], page_link("runs", line["run"], root), line["created"],
        )
        for line in seen.models
    ]  # fmt: skip
    return Table.of(
        "models",
        columns,
        rows,
        empty="The store holds no model yet: topline train makes one.",
        note=newest_of(
            len(rows),
            seen.in_all.get("models"),
            "topline models list shows all",
            "the newest and the champion",
        ),
    )


def newest_of(shown: int, in_all: int | None, elsewhere: str, which: str = "the newest") -> str:
    """Return a note if a table shows only the newest rows."""
    return f"{shown:,} of {in_all:,}, {which}; {elsewhere}." if in_all and in_all > shown else ""


def run_table(lines: Sequence[RunLine], root: str | None, in_all: int | None = None) -> Table:
    """Return the table of runs, newest first."""
    columns = (
        Column("run"), Column("state"), GAP, PASSES, TIME, Column("model"), Column("problem"),
        Column("dataset"), Column("begun (UTC)", "t", when),
    )  # fmt: skip
    rows = [
        (page_link("runs", line.id, root), TableCell(line.words, line.tone, line.reason), line.gap,
         line.passes, line.seconds, page_link("models", line.model, root), line.problem, line.dataset,
         line.created)
        for line in lines
    ]  # fmt: skip
    return Table.of(
        "runs",
        columns,
        rows,
        empty="The store holds no run yet: topline train begins one.",
        note=newest_of(len(rows), in_all, "the page of a model leads to its run"),
    )


def decision_table(entries: Sequence[DecisionRecord], root: str | None, in_all: int | None = None) -> Table:
    """Return the table of decisions, which are given newest first."""
    columns = (
        Column("time (UTC)", "t", when), Column("what"), Column("model"), Column("champion before"),
        Column("by"), Column("why", "why"),
    )  # fmt: skip
    cells = [
        (
            entry.when,
            TableCell(entry.action, _ACTION_TONES.get(entry.action, ""), "forced" if entry.forced else ""),
            page_link("models", entry.model, root), page_link("models", entry.champion_before, root),
            entry.by, entry.reason,
        )
        for entry in entries
    ]  # fmt: skip
    return Table.of(
        "decisions",
        columns,
        cells,
        empty="No promotion decisions yet.",
        note=newest_of(len(cells), in_all, "the page of a model has its own"),
    )


def champion_table(reigns: Sequence[Reign], root: str | None) -> Table:
    """Return the table of champions and their times, latest first."""
    columns = (
        Column("champion"), Column("since (UTC)", "t", when), Column("until", "t", when), Column("by"),
        Column("why", "why"),
    )  # fmt: skip
    rows = [
        (page_link("models", one.model, root), one.since, one.until or "now", one.by, one.reason)
        for one in reversed(reigns)
    ]
    return Table.of("champions", columns, rows)


def round_table(run: RunView) -> Table:
    """Return the last known rounds of a run, newest first."""
    shown = {"round": "{:,.0f}".format, "relative_gap": "{:.3e}".format}
    names = ("round", "seconds", "primal", "dual", "relative_gap", "step", "active")
    columns = [Column(name.replace("_", " "), "n", shown.get(name, number)) for name in names]
    known = [run.columns[name][-ROUNDS_SHOWN:][::-1].tolist() for name in names]
    rows = [list(map(finite, row)) for row in zip(*known, strict=True)]
    return Table.of("rounds", columns, rows, empty="No round has finished yet.")


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
        left, figure, note = run.left, DASH, "not known yet"
        if left is not None and left.high < 1.0:
            figure, note = "0 s", "the tolerance is reached"
        elif left is not None:
            figure, note = rough_time(left.seconds), f"{rough_time(left.low)} to {rough_time(left.high)}"
        shown.append(Tile("time left", figure, note))
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


def problem_words(config: Mapping[str, Any]) -> str:
    """Return the problem and method of a run, in one line."""
    loss = str(config.get("loss", "unknown loss"))
    named = f"{loss}, k = {config['k']}" if config.get("k") else loss
    said = [named, *(f"{name} {config[name]:g}" for name in ("C", "smoothing") if config.get(name))]
    if config.get("method"):
        said.append(f"method {config['method']}")
    return ", ".join(said)
