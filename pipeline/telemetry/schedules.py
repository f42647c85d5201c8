"""Schedules: when one falls due, as people give it after --every, and the sign of life of who serves it."""

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

from topline.pipeline.errors import ConfigError
from topline.storage.errors import StorageError
from topline.storage.records import now
from topline.storage.served_schedule import ServedSchedule, note_schedule
from topline.storage.stores import Store

logger = logging.getLogger(__name__)

_TIME = re.compile(r"(\d+) ?(s|m|h|d)")
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400}

# Who serves a schedule gives a sign of life this often; three in a row are missing before it counts as dead.
BEAT_SECONDS = 30.0
HEARTBEAT_TIMEOUT = 100.0

#: Names that cron has for lines.
_NAMED_LINES = {
    "@hourly": "0 * * * *", "@daily": "0 0 * * *", "@midnight": "0 0 * * *", "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *", "@yearly": "0 0 1 1 *", "@annually": "0 0 1 1 *",
}  # fmt: skip
#: No change of clocks is longer.
_LONGEST_CHANGE = timedelta(hours=3)

# Intervals count from here, so that a restart does not move them.
ANCHOR = datetime(2024, 1, 1, tzinfo=UTC)


def interval_of(every: str) -> timedelta | None:
    """Return the interval that "60s", "15m", "6h" or "1d" names, None where `every` is something else."""
    match = _TIME.fullmatch(every.strip())
    return None if match is None else timedelta(seconds=int(match[1]) * _SECONDS[match[2]])


@dataclass(frozen=True)
class CronLine:
    """A line of cron: its fields, and `plain`, the same in numbers that every program reads alike.

    `day_or` says that a day may be in either of the fields for days, where both name some; else in both.
    """

    fields: str
    plain: str
    day_or: bool

    @classmethod
    def of(cls, every: str) -> CronLine:
        """Return what `every` means, by cron's own rules; `ConfigError` for a line that never falls due."""
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
        plain = [
            "*" if is_full else ",".join(map(str, sorted(some)))
            for some, is_full in zip(allowed, full, strict=True)
        ]
        return cls(text, " ".join(plain), not cron.day_and)

    def after(self, time: datetime, zone: ZoneInfo) -> datetime:
        """Return the first time after `time` that the line falls due, in `zone`.

        A time that clocks repeat falls due the first time, one that they skip beside the change: so Prefect
        counts, which starts the runs.
        """
        begun = time.astimezone(zone).replace(tzinfo=None) - _LONGEST_CHANGE
        due = ((wall, _as_prefect_reads(wall, zone)) for wall in CronSim(self.fields, begun))
        wall, first = next((wall, due) for wall, due in due if due > time)
        later = takewhile(lambda pair: pair[0] < wall + _LONGEST_CHANGE, due)
        return min([first, *(due for _, due in later if due > time)]).astimezone(zone)


def _as_prefect_reads(wall: datetime, zone: ZoneInfo) -> datetime:
    """Return the time of a wall clock; one that is skipped lies beside the change."""
    here = wall.replace(tzinfo=zone)
    # Its arithmetic goes back to before the change up to Python 3.12, and on behind it later.
    skipped = here.astimezone(UTC).astimezone(zone).replace(tzinfo=None) != wall
    return here.replace(fold=int(skipped and sys.version_info < (3, 13))).astimezone(UTC)


def zone_of(timezone: str) -> ZoneInfo:
    """Return the zone of a name such as Europe/Berlin; `ConfigError` where there is none."""
    try:
        return ZoneInfo(timezone)
    except (ValueError, OSError, KeyError) as error:
        raise ConfigError("there is no such time zone; one is Europe/Berlin") from error


def next_time(every: str, timezone: str, after: datetime) -> datetime | None:
    """Return when a schedule falls due next, strictly after a time with a zone; None where it never does.

    The answer is in the zone of the schedule.
    """
    interval = interval_of(every)
    try:
        zone = zone_of(timezone)
        if interval is not None:
            return (ANCHOR + ((after - ANCHOR) // interval + 1) * interval).astimezone(zone)
        return CronLine.of(every).after(after, zone)
    except ConfigError:
        return None


class Served(StrEnum):
    """Whether a schedule is served: by a living process, by none any more, or by one that fell silent."""

    ALIVE = "served"
    ENDED = "ended"
    DEAD = "dead"


def served(schedule: ServedSchedule, now: datetime) -> Served:
    """Return whether somebody serves the schedule at the time `now`, which has a zone."""
    if schedule.ended:
        return Served.ENDED
    return Served.ALIVE if heartbeat_age(schedule, now) <= HEARTBEAT_TIMEOUT else Served.DEAD


def heartbeat_age(schedule: ServedSchedule, now: datetime) -> float:
    """Return the seconds since the last sign of life of who serves a schedule."""
    return (now - datetime.fromisoformat(schedule.beat or schedule.since)).total_seconds()


Wait = Callable[[threading.Event, float], bool]


@contextmanager
def pulse(
    store: Store,
    every: str,
    timezone: str,
    *,
    clock: Callable[[], str] = now,
    wait: Wait = threading.Event.wait,
) -> Iterator[None]:
    """Say in the store that the schedule is served, every half a minute, and at the end that it is not.

    `clock` is the time as records write it; `wait` waits for an event for some seconds at most and says
    whether it is set.  A store that cannot be written now is tried again at the next beat.
    """
    process = f"{socket.gethostname()}:{os.getpid()}"
    schedule = ServedSchedule(every, timezone, process=process).beating(clock())
    note_schedule(store, schedule)
    ended = threading.Event()

    def beat() -> None:
        while not wait(ended, BEAT_SECONDS):
            _note_beat(store, schedule.beating(clock()))

    thread = threading.Thread(target=beat, name="topline-pulse", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
        last = clock()
        _note_beat(store, replace(schedule.beating(last), ended=last))


def _note_beat(store: Store, schedule: ServedSchedule) -> None:
    try:
        note_schedule(store, schedule)
    except (StorageError, OSError) as error:
        logger.warning("the heartbeat could not be written: %s", error)
