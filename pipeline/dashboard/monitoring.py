"""Endpoints for monitoring systems: `/metrics` in Prometheus' text format, and `/health`."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from itertools import pairwise
from typing import Any

from prometheus_client import CollectorRegistry, Gauge, generate_latest

from topline.pipeline.dashboard.overview import UNFINISHED, Overview, last_run
from topline.pipeline.dashboard.store_follower import RUN_TROUBLES, StoreFollower
from topline.pipeline.registry import IMAGES
from topline.pipeline.telemetry import Served, next_time
from topline.storage.served_schedule import ServedSchedule
from topline.storage.stores import Store

#: Number of due times inspected for a schedule's longest wait.
WAITS = 9


def metrics_text(seen: Overview, now: float, free_bytes: int | None, used_bytes: int | None) -> bytes:
    """Return a store's gauges in Prometheus' text format; `now` is in seconds since 1970.

    `free_bytes` is the room at the store's place, `used_bytes` the size of its files.  Unknown values have no
    sample, such as those of a champion without one.
    """
    registry = CollectorRegistry()

    def gauge(name: str, what: str, *labels: str) -> Gauge:
        return Gauge(f"topline_{name}", what, labels, registry=registry)

    gauge("info", "1, with the version of the dashboard", "version").labels(version("topline")).set(1)
    gauge("models", "Published models").set(seen.in_all["models"])
    gauge("damaged_models", "Models whose records cannot be read").set(len(seen.damaged))
    if free_bytes is not None:
        gauge("free_bytes", "Room left where the store lies").set(free_bytes)
    if used_bytes is not None:
        gauge("store_bytes", "Room that the files of the store take").set(used_bytes)
    at_work = seen.retraining is not None and not seen.retraining.is_silent(now)
    gauge("retraining", "1 while somebody retrains the store").set(at_work)
    left = _certificates_left(now)
    if left is not None:
        gauge("tls_days_left", "Until the first certificate of Dask's configuration here expires").set(left)
    _runs(gauge, seen)
    _decisions(gauge, seen, now)
    _schedule(gauge, seen, now)
    _champion(gauge, seen, now)
    return generate_latest(registry)


def _runs(gauge: Callable[..., Gauge], seen: Overview) -> None:
    runs = gauge("runs", "The newest runs, by outcome", "state")
    for words, number in Counter(run.words.lower() for run in seen.runs).items():
        runs.labels(words).set(number)
    if seen.runs and seen.runs[0].gap is not None:
        gauge("last_run_relative_gap", "Smallest relative gap of the newest run").set(seen.runs[0].gap)
    if seen.runs:
        events = gauge("last_run_events", "What happened to the newest run, such as worker-lost", "event")
        for kind in RUN_TROUBLES:
            events.labels(kind).set(seen.troubles.get(kind, 0))


def _decisions(gauge: Callable[..., Gauge], seen: Overview, now: float) -> None:
    if not seen.decisions:
        return
    newest = seen.decisions[0]
    decided = gauge("last_decision_seconds", "Age of the newest decision on a model", "action")
    decided.labels(newest.action).set(now - _seconds(newest.when))
    changed = newest.evidence.get("images")
    if changed:
        images = gauge("images", "Images that the newest decision was made on", "state")
        for name in ("seen", *IMAGES):
            images.labels(name).set(changed.get(name, 0))
    drift = newest.evidence.get("drift") or {}
    if drift.get("features") is not None:
        moved = gauge("feature_drift", "Stability index of the features at the newest decision")
        moved.set(drift["features"])
    if drift.get("classes") is not None:
        gauge("class_drift", "Total variation of the class shares then").set(drift["classes"])


def _schedule(gauge: Callable[..., Gauge], seen: Overview, now: float) -> None:
    found = seen.schedule
    if found is None:
        return
    state = gauge("schedule", "1 for what the schedule is, such as served, failing or dead", "state")
    for one in Served:
        state.labels(one.value).set(found.served is one)
    silent = gauge(
        "schedule_silent_seconds", "Seconds since the last heartbeat of the process that serves it"
    )
    silent.set(found.silent)
    gauge("schedule_failures", "Runs that failed since the last one that did not").set(
        found.schedule.failures
    )
    if found.schedule.succeeded:
        success = gauge("schedule_last_success_seconds", "Since when no run of the schedule succeeded")
        success.set(now - _seconds(found.schedule.succeeded))
    gauge("schedule_interval_seconds", "Between two times at which the schedule falls due").set(
        _interval(found.schedule, now)
    )
    if found.served in (Served.ENDED, Served.BROKEN, Served.DEAD, Served.PAUSED):
        return
    due = next_time(found.schedule.every, found.schedule.timezone, datetime.fromtimestamp(now, UTC))
    if due is not None:
        gauge("schedule_next_seconds", "Until the schedule falls due").set(due.timestamp() - now)


def _interval(schedule: ServedSchedule, now: float) -> float:
    """Return the longest upcoming wait of a schedule in seconds: a week for Sundays at 2."""
    times = [datetime.fromtimestamp(now, UTC)]
    while len(times) < WAITS and (due := next_time(schedule.every, schedule.timezone, times[-1])) is not None:
        times.append(due.astimezone(UTC))
    waits = [(after - before).total_seconds() for before, after in pairwise(times[1:])]
    return max(waits, default=0.0)


def _certificates_left(now: float) -> float | None:
    # Imports Dask, which only scraping should pay for.
    from topline.pipeline.cluster.tls import configured_expiry

    expires = configured_expiry()
    return None if expires is None else (expires.timestamp() - now) / 86400


def _champion(gauge: Callable[..., Gauge], seen: Overview, now: float) -> None:
    reign = seen.reigns[-1] if seen.reigns and seen.reigns[-1].until is None else None
    if reign is not None:
        gauge("champion_age_seconds", "Since when the champion is champion").set(now - _seconds(reign.since))
    champion = next((line for line in seen.models if line["stage"] == "champion"), None)
    if champion is None:
        return
    gauge("champion_certified", "Whether the champion's gap is certified").set(bool(champion["certified"]))
    if champion["relative_gap"] is not None:
        gauge("champion_relative_gap", "Relative gap of its certificate").set(champion["relative_gap"])
    accuracy = gauge("champion_accuracy", "What was measured of the champion on held-out rows", "metric")
    for name, value in champion["metrics"].items():
        accuracy.labels(name).set(value)


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
    """Lines of a name and its text; `health` is the answer of `/health`.

    `unfinished` is the last run if it stopped early or has gone silent.
    """

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
