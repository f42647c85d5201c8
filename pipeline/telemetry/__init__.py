"""What a run's history says, during and after the run: rounds, events, workers, time left.

`HistoryRecorder` writes it; `view_run` and `RunFollower` read it as a `RunView` of bounded size.  Its
`RunTable` estimates when the gap reaches its tolerance, `next_time` when a schedule is due, and `served`
whether its process lives, by the heartbeat of `pulse`.
"""

from __future__ import annotations

from topline.pipeline.telemetry.run_view import (
    EVENTS_SHOWN,
    HistoryRecorder,
    RunEvent,
    RunFollower,
    RunTable,
    RunView,
    TimeLeft,
    WorkerTimeline,
    finite,
    rough_time,
    time_text,
    view_run,
)
from topline.pipeline.telemetry.schedules import (
    ANCHOR,
    BEAT_SECONDS,
    HEARTBEAT_TIMEOUT,
    CronLine,
    Note,
    Served,
    deployed_run,
    heartbeat_age,
    interval_of,
    next_time,
    pulse,
    served,
    zone_of,
)
