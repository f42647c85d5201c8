"""What the page of runs and models says: champions, accuracies over versions, decisions, last outcomes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

from topline.pipeline.dashboard.run_status import Tile, bound, problem_words, verdict
from topline.pipeline.evaluation import METRICS, Metric, measured
from topline.pipeline.options import PromotionRule
from topline.pipeline.pages.formatting import count, duration, when
from topline.pipeline.registry.summary import summary
from topline.pipeline.telemetry.run_view import RunView
from topline.pipeline.telemetry.schedule_times import next_time
from topline.storage.models import DecisionRecord, ModelRecord, Reign, Standing
from topline.storage.runs import RunRecord
from topline.storage.served_schedule import ServedSchedule

MODELS_SHOWN = 100
DECISIONS_SHOWN = 100

_STAGE_TONES = {"champion": "good", "candidate": "", "archived": "soft", "deleted": "soft"}
_ACTION_TONES = {"promote": "good", "keep": "", "rollback": "fair", "archive": "", "delete": "bad"}


@dataclass(frozen=True)
class RunLine:
    """A run in a line; `gap` is the smallest relative gap, `model` the id of what came of it."""

    id: str
    tone: str
    words: str
    reason: str
    problem: str
    dataset: str
    gap: float | None
    passes: float | None
    seconds: float | None
    created: str
    model: str | None


@dataclass(frozen=True)
class ModelLine:
    """A model in a line; `metrics` by name, `reigned` whether it was ever champion."""

    id: str
    version: int
    stage: str
    tone: str
    reigned: bool
    problem: str
    dataset: str
    gap: float | None
    certified: bool | None
    metrics: Mapping[str, float]
    passes: float | None
    seconds: float | None
    run: str | None
    created: str


@dataclass(frozen=True)
class Overview:
    """All that the page shows; newest first, but `reigns` as they came.

    `metrics` are those that are shown: the headlines, and the one that decides on a promotion.
    """

    tiles: Sequence[Tile]
    models: Sequence[ModelLine]
    models_in_all: int
    metrics: Sequence[Metric]
    reigns: Sequence[Reign]
    decisions: Sequence[tuple[DecisionRecord, str]]
    runs: Sequence[RunLine]


def overview(
    standing: Standing,
    records: Sequence[ModelRecord],
    runs: Sequence[RunLine],
    now: float,
    *,
    schedule: ServedSchedule | None = None,
    retraining: str | None = None,
) -> Overview:
    """Make the page's content from the registry's standing, its models by number and its newest runs.

    `now` is in seconds since 1970; `retraining` says who retrains the store just now.
    """
    reigned = {reign.model for reign in standing.reigns}
    lines = [_model_line(record, standing, reigned) for record in records[-MODELS_SHOWN:]]
    champion = next((record for record in records if record.id == standing.champion), None)
    leading = champion or (records[-1] if records else None)
    deciding = None if leading is None else PromotionRule().metric_for(leading)
    known = {name for line in lines for name in line.metrics}
    return Overview(
        tiles=[
            *_champion_tiles(standing, champion, deciding),
            *_other_tiles(standing, records, runs),
            *_schedule_tiles(standing, schedule, retraining, datetime.fromtimestamp(now, UTC)),
        ],
        models=lines[::-1],
        models_in_all=len(records),
        metrics=[
            metric
            for metric in METRICS.values()
            if metric.name in known and (metric.headline or metric.name == deciding)
        ],
        reigns=standing.reigns,
        decisions=[
            (entry, _ACTION_TONES.get(entry.action, ""))
            for entry in reversed(standing.entries[-DECISIONS_SHOWN:])
        ],
        runs=runs,
    )


def followed_line(record: RunRecord, run: RunView, now: float) -> RunLine:
    """Give the line of a run whose history was read."""
    if run.stage == "finished":
        return outcome_line(replace(record, outcome=run.outcome))
    last = {name: float(run.columns[name][-1]) for name in ("passes", "seconds")} if run.rounds else {}
    tone, words = verdict(run, now)
    gap = bound(run)[1]
    return _run_line(record, tone, words, run.reason, None, gap, last.get("passes"), last.get("seconds"))


def outcome_line(record: RunRecord) -> RunLine:
    """Give the line of a run from its record alone."""
    if record.outcome is None:
        return _run_line(record, "fair", "Not finished", None, None, None, None, None)
    outcome = record.outcome
    tone, words = verdict(RunView(run=record.id, stage="finished", outcome=outcome), 0.0)
    gap, passes, seconds = (outcome.get(name) for name in ("relative_gap", "passes", "seconds"))
    return _run_line(record, tone, words, None, outcome, gap, passes, seconds)


def damaged_line(run_id: str, reason: str) -> RunLine:
    """Give the line of a run that cannot be read."""
    return RunLine(run_id, "bad", "Damaged", reason, "", "", None, None, None, "", None)


def _run_line(
    record: RunRecord,
    tone: str,
    words: str,
    reason: str | None,
    outcome: Mapping[str, Any] | None,
    gap: float | None,
    passes: float | None,
    seconds: float | None,
) -> RunLine:
    model = (outcome or {}).get("model")
    return RunLine(
        id=record.id,
        tone=tone,
        words=words,
        reason=reason or "",
        problem=problem_words(record.config),
        dataset=record.dataset,
        gap=gap,
        passes=passes,
        seconds=seconds,
        created=record.created,
        model=None if model is None else str(model).rpartition("/")[2],
    )


def _model_line(record: ModelRecord, standing: Standing, reigned: set[str]) -> ModelLine:
    brief, stage = summary(record), standing.stage(record.id)
    loss, k = brief["loss"].get("name", "?"), brief["loss"].get("k")
    return ModelLine(
        id=record.id,
        version=record.version,
        stage=stage,
        tone=_STAGE_TONES.get(stage, ""),
        reigned=record.id in reigned,
        problem=f"{loss}, k = {k}, C {record.C:g}" if k else f"{loss}, C {record.C:g}",
        dataset=record.dataset,
        gap=brief["relative_gap"],
        certified=brief["certified"],
        metrics=brief["metrics"],
        passes=brief["passes"],
        seconds=brief["seconds"],
        run=record.run,
        created=record.created,
    )


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
    gap = certificate.get("relative_gap")
    shown_gap = "\u2013" if gap is None else f"{gap:.2e}"
    words = "certified gap" if good else "gap, not certified"
    note, tone = f"tolerance {certificate.get('tol'):g}", "good" if good else "bad"
    return [*tiles, Tile(words, shown_gap, note, tone)]


def _schedule_tiles(
    standing: Standing, schedule: ServedSchedule | None, retraining: str | None, now: datetime
) -> list[Tile]:
    tiles = []
    weighed = [entry for entry in standing.entries if entry.action in ("promote", "keep")]
    if weighed:
        last = weighed[-1]
        said, tone = {"promote": ("promoted", "good"), "keep": ("kept out", "fair")}[last.action]
        tiles.append(Tile("last challenger", said, f"{last.model}, {when(last.when)[:16]}", tone))
    if schedule is not None:
        due = next_time(schedule.every, schedule.timezone, now)
        due_next = "" if due is None else f"next {due:%Y-%m-%d %H:%M}, "
        since = f"{due_next}{schedule.timezone}, served since {when(schedule.since)[:16]}"
        tiles.append(Tile("schedule", schedule.every, since))
    if retraining is not None:
        tiles.append(Tile("retraining", "under way", f"by {retraining}"))
    return tiles


def _other_tiles(standing: Standing, records: Sequence[ModelRecord], runs: Sequence[RunLine]) -> list[Tile]:
    tiles = []
    if runs:
        last = runs[0]
        took = "" if last.seconds is None else f", {duration(last.seconds)}"
        tiles.append(
            Tile("last run", last.words, f"{last.id}, begun {when(last.created)[:16]}{took}", last.tone)
        )
    back = standing.previous
    note = "nothing to roll back to" if back is None else f"a rollback brings back {back}"
    return [*tiles, Tile("models", count(len(records)), note)]
