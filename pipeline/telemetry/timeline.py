"""Which workers of a run were busy when, in bounded memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

# Workers that are remembered; of more, those that were not heard of for the longest time are forgotten.
MOST_LANES = 256
# Stretches of time that are told apart for each.
MOST_STRETCHES = 512


@dataclass(frozen=True, eq=False)
class WorkerLane:
    """One worker of a run.

    Attributes
    ----------
    name : such as its address, or that of a thread.
    rows, memory_bytes : what it held when it was last heard of.
    here : whether the last record that names workers names it.
    seconds_busy : seconds in which it worked, over all of the run.
    at, busy : ends of stretches of time, seconds since 1970, and the seconds of each in which it worked.
    """

    name: str
    rows: int
    memory_bytes: int
    here: bool
    seconds_busy: float
    at: NDArray[np.float64]
    busy: NDArray[np.float64]


@dataclass
class _Lane:
    rows: int = 0
    memory_bytes: int = 0
    heard: int = 0
    at: list[float] = field(default_factory=list)
    busy: list[float] = field(default_factory=list)


class WorkerLanes:
    """Takes the activity of rounds and gives one lane a worker."""

    def __init__(self) -> None:
        self._lanes: dict[str, _Lane] = {}
        self._taken = 0

    def add(self, at: float, activity: Sequence[Mapping[str, Any]]) -> None:
        """Take what workers did up to the time `at`."""
        self._taken += 1
        for worker in activity:
            lane = self._lanes.setdefault(worker["name"], _Lane())
            lane.rows, lane.memory_bytes, lane.heard = worker["rows"], worker["memory_bytes"], self._taken
            lane.at.append(at)
            lane.busy.append(worker["seconds_busy"])
            if len(lane.at) > 2 * MOST_STRETCHES:
                lane.at = lane.at[1::2] if len(lane.at) % 2 == 0 else [*lane.at[1::2], lane.at[-1]]
                lane.busy = [sum(lane.busy[i : i + 2]) for i in range(0, len(lane.busy), 2)]
        while len(self._lanes) > MOST_LANES:
            del self._lanes[min(self._lanes, key=lambda name: self._lanes[name].heard)]

    def lanes(self) -> tuple[WorkerLane, ...]:
        """Give the workers in the order in which they came."""
        return tuple(
            WorkerLane(
                name,
                lane.rows,
                lane.memory_bytes,
                lane.heard == self._taken,
                sum(lane.busy),
                np.asarray(lane.at),
                np.asarray(lane.busy),
            )
            for name, lane in self._lanes.items()
        )
