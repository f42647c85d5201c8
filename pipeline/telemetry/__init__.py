"""What a run's history tells while it is written and afterwards: rounds, events, workers, time left.

`HistoryRecorder` writes what happens to a run; `view_run` and `RunFollower` read it back as a `RunView` of
bounded size, however long the run.  `Forecast` estimates when the gap reaches its tolerance, `next_time`
when a schedule falls due, and `served` whether its process still lives, by the sign of life of `pulse`.
"""

from __future__ import annotations

from topline.pipeline.telemetry.forecast import Forecast, TimeLeft, rough_time, time_text
from topline.pipeline.telemetry.recorder import HistoryRecorder
from topline.pipeline.telemetry.run_view import (
    EVENTS_SHOWN,
    RunEvent,
    RunFollower,
    RunView,
    WorkerTimeline,
    finite,
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
