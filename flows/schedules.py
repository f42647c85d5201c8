"""What a person writes after --every: a cron line, or a time such as 60s."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

from prefect.client.schemas.schedules import CronSchedule
from prefect.schedules import Cron, Interval, Schedule
from pydantic import ValidationError

from pipeline.errors import ConfigError

_TIME = re.compile(r"(\d+) ?(s|m|h|d)")
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
LEAST_SECONDS = 10

# Intervals count from here, so that a restart does not move them.
ANCHOR = datetime(2024, 1, 1, tzinfo=UTC)


def schedule_of(every: str, timezone: str = "UTC") -> Schedule:
    """Schedule of "0 2 * * *", "60s", "15m", "6h" or "1d"; `ConfigError` for anything else."""
    text = every.strip()
    match = _TIME.fullmatch(text)
    if match:
        seconds = int(match[1]) * _SECONDS[match[2]]
        if seconds < LEAST_SECONDS:
            raise ConfigError(f"--every {every} is too often: give {LEAST_SECONDS}s or more")
        return Interval(timedelta(seconds=seconds), anchor_date=ANCHOR)
    try:
        # `Cron` itself takes any text.
        CronSchedule(cron=text, timezone=timezone)
        return Cron(text, timezone=timezone)
    except (ValidationError, ValueError) as error:
        raise ConfigError(
            f'--every {every!r} with --timezone {timezone} is no schedule: write cron such as "0 2 * * *",'
            " or a time such as 60s, 15m or 6h"
        ) from error
