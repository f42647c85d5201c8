"""When a schedule falls due: cron lines and intervals, as people give them after --every."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

from cronsim import CronSim, CronSimError

_TIME = re.compile(r"(\d+) ?(s|m|h|d)")
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400}

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
