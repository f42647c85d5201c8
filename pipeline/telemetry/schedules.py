"""Schedules: when one given by --every is due, and the heartbeat of the process that serves it."""

from __future__ import annotations

import logging
import os
import re
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from itertools import takewhile
from zoneinfo import ZoneInfo

from cronsim import CronSim, CronSimError

from topline.pipeline.errors import ConfigError, brief, is_stop
from topline.storage.errors import StorageError
from topline.storage.records import now
from topline.storage.served_schedule import ServedSchedule, note_schedule, read_schedule
from topline.storage.stores import LeaseHeldError, Store

logger = logging.getLogger(__name__)

_TIME = re.compile(r"(\d+) ?(s|m|h|d)")
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400}

# Interval of heartbeats; a process counts as dead after three missing ones.
BEAT_SECONDS = 30.0
HEARTBEAT_TIMEOUT = 100.0

# A due run may have to wait for a worker.
OVERDUE_AFTER = timedelta(hours=1)

#: Cron's names for lines.
_NAMED_LINES = {
    "@hourly": "0 * * * *", "@daily": "0 0 * * *", "@midnight": "0 0 * * *", "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *", "@yearly": "0 0 1 1 *", "@annually": "0 0 1 1 *",
}  # fmt: skip
#: Longer than any change of clocks.
_LONGEST_CHANGE = timedelta(hours=3)

# Intervals count from here, so that a restart does not shift them.
ANCHOR = datetime(2024, 1, 1, tzinfo=UTC)


def interval_of(every: str) -> timedelta | None:
    """Return the interval named by "60s", "15m", "6h" or "1d", None for anything else."""
    match = _TIME.fullmatch(every.strip())
    return None if match is None else timedelta(seconds=int(match[1]) * _SECONDS[match[2]])


@dataclass(frozen=True)
class CronLine:
    """A line of cron: `fields`, `plain` numbers, and whether either day field is enough (`day_or`)."""

    fields: str
    plain: str
    day_or: bool

    @classmethod
    def of(cls, every: str) -> CronLine:
        """Parse `every` by cron's own rules; raise `ConfigError` for a line that is never due."""
        text = _NAMED_LINES.get(every.strip().lower(), every.strip())
        if len(text.split()) != 5:
            raise ConfigError("cron has five fields: minute, hour, day, month and weekday")
        try:
            cron = CronSim(text, datetime(2024, 1, 1))  # noqa: DTZ001 - the wall clock of any zone
        except CronSimError as error:
            raise ConfigError(f"cron has no such line ({str(error).lower()})") from error
        if min(cron.days) < 0 or not all(isinstance(day, int) for day in cron.weekdays):
            raise ConfigError("programs read L and # differently: write days as numbers")
        if next(cron, None) is None:
            raise ConfigError("no year has this day")
        weekdays = {int(str(day)) % 7 for day in cron.weekdays}
        allowed = [cron.minutes, cron.hours, cron.days, cron.months, weekdays]
        full = [len(some) == count for some, count in zip(allowed, (60, 24, 31, 12, 7), strict=True)]
        if not cron.day_and:
            full[2] = full[4] = full[2] or full[4]
        pairs = zip(allowed, full, strict=True)
        plain = ("*" if is_full else ",".join(map(str, sorted(some))) for some, is_full in pairs)
        return cls(text, " ".join(plain), not cron.day_and)

    def after(self, time: datetime, zone: ZoneInfo) -> datetime:
        """Return the first time after `time` at which the line is due, in `zone`.

        A repeated wall time is due the first time, a skipped one beside the change, like in Prefect, which
        starts the runs.
        """
        begun = time.astimezone(zone).replace(tzinfo=None) - _LONGEST_CHANGE
        due = ((wall, _as_prefect_reads(wall, zone)) for wall in CronSim(self.fields, begun))
        wall, first = next((wall, due) for wall, due in due if due > time)
        later = takewhile(lambda pair: pair[0] < wall + _LONGEST_CHANGE, due)
        return min([first, *(due for _, due in later if due > time)]).astimezone(zone)


def _as_prefect_reads(wall: datetime, zone: ZoneInfo) -> datetime:
    """Return the time of a wall clock; a skipped one becomes a time beside the change."""
    here = wall.replace(tzinfo=zone)
    # Prefect's arithmetic ends before the change up to Python 3.12, and after it in later versions.
    skipped = here.astimezone(UTC).astimezone(zone).replace(tzinfo=None) != wall
    return here.replace(fold=int(skipped and sys.version_info < (3, 13))).astimezone(UTC)


def zone_of(timezone: str) -> ZoneInfo:
    """Return the zone of a name such as Europe/Berlin; raise `ConfigError` if there is none."""
    try:
        return ZoneInfo(timezone)
    except (ValueError, OSError, KeyError) as error:
        raise ConfigError("there is no such time zone; one is Europe/Berlin") from error


