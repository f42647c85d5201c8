"""Schedules: when one falls due, as people give it after --every, and the sign of life of who serves it."""

from __future__ import annotations

import logging
import os
import re
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from zoneinfo import ZoneInfo

from cronsim import CronSim, CronSimError

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

# Intervals count from here, so that a restart does not move them.
ANCHOR = datetime(2024, 1, 1, tzinfo=UTC)


def interval_of(every: str) -> timedelta | None:
    """Return the interval that "60s", "15m", "6h" or "1d" names, None where `every` is something else."""
    match = _TIME.fullmatch(every.strip())
    return None if match is None else timedelta(seconds=int(match[1]) * _SECONDS[match[2]])


def next_time(every: str, timezone: str, after: datetime) -> datetime | None:
    """Return when a schedule falls due next, strictly after a time with a zone; None where it never does.

    The answer is in the zone of the schedule.
    """
    zone = ZoneInfo(timezone)
    interval = interval_of(every)
    if interval is not None:
        return (ANCHOR + ((after - ANCHOR) // interval + 1) * interval).astimezone(zone)
    try:
        return next(CronSim(every.strip(), after.astimezone(zone)), None)
    except CronSimError:
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
