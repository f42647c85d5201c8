"""A store for many viewers at once, read once and then only what is added, and what monitoring asks of it.

The endpoints are `/metrics`, in Prometheus' text format, and `/health`.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib.metadata import version
from itertools import pairwise
from typing import Any, Generic, TypeAlias, TypeVar

from prometheus_client import CollectorRegistry, Gauge, generate_latest

from topline.pipeline.dashboard.models import ModelSeen, Paired, model_seen, paired
from topline.pipeline.dashboard.overview import (
    UNFINISHED,
    Overview,
    RunLine,
    followed_line,
    last_run,
    outcome_line,
    overview,
)
from topline.pipeline.registry import IMAGES
from topline.pipeline.telemetry import RunFollower, RunView, Served, next_time
from topline.storage.errors import FormatError, IntegrityError, StorageError
from topline.storage.models import ModelRecord, Standing, read_standing, readable_models
from topline.storage.runs import (
    RunRecord,
    SweepRecord,
    list_sweeps,
    read_answers,
    read_run,
    read_sweep,
    run_names,
)
from topline.storage.served_schedule import ServedSchedule, read_schedule
from topline.storage.stores import Store, tenant

logger = logging.getLogger(__name__)

T = TypeVar("T")

#: Events of a run that are counted, since its cluster, disk or bucket may need attention.
RUN_TROUBLES = ("worker-lost", "rollback", "store-retried")
# Runs followed at once; the least recently viewed one is dropped.
MOST_FOLLOWED = 16
# The newest runs, whose live histories the overview reads; of others it shows the outcome.
NEWEST = 8
RUNS_SHOWN, SWEEPS_SHOWN = 50, 20
# How long a reading is shared with other viewers.
FRESH_SECONDS = 0.5
# Lease of the process that retrains the store: topline.pipeline.jobs.LEASE, a heavy import.
RETRAINING = "retrain"
OVERVIEW_SECONDS = 3.0
# Comparisons of models that are kept.
MOST_PAIRS = 32


class _Latest(Generic[T]):
    """A bounded cache of the latest values; each is made once, by one thread at a time."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._lock = threading.Lock()
        self._held: OrderedDict[Hashable, T] = OrderedDict()

    def of(self, key: Hashable, make: Callable[[], T]) -> T:
        """Return the value of a key, made now if it is not cached."""
        with self._lock:
            if key not in self._held:
                self._held[key] = make()
            self._held.move_to_end(key)
            while len(self._held) > self._most:
                self._held.popitem(last=False)
            return self._held[key]


@dataclass
class _Followed:
    """A run being viewed: the lock is held while its history is read."""

    record: RunRecord
    follower: RunFollower
    lock: threading.Lock = field(default_factory=threading.Lock)
    seen: RunView | None = None
    seen_at: float = 0.0