def next_time(every: str, timezone: str, after: datetime) -> datetime | None:
    """Return when a schedule is next due, in its zone, strictly after an aware time; None if never."""
    interval = interval_of(every)
    try:
        zone = zone_of(timezone)
        if interval is not None:
            return (ANCHOR + ((after - ANCHOR) // interval + 1) * interval).astimezone(zone)
        return CronLine.of(every).after(after, zone)
    except ConfigError:
        return None


class Served(StrEnum):
    """State of a schedule; all but the first two need attention."""

    ALIVE = "served"
    ENDED = "ended"
    FAILING = "failing"
    PAUSED = "paused"
    LOST = "server lost"
    BROKEN = "ended by error"
    OVERDUE = "overdue"
    DEAD = "dead"

    @property
    def is_well(self) -> bool:
        """Whether nobody needs to look."""
        return self in (Served.ALIVE, Served.ENDED)


def served(schedule: ServedSchedule, now: datetime) -> Served:
    """Return the worst known state of a schedule at the aware time `now`."""
    if schedule.ended:
        return Served.BROKEN if schedule.error else Served.ENDED
    if not schedule.deployment and heartbeat_age(schedule, now) > HEARTBEAT_TIMEOUT:
        return Served.DEAD
    if schedule.deployment and not schedule.run and is_overdue(schedule, now):
        return Served.OVERDUE
    known = {Served.LOST: schedule.lost, Served.PAUSED: schedule.paused, Served.FAILING: schedule.failures}
    return next((state for state, fact in known.items() if fact), Served.ALIVE)


def is_overdue(schedule: ServedSchedule, now: datetime) -> bool:
    """Return whether a deployment's run should have begun over an hour ago, by any anchor of intervals."""
    last = datetime.fromisoformat(schedule.beat or schedule.since)
    interval = interval_of(schedule.every)
    due = next_time(schedule.every, schedule.timezone, last) if interval is None else last + interval
    return due is not None and now > due + OVERDUE_AFTER


def heartbeat_age(schedule: ServedSchedule, now: datetime) -> float:
    """Return the seconds since the last heartbeat of a schedule's process."""
    return (now - datetime.fromisoformat(schedule.beat or schedule.since)).total_seconds()


Wait = Callable[[threading.Event, float], bool]
#: Applies a function to what is known of a served schedule, and writes the result.
Note = Callable[[Callable[[ServedSchedule], ServedSchedule]], None]


@contextmanager
def pulse(
    store: Store,
    every: str,
    timezone: str,
    *,
    clock: Callable[[], str] = now,
    wait: Wait = threading.Event.wait,
) -> Iterator[Note]:
    """Record in the store that the schedule is served, every half minute, and at the end that it is not.

    Yields a function that records more; a failed write is retried at the next beat.  `clock` gives the time
    as records write it, and `wait` waits for an event for at most some seconds and returns whether it is set.
    """
    known = replace(
        known_runs(store),
        every=every,
        timezone=timezone,
        process=f"{socket.gethostname()}:{os.getpid()}",
        deployment=False,
        run="",
        since="",
    ).beating(clock())
    note_schedule(store, known)
    ended, lock = threading.Event(), threading.Lock()

    def note(change: Callable[[ServedSchedule], ServedSchedule]) -> None:
        nonlocal known
        with lock:
            known = change(known)
            _note_beat(store, known)

    def beat() -> None:
        while not wait(ended, BEAT_SECONDS):
            note(lambda schedule: schedule.beating(clock()))

    thread = threading.Thread(target=beat, name="topline-pulse", daemon=True)
    thread.start()
    why = ""
    try:
        yield note
    except Exception as error:
        why = brief(error)
        raise
    finally:
        ended.set()
        thread.join()
        last = clock()
        note(lambda schedule: replace(schedule.beating(last), ended=last, error=why))


@contextmanager
def deployed_run(store: Store, every: str, timezone: str, deployment: str) -> Iterator[None]:
    """Record the outcome of a deployment's run, unless a process serves the schedule and does so.

    A run that was killed leaves no outcome: the next one counts it as a failure.
    """
    found = before = known_runs(store)
    alive = not before.deployment and before.beat and not before.ended
    if alive and heartbeat_age(before, datetime.now(UTC)) <= HEARTBEAT_TIMEOUT:
        yield
        return
    if before.deployment and before.run:
        before = before.after(now(), "a run was killed, or its machine is gone")
    under_way = replace(
        before, every=every, timezone=timezone, process=deployment, deployment=True, run=now()
    ).beating(now())
    _note_beat(store, under_way)
    after = replace(under_way, run="")
    try:
        yield
        after = under_way.after(now())
    except LeaseHeldError:
        # Another retraining, which may be alive, does the work and reports its outcome.
        after = found if found.run else replace(under_way, run="")
        raise
    except (Exception, KeyboardInterrupt) as error:
        if not is_stop(error):
            after = under_way.after(now(), brief(error))
        raise
    finally:
        _note_beat(store, after.beating(now()))


def known_runs(store: Store) -> ServedSchedule:
    """Return the outcomes of a store's runs, without who serves its schedule now."""
    try:
        found = read_schedule(store)
    except StorageError as error:
        logger.warning("what was known of the schedule is lost: %s", error)
        found = None
    if found is None:
        return ServedSchedule("", "UTC")
    if found.deployment:
        return found
    return replace(found, since="", ended="", error="", paused="", lost="")


def _note_beat(store: Store, schedule: ServedSchedule) -> None:
    try:
        note_schedule(store, schedule)
    except (StorageError, OSError) as error:
        logger.warning("the heartbeat could not be written: %s", error)
