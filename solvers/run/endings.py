"""Why a run ends: after a round, and once its end was measured in float64."""

from __future__ import annotations

import math

from topline.solvers.core.state import IterationRecord
from topline.solvers.core.stopping import Status, StoppingCriteria, is_solved
from topline.solvers.methods import FinalValues


def ending(
    record: IterationRecord,
    criteria: StoppingCriteria,
    *,
    seconds: float,
    moved: bool,
    solved: bool,
    least: int = 1,
) -> Status | None:
    """Return why the run ends after this round, None to continue.

    `seconds` is the time since this call began, `moved` whether a step can still improve the dual, `solved`
    whether the iterate that was measured is good enough, and `least` how many passes a round takes at least.
    """
    bound = record.dual if record.stationarity is None else record.stationarity
    if not all(math.isfinite(value) for value in (record.primal, bound, record.step)):
        return Status.NONFINITE
    if solved:
        return Status.SOLVED
    if not moved:
        return Status.NO_PROGRESS
    if record.passes + least > criteria.max_passes:
        return Status.MAX_PASSES
    if criteria.time_limit is not None and seconds >= criteria.time_limit:
        return Status.TIME_LIMIT
    return None


def confirmed_status(status: Status, final: FinalValues, criteria: StoppingCriteria) -> Status | None:
    """Let the final values decide whether a run is solved; None where it claimed so and is not."""
    if status is Status.INTERRUPTED:
        return status
    if not final.finite:
        return Status.NONFINITE
    if is_solved(final.primal, final.dual, criteria, final.stationarity):
        return Status.SOLVED
    return None if status is Status.SOLVED else status