class StoreFollower:
    """The runs and models of one store, shared by threads; `clock` (seconds) ages its readings."""

    def __init__(self, store: Store, clock: Callable[[], float] = time.monotonic) -> None:
        self.store = store
        self._clock = clock
        self._followed: _Latest[_Followed] = _Latest(MOST_FOLLOWED)
        self._overview_lock = threading.Lock()
        self._overview: tuple[float, Overview] | None = None
        self._registry_lock = threading.Lock()
        self._registry: tuple[float, Standing, list[ModelRecord], dict[str, StorageError]] | None = None
        self._pairs: _Latest[Paired] = _Latest(MOST_PAIRS)
        self._answers: _Latest[list[dict[str, Any]]] = _Latest(MOST_FOLLOWED)
        self._answers_lock = threading.Lock()

    def run(self, run_id: str) -> tuple[RunRecord, RunView]:
        """Return a run's record and current view; raise `NotFoundError` if there is none."""
        store = self.store
        followed = self._followed.of(
            run_id, lambda: _Followed(read_run(store, run_id), RunFollower(store, run_id))
        )
        with followed.lock:
            if followed.seen is None or self._clock() - followed.seen_at >= FRESH_SECONDS:
                followed.seen = followed.follower.poll()
                followed.seen_at = self._clock()
            return followed.record, followed.seen

    def sweep(self, sweep_id: str) -> tuple[SweepRecord, list[dict[str, Any]]]:
        """Return a sweep and its answers so far, each read once; raise `NotFoundError` if there is none."""
        record = read_sweep(self.store, sweep_id)
        with self._answers_lock:
            known = self._answers.of(sweep_id, list)
            known += read_answers(self.store, sweep_id, len(known))
            return record, list(known)

    def known_runs(self, names: Sequence[str | None]) -> list[tuple[RunRecord, RunView]]:
        """Return those of the runs that exist and can be read."""
        found = []
        for name in names:
            try:
                found += [self.run(name)] if name else []
            except StorageError:
                continue
        return found

    def overview(self, now: float) -> Overview:
        """Return the store's overview, at most a few seconds old."""
        with self._overview_lock:
            if self._overview is None or self._clock() - self._overview[0] >= OVERVIEW_SECONDS:
                self._overview = self._clock(), self._look_around(now)
            return self._overview[1]

    def model(self, model: str) -> ModelSeen:
        """Return a model with its registry; raise `NotFoundError` if there is none."""
        return model_seen(self.store, *self.registry(), model)

    def registry(self) -> tuple[Standing, list[ModelRecord]]:
        """Return the models' standing and readable records, at most a few seconds old."""
        return self._read_registry()[:2]

    def _read_registry(self) -> tuple[Standing, list[ModelRecord], dict[str, StorageError]]:
        with self._registry_lock:
            if self._registry is None or self._clock() - self._registry[0] >= OVERVIEW_SECONDS:
                self._registry = self._clock(), read_standing(self.store), *readable_models(self.store)
            return self._registry[1:]

    def pair(self, first: str, second: str) -> Paired:
        """Return the comparison of two models, measured once, for one viewer at a time."""
        sides = self.model(first), self.model(second)
        key = (first, sides[0].record.revision, second, sides[1].record.revision)
        return self._pairs.of(key, lambda: paired(*sides))

    def _look_around(self, now: float) -> Overview:
        names, sweeps = run_names(self.store), self._sweeps()
        lines = [
            self._line(name, now, followed=number < NEWEST)
            for number, name in enumerate(names[-RUNS_SHOWN:][::-1])
        ]
        standing, records, damaged = self._read_registry()
        schedule, unreadable = self._schedule()
        return overview(
            standing,
            records,
            lines,
            now,
            damaged={**{name: str(error) for name, error in damaged.items()}, **unreadable},
            schedule=schedule,
            retraining=tenant(self.store, RETRAINING),
            sweeps=sweeps[-SWEEPS_SHOWN:][::-1],
            in_all={"runs": len(names), "sweeps": len(sweeps)},
            troubles=self._troubles(names[-1:]),
        )

    def _troubles(self, newest: Sequence[str]) -> dict[str, int]:
        """Count the newest run's problems, with repeated requests counted each time."""
        found = Counter[str]()
        for _, view in self.known_runs(newest):
            for event in view.events:
                found[event.kind] += int(event.facts.get("requests", 1))
        return {kind: found[kind] for kind in RUN_TROUBLES}

    def _schedule(self) -> tuple[ServedSchedule | None, dict[str, str]]:
        """Return the schedule, and by its name why it cannot be read."""
        try:
            return read_schedule(self.store), {}
        except (FormatError, IntegrityError) as error:
            return None, {"schedule.json": str(error)}

    def _sweeps(self) -> list[SweepRecord]:
        """Return all sweeps, or none if one is damaged, which `topline fsck` reports."""
        try:
            return list_sweeps(self.store)
        except StorageError as error:
            logger.warning("sweeps are not shown: %s", error)
            return []

    def _line(self, name: str, now: float, *, followed: bool) -> RunLine:
        """Return a run in one line; a damaged run does not affect the others."""
        try:
            record = read_run(self.store, name)
            # An ended run's outcome has the whole line, however long its history.
            if record.outcome is not None or not followed:
                return outcome_line(record)
            return followed_line(*self.run(name), now)
        except (FormatError, IntegrityError) as error:
            return RunLine(name, "bad", "Damaged", str(error))


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
    age = {newest.action: now - seconds_of(newest.when)}
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
    succeeded = now - seconds_of(schedule.succeeded) if schedule.succeeded else None
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
    age = None if reign is None else now - seconds_of(reign.since)
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


def seconds_of(when: str) -> float:
    """Return a recorded time in seconds since 1970."""
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
