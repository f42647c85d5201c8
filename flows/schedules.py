"""What a person writes after --every: a cron line, or a time such as 60s."""

from __future__ import annotations

from prefect.client.schemas.schedules import CronSchedule
from prefect.schedules import Cron, Interval, Schedule
from pydantic import ValidationError

from topline.pipeline.errors import ConfigError
from topline.pipeline.telemetry.schedule_times import ANCHOR, interval_of

LEAST_SECONDS = 10


def schedule_of(every: str, timezone: str = "UTC") -> Schedule:
    """Schedule of "0 2 * * *", "60s", "15m", "6h" or "1d"; `ConfigError` for anything else."""
    text = every.strip()
    interval = interval_of(text)
    if interval is not None:
        if interval.total_seconds() < LEAST_SECONDS:
            raise ConfigError(f"--every {every} is too often: give {LEAST_SECONDS}s or more")
        return Interval(interval, anchor_date=ANCHOR)
    try:
        # `Cron` itself takes any text.
        CronSchedule(cron=text, timezone=timezone)
        return Cron(text, timezone=timezone)
    except (ValidationError, ValueError) as error:
        raise ConfigError(
            f'--every {every!r} with --timezone {timezone} is no schedule: write cron such as "0 2 * * *",'
            " or a time such as 60s, 15m or 6h"
        ) from error
