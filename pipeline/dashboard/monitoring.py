"""Endpoints for monitoring systems: `/metrics` in Prometheus' text format, and `/health`."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from itertools import pairwise
from typing import Any, TypeAlias

from prometheus_client import CollectorRegistry, Gauge, generate_latest

from topline.pipeline.dashboard.overview import UNFINISHED, Overview, last_run
from topline.pipeline.dashboard.store_follower import RUN_TROUBLES, StoreFollower
from topline.pipeline.registry import IMAGES
from topline.pipeline.telemetry import Served, next_time
from topline.storage.served_schedule import ServedSchedule
from topline.storage.stores import Store

#: Number of due times inspected for a schedule's longest wait.
WAITS = 9


#: The value of a gauge, or its values by what they are of; None is not known.
Value: TypeAlias = float | Mapping[str, float | None] | None


def metrics_text(seen: Overview, now: float, free_bytes: int | None, used_bytes: int | None) -> bytes:
    """Return a store's gauges in Prometheus' text format at `now` (seconds since 1970), if known."""
    registry = CollectorRegistry()

    def gauge(name: str, what: str, value: Value, label: str = "") -> None:
        """Add a gauge of one value, or of a value for each `label`."""
        values = value if isinstance(value, Mapping) else {"": value}
        known = {of: number for of, number in values.items() if number is not None}
        if known:
            made = Gauge(f"topline_{name}", what, (label,) if label else (), registry=registry)
            for of, number in known.items():
                (made.labels(of) if label else made).set(number)

    at_work = seen.retraining is not None and not seen.retraining.is_silent(now)
    gauge("info", "1, with the version of the dashboard", {version("topline"): 1}, "version")
    gauge("models", "Published models", seen.in_all["models"])
    gauge("damaged_models", "Models whose records cannot be read", len(seen.damaged))
    gauge("free_bytes", "Room left where the store lies", free_bytes)
    gauge("store_bytes", "Room that the files of the store take", used_bytes)
    gauge("retraining", "1 while somebody retrains the store", at_work)
    # Imports Dask, which only scraping should pay for.
    from topline.pipeline.cluster.tls import configured_expiry

    expires = configured_expiry()
    left = None if expires is None else (expires.timestamp() - now) / 86400
    gauge("tls_days_left", "Until the first certificate of Dask's configuration here expires", left)
    _runs(gauge, seen)
    _decisions(gauge, seen, now)
    _schedule(gauge, seen, now)
    _champion(gauge, seen, now)
    return generate_latest(registry)


def _runs(gauge: Callable[..., None], seen: Overview) -> None:
    words = Counter(run.words.lower() for run in seen.runs)
    gauge("runs", "The newest runs, by outcome", words, "state")
    if seen.runs:
        gauge("last_run_relative_gap", "Smallest relative gap of the newest run", seen.runs[0].gap)
        troubles = {kind: seen.troubles.get(kind, 0) for kind in RUN_TROUBLES}
        gauge("last_run_events", "What happened to the newest run, such as worker-lost", troubles, "event")


def _decisions(gauge: Callable[..., None], seen: Overview, now: float) -> None:
    if not seen.decisions:
        return
    newest = seen.decisions[0]
    age = {newest.action: now - _seconds(newest.when)}
    gauge("last_decision_seconds", "Age of the newest decision on a model", age, "action")
    changed, drift = newest.evidence.get("images"), newest.evidence.get("drift") or {}
    images = {name: changed.get(name, 0) for name in ("seen", *IMAGES)} if changed else {}
    gauge("images", "Images that the newest decision was made on", images, "state")
    moved = "Stability index of the features at the newest decision"
    gauge("feature_drift", moved, drift.get("features"))
    gauge("class_drift", "Total variation of the class shares then", drift.get("classes"))


def _schedule(gauge: Callable[..., None], seen: Overview, now: float) -> None:
    found = seen.schedule
    if found is None:
        return
    schedule, states = found.schedule, {one.value: found.served is one for one in Served}
    succeeded = now - _seconds(schedule.succeeded) if schedule.succeeded else None
    due = None
    if found.served not in (Served.ENDED, Served.BROKEN, Served.DEAD, Served.PAUSED):
        due = next_time(schedule.every, schedule.timezone, datetime.fromtimestamp(now, UTC))
    gauge("schedule", "1 for what the schedule is, such as served, failing or dead", states, "state")
    heard = "Seconds since the last heartbeat of the process that serves it"
    gauge("schedule_silent_seconds", heard, found.silent)
    gauge("schedule_failures", "Runs that failed since the last one that did not", schedule.failures)
    gauge("schedule_last_success_seconds", "Since when no run of the schedule succeeded", succeeded)
    interval = _interval(schedule, now)
    gauge("schedule_interval_seconds", "Between two times at which the schedule falls due", interval)
    left = None if due is None else due.timestamp() - now
    gauge("schedule_next_seconds", "Until the schedule falls due", left)


def _interval(schedule: ServedSchedule, now: float) -> float:
    """Return the longest upcoming wait of a schedule in seconds: a week for Sundays at 2."""
    times = [datetime.fromtimestamp(now, UTC)]
    while len(times) < WAITS and (due := next_time(schedule.every, schedule.timezone, times[-1])) is not None:
        times.append(due.astimezone(UTC))
    waits = [(after - before).total_seconds() for before, after in pairwise(times[1:])]
    return max(waits, default=0.0)


def _champion(gauge: Callable[..., None], seen: Overview, now: float) -> None:
    reign = seen.reigns[-1] if seen.reigns and seen.reigns[-1].until is None else None
    age = None if reign is None else now - _seconds(reign.since)
    gauge("champion_age_seconds", "Since when the champion is champion", age)
    champion = next((line for line in seen.models if line["stage"] == "champion"), None)
    if champion is not None:
        gauge("champion_certified", "Whether the champion's gap is certified", bool(champion["certified"]))
        gauge("champion_relative_gap", "Relative gap of its certificate", champion["relative_gap"])
        measured = "What was measured of the champion on held-out rows"
        gauge("champion_accuracy", measured, champion["metrics"], "metric")


def health(seen: Overview) -> dict[str, Any]:
    """Return "ok", or "degraded" because of damage or a schedule that needs attention."""
    well = seen.schedule is None or seen.schedule.served.is_well
    return {
        "status": "degraded" if seen.damaged or not well else "ok",
        "damaged": dict(seen.damaged),
        "schedule": None if seen.schedule is None else seen.schedule.served.value,
    }


def _seconds(when: str) -> float:
    return datetime.fromisoformat(when).timestamp()


@dataclass(frozen=True)
class StoreStatus:
    """Names with texts, the answer of `/health`, and the last run if it is `unfinished`."""

    lines: Mapping[str, str]
    health: Mapping[str, Any]
    unfinished: str | None = None

    @property
    def healthy(self) -> bool:
        """Whether nothing needs a person's attention."""
        return bool(self.health["status"] == "ok")


def store_status(store: Store, now: float | None = None) -> StoreStatus:
    """Return the status of a store at `now`, in seconds since 1970 (default: the present)."""
    seen = StoreFollower(store).overview(time.time() if now is None else now)
    lines = {tile.label: f"{tile.figure} ({tile.note})" if tile.note else tile.figure for tile in seen.tiles}
    free = store.free_bytes()
    if free is not None:
        lines["room left"] = f"{free / 2**30:,.1f} GiB"
    last = last_run(seen.runs)
    return StoreStatus(lines, health(seen), last.id if last and last.words in UNFINISHED else None)
