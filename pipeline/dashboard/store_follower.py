"""A store for many viewers at once: each history is read once, then only what is added to it."""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from topline.pipeline.dashboard.models import ModelSeen, Paired, model_seen, paired
from topline.pipeline.dashboard.overview import Overview, RunLine, followed_line, outcome_line, overview
from topline.pipeline.telemetry import RunFollower, RunView
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
